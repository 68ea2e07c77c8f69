"""What is locked is not known to be vulnerable; what was not audited is told, and does not pass."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pip_audit._service import PyPIService
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from tools import audit
from tools.lock import Pin, read

ROOT = Path(__file__).resolve().parents[1]
TODAY = date(2030, 5, 1)
CLEAN = "packages audited, no vulnerabilities known of them"
LEAK = {
    "id": "PYSEC-2030-7", "aliases": ["CVE-2030-1234"], "summary": "reads past the end",
    "fixed_in": ["1.3"], "withdrawn": None, "published": "2030-01-01T00:00:00Z",
}  # fmt: skip


@pytest.mark.slow
def test_nothing_that_is_locked_is_known_to_be_vulnerable() -> None:
    """Asks the index itself: a network that is slow, or none, is told, and is no failure."""
    command = [sys.executable, "-m", "tools.audit", "--seconds", "25"]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("nothing was audited: the service still had not answered after 60 seconds")
    if ran.returncode == 3:
        pytest.skip(ran.stdout.strip().replace("\n", "; "))
    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- an index on this machine -----------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    """Answers with what the server's `pages` have for a path; 404 if they have nothing."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        page = self.server.pages.get(self.path)  # type: ignore[attr-defined]
        self._answer(200 if page is not None else 404, page)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        page = self.server.pages.get(asked["package"]["name"], {})  # type: ignore[attr-defined]
        self._answer(200, page)

    def _answer(self, status: int, page: Any) -> None:
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests print nothing."""


class Here(HTTPAdapter):
    """Sends what is meant for an index to a port of this machine."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        request.url = f"http://127.0.0.1:{self.port}{request.path_url}"
        return super().send(request, *args, **kwargs)


@contextmanager
def index(pages: dict[str, Any]) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.pages, server.asked = pages, []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(port: int, cache: Path, pins: list[Pin], seconds: float = 20) -> audit.Audit:
    """Audit these pins at the index on this port."""
    service = PyPIService(cache_dir=cache, timeout=1)
    service.session.mount("https://", Here(port))
    audit.go_on_with_the_latest(service.session)
    with service.session:
        return audit.audit(service, pins, seconds)


def pin(name: str, version: str = "1.2") -> Pin:
    return Pin(name, version, None, [])


def page(version: str, *known: dict[str, Any]) -> dict[str, Any]:
    return {"info": {"version": version}, "vulnerabilities": list(known)}


def audited(
    pages: dict[str, Any], pins: list[Pin], cache: Path, ignored: list[audit.Ignored] | None = None
) -> tuple[int, str]:
    with index(pages) as server:
        made = ask(server.server_port, cache, pins)
    code, lines = audit.told(made, ignored or [], TODAY)
    return code, "\n".join(lines)


def test_a_known_vulnerability_fails_and_says_what_mends_it(tmp_path: Path) -> None:
    pages = {"/pypi/a/1.2/json": page("1.2"), "/pypi/b/1.2/json": page("1.2", LEAK)}
    code, text = audited(pages, [pin("a"), pin("b")], tmp_path)
    assert code == 1
    assert "2 of 2 packages audited, 1 vulnerability known of them" in text
    assert "VULNERABLE: b 1.2: PYSEC-2030-7, CVE-2030-1234: reads past the end" in text
    assert "mended in 1.3" in text
    assert "make lock UPGRADE=NAME" in text


def test_all_is_well_when_everything_was_answered(tmp_path: Path) -> None:
    withdrawn = {**LEAK, "withdrawn": "2030-02-02T00:00:00Z"}
    pages = {"/pypi/a/1.2/json": page("1.2", withdrawn)}
    assert audited(pages, [pin("a")], tmp_path) == (
        0,
        f"1 of 1 {CLEAN}",
    )


def test_an_index_that_knows_the_latest_versions_only_answers_for_these(tmp_path: Path) -> None:
    pages = {"/pypi/a/json": page("1.2", LEAK), "/pypi/b/json": page("1.3", LEAK)}
    code, text = audited(pages, [pin("a"), pin("b")], tmp_path)
    assert code == 1
    assert "VULNERABLE: a 1.2" in text
    assert "NOT AUDITED, the service does not know this version: b 1.2" in text
    code, text = audited({}, [pin("a"), pin("b")], tmp_path)
    assert code == 3, "nothing was audited, and that is no success"
    assert text.startswith("0 of 2 packages audited\n")


@pytest.mark.parametrize(
    "page", [b"<html>who are you?</html>", b"[]", [], {"vulnerabilities": [1]}]
)
def test_an_answer_that_makes_no_sense_is_none(tmp_path: Path, page: Any) -> None:
    code, text = audited({"/pypi/a/1.2/json": page}, [pin("a")], tmp_path)
    assert code == 3
    assert "0 of 1 packages audited" in text


