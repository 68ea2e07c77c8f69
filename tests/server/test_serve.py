"""`esker serve` and `esker key` as processes: settings, signals, keys that come and go, secrets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import esker
from esker.cli.main import main
from esker.errors import InvalidOption
from esker.options import StoreOptions
from esker.server.run import serving
from esker.server.settings import Settings, file_settings, settle, strays
from esker.server.table import ROUTES
from tests.helpers import PATIENCE
from tests.server.asgi import Request


class Process:
    """A server of its own, and what it says."""

    def __init__(self, folder: Path, *arguments: object, **environment: str) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "esker", "serve", "data", "--port", "0",
                 *map(str, arguments)],
                cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, **environment},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.url = self.said.strip().rpartition(" ")[2]

    def call(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers)
            got = connection.getresponse()
            return got.status, dict(got.getheaders()), got.read()
        finally:
            connection.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def process(folder: Path, *arguments: object, **environment: str) -> Iterator[Process]:
    made = Process(folder, *arguments, **environment)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        assert made.process.stdout is not None
        made.process.stdout.close()


def key(folder: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "esker", "key", *arguments, "--json", "--keys", "keys"],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_a_server_says_where_it_is_and_stops_when_told(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with process(tmp_path) as server:
            assert server.said == f"esker: data at {server.url}\n"
            status, _, _ = server.call(
                "POST", "/v1/topics/t/records", b"x", **{"Content-Type": "application/octet-stream"}
            )
            assert status == 200
            began = time.monotonic()
            server.signal(number)
            assert server.end() == 0
            assert time.monotonic() - began < 5
            assert server.errors.read_text() == ""


def test_a_second_signal_waits_for_nobody(tmp_path: Path) -> None:
    with process(tmp_path, "--grace", "60") as server:
        append = {"Content-Type": "application/octet-stream"}
        for _ in range(8):
            server.call("POST", "/v1/topics/t/records", b"x" * 900_000, **append)
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname, where.port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.sendall(
                b"GET /v1/topics/t/records?max_bytes=8000000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            assert slow.recv(12)
            server.signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(1)
            began = time.monotonic()
            server.signal(signal.SIGINT)
            assert server.end() == 0
            assert time.monotonic() - began < 10
        assert "told again to stop" in server.errors.read_text()
    with esker.open(tmp_path / "data", mode="r") as store:
        assert len(store["t"]) == 8, "what was acknowledged is there all the same"


def test_connections_of_strangers_leave_room_for_the_files_of_the_store(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))  # what the server begins with
    try:
        server = Process(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    where = urlsplit(server.url)
    crowd = []
    try:
        crowd = [socket.create_connection((where.hostname, where.port)) for _ in range(150)]
        status, _, body = server.call(
            "POST", "/v1/topics/t/records", b"x", **{"Content-Type": "application/octet-stream"}
        )
        assert status == 200, body
        assert server.errors.read_text() == ""
    finally:
        for each in crowd:
            each.close()
        server.process.kill()
        server.process.communicate()


def test_who_waits_is_answered_before_the_server_ends(tmp_path: Path) -> None:
    with process(tmp_path, "--grace", "5s") as server:
        server.call("PUT", "/v1/topics/t", b"{}", **{"Content-Type": "application/json"})
        got: list[Any] = []
        path = "/v1/topics/t/records?wait=25"
        waiting = threading.Thread(target=lambda: got.append(server.call("GET", path)))
        waiting.start()
        time.sleep(0.3)
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        waiting.join()
        assert got[0][0] == 200


def test_keys_that_come_and_go_take_effect_while_it_runs(tmp_path: Path) -> None:
    first = key(tmp_path, "new", "--scopes", "all", "--name", "first")
    with process(tmp_path, "--keys", "keys", "--audit", "audit.log") as server:
        assert server.call("GET", "/v1/topics")[0] == 401
        assert server.call("GET", "/v1/topics", **bearer(first["key"]))[0] == 200
        second = key(tmp_path, "new", "--scopes", "read", "--prefix", "t4", "--expires", "1h")
        server.signal(signal.SIGHUP)
        _soon(lambda: server.call("GET", "/v1/topics", **bearer(second["key"]))[0] == 200)
        got: list[Any] = []

        def wait() -> None:
            path = "/v1/topics/t/records?wait=25"
            got.append((server.call("GET", path, **bearer(first["key"])), time.monotonic()))

        put = {"Content-Type": "application/json", **bearer(first["key"])}
        assert server.call("PUT", "/v1/topics/t", b"{}", **put)[0] == 201
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        assert key(tmp_path, "revoke", first["id"])["state"] == "revoked"
        revoked = time.monotonic()
        waiting.join(PATIENCE)
        assert got[0][0][0] == 401
        assert got[0][1] - revoked < 2
        assert server.call("GET", "/v1/topics", **bearer(first["key"]))[0] == 401
        server.signal(signal.SIGTERM)
        assert server.end() == 0
    told = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    events = [each["event"] for each in told]
    assert events[0] == "unauthorized"
    assert {"key_added", "key_revoked", "topics.create", "unauthorized"} == set(events)
    (made,) = [each for each in told if each["event"] == "topics.create"]
    assert (made["key"], made["topic"], made["client"]) == (first["id"], "t", "127.0.0.1")
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


def _soon(fact: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_keys_are_listed_and_forgotten_and_never_shown_again(tmp_path: Path) -> None:
    made = key(tmp_path, "new", "--scopes", "write,read", "--prefix", "a", "--prefix", "b:")
    (listed,) = key(tmp_path, "ls")["keys"]
    assert listed == {name: made[name] for name in made if name != "key"}
    assert (listed["scopes"], listed["prefixes"]) == (["read", "write"], ["a", "b:"])
    assert key(tmp_path, "forget", made["id"])["id"] == made["id"]
    assert key(tmp_path, "ls")["keys"] == []


def test_keys_on_the_command_line_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["key", "new", "--name", "for me"]) == 0
    said = capsys.readouterr()
    text = said.out.strip()
    assert text.startswith("esk_")
    assert text not in said.err
    assert "only time" in said.err
    assert main(["key", "ls", "-o", "table"]) == 0
    line = capsys.readouterr().out
    assert text[4:16] in line
    assert "good" in line
    assert "for me" in line
    assert main(["key", "revoke", text]) == 1
    told = capsys.readouterr().err
    assert "give the id" in told
    assert text[17:] not in told
    assert main(["key", "revoke", text[4:16]]) == 0
    assert "revoked" in capsys.readouterr().out
    assert main(["key", "new", "--scopes", "fly"]) == 1
    assert "no scope 'fly'" in capsys.readouterr().err
    assert main(["key"]) == 2


# ---- settings ----------------------------------------------------------------------------------


def test_a_flag_is_stronger_than_the_environment_and_that_than_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("esker.toml").write_text('port = 1\ngrace = "2s"\nbody_bytes = "1MiB"\nhosts = ["a.b"]\n')
    monkeypatch.setenv("ESKER_GRACE", "3s")
    monkeypatch.setenv("ESKER_STREAMS", "5")
    monkeypatch.setenv("ESKER_ACCESS_LOG", "true")
    assert main(["serve", "--streams", "6", "--insecure", "--show-settings"]) == 0
    shown = {}
    for line in capsys.readouterr().out.splitlines():
        name, rest = line.split(maxsplit=1)
        shown[name] = rest
    assert shown["port"] == "1  (esker.toml)"
    assert shown["grace"] == "3.0  (ESKER_GRACE)"
    assert shown["streams"] == "6  (--streams)"
    assert shown["insecure"] == "True  (--insecure)"
    assert shown["access_log"] == "True  (ESKER_ACCESS_LOG)"
    assert shown["body_bytes"] == "1048576  (esker.toml)"
    assert shown["hosts"] == "('a.b',)  (esker.toml)"
    assert shown["host"] == "'127.0.0.1'  (default)"
    assert shown.keys() == set(Settings.__struct_fields__)


def test_options_of_the_store_are_settings_as_any_other(tmp_path: Path) -> None:
    file = {"budget_bytes": "1GiB", "linger": "5ms", "cold": str(tmp_path / "file")}
    environment = {"ESKER_COLD": str(tmp_path / "cold"), "ESKER_SYNC_INTERVAL": "50ms"}
    flags = {"budget_bytes": "2MiB", "handover": True}
    settings, given = settle(flags, environment, file, "esker.toml")
    assert given["budget_bytes"].source == "--budget-bytes"
    assert given["cold"].source == "ESKER_COLD"
    assert given["linger"].source == "esker.toml"
    with serving(tmp_path / "data", msgspec.structs.replace(settings, port=0)) as server:
        options = server.app.store._store._context.options
    assert (options.budget_bytes, options.linger_us, options.sync_interval_us) == (
        2 << 20, 5_000, 50_000,
    )  # fmt: skip
    assert (options.cold, options.handover) == (str(tmp_path / "cold"), True)
    defaults = StoreOptions()
    for name, value in Settings().of_store().items():  # what is not set is as the library has it
        assert getattr(defaults, name) == value, name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot = 1", "no setting 'prot'.*port"), ('port = "x"', "port"), ("= 1", "not TOML"),
        ('grace = "soon"', "grace"), ("log = 'xml'", "log='xml': there is: json, text"),
        ("[store]\na = 1", "no setting"),
        ("streams = -5", "streams=-5: Expected `int` >= 1"), ("connections = 0", ">= 1"),
        ('body_bytes = "0"', "body_bytes='0'.*>= 1"),
        ("heartbeat_seconds = 0", "> 0"), ("key_rate = -1", ">= 0"),
    ],
)  # fmt: skip
def test_a_file_of_settings_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "esker.toml"
    path.write_text(text)
    with pytest.raises(InvalidOption, match=problem):
        settle({}, {}, file_settings(str(path)), str(path))


def test_a_variable_that_is_misspelt_is_told_and_one_for_others_is_not() -> None:
    ours = ["PORT", "KEYS", "CONFIG", "DATA", "KEY", "PROFILE", "URL"]
    given = {f"ESKER_{name}": "" for name in [*ours, "KEY_CALLZ", "SCALE"]}
    assert strays({**given, "PORTS": ""}) == [
        "ESKER_KEY_CALLZ is no setting; ESKER_KEY_CALLS is one"
    ]


def test_a_file_of_settings_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("port = 7")
    (tmp_path / "esker.toml").symlink_to(tmp_path / "real.toml")
    assert file_settings(str(tmp_path / "esker.toml")) == {"port": 7}


@pytest.mark.parametrize(
    "arguments", [["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--insecure"], ["--keys", "none"]]
)
def test_a_server_that_would_not_be_safe_does_not_start(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "data", "--port", "0", *arguments]) == 1
    told = capsys.readouterr().err
    assert "others can reach 0.0.0.0" in told or "none" in told
    assert not (tmp_path / "data").exists()


def test_a_store_on_a_server_cannot_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--url", "http://127.0.0.1:9"]) == 1
    assert "not_remote" in capsys.readouterr().err


# ---- secrets -----------------------------------------------------------------------------------


def test_no_secret_is_anywhere_but_where_it_belongs(tmp_path: Path) -> None:
    """Every route with a good key, a wrong one and one in the wrong place; then all is searched."""
    canary = key(tmp_path, "new", "--scopes", "all")["key"]
    secret = canary[17:]
    wrong = canary[:-1] + ("0" if canary[-1] != "0" else "1")
    misplaced: list[dict[str, str]] = [
        {"Authorization": f"Basic {canary}"}, {"Authorization": canary}, {"X-Api-Key": canary},
        {"Cookie": f"key={canary}"}, {"Origin": f"http://{secret}.example"},
        {"Host": f"{canary}.example"}, {"Content-Type": canary, **bearer(canary)},
        {"Accept": canary, **bearer(canary)}, bearer(wrong), bearer(canary),
    ]  # fmt: skip
    answers = []
    arguments = ["--keys", "keys", "--audit", "audit.log", "--access-log", "--log-level", "debug",
                 "--log", "json"]  # fmt: skip
    with process(tmp_path, *arguments) as server:
        for route in ROUTES:
            request = Request(route, "home")
            body = request.body
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            media = {"Content-Type": "application/json"} if data is not None else {}
            for headers in misplaced:
                if route.streams and headers.get("Authorization") == f"Bearer {canary}":
                    continue  # it would not end
                given = {**media, **request.headers, **headers}
                answers.append(server.call(route.method, request.path, data, **given))
            for name in ("key", "ticket", "access_token"):
                path = f"{request.path}?{name}={canary}"
                answers.append(server.call(route.method, path, data, **media))
                answers.append(server.call(route.method, path, data, **media, **bearer(canary)))
        for path in (f"/{canary}", f"/v1/{canary}/x", f"/v1/topics/{canary}/records/x"):
            answers.append(server.call("GET", path))
            answers.append(server.call("GET", path, **bearer(canary)))
        asked = server.call("POST", "/v1/tickets", b'{"topics": ["home"]}', **bearer(canary),
                            **{"Content-Type": "application/json"})  # fmt: skip
        ticket = json.loads(asked[2])["ticket"]
        answers += [
            server.call("GET", f"/v1/watch?topics=home&{query}")
            for query in (f"ticket={ticket}x", f"ticket={ticket}&ticket={ticket}", f"x={ticket}")
        ]
        answers.append(server.call("GET", f"/v1/watch?topics=foreign&ticket={ticket}"))
        answers.append(server.call("GET", f"/v1/watch?topics=home&ticket={ticket}"))
        assert [status for status, _, _ in answers[-2:]] == [403, 401], "it was used"
        answers.append(server.call("GET", f"/v1/topics/{canary}"))
        answers.append(server.call("GET", f"/v1/topics/{canary}", **bearer(canary)))
        proc = Path(f"/proc/{server.process.pid}")
        running = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
    assert {200, 400, 401, 403, 404, 421} <= {status for status, _, _ in answers}
    secrets = [secret.encode(), ticket[4:].encode()]
    found = [answer for answer in answers for each in secrets if each in repr(answer).encode()]
    assert found == []
    assert not any(each in running for each in secrets)
    logged = server.errors.read_text()
    assert all(json.loads(line)["message"] for line in logged.splitlines())
    assert "path=/v1/topics/{topic}" in logged
    assert (tmp_path / "audit.log").stat().st_size > 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files for each in secrets if each in path.read_bytes()] == []
