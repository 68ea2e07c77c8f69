"""Many small frames into few large ones.

A segment written one record at a time holds a frame a record. Merged at sealing it reads as fast
as one that was written in bulk; merged while reading, a live tail costs no Arrow call per record.
The commonest small frame (a record or a few, no columns but values) is cut with plain slices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from esker.errors import Corruption
from esker.format import columns as cols
from esker.format import frame
from esker.format.columns import Columns
from esker.format.frame import Header
from esker.options import SEGMENT_BYTES_MAX

_FEW: Final = 32


def decode(header: Header, body: Any, path: str, position: int) -> Columns:
    """The columns of one data frame whose body has passed its checksum."""
    try:
        buffer = pa.py_buffer(body)
        if header.codec == frame.ZSTD:
            if header.raw_size > 2 * SEGMENT_BYTES_MAX or frame.zstd_size(body) != header.raw_size:
                raise ValueError(f"a raw size of {header.raw_size} bytes")
            buffer = pa.decompress(buffer, header.raw_size, "zstd", asbytes=False)
        return cols.decode(buffer, header.columns, header.count, header.min_timestamp)
    except (ValueError, pa.ArrowException, OSError) as problem:
        raise Corruption(
            "a frame body cannot be decoded", path=path, position=position, reason=str(problem)
        ) from problem


def merge(frames: Iterable[tuple[int, Header, Any]], path: str) -> Columns:
    """One batch out of frames that follow each other: (position, header, body)."""
    chunks: list[Columns] = []
    values: list[bytes] = []
    stamps: list[int] = []

    def close_run() -> None:
        if not values:
            return
        same = stamps[0] == stamps[-1] and len(set(stamps)) == 1
        times = stamps[0] if same else cols.few_numbers(stamps)
        chunks.append(Columns(cols.few_values(values), times))
        values.clear()
        stamps.clear()

    for position, header, body in frames:
        count = header.count
        if header.columns or header.codec or not 0 < count <= _FEW or not _plausible(count, body):
            close_run()
            chunks.append(decode(header, body, path, position))
        elif count == 1:
            (size,) = _SECOND.unpack_from(body)
            values.append(bytes(body[8 : 8 + size]))
            stamps.append(header.min_timestamp)
        else:
            offsets = struct.unpack_from(f"<{count + 1}i", body)
            begin = ((count + 1) * 4 + 7) & -8
            data = bytes(body[begin : begin + offsets[count]])
            values.extend(data[a:b] for a, b in pairwise(offsets))
            stamps.extend([header.min_timestamp] * count)
    close_run()
    return cols.concat(chunks)


def _plausible(count: int, body: Any) -> bool:
    """Whether the body is as long as a count says; if not, `decode` tells what is wrong."""
    begin = ((count + 1) * 4 + 7) & -8
    if len(body) < begin:
        return False
    (last,) = _LAST.unpack_from(body, count * 4)
    return bool(last >= 0 and begin + frame.padded(last) == len(body))


_SECOND: Final = struct.Struct("<4xi")
_LAST: Final = struct.Struct("<i")
