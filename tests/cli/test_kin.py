"""The command line and the files of other logs: import, export, verify, read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import esker
from esker.cli.main import main
from esker.kin import cursus


@pytest.fixture
def logs(tmp_path: Path) -> str:
    folder = tmp_path / "logs" / "orders"
    folder.mkdir(parents=True)
    data = cursus.message(b"Hello") + cursus.message(b"World!")
    (folder / "partition_0_segment_0.log").write_bytes(data)
    return f"kin+cursus://{tmp_path}/logs"


def test_import_copies_once(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", logs, "orders", "--data", str(tmp_path / "data"), "-o", "table"]) == 0
    assert "2 records to topic 'orders'" in capsys.readouterr().out
    assert main(["import", logs, "orders", "--data", str(tmp_path / "data"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["records"], told["known"]) == (0, 2)
    with esker.open(tmp_path / "data") as store:
        assert store["orders"][:].values == [b"Hello", b"World!"]


def test_export_and_verify(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, target = str(tmp_path / "data"), f"kin+comet://{tmp_path}/comet"
    main(["import", logs, "orders", "--data", data])
    capsys.readouterr()
    assert main(["export", "orders", target, "--json", "--data", data]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 2
    assert main(["verify", target, "-o", "table"]) == 0
    assert "2 records" in capsys.readouterr().out
    file = tmp_path / "comet" / "shard-0000" / "log-0000000000000000.comet"
    file.write_bytes(b"\xff" * 100)
    assert main(["verify", target, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["flaws"][0]["kind"] == "corrupt"


def test_read_prints_records_of_others(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "orders", "--data", logs, "-o", "raw"]) == 0
    assert capsys.readouterr().out == "Hello\nWorld!\n"


def test_a_source_that_is_not_there_makes_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"kin+comet://{tmp_path}/nothing"
    assert main(["import", source, "t", "--data", str(tmp_path / "data")]) == 1
    assert "not_a_store" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_info_shows_what_there_is(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--data", logs, "-o", "table"]) == 0
    assert "orders shard 0: offsets 0..2, 1 files" in capsys.readouterr().out
    assert main(["info", "--data", logs, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "cursus"
    assert told["topics"][0]["end"] == 2


def test_damage_that_no_gap_tells_of_ends_reading(
    logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "orders" / "partition_0_segment_2.log"
    file.write_bytes(cursus.message(b"later"))
    assert main(["read", "orders", "--data", logs, "-o", "raw"]) == 1
    told = capsys.readouterr()
    assert "segment 1 is missing" in told.err


def test_another_log_is_not_followed(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", "orders", "--follow", "--data", logs]) == 1
    assert "invalid_option" in capsys.readouterr().err