def test_a_service_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        began = time.monotonic()
        made = ask(closed.getsockname()[1], tmp_path, read())
    assert time.monotonic() - began < 10
    code, lines = audit.told(made, [], TODAY)
    assert code == 3
    assert not made.answered
    assert sum(map(len, made.unanswered.values())) == len(read())
    assert any("not asked, because the service failed" in line for line in lines)


def test_a_service_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        began = time.monotonic()
        made = ask(silent.getsockname()[1], tmp_path, read())
    assert time.monotonic() - began < 15
    assert audit.told(made, [], TODAY)[0] == 3


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    with index({}) as server:
        made = ask(server.server_port, tmp_path, [pin("a")], seconds=-1)
        assert server.asked == []  # type: ignore[attr-defined]
    code, lines = audit.told(made, [], TODAY)
    assert code == 3
    assert "seconds were over: a 1.2" in lines[1]


# --- what is ignored --------------------------------------------------------------------------

REASON = "only its XML parser, never called"


@pytest.mark.parametrize("id", ["PYSEC-2030-7", "CVE-2030-1234"])
def test_what_was_looked_at_is_ignored_until_its_day(tmp_path: Path, id: str) -> None:
    pages = {"/pypi/a/1.2/json": page("1.2", LEAK)}
    entry = audit.Ignored(id, "a", TODAY + timedelta(days=1), REASON)
    code, text = audited(pages, [pin("a")], tmp_path, [entry])
    assert code == 0
    assert f"ignored until 2030-05-02, {REASON}: a 1.2" in text
    code, text = audited(pages, [pin("a")], tmp_path, [entry._replace(until=TODAY)])
    assert code == 1
    assert "it was ignored until 2030-05-01, look at it again" in text
    assert audited(pages, [pin("a")], tmp_path, [entry._replace(package="b")])[0] == 1
    assert audited(pages, [pin("a")], tmp_path, [entry._replace(id="CVE-2030-9")])[0] == 1


def test_an_entry_that_is_not_needed_any_more_is_told(tmp_path: Path) -> None:
    entry = audit.Ignored("CVE-2030-1234", "a", TODAY + timedelta(days=1), REASON)
    code, text = audited({"/pypi/a/1.2/json": page("1.2")}, [pin("a")], tmp_path, [entry])
    assert code == 0
    assert "CVE-2030-1234 of a need not be ignored any more" in text


ENTRY = {"id": '"X-1"', "package": '"a"', "until": "2030-06-01", "reason": f'"{REASON}"'}


def table(**changed: str | None) -> str:
    fields = {**ENTRY, **changed}
    return "[[ignored]]\n" + "\n".join(f"{key} = {v}" for key, v in fields.items() if v)


def test_the_list_of_what_is_ignored_is_kept_short_and_reasoned() -> None:
    assert audit.ignored(table(), TODAY) == [audit.Ignored("X-1", "a", date(2030, 6, 1), REASON)]
    audit.ignored(audit.IGNORED.read_text(encoding="utf-8"), date.today())  # noqa: DTZ011
    for wrong, complaint in (
        (table(until=None), "needs these and no others"),
        (table(reason=None), "needs these and no others"),
        (table(severity='"low"'), "needs these and no others"),
        (table(until='"2030-06-01"'), "is a day"),
        (table(until="2030-06-01T00:00:00Z"), "is a day"),
        (table(until="2031-01-01"), "at most 180 days"),
        (table(reason='"not important"'), "does not concern us"),
    ):
        with pytest.raises(audit.Refused, match=complaint):
            audit.ignored(wrong, TODAY)


# --- the command ------------------------------------------------------------------------------


def run(port: int) -> subprocess.CompletedProcess[str]:
    osv = ("--service", "osv", "--osv-url", f"http://127.0.0.1:{port}/")
    command = [sys.executable, "-m", "tools.audit", *osv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_command_audits_every_pin_of_the_lock() -> None:
    every = len(read())
    leak = {"id": "PYSEC-2030-7", "summary": "reads past the end", "affected": []}
    with index({}) as server:
        clean = run(server.server_port)
        server.pages["pyarrow"] = {"vulns": [leak]}  # type: ignore[attr-defined]
        found = run(server.server_port)
    assert (clean.returncode, clean.stderr) == (0, "")
    assert f"audit: {every} of {every} {CLEAN}" in clean.stdout
    assert found.returncode == 1
    assert "VULNERABLE: pyarrow" in found.stdout
