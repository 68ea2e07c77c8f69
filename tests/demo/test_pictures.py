"""Plots, pictures and the screen: what is drawn is what was measured."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import esker
from esker.demo import plot, svg
from esker.demo.bench import Cell, bare_sync, measure
from esker.demo.claims import Verdict
from esker.demo.evidence import Claim
from esker.demo.goods import ORDERS, PAYMENTS
from esker.demo.meter import Mark, Meter, Sample, lags, rates
from esker.demo.notes import Notes
from esker.demo.report import Page, render
from esker.demo.screen import Screen


def samples(*orders: int, every: float = 1.0) -> list[Sample]:
    return [
        Sample(number * every, each, 0, 0, 0, each // 2, 0) for number, each in enumerate(orders)
    ]


def test_a_bar_is_as_high_as_its_number() -> None:
    assert plot.bars([0, 1, 2, 4], 2) == ["   █", " ▄██"]
    assert plot.bars([0, 0], 1) == ["  "]


def test_a_chart_has_its_numbers_and_marks_where_they_belong() -> None:
    lines = plot.chart([1000.0] * 20, [plot.Note(0.5, "✗ writer")], 12.0, 3)
    assert lines[0] == " 1,000 ┤" + "█" * 20
    assert lines[3] == "       └" + "─" * 10 + "┴" + "─" * 9
    assert lines[4] == " " * 18 + "✗ writer"
    assert lines[5].split() == ["0", "s", "12", "s"]


def test_marks_that_are_close_do_not_hide_each_other() -> None:
    notes = [plot.Note(part, "✗ writer") for part in (0.1, 0.12, 0.99, 1.5)]
    text = "\n".join(plot.chart([1.0] * 30, notes, 1.0, 1))
    assert text.count("✗ writer") == 4


def test_rates_and_lags_are_those_between_the_samples() -> None:
    there = samples(0, 100, 300, 300)
    assert rates(there, ORDERS, 3) == pytest.approx([100, 200, 0])
    assert lags(there, 3) == pytest.approx([50, 150, 150])
    assert rates(there[:1], ORDERS, 3) == [0.0, 0.0, 0.0]


def test_the_meter_counts_what_the_lists_say(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    Notes(str(folder), 1, "acks", "00").add(ORDERS, 0, 0, 5, "hash", 900)
    with esker.open(tmp_path / "data") as store:
        store.create(PAYMENTS)
        meter = Meter(store, str(folder))
        Notes(str(folder), 2, "acks", "00").add(ORDERS, 0, 5, 1, "hash", 1500)
        Notes(str(folder), 2, "acks", "04").add("clicks", 0, 0, 500, "hash", 1500)
        Notes(str(folder), 2, "puts", "05").add("2-5-0", "2-5-1")
        Notes(str(folder), 2, "work", "w1").add("done", "2-5-0", 1)
        Notes(str(folder), 2, "bills", "b1").add(0, 0, 4, 10)
        sample = meter.look()
        assert sample[1:] == (6, 500, 2, 1, 4, 0)
        assert meter.since_the_beginning(sample).orders == 1  # five are of a former run
        assert meter.percentile(0.99) == 1.5
        meter.close()


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [1.0, 12_345.6, 3.0]])
def test_pictures_are_well_formed_whatever_was_measured(values: list[float]) -> None:
    marks = [svg.Line(1.0, "<writer> & co"), svg.Line(99.0, "late")]
    for text in (
        svg.area(values, 2.0, marks, 'a "name"'),
        svg.rows([("fsync", "1 at a time", value) for value in values], "bars"),
    ):
        assert ElementTree.fromstring(text).tag == "svg"


def page(holds: bool) -> Page:
    claim = Claim("<b>name</b>", "0", "1 & 2", holds)
    return Page(
        verdict=Verdict([claim], {}, 0, 0), samples=samples(0, 10, 20),
        marks=[Mark(1.0, "kill", "writer")], cells=[Cell("fsync", 1, 10, 1.0)],
        story=[(0.5, "kill", "kill -9 </td>")], sync_ms=0.1, p50=1.0, p99=2.0,
        data="/data", folder="/demo",
    )  # fmt: skip


def test_a_report_shows_text_as_text_and_a_false_claim_in_red() -> None:
    good, bad = render(page(True)), render(page(False))
    for text in (good, bad):
        ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        assert "&lt;b&gt;name&lt;/b&gt;" in text
    assert 'class="big good"' in good
    assert 'class="big bad"' in bad
    assert "a claim is false" in bad


def test_a_terminal_gets_a_line_for_each_actor_and_a_plot_that_grows(tmp_path: Path) -> None:
    screen = Screen()
    shown = io.StringIO()
    screen.console = Console(file=shown, force_terminal=True, width=90, height=40)
    screen.pretty = True
    (tmp_path / "notes").mkdir()
    with esker.open(tmp_path / "data") as store:
        store.create(PAYMENTS)
        meter = Meter(store, str(tmp_path / "notes"))
        meter.samples = samples(0, 100, 200)
        meter.marks = [Mark(1.0, "kill", "writer")]
        screen.show(meter, meter.samples[-1], 0.5)
        screen.say("  what has happened stays " + "and is wrapped " * 9)
        screen.wait("the JVM starts", 0.5)
        screen.settle()
        screen.plot(meter, meter.samples)
        meter.close()
    text = shown.getvalue()
    for name in ("shop", "clicks", "route", "workers", "billing", "✗ writer", "the JVM starts"):
        assert name in text
    assert all(line.startswith("  ") for line in text.split("stays")[1].split("\n")[1:2])


def test_every_class_of_this_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    told: list[str] = []
    cells = measure(str(tmp_path / "bench"), 0.001, told.append)
    assert [(cell.durability, cell.batch) for cell in cells] == [
        (name, batch) for name in ("fsync", "disk", "memory") for batch in (1, 100, 1_000)
    ]
    assert all(cell.per_second > 0 for cell in cells)
    assert len(told) == 9
    assert bare_sync(str(tmp_path)) > 0
    assert list(tmp_path.iterdir()) == []
