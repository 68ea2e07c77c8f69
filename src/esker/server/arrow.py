"""Arrow from strangers.

An Arrow stream is made to be believed: it is mapped, not parsed. Three things are looked at before
one that came over the wire is.

    compression    a stream may have its buffers compressed, a thousand times smaller than they are.
                   No request is decompressed here, so such a stream is refused unread. pyarrow has
                   no option for that; the mark stands in the header of each message, a flatbuffer,
                   of which the few fields on the way to it are read here.
    repetition     columns of a dictionary, of views and of runs say much with few bytes. What they
                   say when it is written out counts.
    offsets        may point anywhere: every array is validated in full before it is used.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.server.faults import Fault

RECORDS_MAX: Final = 1 << 20  # of a stream
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3


def arrow_in(data: bytes, limit: int) -> Any:
    """An Arrow stream as a table; at most so many bytes when it is written out."""
    try:
        buffer = pa.py_buffer(data)
        for message in pa.ipc.MessageReader.open_stream(buffer):
            if _compressed(message.metadata.to_pybytes()):
                raise Fault("unsupported_media_type", "send Arrow as it is, not compressed")
        with pa.ipc.open_stream(buffer) as reader:
            table = reader.read_all()
        if len(table) > RECORDS_MAX:
            raise Fault("batch_too_large", f"{len(table)} records in one call; at most a million")
        table.validate(full=True)
        size = sum(_written_out(chunk) for column in table.columns for chunk in column.chunks)
    except (pa.ArrowException, OSError, struct.error, IndexError, ValueError) as problem:
        raise Fault("invalid_request", f"the body is not an Arrow stream: {problem}") from None
    if size > limit:
        raise Fault("payload_too_large", f"{size} bytes when written out; at most {limit}")
    return table


def _written_out(array: Any) -> int:
    """How large an array of text or bytes is without its shortcuts."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        words = array.dictionary
        if not _plain(words.type):
            raise Fault("invalid_request", f"columns of {kind} are not taken")
        return pc.sum(pc.binary_length(words).take(array.indices)).as_py() or 0
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        lengths = pa.Array.from_buffers(
            pa.int32(), len(array) * 4, [None, array.buffers()[1]], offset=array.offset * 4
        )
        return pc.sum(lengths.take(pa.arange(0, len(lengths), 4))).as_py() or 0
    if pa.types.is_run_end_encoded(kind):
        raise Fault("invalid_request", f"columns of {kind} are not taken")
    return array.nbytes  # type: ignore[no-any-return]


def _plain(kind: Any) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _compressed(message: bytes) -> bool:
    """Whether the header of a message says that its buffers are."""
    (root,) = struct.unpack_from("<I", message)
    at = place_of(message, root, 1)
    kind = message[at] if at else 0
    header = table_of(message, root, 2)
    if kind == _DICTIONARY:
        kind, header = _RECORDS, table_of(message, header, 1)
    return kind == _RECORDS and place_of(message, header, 3) != 0


def place_of(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0 if it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, table - back + slot)
    return table + offset if offset else 0


def table_of(data: bytes, table: int, number: int) -> int:
    """Where the table that a field refers to stands."""
    at = place_of(data, table, number)
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)
