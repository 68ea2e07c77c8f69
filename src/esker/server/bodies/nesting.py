"""How deeply JSON is nested, found without going down into it.

What decodes JSON calls itself for every level, and so do many who read it later. So a body is
measured before anything looks at it: everything is taken out of it but its brackets, all at once,
and then the innermost pairs, again and again. The number of times is the depth. Strings may hold
brackets, too; those do not count.
"""

from __future__ import annotations

import re
from typing import Final

from esker.server.http.faults import Fault

_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_STRING: Final = re.compile(rb'"[^"]*"')


def check_depth(data: bytes, limit: int) -> None:
    """Refuse JSON, or lines of it, that is nested more deeply than that."""
    if data.count(b"[") + data.count(b"{") > limit and _deeper(data, limit):
        raise Fault("invalid_request", f"the body is nested too deeply: at most {limit} levels")


def _deeper(data: bytes, limit: int) -> bool:
    """Whether it is, or whether it has too many brackets that are never closed."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = data.translate(_ALIKE, _OTHERS).replace(b'""', b"")
    if b'"' in left:
        left = _STRING.sub(b"", left)
    for _ in range(limit):
        if not left:
            return False
        left = left.replace(b"[]", b"")
    return left.count(b"[") > limit or b"[]" in left
