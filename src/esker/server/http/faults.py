"""What went wrong, as a status and as JSON: {"error": {"code", "message", "detail", "request"}}.

The code of an error is that of the library's exception, so that a client can raise the same one.
What only a server can say (no such key, no such path) has codes of its own. A fault that nobody
foresaw is `internal`: it is logged here with all there is to know, and tells the client nothing
but the number of the request.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from esker.errors import EskerError
from esker.server.access.keys import redacted

STATUS: Final[dict[str, int]] = {
    "invalid_option": 400, "invalid_filter": 400, "invalid_position": 400, "invalid_name": 400,
    "invalid_record": 400, "record_too_large": 400, "batch_too_large": 400, "invalid_request": 400,
    "unauthorized": 401, "forbidden": 403, "read_only": 403, "stale_producer": 403,
    "not_found": 404, "topic_not_found": 404, "group_not_found": 404, "route_not_found": 404,
    "method_not_allowed": 405, "not_acceptable": 406, "request_timeout": 408,
    "topic_exists": 409, "topic_not_empty": 409,
    "not_a_queue": 409, "stale_lease": 409, "fenced": 409, "member_busy": 409,
    "route_refused": 409, "key_reused": 409, "sequence_gap": 409, "sequence_expired": 409,
    "not_a_stream": 409, "stream_conflict": 409, "stream_closed": 409, "writer_busy": 409,
    "groups_full": 409, "producers_full": 409,
    "gap": 410, "payload_too_large": 413, "unsupported_media_type": 415,
    "offset_out_of_range": 416, "misdirected": 421, "topic_full": 422,
    "throttled": 429, "would_block": 429, "headers_too_large": 431,
    "internal": 500, "corruption": 500, "data_loss": 500,
    "not_ready": 503, "shutting_down": 503, "too_many_connections": 503, "timeout": 503,
    "poisoned": 503, "storage": 503, "attach_pending": 503, "store_closed": 503,
    "cold_unavailable": 503, "too_many_files": 503,
    "read_only_disk": 503, "permission_refused": 503, "unsafe_path": 503, "disk_full": 507,
}  # fmt: skip
DAMAGE: Final = ("corruption", "data_loss")  # on the disk; told to the audit log, too
INTERNAL: Final = "the server failed; its log has this request's number"
# What an error of these says names files, or topics of others: the log has it, a client has not.
PRIVATE: Final = {
    "corruption": "data on the server's disk is damaged; its log says where",
    "data_loss": "data on the server's disk is damaged; its log says where",
    "storage": "the server's disk refused; its log says what",
    "poisoned": "a sync failed on the server's disk; its log says which",
    "store_closed": "the server is about to stop",
    "read_only": "the server opened its store to read it, and changes nothing",
    "cold_unavailable": "the server's cold store does not answer",
    "too_many_files": "the server has too many files open",
    "read_only_disk": "the server's disk is read-only",
    "permission_refused": "the server may not use its own files",
    "unsafe_path": "the server's files are not as they should be",
    "disk_full": "the server's disk is full; nothing of this call was kept",
}


class Fault(Exception):
    """An answer that is an error."""

    def __init__(
        self, code: str, message: str, *, detail: dict[str, Any] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail
        self.headers = headers

    @property
    def status(self) -> int:
        return STATUS.get(self.code, 500)


def throttled(limit: str, most: float, seconds: int, message: str, **more: Any) -> Fault:
    """There is no room: which limit it is, and after how many seconds there may be."""
    detail = {"limit": limit, "max": most, **more}
    return Fault("throttled", message, detail=detail, headers=(("retry-after", str(seconds)),))


class Told(msgspec.Struct, omit_defaults=True):
    """What is said of an error."""

    code: str
    message: str
    request: str = ""
    detail: dict[str, Any] | None = None


class Body(msgspec.Struct):
    """An answer that is an error, as JSON."""

    error: Told


def fault_of(problem: EskerError) -> Fault:
    """An exception of the library as an answer."""
    code = problem.code
    if code not in STATUS:
        return Fault("internal", INTERNAL)
    message = PRIVATE.get(code) or str(problem.args[0] if problem.args else problem)
    if code == "topic_not_found":
        message = _absent(message)
    headers: tuple[tuple[str, str], ...] = ()
    if STATUS[code] in (429, 503):
        headers = (("retry-after", "1"),)
    return Fault(code, message, detail=_detail(problem), headers=headers)


_NAMED: Final = re.compile(r"topic '([^']{1,255})'")


def _absent(message: str) -> str:
    """Which topic is not there: of many the one that was asked for; not what others are called."""
    named = _NAMED.search(message)
    return f"there is no topic {redacted(named[1])!r}" if named else "there is no such topic"


def _detail(problem: EskerError) -> dict[str, Any] | None:
    """What an exception carries besides its words, where a client needs it to raise the same."""
    gap = getattr(problem, "gap", None)
    if gap is not None:
        return {"gap": msgspec.to_builtins(gap)}
    expected = getattr(problem, "expected", None)
    if isinstance(expected, int):
        return {"expected": expected}
    circle = getattr(problem, "circle", None)
    if circle:
        return {"circle": circle}
    pid = getattr(problem, "pid", None)
    if isinstance(pid, int) and pid:
        return {"pid": pid}
    return None


def encode(fault: Fault, request: str) -> bytes:
    """The body of an answer that is an error."""
    return msgspec.json.encode(Body(Told(fault.code, fault.message, request, fault.detail)))
