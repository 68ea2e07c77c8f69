"""report.html: what was claimed, what was counted, and how it went, on one page.

It is whole in itself: style and pictures are in the page, nothing is loaded, no script runs. It is
well-formed XML, too, so that whoever wants to can take it apart.
"""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from html import escape
from os import sched_getaffinity
from typing import Final

import msgspec

from esker.clock import SYSTEM_CLOCK
from esker.demo import bench, commands, svg
from esker.demo.bench import Cell
from esker.demo.claims import Verdict
from esker.demo.evidence import Claim
from esker.demo.goods import ORDERS
from esker.demo.meter import Mark, Sample, lags, rates
from esker.version import VERSION

BUCKETS: Final = 160  # parts of the time in a chart

_STYLE: Final = """
:root{color-scheme:light dark;
--paper:#fbfbf9;--card:#fff;--ink:#1d2329;--soft:#66707a;--line:#e3e5e1;
--good:#1a7f4b;--bad:#c22f2f;--one:#2563a8;--two:#0f8f7f;--three:#a8662a}
@media (prefers-color-scheme:dark){:root{
--paper:#14181c;--card:#1b2126;--ink:#e6e9ec;--soft:#97a1ab;
--line:#2c343b;--good:#4cc38a;--bad:#ff7b72;--one:#6cb0f5;--two:#45c9b5;--three:#e0a15e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:940px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:17px;margin:36px 0 10px}
p{margin:6px 0}.soft{color:var(--soft)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;
overflow-x:auto}
.big{font-size:clamp(26px,7vw,44px);font-weight:650;line-height:1.15;letter-spacing:-.02em}
.good{color:var(--good)}.bad{color:var(--bad)}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:12px;
margin-top:14px}
.numbers div{border-left:3px solid var(--line);padding-left:10px}
.numbers b{display:block;font-size:20px;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:7px 10px;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}th{color:var(--soft);font-weight:500}
td.sign{font-weight:700;width:1.5em}td.when{color:var(--soft);white-space:nowrap;
font-variant-numeric:tabular-nums}
pre{margin:0;font:13px/1.7 ui-monospace,monospace;white-space:pre-wrap}
svg{display:block;width:100%;height:auto;min-width:520px}
.grid{stroke:var(--line)}.axis{fill:var(--soft);font-size:12px}.value{fill:var(--ink);font-size:12px}
.kill{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3}
.killed{fill:var(--bad);font-size:12px;font-weight:600}
"""


class Page(msgspec.Struct, kw_only=True):
    """All that the report tells."""

    verdict: Verdict
    samples: list[Sample]
    marks: list[Mark]
    cells: list[Cell]
    story: list[tuple[float, str, str]]
    sync_ms: float
    p50: float
    p99: float
    data: str
    folder: str


def render(page: Page) -> str:
    """The page as text."""
    body = "\n".join(
        [_headline(page), _claims(page.verdict.claims), *_charts(page), _disk(page), _story(page),
         _next(page)]
    )  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>esker demo: acknowledged lost: {page.verdict.lost}</title>"
        f"<style>{_STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _headline(page: Page) -> str:
    verdict = page.verdict
    when = datetime.fromtimestamp(SYSTEM_CLOCK.now_us() / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")
    kills = sum(mark.kind == "kill" for mark in page.marks)
    numbers = [
        (f"{verdict.acknowledged:,}", "records acknowledged"),
        (f"{sum(each.bytes for each in verdict.topics.values()) / 1e6:,.1f} MB", "there now"),
        (f"{page.p50:.2f} / {page.p99:.2f} ms", "durable append of one order, p50 / p99"),
        (str(kills), "processes killed with kill -9"),
        (f"{verdict.redelivered:,}", "jobs handed out again"),
        (f"{verdict.dead:,}", "dead letters"),
    ]
    cells = "".join(f"<div><b>{escape(a)}</b>{escape(b)}</div>" for a, b in numbers)
    sign = "good" if verdict.holds else "bad"
    said = "every claim below was counted, and holds" if verdict.holds else "a claim is false"
    machine = f"Esker {VERSION}, Python {platform.python_version()}, {platform.system()} "
    machine += f"{platform.machine()}, {len(sched_getaffinity(0))} cores"
    return (
        f'<h1>A shop that was killed while it sold</h1><p class="soft">{when} · {escape(machine)}'
        f'</p><div class="card"><div class="big {sign}">acknowledged lost: {verdict.lost}</div>'
        f'<p>{said}</p><div class="numbers">{cells}</div></div>'
    )


def _claims(claims: list[Claim]) -> str:
    rows = "".join(
        f'<tr><td class="sign {"good" if claim.holds else "bad"}">{"✓" if claim.holds else "✗"}'
        f"</td><td>{escape(claim.name)}</td><td>{escape(claim.said)}</td>"
        f'<td class="soft">{escape(claim.counted)}</td></tr>'
        for claim in claims
    )
    return (
        "<h2>What is claimed, and what was counted</h2>"
        '<div class="card"><table><tr><th></th><th></th><th>claimed</th><th>counted by the checker'
        f"</th></tr>{rows}</table></div>"
        '<p class="soft">The checker has the lists that the processes wrote when they were told '
        "something, and a fresh read of the store. It knows nothing else.</p>"
    )


def _charts(page: Page) -> list[str]:
    if len(page.samples) < 2:
        return []
    begin = page.samples[0].at
    seconds = page.samples[-1].at - begin
    kills = [svg.Line(mark.at - begin, mark.text) for mark in page.marks if mark.kind == "kill"]
    sold = rates(page.samples, ORDERS, BUCKETS)
    behind = lags(page.samples, BUCKETS)
    return [
        '<h2>Orders a second, each durable before it counts</h2><div class="card">'
        + svg.area(sold, seconds, kills, "orders a second over time")
        + "</div>",
        '<h2>Orders that billing, slow on purpose, was behind</h2><div class="card">'
        + svg.area(behind, seconds, [], "lag of the group billing", 180, "var(--three)")
        + "</div>",
    ]


def _disk(page: Page) -> str:
    if not page.cells:
        return ""
    values = [
        (cell.durability, f"{cell.batch:,} at a time", cell.per_second) for cell in page.cells
    ]
    return (
        "<h2>This disk, by commit class: records a second</h2>"
        f'<div class="card">{svg.rows(values, "records a second by commit class and batch")}</div>'
        f'<p class="soft">One thread, values of {bench.SIZE} bytes, a scale of powers of ten. A '
        f"bare write and fdatasync takes {page.sync_ms:.2f} ms here. A glance, not a benchmark.</p>"
    )


def _story(page: Page) -> str:
    colours = {"kill": "bad", "back": "good"}
    rows = "".join(
        f'<tr><td class="when">{at:.1f} s</td><td class="{colours.get(kind, "")}">{escape(text)}'
        "</td></tr>"
        for at, kind, text in page.story
    )
    return f'<h2>What happened</h2><div class="card"><table>{rows}</table></div>'


def _next(page: Page) -> str:
    lines = "\n".join(
        f'<span class="soft"># {escape(text)}</span>\n{escape(command)}'
        for text, command in commands.next_steps(page.data)
    )
    return (
        f'<h2>Next</h2><div class="card"><pre>{lines}</pre></div>'
        f'<p class="soft">Count everything again: {escape(commands.check_again(page.folder))}</p>'
    )
