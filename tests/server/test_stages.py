"""Batches made elsewhere, over HTTP: staged in any number of calls, attached once."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.engine.attach import Stage
from esker.format.columns import HEADER_TYPE
from esker.server import staging
from esker.server.access.keys import SCOPES, Principal, Scope
from esker.server.http.faults import Fault
from esker.server.run import serving
from esker.server.settings import Settings
from esker.server.staging import Messages
from tests.server.conftest import Answer, Client

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


def stream(*values: bytes, rows: int = 0, **columns: list[Any]) -> bytes:
    return written(pa.table({"value": list(values), **columns}), rows=rows)


def written(table: Any, options: Any = None, rows: int = 0) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows or None)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def stage(client: Client, topic: str, body: bytes, shard: int = 0) -> Answer:
    return client.call("POST", f"/v1/topics/{topic}/stages?shard={shard}", body, ARROW)


def tickets(answer: Answer) -> list[Any]:
    assert answer.status == 201, answer.body
    found: list[Any] = answer.json()["tickets"]
    return found


def attach(client: Client, sequence: int, given: list[Any], writer: str = "w") -> Answer:
    body = {"writer": writer, "sequence": sequence, "tickets": given}
    return client.call("POST", "/v1/attach", body)


def values(client: Client, topic: str, shard: int = 0) -> list[str]:
    page = client.get(f"/v1/topics/{topic}/records?shard={shard}").json()
    return [record["value"] for record in page["records"]]


def staged_files(client: Client) -> list[Path]:
    return list(Path(client.server.app.store.path).rglob("*.staged"))


def test_what_is_staged_is_seen_when_it_is_attached_and_once(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"shards": 2})
    client.call("PUT", "/v1/topics/u", {})
    one = stage(client, "t", stream(b"a", b"b", tag=["x", None]), 1)
    assert one.json()["rows"] == 2
    batch = [*tickets(one), *tickets(stage(client, "u", stream(b"c")))]
    assert values(client, "t", 1) == []
    assert client.get("/v1/attached/w").json() == {"writer": "w", "sequence": None}
    answer = attach(client, 7, batch)
    assert answer.json() == {"writer": "w", "sequence": 7, "committed": True}
    assert values(client, "t", 1) == ["a", "b"]
    assert values(client, "u") == ["c"]
    assert attach(client, 7, batch).json()["committed"] is False
    again = tickets(stage(client, "u", stream(b"c")))
    assert attach(client, 7, again).json()["committed"] is False
    assert values(client, "u") == ["c"]
    assert client.get("/v1/attached/w").json()["sequence"] == 7
    assert staged_files(client) == []


def test_a_batch_of_many_pieces_is_whole_and_in_order(tmp_path: Path) -> None:
    settings = Settings(port=0, body_bytes=64 << 10, stage_bytes=4 << 20)
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        body = stream(*[b"%06d" % n + bytes(100) for n in range(20_000)], rows=200)
        assert len(body) > 30 * settings.body_bytes
        answer = stage(client, "t", body)
        assert answer.json()["rows"] == 20_000
        attach(client, 1, tickets(answer))
        found = [r.value[:6] for r in server.app.store._store["t"].read()]
        assert found == [b"%06d" % n for n in range(20_000)]
        one = stage(client, "t", stream(*[bytes(1000)] * 100))
        assert (one.status, one.code) == (413, "payload_too_large"), "one message is held whole"
        long = stage(client, "t", stream(*[bytes(1000)] * 5000, rows=50))
        assert (long.status, long.code) == (413, "payload_too_large")
        client.close()
        fresh = Client(server)
        assert staged_files(fresh) == [], "what was refused half-way is not left behind"
        fresh.close()


def test_dictionaries_are_taken_too(client: Client) -> None:
    table = pa.table({"value": [b"a", b"b"], "tag": pa.array(["x", "y"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    attach(client, 1, tickets(stage(client, "t", sink.getvalue().to_pybytes())))
    found = client.get("/v1/topics/t/records").json()["records"]
    assert [(each["value"], each["tag"]) for each in found] == [("a", "x"), ("b", "y")]


def test_tickets_are_good_after_a_restart_and_in_another_order(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        first = tickets(stage(client, "t", stream(b"a")))
        second = tickets(stage(client, "t", stream(b"b")))
        client.close()
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        assert attach(client, 1, [*second, *first]).status == 200
        assert values(client, "t") == ["b", "a"]
        client.close()


def test_a_ticket_is_taken_only_as_it_came(client: Client) -> None:
    (good,) = tickets(stage(client, "t", stream(b"a")))
    (other,) = tickets(stage(client, "u", stream(b"b")))
    seal = good["seal"]
    for forged in (
        {**good, "seal": seal[:-2] + ("AA" if seal[-2:] != "AA" else "BB")},
        {**good, "seal": ""}, {**good, "seal": "é"}, {**good, "seal": "A" * 40},
        {**good, "topic": "u"}, {**good, "seal": other["seal"]},
    ):  # fmt: skip
        answer = attach(client, 1, [forged])
        assert (answer.status, answer.code) == (400, "invalid_option"), forged
        assert client.call("DELETE", "/v1/stages", {"tickets": [forged]}).status == 400
    assert attach(client, 1, [good, good]).code == "invalid_option"
    assert attach(client, 1, [good]).status == 200
    assert values(client, "t") == ["a"]
    assert values(client, "u") == []


def test_a_ticket_of_a_topic_that_was_deleted_is_refused(client: Client) -> None:
    batch = tickets(stage(client, "t", stream(b"a")))
    client.call("DELETE", "/v1/topics/t")
    assert attach(client, 1, batch).status == 503, "its segments are gone"
    client.append("t", "new")
    assert attach(client, 1, batch).code == "invalid_option"
    assert values(client, "t") == ["new"]


def test_what_is_discarded_is_gone_and_what_is_committed_stays(client: Client) -> None:
    batch = tickets(stage(client, "t", stream(b"a")))
    assert len(staged_files(client)) == 1
    gone = client.call("DELETE", "/v1/stages", {"tickets": batch})
    assert gone.json() == {"discarded": 1}
    assert staged_files(client) == []
    assert attach(client, 1, batch).status == 503
    kept = tickets(stage(client, "t", stream(b"b")))
    attach(client, 1, kept)
    assert client.call("DELETE", "/v1/stages", {"tickets": kept}).status == 200
    assert values(client, "t") == ["b"]


def test_a_writer_is_for_those_who_may_write_what_it_wrote(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(Principal):
        def may(self, scope: Scope, name: str | None = None) -> bool:
            return name is None or name.startswith("mine")

    attach(client, 1, tickets(stage(client, "theirs", stream(b"a"))), "theirs")
    staged = tickets(stage(client, "theirs", stream(b"b")))
    monkeypatch.setattr(
        client.server.app, "_principal", lambda *_: Mine("me", frozenset(SCOPES), ("mine",))
    )
    mine = tickets(stage(client, "mine", stream(b"x")))
    for answer in (
        attach(client, 9, mine, "theirs"), attach(client, 9, staged, "me"),
        attach(client, 9, [{**staged[0], "topic": "mine"}], "theirs"),
        client.get("/v1/attached/theirs"), client.call("DELETE", "/v1/stages", {"tickets": staged}),
    ):  # fmt: skip
        assert (answer.status, answer.code) == (403, "forbidden")
    renamed = attach(client, 9, [{**staged[0], "topic": "mine"}], "me")
    assert (renamed.status, renamed.code) == (400, "invalid_option")
    assert attach(client, 9, [], "nobody").code == "invalid_option"
    assert attach(client, 1, mine, "me").status == 200
    assert client.server.app.store._store.attached("theirs") == 1
    assert len(staged_files(client)) == 1


def test_a_shard_that_another_process_holds_is_waited_for_without_a_thread(
    tmp_path: Path,
) -> None:
    with esker.open(tmp_path / "data", background=False) as holder:
        holder["t"].append(b"first", wait=True)
        with serving(tmp_path / "data", Settings(port=0)) as server:
            client = Client(server)
            batch = tickets(stage(client, "t", stream(b"second")))
            body = {"writer": "w", "sequence": 1, "tickets": batch, "timeout": 0.1}
            answer = client.call("POST", "/v1/attach", body)
            assert (answer.status, answer.code) == (503, "attach_pending")
            assert client.get("/v1/attached/w").json()["sequence"] == 1
            holder.tick()
            assert values(client, "t") == ["first", "second"]
            again = client.call("POST", "/v1/attach", body)
            assert (again.status, again.json()["committed"]) == (200, False)
            client.close()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"nonsense nonsense", stream(b"a")[:-30], stream(b"a")[:40], stream(b"a") + b"more",
        stream(b"a")[8:], b"\xff\xff\xff\xff" + (1 << 30).to_bytes(4, "little"),
        b"\xff\xff\xff\xff" + (8).to_bytes(4, "little") + b"\xff" * 8,
        b"\xff\xff\xff\xff\x00\x00\x00\x00", stream(b"a") [:-8] + stream(b"a"),
    ],
    ids=["empty", "nonsense", "cut", "cut early", "more", "late", "long", "bad head", "end", "two"],
)  # fmt: skip
def test_what_is_no_arrow_stream_is_refused_and_nothing_is_left(
    client: Client, body: bytes
) -> None:
    answer = stage(client, "t", body)
    assert answer.status == 400, answer.body
    assert answer.code == "invalid_request"
    assert staged_files(client) == []
    assert client.get("/v1/topics/t").code == "topic_not_found"


def test_a_stream_that_breaks_off_leaves_nothing_of_what_was_staged(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 1_000)
    staged: list[int] = []
    append = Stage.append_arrow
    monkeypatch.setattr(
        Stage, "append_arrow", lambda stage, data: staged.append(append(stage, data)) or staged[-1]
    )
    body = stream(*[bytes(100)] * 1_000, rows=50)
    assert stage(client, "t", body[:-100]).code == "invalid_request"
    assert sum(staged) > 500, "some of it was on the disk by then"
    assert staged_files(client) == []


def test_few_bytes_do_not_stand_for_very_many(client: Client) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), [bytes(1_000)])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1_000_000]), pa.array([bytes(1_000)]))
    for table, status in (
        (pa.table({"value": long}), 413), (pa.table({"value": runs}), 400),
        (pa.table({"value": pa.array([b"x"], pa.binary_view())}), 201),
        (pa.table({"value": pa.nulls(1 << 30)}), 413),
        (pa.table({"value": long.slice(0, 10)}), 201),
    ):  # fmt: skip
        assert stage(client, "t", written(table)).status == status, table.schema
    for codec in ("zstd", "lz4"):
        for table in (pa.table({"value": [bytes(100_000)]}), pa.table({"value": long[:10]})):
            squeezed = pa.ipc.IpcWriteOptions(compression=codec)
            answer = stage(client, "t", written(table, squeezed))
            assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert len(staged_files(client)) == 2


VIEW, MAP = pa.string_view(), pa.map_(pa.string(), pa.string())
PAIRS = pa.array([[{"key": "k", "value": b"v"}], None], HEADER_TYPE)
WORDS = pa.dictionary(pa.int8(), pa.string())
OF_WORDS = pa.struct({"key": WORDS, "value": WORDS})
COLUMNS = {
    "text": ("value", pa.array(["a", "b"])),
    "views": ("value", pa.array(["a", "b" * 20], VIEW)),
    "words": ("value", pa.array(["a", "b"], WORDS)),
    "views of tags": ("tag", pa.array(["a", None], VIEW)),
    "bytes of one size": ("value", pa.array([b"a", b"b"], pa.binary(1))),
    "nothing": ("key", pa.nulls(2)),
    "times": ("timestamp", pa.array([1, 2])),
    "headers": ("headers", PAIRS),
    "a map": ("headers", pa.array([[("k", "v")], []], MAP)),
    "headers of words": ("headers", PAIRS.cast(pa.list_(OF_WORDS))),
    "numbers": ("value", pa.array([1, 2])),
    "no values": ("value", pa.nulls(2)),
    "runs": ("value", pa.RunEndEncodedArray.from_arrays(pa.array([2]), pa.array(["x"]))),
    "lists that lie over each other": ("headers", pa.array([[], []], pa.list_view(pa.string()))),
    "another column": ("more", pa.array([1, 2])),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_what_may_be_appended_may_be_staged_and_nothing_else(client: Client, name: str) -> None:
    field, column = COLUMNS[name]
    table = pa.table({"value": ["x", "y"]} | {field: column})
    answer = client.call("POST", "/v1/topics/t/records", written(table), ARROW)
    staged = stage(client, "t", written(table))
    refused = name in list(COLUMNS)[list(COLUMNS).index("numbers") :]
    assert answer.status == (400 if refused else 200), answer.body
    assert staged.status == (400 if refused else 201), staged.body
    if refused:
        assert (staged.code, staged.json()["error"]["message"]) == (
            answer.code, answer.json()["error"]["message"],
        )  # fmt: skip


@pytest.mark.parametrize("name", ["words", "nothing", "bytes of no size", "words in headers"])
def test_few_bytes_for_very_many_are_refused_by_both(client: Client, name: str) -> None:
    """80 MB, out of a few thousand bytes."""
    rows = 20_000
    long = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), ["x" * 4_000])
    pairs = pa.StructArray.from_arrays([long, long], names=["key", "value"])
    ends = pa.array(range(rows + 1), pa.int32())
    empty = pa.Array.from_buffers(pa.binary(0), 20 << 20, [None, pa.py_buffer(b"")])
    table = {
        "words": pa.table({"value": long}), "nothing": pa.table({"value": pa.nulls(20 << 20)}),
        "bytes of no size": pa.table({"value": empty}),
        "words in headers": pa.table(
            {"value": ["x"] * rows, "headers": pa.ListArray.from_arrays(ends, pairs)}
        ),
    }[name]  # fmt: skip
    body = written(table)
    assert len(body) < 300_000
    answer = client.call("POST", "/v1/topics/t/records", body, ARROW)
    assert answer.code in ("payload_too_large", "batch_too_large"), answer.body
    assert stage(client, "t", body).code == "payload_too_large"


def test_very_many_tiny_messages_keep_nobody_waiting() -> None:
    batch = pa.record_batch([pa.array([], pa.binary())], ["value"])
    data = bytes(batch.schema.serialize()) + bytes(batch.serialize()) * 40_000

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 1 << 16):
            yield data[at : at + (1 << 16)]

    app = SimpleNamespace(settings=Settings())
    call: Any = SimpleNamespace(pieces=pieces, app=app)

    async def taken() -> list[int]:
        return [len(piece) async for piece in staging._pieces(call)]

    began = time.perf_counter()
    assert sum(asyncio.run(taken())) > len(data)
    assert time.perf_counter() - began < 2.0, "as many steps as messages, and no more"


def test_a_long_head_is_read_once_however_slowly_its_message_comes() -> None:
    whole = bytes(pa.record_batch([pa.array([b"x" * 5_000])], ["value"]).serialize())
    size = int.from_bytes(whole[4:8], "little")
    head, body = whole[8 : 8 + size] + bytes(4 << 20), whole[8 + size :]
    messages = Messages(8 << 20)
    assert messages.feed(struct.pack("<Ii", 0xFFFFFFFF, len(head)) + head) == []
    began = time.perf_counter()
    for at in range(len(body) - 1):
        assert messages.feed(body[at : at + 1]) == []
    assert time.perf_counter() - began < 1.0
    assert len(messages.feed(body[-1:])) == 1


def test_any_byte_of_a_stream_may_be_wrong_and_the_server_stands(client: Client) -> None:
    good = stream(b"aaaa", b"bbbb", tag=["x", "y"])
    client.append("t", "x")
    seen = set()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= (0xFF, 0x01, 0x80)[at % 3]
        seen.add(stage(client, "t", bytes(bad)).status)
    assert seen <= {201, 400, 413, 415}
    assert 400 in seen
    assert client.get("/healthz").status == 200


def test_columns_that_are_not_those_of_a_record_are_refused(client: Client) -> None:
    answer = stage(client, "t", stream(b"a", other=[1]))
    assert (answer.status, answer.code) == (400, "invalid_record")
    assert stage(client, "t", stream(b"a"), 5).code == "invalid_option"
    plain = client.call("POST", "/v1/topics/t/stages", {"value": "x"})
    assert plain.status == 415
    assert staged_files(client) == []


def test_a_stream_is_cut_into_its_messages_wherever_it_is_torn() -> None:
    whole = stream(*[os.urandom(n) for n in range(100)], rows=7)
    for size in (1, 3, 8, 64, 4096, len(whole)):
        cutter = Messages(1 << 20)
        found = []
        for at in range(0, len(whole), size):
            found += cutter.feed(whole[at : at + size])
        assert [message.kind for message in found] == [1, *[3] * 15]
        assert b"".join(message.data for message in found) + whole[-8:] == whole
        assert cutter.ended
    with pytest.raises(Fault, match="behind its end"):
        cutter.feed(b"x")


def test_a_writer_that_will_not_come_back_is_forgotten(client: Client) -> None:
    assert attach(client, 3, tickets(stage(client, "f", stream(b"a")))).json()["committed"]
    assert client.call("DELETE", "/v1/attached/w").json() == {"writer": "w", "sequence": 3}
    assert client.get("/v1/attached/w").json()["sequence"] is None
    assert client.call("DELETE", "/v1/attached/w").json() == {"writer": "w", "sequence": None}
    assert values(client, "f") == ["a"]
