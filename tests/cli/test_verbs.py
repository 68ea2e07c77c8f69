"""Every verb, over a directory and over HTTP, with the same output."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import esker
from esker.server.run import serving
from esker.server.settings import Settings
from tests.cli.conftest import Run


def test_append_takes_arguments_and_says_where_they_went(cli: Run) -> None:
    done = cli("append", "orders", "one", "two", "-k", "user-7", "--tag", "eu", "-H", "a=b")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "topic": "orders", "count": 2, "spans": [{"shard": 0, "first": 0, "count": 2}]
    }  # fmt: skip
    first, second = cli("read", "orders").lines
    assert first.pop("timestamp") > 0
    assert first == {"offset": 0, "shard": 0, "value": "one", "key": "user-7", "tag": "eu",
                     "headers": {"a": "b"}}  # fmt: skip
    assert second["value"] == "two"
    said = cli("append", "orders", "three", "-o", "table").text
    assert said == "orders: 1 record appended (shard 0: 2..2)\n"


def test_lines_of_stdin_are_records_also_the_empty_ones_and_the_last(cli: Run) -> None:
    lines = b"one\n\nthree\n\xff\xfe"
    assert cli("append", "t", stdin=lines).json["count"] == 4
    assert cli("read", "t", "-o", "raw").out == lines + b"\n"
    assert cli("append", "t", stdin=b"").json["count"] == 0


def test_many_lines_go_round_trip(cli: Run) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(200_000))
    assert cli("append", "t", stdin=lines).json["count"] == 200_000
    assert cli("read", "t", "-o", "raw").out == lines
    assert cli("read", "t", "-s", "-2", "-o", "raw").out == b"line 199998\nline 199999\n"
    assert cli("read", "t", "-s", "5", "-n", "1", "-o", "raw").out == b"line 5\n"
    assert cli("read", "t", "-s", "5", "--stop", "7", "-o", "raw").out == b"line 5\nline 6\n"
    assert cli("read", "t", "-n", "0").out == b""


def test_a_key_can_be_a_field_of_the_value(cli: Run) -> None:
    cli("append", "t", "--key-field", "user", stdin=b'{"user": "u1"}\n{"user": 7}\n{"x": 1}\n')
    assert [line.get("key") for line in cli("read", "t").lines] == ["u1", "7", None]
    refused = cli("append", "t", "no json", "--key-field", "user")
    assert refused.code == 1
    assert "--key-field user" in refused.err


def records() -> list[esker.Record]:
    return [
        esker.Record(b'{"amount": 5}', b"k1", "eu", "n", {"h": b"v", "b": b"\xff"}, 1_700_000),
        esker.Record(b"\xff\xfe", b"\xff", None, None, None, 1_800_000),
        esker.Record("ü, \"q\"\nnew".encode(), None, "us", None, None, 1_900_000),
        esker.Record(b"", None, None, None, None, 2_000_000),
    ]  # fmt: skip


@pytest.fixture
def filled(cli: Run, data: Path) -> Run:
    """A topic with everything that a record may have."""
    with esker.open(data, handover=True) as store:
        store["t"].append_many(records())
    return cli


@pytest.mark.parametrize("form", ["ndjson", "csv", "arrow", "parquet"])
def test_every_form_carries_all_of_a_record_there_and_back(filled: Run, form: str) -> None:
    out = filled("read", "t", "-o", form).out
    assert filled("append", "u", "-i", form, stdin=out).json["count"] == 4
    before, after = filled("read", "t").lines, filled("read", "u").lines
    assert after == before
    assert before[1]["base64"] == "//4="


@pytest.mark.parametrize("name", ["x.ndjson", "x.csv", "x.arrow", "x.parquet"])
def test_files_carry_all_of_a_topic_there_and_back(filled: Run, name: str) -> None:
    done = filled("export", "t", name)
    assert done.json == {"topic": "t", "path": name, "count": 4, "gaps": 0}
    assert filled("import", name, "u").json["count"] == 4
    assert filled("read", "u").lines == filled("read", "t").lines
    again = filled("export", "t", name)
    assert again.code == 1
    assert "--force" in again.err
    assert filled("export", "t", name, "--force").code == 0
    assert not list(Path().glob("*.tmp"))


def test_a_dash_is_stdout_and_stdin(filled: Run) -> None:
    out = filled("export", "t", "-", "--format", "ndjson")
    assert (out.code, len(out.lines)) == (0, filled("info", "t").json["count"])
    assert filled("import", "-", "dash", "--format", "ndjson", stdin=out.out).code == 0
    assert filled("info", "dash").json["count"] == len(out.lines)
    misspelt = filled("export", "t", "--fromat")
    assert (misspelt.code, misspelt.err) == (
        2, "esker: usage: Unknown option: --fromat. A file of that name is ./--fromat\n"
    )  # fmt: skip


def test_binary_forms_are_what_others_read(filled: Run) -> None:
    arrow = filled("read", "t", "-o", "arrow").out
    with pa.ipc.open_stream(arrow) as reader:
        assert reader.read_all().schema == esker.SCHEMA
    found = parquet.read_table(pa.BufferReader(filled("read", "t", "-o", "parquet").out))
    assert found.column("value").to_pylist() == [record.value for record in records()]


def test_json_is_one_document_with_records_and_gaps(filled: Run) -> None:
    found = filled("read", "t", "--json").json
    assert found.keys() == {"topic", "records", "gaps"}
    assert len(found["records"]) == 4
    one = filled("read", "t", "-n", "1", "--json", "--values", "json").json["records"][0]
    assert one["value"] == {"amount": 5}


def test_a_template_says_what_is_printed(filled: Run) -> None:
    form = "{offset}|{key}|{tag}|{value.amount}|{header.h}|{time}"
    first = filled("read", "t", "--format", form, "-n", "1").text
    assert first == "0|k1|eu|5|v|1970-01-01 00:00:01.700\n"
    refused = filled("read", "t", "--format", "{vlaue}")
    assert refused.code == 2
    assert "no field 'vlaue'" in refused.err


def test_where_takes_what_matches_and_is_never_executed(filled: Run) -> None:
    assert [line["offset"] for line in filled("read", "t", "--where", 'tag == "us"').lines] == [2]
    found = filled("read", "t", "--where", "json.amount > 4", "-n", "5").lines
    assert [line["offset"] for line in found] == [0]
    refused = filled("read", "t", "--where", "__import__('os')")
    assert refused.code == 1
    assert "invalid_filter" in refused.err


def test_a_table_spells_out_what_would_move_the_cursor(cli: Run) -> None:
    cli("append", "t", "\x1b[31mred\x07")
    assert "\\x1b[31mred\\x07" in cli("read", "t", "-o", "table").text


def test_gaps_are_told_in_every_form(cli: Run, data: Path) -> None:
    cli("create", "t", "--segment-bytes", "4KiB", "--cap-records", "10")
    for number in range(60):
        cli("append", "t", *[f"{number} " + "x" * 100] * 4)
    for _ in range(600):  # the background evicts once a second; of a directory, a command does
        if cli("info", "t").json["shards"][0]["earliest"]:
            break
        cli("retention", "run")
        time.sleep(0.05)
    for form in ("ndjson", "json", "table", "csv", "raw", "arrow", "parquet"):
        found = cli("read", "t", "-s", "0", "-o", form)
        told = found.out.decode("utf-8", "replace") + found.err
        assert "gap" in told, form
    assert '"gap":{"topic":"t","shard":0,"first":0' in cli("read", "t", "-s", "0").text


def test_tail_shows_the_last_of_all_shards(cli: Run) -> None:
    cli("create", "t", "--shards", "3")
    for number in range(12):
        cli("append", "t", f"value {number}", "-k", f"key {number}")
    found = cli("tail", "t", "-n", "4").lines
    assert [line["value"] for line in found] == [f"value {number}" for number in range(8, 12)]
    assert cli("tail", "t", "-n", "0").out == b""


# ---- topics ----------------------------------------------------------------------------------


def test_topics_are_made_listed_shown_changed_and_deleted(cli: Run) -> None:
    made = cli("create", "orders", "--shards", "2", "--durability", "fsync", "--ttl", "7d").json
    assert made["options"]["ttl_us"] == 7 * 86_400_000_000
    assert cli("create", "orders").code == 1
    assert cli("create", "orders", "--exist-ok").code == 0
    cli("append", "orders", "x")
    (row,) = cli("ls").lines
    assert row == {"topic": "orders", "records": 1, "shards": 2, "durability": "fsync",
                   "bytes": row["bytes"], "segments": 1, "queue": False}  # fmt: skip
    assert row["bytes"] > 0
    assert cli("ls", "nothing").out == b""
    assert cli("ls", "--json").json == {"topics": [row]}
    state = cli("info", "orders", "--json").json
    assert state.keys() >= {"topic", "epoch", "count", "shards", "options"}
    assert [shard["end"] for shard in state["shards"]] in ([1, 0], [0, 1])
    assert "orders" in cli("info", "orders", "-o", "table").text
    assert cli("alter", "orders", "--ttl", "1h").json["options"]["ttl_us"] == 3_600_000_000
    assert cli("alter", "orders").code == 2
    assert cli("rm", "orders").code == 2  # nobody is there to be asked
    assert cli("rm", "orders", "--yes").json == {"topic": "orders", "deleted": True}
    assert cli("rm", "orders", "--yes").code == 1
    assert cli("rm", "orders", "--yes", "--missing-ok").json["deleted"] is False


def test_sizes_are_those_of_the_files_also_when_nobody_writes(cli: Run, data: Path) -> None:
    cli("append", "t", stdin=b"".join(b"%d\n" % number for number in range(50_000)))
    (row,) = cli("ls").lines
    (log,) = data.rglob("*.log")
    assert log.stat().st_size * 0.9 < row["bytes"] <= log.stat().st_size


def test_records_are_deleted_by_place_and_by_tag(cli: Run) -> None:
    cli("append", "t", "a", "b")
    cli("append", "t", "c", "--tag", "x")
    assert cli("rm", "t", "--tag", "x", "--yes").json == {"topic": "t", "deleted": 1}
    assert cli("rm", "t", "--before", "1", "--yes").json == {"topic": "t", "deleted": 1}
    assert cli("read", "t", "-o", "raw").out == b"b\n"


def test_the_report_has_all_of_it(cli: Run) -> None:
    cli("append", "orders", "x")
    cli("group", "create", "orders", "billing")
    cli("queue", "create", "emails")
    cli("route", "add", "orders", "payments")
    found = cli("report", "--json").json
    assert [row["topic"] for row in found["topics"]] == ["emails", "orders", "payments"]
    assert "billing" in [row["group"] for row in found["groups"]]
    assert [row["queue"] for row in found["queues"]] == ["emails"]
    assert [row["route"] for row in found["routes"]] == ["orders->payments"]
    text = cli("report", "-o", "table").text
    for word in ("orders", "billing", "emails", "orders->payments", "dead jobs"):
        assert word in text


def test_a_name_that_is_nearly_right_is_suggested(cli: Run) -> None:
    cli("append", "orders", "x")
    cli("group", "create", "orders", "billing")
    for arguments, code in (
        (("read", "ordesr"), "topic_not_found"),
        (("info", "ordesr"), "topic_not_found"),
        (("tail", "ordesr"), "topic_not_found"),
        (("queue", "stats", "ordesr"), "topic_not_found"),
        (("group", "ls", "ordesr"), "topic_not_found"),
        (("group", "create", "ordesr", "g"), "topic_not_found"),
    ):
        done = cli(*arguments)
        assert (done.code, done.out) == (1, b""), arguments
        assert done.err.startswith(f"esker: {code}: "), done.err
    assert "did you mean 'orders'?" in cli("read", "ordesr").err
    done = cli("group", "info", "orders", "biling")
    assert "did you mean 'billing'?" in done.err
    assert "ordesr" not in [row["topic"] for row in cli("ls").lines]  # looking makes nothing


# ---- groups, queues, routes ------------------------------------------------------------------


def test_groups_are_made_shown_moved_paused_and_forgotten(cli: Run) -> None:
    cli("append", "t", *"abcd")
    assert cli("group", "create", "t", "g", "-s", "1").json["records"] == 3
    (row,) = cli("group", "ls").lines
    assert (row["topic"], row["group"], row["records"], row["paused"]) == ("t", "g", 3, False)
    assert cli("group", "ls", "t", "--json").json.keys() == {"groups"}
    assert cli("group", "info", "t", "g").json["shards"][0]["cursor"] == 1
    dry = cli("group", "seek", "t", "g", "latest", "--dry-run", "--json").json
    assert dry["dry_run"] is True
    assert (dry["moves"][0]["before"], dry["moves"][0]["after"]) == (1, 4)
    assert cli("group", "info", "t", "g").json["shards"][0]["cursor"] == 1
    cli("group", "seek", "t", "g", "-2")
    assert cli("group", "info", "t", "g").json["shards"][0]["cursor"] == 2
    assert cli("group", "pause", "t", "g").json == {"paused": True}
    assert cli("group", "ls").lines[0]["paused"] is True
    assert cli("group", "resume", "t", "g").json == {"paused": False}
    assert cli("group", "rm", "t", "g").json["forgotten"] is True
    assert cli("group", "seek", "t", "g", "latest").code == 1
    assert cli("group", "ls").out == b""  # to move what is not there does not make it


def test_jobs_are_put_shown_claimed_and_acked(cli: Run) -> None:
    cli("queue", "create", "q", "--lease", "5m")
    assert cli("queue", "put", "q", "a", "b", "-k", "key").json["count"] == 2
    assert cli("queue", "put", "q", stdin=b"c\nd\n").json["count"] == 2
    assert cli("queue", "put", "q", "later", "--delay", "1h").json["count"] == 1
    assert [job["value"] for job in cli("queue", "peek", "q", "-n", "2").lines] == ["a", "b"]
    state = cli("queue", "stats", "q").json
    assert (state["ready"], state["delayed"]) in ((4, 1), (5, 0))  # it may not be looked at yet
    (job,) = cli("queue", "claim", "q", "--ack").lines
    assert (job["value"], job["key"], job["deliveries"]) == ("a", "key", 1)
    assert [each["value"] for each in cli("queue", "peek", "q").lines][:1] == ["b"]
    assert cli("queue", "pause", "q").json == {"paused": True}
    assert cli("queue", "claim", "q", "--ack").out == b""
    cli("queue", "resume", "q")
    assert cli("queue", "stats").lines[0]["queue"] == "q"
    assert cli("queue", "claim", "t", "--ack").code == 1


@pytest.fixture
def remote(esker_: Run, data: Path) -> Iterator[Run]:
    """Over HTTP, where a claim outlives the command."""
    with serving(data, Settings(port=0)) as server:
        yield lambda *arguments, **how: esker_(*arguments, "--url", server.url, **how)


def test_jobs_are_settled_by_the_places_and_tokens_that_claim_printed(remote: Run) -> None:
    remote("queue", "create", "q", "--max-deliveries", "2", "--lease", "5m")
    remote("queue", "put", "q", "a", "b", "c", "d")
    jobs = remote("queue", "claim", "q", "-n", "4").lines
    assert [job["value"] for job in jobs] == ["a", "b", "c", "d"]
    assert remote("queue", "stats", "q").json["leased"] == 4
    named = [f"{job['shard']}:{job['offset']}:{job['token']}" for job in jobs]

    done = remote("queue", "ack", "q", named[0])
    assert (done.code, done.json["done"]) == (0, 1)
    piped = b"".join(json.dumps(job).encode() + b"\n" for job in jobs[1:2])
    assert remote("queue", "ack", "q", stdin=piped).json["done"] == 1  # as `claim | ack` does
    again = remote("queue", "ack", "q", named[0])  # it is done: the token is good for nothing
    assert (again.code, again.err.split(": ")[1]) == (1, "stale_lease")

    failed = remote("queue", "nack", "q", named[2], "--reason", "no such user")
    assert (failed.code, failed.json["done"]) == (0, 1)
    assert remote("queue", "nack", "q", named[3], "--delay", "1h").json["done"] == 1
    state = remote("queue", "stats", "q").json
    assert (state["ready"], state["leased"], state["delayed"], state["dead"]) == (1, 0, 1, 0)
    (job,) = remote("queue", "claim", "q", "-n", "9").lines
    assert (job["value"], job["deliveries"]) == ("c", 2)
    last = f"{job['shard']}:{job['offset']}:{job['token']}"
    remote("queue", "nack", "q", last, "--reason", "no such user")
    (dead,) = remote("queue", "dead", "ls", "q").lines
    assert (dead["value"], dead["reason"]) == ("c", "no such user")


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_what_is_no_job_is_refused(remote: Run, verb: str) -> None:
    remote("queue", "create", "q")
    for given, code in (("nonsense", 2), ("0:17", 2), ("0:17:nonsense", 1)):
        assert remote("queue", verb, "q", given).code == code
    assert remote("queue", verb, "nowhere", "0:17:nonsense").code == 1
    assert remote("queue", verb, "q", stdin=b"not json\n").code == 2


def test_a_queue_that_is_not_there_can_be_made(cli: Run) -> None:
    cli("queue", "create", "emails")
    cli("append", "topic", "x")
    told = cli("queue", "put", "thumbs", "x").err
    assert "`esker queue create thumbs` makes one; there is: emails\n" in told


def test_a_delayed_job_is_counted_as_one_before_anybody_has_claimed(cli: Run) -> None:
    cli("queue", "create", "q")
    cli("queue", "put", "q", "now")
    cli("queue", "put", "q", "later", "--delay", "1h")
    state = cli("queue", "stats", "q").json
    assert (state["ready"], state["delayed"]) == (1, 1)


def test_a_command_is_run_for_each_job(cli: Run, tmp_path: Path) -> None:
    cli("queue", "create", "q", "--max-deliveries", "1")
    cli("queue", "put", "q", "good", "bad", "good")
    script = f'read value; echo "$value $ESKER_DELIVERIES" >> {tmp_path}/done; test "$value" = good'
    done = cli("queue", "claim", "q", "-n", "3", "--exec", script)
    assert done.code == 1
    assert "2 jobs done, 1 failed" in done.err
    assert (tmp_path / "done").read_text() == "good 1\nbad 1\ngood 1\n"
    (dead,) = cli("queue", "dead", "ls", "q").lines
    assert dead["value"] == "bad"
    assert "ended with 1" in dead["reason"]
    assert cli("queue", "stats", "q").json["unfinished"] == 0


def test_nothing_that_a_job_holds_is_part_of_the_command(cli: Run, tmp_path: Path) -> None:
    cli("queue", "create", "q")
    evil = f"$(touch {tmp_path}/ran); `touch {tmp_path}/ran`; touch {tmp_path}/ran"
    cli("queue", "put", "q", evil, "--key", evil, "--tag", evil)
    done = cli("queue", "claim", "q", "--exec", f"env > {tmp_path}/env; cat > {tmp_path}/done")
    assert done.code == 0
    assert (tmp_path / "done").read_text() == evil
    assert "touch" not in (tmp_path / "env").read_text()
    assert not (tmp_path / "ran").exists()


def test_dead_jobs_are_put_back_or_thrown_away_by_name_filter_or_all(cli: Run) -> None:
    cli("queue", "create", "q", "--max-deliveries", "1")
    for tag in ("x", "y", "z", "z"):
        cli("queue", "put", "q", f'{{"n": "{tag}"}}', "--tag", tag)
    cli("queue", "claim", "q", "-n", "4", "--exec", "false")
    rows = cli("queue", "dead", "ls", "q").lines
    assert len(rows) == 4
    assert cli("queue", "dead", "ls", "q", "--where", 'tag == "z"', "--json").json["count"] == 4
    assert len(cli("queue", "dead", "ls", "q", "--where", 'tag == "z"').lines) == 2
    assert cli("queue", "dead", "requeue", "q").code == 2
    assert cli("queue", "dead", "requeue", "q", "--where", 'json.n == "y"').json["count"] == 1
    assert [job["tag"] for job in cli("queue", "peek", "q").lines] == ["y"]
    named = f"{rows[0]['shard']}:{rows[0]['offset']}"
    assert cli("queue", "dead", "purge", "q", named).json["count"] == 1
    assert cli("queue", "dead", "purge", "q", "--all").json["count"] == 2
    assert cli("queue", "dead", "ls", "q").out == b""


def test_routes_are_made_shown_paused_moved_and_forgotten(cli: Run) -> None:
    cli("append", "a", '{"n": 1}', '{"n": 9}')
    made = cli("route", "add", "a", "b", "--where", "json.n > 5", "--name", "big").json
    assert (made["route"], made["source"], made["destination"]) == ("big", "a", "b")
    assert cli("route", "pause", "big").json == {"paused": True}
    assert cli("route", "ls").lines[0]["state"] == "paused"
    moves = cli("route", "seek", "big", "latest", "--dry-run", "--json").json["moves"]
    assert moves[0]["after"] == 2
    cli("route", "resume", "big")
    assert cli("route", "rm", "big").json == {"route": "big", "deleted": True}
    assert cli("route", "ls").out == b""
    assert cli("route", "rm", "big").code == 1


def test_a_group_of_a_route_is_called_as_the_route(cli: Run) -> None:
    cli("append", "a", "x")
    cli("route", "add", "a", "b", "--name", "copy of a")
    cli("group", "create", "a", "readers")
    (route,) = cli("route", "ls").lines
    assert route["group"] in [each["group"] for each in cli("group", "ls").lines]
    for told in (cli("group", "ls", "-o", "table").text, cli("report", "-o", "table").text,
                 cli("top", "--rounds", "1", "--interval", "0.2").text):  # fmt: skip
        assert f"{route['group']} (copy of a)" in told
        assert "readers" in told


def test_topics_are_tables_in_sql(cli: Run) -> None:
    pytest.importorskip("duckdb")
    cli("append", "orders", '{"amount": 5}', '{"amount": 7}', "-k", "u1")
    cli("append", "orders.old", '{"amount": 1}')
    found = cli("sql", "select key, sum((value->>'amount')::int) as total from orders group by 1")
    assert found.lines == [{"key": "u1", "total": 12}]
    joined = 'select count(*) as n from orders a, orders b, "orders.old"'
    assert cli("sql", joined, "--json").json == {"columns": ["n"], "rows": [{"n": 4}]}
    assert cli("sql", "select 1 as x", "-o", "csv").text == "x\n1\n"
    wrong = cli("sql", "select * from nothing")
    assert wrong.code == 1
    assert "topics: orders, orders.old" in wrong.err


# ---- what only a directory can do ------------------------------------------------------------

_OF_FILES: list[tuple[Any, ...]] = [
    ("verify",), ("repair",), ("du",), ("retention", "plan"), ("retention", "run"),
    ("archive", "t"), ("tier", "t", "cold"), ("serve",),
]  # fmt: skip


@pytest.mark.parametrize("arguments", _OF_FILES, ids=" ".join)
def test_what_works_on_files_says_so_over_a_url(esker_: Run, arguments: tuple[str, ...]) -> None:
    done = esker_(*arguments, "--url", "http://127.0.0.1:9")
    assert (done.code, done.out) == (1, b"")
    assert "not_remote" in done.err
    assert "--data DIR" in done.err


def test_a_store_is_checked_measured_retained_and_archived(esker_: Run, data: Path) -> None:
    with esker.open(data, background=False) as store:
        topic = store.create("t", segment_bytes=4096)
        for _ in range(40):
            topic.append_many([b"x" * 100] * 10)
        store.alter("t", cap_records=100)
    assert esker_("verify", data).json["ok"] is True
    assert esker_("verify", "--data", data, "--shallow").json["deep"] is False
    assert esker_("verify", data, "--data", data).code == 2
    assert esker_("du", data, "--json").json["bytes"] > 400
    assert esker_("retention", "plan", "--data", data).lines[0]["topic"] == "t"
    assert esker_("retention", "run", "--data", data).lines[0]["reason"] == "cap_records"
    assert esker_("retention", "plan", "--data", data).out == b""
    assert esker_("archive", "t", "--data", data).json["rows"] > 0
    assert esker_("tier", "t", "cold", "--cold", "away", "--data", data).json["segments"] > 0
    assert esker_("du", data).lines[0]["cold_segments"] > 0
    assert esker_("tier", "t", "hot", "--cold", "away", "--data", data).json["segments"] > 0


def test_damage_is_found_repaired_and_told(esker_: Run, data: Path) -> None:
    with esker.open(data) as store:
        store["t"].append(b"x" * 200, wait=True)
    path = next(data.rglob("*.log"))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    found = esker_("verify", data)
    assert (found.code, found.json["problems"][0]["kind"]) == (1, "frame")
    assert found.json["problems"][0]["advice"]
    assert esker_("repair", data, "--dry-run").json["actions"]
    assert esker_("verify", data).code == 1
    assert esker_("repair", data).code == 0
    assert esker_("verify", data).code == 0
    assert json.loads(esker_("read", "t", "--data", data).out)["gap"]["reason"] == "corrupt"
