// Lines that move. A series keeps the last few minutes; a chart draws one or more of them.

import { useEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import { html } from "./ui.js";

const KEEP = 300; // points
const SPAN = 60; // seconds that a chart shows at the least
const BREAK = 8; // seconds without a point after which a line does not go on
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
export const theme = signal(0); // counts up when colours have changed

function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// Points by name, all at the same times.
export class Series {
  constructor() {
    this.times = [];
    this.lines = new Map();
  }

  add(time, values) {
    if (this.times.length && time - this.times[this.times.length - 1] > BREAK) {
      this.times.push(time - 1);
      for (const line of this.lines.values()) line.push(null);
    }
    this.times.push(time);
    for (const name of Object.keys(values)) {
      if (!this.lines.has(name)) this.lines.set(name, new Array(this.times.length - 1).fill(null));
    }
    for (const [name, line] of this.lines) line.push(name in values ? values[name] : null);
    while (this.times.length > KEEP) {
      this.times.shift();
      for (const [name, line] of this.lines) {
        line.shift();
        if (line.every((value) => value === null)) this.lines.delete(name);
      }
    }
    return this;
  }

  last(name) {
    const line = this.lines.get(name);
    return line ? line[line.length - 1] : null;
  }
}

// A label that would be cut off at the edge is left out.
const clocks = (plot, ticks) =>
  ticks.map((at) => (plot.valToPos(at, "x") > plot.over.clientWidth - 20 ? "" : new Date(at * 1000).toTimeString().slice(0, 8)));

export function Chart({ series, names, unit, label, height = 150, turn, whole = false, steps }) {
  const place = useRef(null);
  const chart = useRef(null);
  const shown = names.join("\n");
  useEffect(() => {
    const grid = { stroke: colour("--hair"), width: 1 };
    const axis = { stroke: colour("--muted"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot(
      {
        width: place.current.clientWidth || 300,
        height,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 } },
        padding: [8, 6, 0, 0],
        scales: { x: { time: true, range: (_, low, high) => [Math.min(low, high - SPAN), high] }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.15] } },
        axes: [
          { ...axis, space: 90, size: 24, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300], values: clocks },
          { ...axis, space: 34, size: 56, ...(steps ? { incrs: steps } : {}), values: (_, ticks) => ticks.map((at) => (whole && at % 1 ? "" : unit(at))) },
        ],
        series: [
          {},
          ...names.map((name, at) => ({
            label: name,
            stroke: colour(COLOURS[at % COLOURS.length]),
            width: 1.6,
            points: { show: false },
            fill: names.length === 1 ? colour("--line-fill") : undefined,
          })),
        ],
      },
      data(series, names),
      place.current,
    );
    chart.current = plot;
    const resized = new ResizeObserver(() => place.current && plot.setSize({ width: place.current.clientWidth, height }));
    resized.observe(place.current);
    return () => {
      resized.disconnect();
      plot.destroy();
      chart.current = null;
    };
  }, [shown, height, theme.value]);
  useEffect(() => {
    if (chart.current) chart.current.setData(data(series, names));
  });
  const told = names.map((name) => `${name}: ${series.last(name) == null ? "–" : unit(series.last(name))}`).join(", ");
  return html`
    <figure class="chart">
      <div ref=${place} role="img" aria-label=${`${label}. ${told}`} data-points=${series.times.length} data-turn=${turn}></div>
      ${names.length > 1 &&
      html`<figcaption>${names.map((name, at) => html`<span class=${"legend-key line-" + ((at % COLOURS.length) + 1)}>${name}</span>`)}</figcaption>`}
    </figure>`;
}

const data = (series, names) => [series.times, ...names.map((name) => series.lines.get(name) || series.times.map(() => null))];

// The shape of a line in a table.
export function Spark({ values, label }) {
  const found = values.filter((value) => value != null);
  const high = Math.max(1e-9, ...found);
  const points = found.map((value, at) => `${(at / Math.max(1, found.length - 1)) * 76 + 2},${19 - (value / high) * 16}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 80 22" role="img" aria-label=${label}><polyline points=${points} /></svg>`;
}
