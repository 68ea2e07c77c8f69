"""Commands about a whole store: doctor, bench, top, backup and restore on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import esker
from tests.cli.conftest import Run


def test_doctor_is_content_with_a_new_store_and_says_what_it_looked_at(cli: Run) -> None:
    cli("append", "t", "x")
    done = cli("doctor", "--json")
    found = done.json
    names = [row["check"] for row in found["checks"]]
    assert {"versions", "open files", "clock", "topics"} <= set(names)
    bad = [
        row for row in found["checks"] if row["verdict"] not in ("ok",) and row["check"] != "disk"
    ]
    assert not bad
    assert done.code in (0, 1, 2)  # the disk of whoever runs this may be full


def test_doctor_says_what_to_do_about_dead_jobs_lags_and_pauses(cli: Run) -> None:
    cli("queue", "create", "q", "--max-deliveries", "1")
    cli("queue", "put", "q", "x")
    cli("queue", "claim", "q", "--exec", "false")
    cli("queue", "pause", "q")
    cli("append", "t", "x")
    cli("group", "create", "t", "g")
    done = cli("doctor", "-o", "table")
    assert done.code >= 1
    assert "1 dead job" in done.text
    assert "`esker queue dead ls q` says why" in done.text
    assert "`esker queue resume q`" in done.text
    assert "esker group rm t g" in done.text


def test_doctor_finds_damage_and_exits_with_2(esker_: Run, data: Path) -> None:
    with esker.open(data, background=False) as store:
        topic = store.create("t", segment_bytes=4096)
        for _ in range(20):
            topic.append_many([b"x" * 100] * 10)
        store.tick()
    victim = sorted(data.rglob("*.seg"))[1]
    victim.unlink()
    done = esker_("doctor", data)
    assert done.code == 2
    (row,) = [row for row in done.lines if row["check"] == "verify --shallow"]
    assert row["verdict"] == "problem"
    assert row["advice"]


def test_doctor_names_who_writes(esker_: Run, data: Path) -> None:
    import os

    with esker.open(data) as store:
        store["t"].append(b"x", wait=True)
        (row,) = [row for row in esker_("doctor", data).lines if row["check"] == "writers"]
    assert f"process {os.getpid()} writes 1 shard" in row["found"]


def test_doctor_cannot_look_at_what_is_not_there(esker_: Run) -> None:
    assert esker_("doctor", "nowhere").code == 3
    assert esker_("doctor", "--url", "http://127.0.0.1:9").code == 3
    assert not Path("nowhere").exists()


def test_top_shows_topics_groups_and_queues(cli: Run) -> None:
    cli("append", "orders", "x")
    cli("group", "create", "orders", "billing")
    cli("queue", "create", "emails")
    text = cli("top", "--interval", "0.2").text
    for word in ("orders", "billing", "emails", "RECORDS/S"):
        assert word in text
    assert cli("top", "--interval", "0").code == 2


@pytest.mark.bench
def test_a_bench_measures_every_class_and_leaves_nothing(esker_: Run) -> None:
    done = esker_("bench", "--seconds", "0.02", "--batch", "1", "--batch", "10", "--json")
    rows = done.json["results"]
    assert [(row["durability"], row["batch"]) for row in rows] == [
        (kind, batch) for kind in ("fsync", "disk", "memory") for batch in (1, 10)
    ]
    assert all(row["p99_us"] >= row["p50_us"] > 0 for row in rows)
    assert all(row["records"] and row["read_per_second"] > 0 for row in rows)
    assert not list(Path().iterdir())
    assert esker_("bench", "--size", "0").code == 2


def test_a_backup_is_made_and_restored(esker_: Run, data: Path) -> None:
    esker_("append", "t", "a", "b")
    done = esker_("backup", "copy")
    assert (done.code, done.json["records"]) == (0, 2)
    assert esker_("read", "t", "-o", "raw", "--data", "copy").out == b"a\nb\n"
    assert esker_("backup", "copy").code == 1
    assert esker_("restore", "copy").code == 2  # where to?
    assert esker_("restore", "copy", "--data", data).code == 1  # not empty
    assert esker_("restore", "copy", "--data", "back").json["records"] == 2
    assert esker_("verify", "back").code == 0
    assert esker_("backup", "data/inside").code == 1
    for verb in (("backup", "x"), ("restore", "copy")):
        assert "not_remote" in esker_(*verb, "--url", "http://127.0.0.1:9").err
