"""The benchmark of the server runs from end to end, at a size where its figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import server
from bench.server import SUBJECT, Line

pytestmark = [pytest.mark.bench, pytest.mark.slow]


def test_every_line_is_measured_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.main(["--smoke", "--dir", str(tmp_path), "--results", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "server-smoke.json").read_text())
    named = [line["operation"] for line in told["lines"]]
    assert len(named) == len(set(named)) == 11
    for line in told["lines"]:
        assert line["figures"][SUBJECT] > 0
        assert line["percentiles"][SUBJECT]["p50"] <= line["percentiles"][SUBJECT]["p99"]
        alone = ("append of 10,000 records as Arrow", "SSE, p99", "SSE, 10,000 idle")
        if not line["operation"].startswith(alone):
            assert line["figures"]["nats"] > 0
            assert line["ratios"]["nats"] > 0
            assert "redis" in line["figures"]
    assert len(capsys.readouterr().out.splitlines()) == 11


def test_a_goal_is_met_or_not() -> None:
    fast = Line("a", "records/s", {SUBJECT: 10.0, "nats": 5.0, "redis": "absent"}, {}, 9)
    assert (fast.met, fast._replace(goal=11).met, fast.ratios) == (True, False, {"nats": 2.0})
    slow = Line("a", "ms", {SUBJECT: 10.0, "nats": 5.0}, {}, 9)
    assert (slow.met, slow._replace(goal=11).met, slow.ratios) == (False, True, {"nats": 0.5})
