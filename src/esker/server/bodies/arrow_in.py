"""Arrow from strangers.

An Arrow stream is made to be believed: it is mapped, not parsed. Four things are looked at before
one that came over the wire is, whether it is appended, published or staged.

    compression    a stream may have its buffers compressed, a thousand times smaller than they are.
                   No request is decompressed here, so such a stream is refused unread. pyarrow has
                   no option for that; the mark stands in the header of each message, a flatbuffer,
                   of which the few fields on the way to it are read here.
    repetition     columns of a dictionary, of views and of nothing say much with few bytes, also
                   within headers. What they say when it is written out counts.
    columns        may all lie in the same bytes, and each is validated: there are so many at most.
    offsets        may point anywhere: every array is validated in full before it is used.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.server.http.faults import Fault

RECORDS_MAX: Final = 1 << 20  # of a stream
LEAVES_MAX: Final = 32  # columns, and columns within columns
SCHEMA, DICTIONARY, RECORDS = 1, 2, 3  # kinds of messages
_OFFSET_BYTES: Final = 4  # of each cell, where it ends


def arrow_in(data: bytes, limit: int) -> Any:
    """An Arrow stream as a table; at most so many bytes when it is written out."""
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
            head_of(message.metadata.to_pybytes())
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise wrong(str(problem)) from None
    table, size = table_in(data, RECORDS_MAX)
    if size > limit:
        raise Fault("payload_too_large", f"{size} bytes when written out; at most {limit}")
    return table


def table_in(data: bytes, most: int | None = None) -> tuple[Any, int]:
    """A stream whose heads were looked at as a table, and its bytes when it is written out."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            if sum(_leaves(field.type) for field in reader.schema) > LEAVES_MAX:
                raise Fault("invalid_request", f"more than {LEAVES_MAX} columns")
            table = reader.read_all()
        if most is not None and len(table) > most:
            raise Fault("batch_too_large", f"{len(table)} records in one call; at most a million")
        table.validate(full=True)
        size = sum(_written_out(chunk) for column in table.columns for chunk in column.chunks)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise wrong(str(problem)) from None
    return table, size


def _leaves(kind: Any) -> int:
    return sum(_leaves(kind.field(n).type) for n in range(kind.num_fields)) or 1


def _written_out(array: Any) -> int:
    """How large an array is without its shortcuts: a few bytes can stand for very many."""
    kind, types = array.type, pa.types
    if _is_text(kind) or types.is_primitive(kind):
        return int(array.nbytes)
    if types.is_dictionary(kind) and _is_text(kind.value_type):
        words = pc.binary_length(array.dictionary)
        return pc.sum(words.take(array.indices)).as_py() or 0
    if types.is_string_view(kind) or types.is_binary_view(kind):
        lengths = pa.Array.from_buffers(
            pa.int32(), len(array) * 4, [None, array.buffers()[1]], offset=array.offset * 4
        )
        return pc.sum(lengths.take(pa.arange(0, len(lengths), 4))).as_py() or 0
    if types.is_null(kind) or types.is_fixed_size_binary(kind):
        return int(array.nbytes) + _OFFSET_BYTES * len(array)
    if types.is_list(kind) or types.is_large_list(kind):
        return _OFFSET_BYTES * len(array) + _written_out(array.flatten())
    if types.is_map(kind):
        inside = _written_out(array.keys) + _written_out(array.items)
        return _OFFSET_BYTES * len(array) + inside
    if types.is_struct(kind):
        return sum(map(_written_out, array.flatten()))
    raise Fault("invalid_request", f"columns of {kind} are not taken")


def _is_text(kind: Any) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def head_of(head: bytes) -> tuple[int, int]:
    """The kind of a message and the length of its body; one that is compressed is refused."""
    try:
        (root,) = struct.unpack_from("<I", head)
        at = place_of(head, root, 1)
        kind = head[at] if at else 0
        if kind in (DICTIONARY, RECORDS) and _is_compressed(head, root, kind):
            raise Fault("unsupported_media_type", "send Arrow as it is, not compressed")
        at = place_of(head, root, 3)
        (body,) = struct.unpack_from("<q", head, at) if at else (0,)
    except (struct.error, IndexError):
        raise wrong("a message whose head cannot be read") from None
    if kind not in (SCHEMA, DICTIONARY, RECORDS) or body < 0:
        raise wrong("a message of another kind")
    return kind, body


def _is_compressed(head: bytes, at: int, kind: int) -> bool:
    """Whether its record batch says so, which of a dictionary lies within; one of none does not."""
    for number in (2, 1) if kind == DICTIONARY else (2,):
        if not place_of(head, at, number):
            return False
        at = table_of(head, at, number)
    return place_of(head, at, 3) != 0


def place_of(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0 if it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    if table < back:
        raise IndexError
    (size,) = struct.unpack_from("<H", data, table - back)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, table - back + slot)
    return table + offset if offset else 0


def table_of(data: bytes, table: int, number: int) -> int:
    """Where the table that a field refers to stands."""
    at = place_of(data, table, number)
    if not at:
        raise IndexError
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)


def wrong(what: str) -> Fault:
    return Fault("invalid_request", f"the body is not an Arrow stream: {what}")
