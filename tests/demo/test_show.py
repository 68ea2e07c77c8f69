"""The whole of it, in its fast form: what it prints, leaves behind, and proves."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

import esker
from esker.cli.main import main
from esker.demo import commands, notes, show
from esker.demo.goods import CLICKS, DEAD, EMAILS, ORDERS, PAYMENTS
from tests.demo.running import Shown, run

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.M)
    assert found, f"{pattern} is not in:\n{text}"
    return int(found[1].replace(",", ""))


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(shown: Shown) -> None:
    lines = shown.text.rstrip().splitlines()
    assert lines[-1] == "acknowledged lost: 0"
    assert number(r"^acknowledged: ([\d,]+)$", shown.text) > 1_000
    assert number(r"kill -9 \d+: the writer, after ([\d,]+) orders", shown.text) > 0
    assert "0 lost, 0 altered, 0 phantom" in shown.text
    assert shown.error == ""


def test_every_act_is_shown(shown: Shown) -> None:
    for said in (
        r"Console: http://127\.0\.0\.1:\d+/",
        r"kill -9 \d+: a worker that holds 12 jobs",
        r"all 12 were done by others within",
        r"poison jobs are dead letters after 3 tries",
        r"Gap: offsets [\d,]+\.\.[\d,]+ are gone \(evicted\)",
        r"billing, without its pauses, has caught up",
        r"^fsync +[\d,]+ +[\d,]+ +[\d,]+$",
        r"└─+.*┴",  # the plot, with a kill
        r"✗ writer",
    ):
        assert re.search(said, shown.text, re.M), said


def test_every_claim_is_counted_and_holds(shown: Shown) -> None:
    claims = re.findall(r"^  ([✓✗]) (.+?): ", shown.text, re.M)
    assert [sign for sign, _ in claims] == ["✓"] * 9
    assert [name for _, name in claims] == [
        "acknowledged lost", "altered or made up", "route orders -> payments", "jobs forgotten",
        "jobs of the killed worker", "dead letters", "group billing", "gap of the sleeping reader",
        "damage",
    ]  # fmt: skip


def test_the_store_that_it_leaves_has_all_of_it(shown: Shown) -> None:
    with esker.open(shown.folder / "data", "r") as store:
        assert {ORDERS, PAYMENTS, CLICKS, EMAILS, DEAD} <= set(store)
        assert store[ORDERS].shards == 4
        assert store[ORDERS].options.durability == "fsync"
        (billing,) = [group for group in store[ORDERS].groups() if group.name == "billing"]
        assert billing.records == 0
        assert store.queue(EMAILS).stats().unfinished == 0


def test_the_commands_at_its_end_work_as_pasted(shown: Shown) -> None:
    lines = shown.text.split("\nNext\n")[1].split("\n\n")[0].splitlines()
    pasted = [line.strip() for line in lines if not line.strip().startswith("#")]
    assert len(pasted) == 5 == len(commands.NEXT)
    for line in pasted:
        done = subprocess.run(shlex.split(line), capture_output=True, timeout=100, check=False)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout, line


def test_what_it_left_is_counted_again_and_a_false_claim_makes_it_fail(
    shown: Shown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Acknowledged records are taken out of a copy of the store, which is whole again then."""
    assert main(["demo", "--check", "--dir", str(shown.folder)]) == 0
    assert "acknowledged lost: 0" in capsys.readouterr().out
    folder = tmp_path / "copy"
    shutil.copytree(shown.folder, folder)
    log = max((folder / "data" / "topics").rglob("*.seg"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    esker.repair(folder / "data")
    assert main(["demo", "--check", "--dir", str(folder)]) == 1
    said = capsys.readouterr()
    assert "esker: demo: false claim: " in said.err
    assert "✗ FALSE: " in said.out


def test_it_touches_nothing_that_it_did_not_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert main(["demo", "--fast", "--dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("esker: demo: ")
    assert "--dir" in said
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_there_is_nothing_to_count_where_no_demo_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--check", "--dir", str(tmp_path / "nowhere")]) == 1
    assert "holds no demo" in capsys.readouterr().err


def test_the_report_is_one_page_that_loads_nothing(shown: Shown) -> None:
    text = (shown.folder / "report.html").read_text(encoding="utf-8")
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert page.tag == "html"
    assert not re.search(r"https?://|//[a-z]|@import|url\(|<script|<link|<img|<iframe", text)
    for name in (" src", " href", " onload", " onclick", " style"):
        assert f"{name}=" not in text
    assert page.find("head/title").text == "esker demo: acknowledged lost: 0"
    pictures = page.findall(".//svg")
    assert [picture.get("aria-label") for picture in pictures] == [
        "orders a second over time", "lag of the group billing",
        "records a second by commit class and batch",
    ]  # fmt: skip
    assert "✗ writer" in text
    assert "✗ worker" in text
    rows = [row for row in page.findall(".//tr") if row.find("td[@class='sign good']") is not None]
    assert len(rows) == 9


def test_a_second_run_goes_on_with_the_first(shown: Shown, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    shutil.copytree(shown.folder, folder)
    before = notes.runs(str(folder / "notes"))
    done = run("--fast", "--keep", "--dir", folder)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert set(before) < set(notes.runs(str(folder / "notes")))
    acknowledged = number(r"^acknowledged: ([\d,]+)$", done.stdout.decode())
    assert acknowledged > number(r"^acknowledged: ([\d,]+)$", shown.text)


def test_a_text_marks_what_is_the_demos(tmp_path: Path) -> None:
    show.prepare(str(tmp_path / "new"), keep=False)
    assert (tmp_path / "new" / show.MARK).read_bytes().startswith(b"Made by `esker demo`")
