// The store: is it well, what does it do, what did recovery find.

import { get } from "./api.js";
import { Chart, Series } from "./charts.js";
import { Badge, Empty, Problem, Tile, bytes, count, lasting, moment, one, usePoll, html } from "./ui.js";

const state = { series: new Series(), seen: null, turn: 0 }; // stays while other pages are looked at
const RUNGS = ["delivers as it comes", "coalesces", "widens commits", "defers", "refuses appends"];
const percent = (part) => `${Math.round(part * 100)} %`;

export function Store() {
  const { data, problem } = usePoll((abort) => get("/v1/store", {}, abort), 1500, []);
  if (data && data !== state.seen) {
    state.seen = data;
    state.turn += 1;
    state.series.add(data.now / 1e6, { pressure: data.pressure.pressure });
  }
  if (!data) return html`<div class="head"><h1>Store</h1></div><${Problem} problem=${problem} />`;
  const { maintenance, recovery, pressure } = data;
  return html`
    <div class="head"><h1>Store</h1>${data.healthy ? html`<${Badge} tone="good">healthy<//>` : html`<${Badge} tone="bad">needs attention<//>`}</div>
    <${Problem} problem=${problem} />
    ${data.poisoned.map((each) => html`<p class="problem" role="alert">Shard ${each.shard} of ${each.topic} takes no more records until the server is started again: a sync failed (${each.code}).</p>`)}
    <div class="tiles">
      <${Tile} label="Data" value=${bytes(data.bytes)} note=${one(data.topics, "topic")} />
      <${Tile} label="Free on its disk" value=${bytes(data.free_bytes)} tone=${data.free_bytes != null && data.free_bytes < 1 << 30 ? "warn" : ""} />
      <${Tile} label="Background" value=${maintenance.state} note=${one(maintenance.done.errors, "error")} tone=${maintenance.state === "failed" ? "bad" : maintenance.done.errors ? "warn" : ""} />
      <${Tile} label="Pressure" value=${percent(pressure.pressure)} note=${RUNGS[pressure.rung]} tone=${pressure.rung > 2 ? "bad" : pressure.rung ? "warn" : ""} />
      <${Tile} label="Recovery" value=${recovery.clean ? "clean" : one(recovery.findings.length, "finding")} note=${recovery.clean ? "nothing to recover" : `${one(recovery.shards, "shard")} in ${lasting(recovery.seconds)}`} tone=${recovery.clean ? "good" : "warn"} />
      <${Tile} label="Up" value=${lasting(data.uptime_seconds)} note=${"version " + data.version} />
    </div>
    <section class="panel"><h2>Pressure</h2>
      <${Chart} label="Pressure" series=${state.series} names=${["pressure"]} unit=${percent} turn=${state.turn} height=${120} />
      <p class="fine">Topics wait ${lasting(pressure.schedule_seconds)} for their turn; ${count(pressure.ready.reduce((sum, each) => sum + each, 0))} wait now.</p></section>
    <div class="two">
      <section class="panel"><h2>Background</h2>
        ${maintenance.doing.length ? html`<ul>${maintenance.doing.map((each) => html`<li>${each.what} ${each.topic && html`<b>${each.topic}</b> shard ${each.shard}`} since ${moment(each.since_us)}</li>`)}</ul>` : html`<p class="fine">Nothing to do just now.</p>`}
        <h3>Done</h3><dl class="pairs">${Object.entries(maintenance.done).map(([name, value]) => html`<div><dt>${name.replaceAll("_", " ")}</dt><dd>${name.endsWith("bytes") ? bytes(value) : count(value)}</dd></div>`)}</dl>
        <h3>Waiting</h3><dl class="pairs">${Object.entries(maintenance.waiting).map(([name, value]) => html`<div><dt>${name}</dt><dd>${count(value)}</dd></div>`)}</dl>
        ${maintenance.last_error && html`<p class="problem">${moment(maintenance.last_error.when_us)}: ${maintenance.last_error.what}: ${maintenance.last_error.reason}</p>`}
        ${maintenance.budget && html`<p>Budget: ${bytes(maintenance.budget.bytes)} of ${bytes(maintenance.budget.limit)}, ${bytes(maintenance.budget.to_evict)} to go.</p>`}
      </section>
      <section class="panel"><h2>Numbers</h2><dl class="pairs">${Object.entries(data.statistics).map(([name, value]) => html`<div><dt>${name.replaceAll("_", " ")}</dt><dd>${name.endsWith("bytes") ? bytes(value) : count(value)}</dd></div>`)}</dl></section>
    </div>
    <section class="panel"><h2>Recovery</h2>
      ${recovery.clean ? html`<${Empty}>The store was closed in order: there was nothing to recover.<//>` : html`
        <table class="list"><thead><tr><th>Found</th><th>Where</th><th class="wide">File</th><th>What it means</th></tr></thead>
          <tbody>${recovery.findings.map((each) => html`<tr><td><${Badge} tone="soft">${each.label}<//></td><td class="name">${each.topic ? `${each.topic}, shard ${each.shard}` : "the store"}${each.first != null ? ` ${count(each.first)} to ${count(each.last)}` : ""}</td><td class="wide mono">${each.file}</td><td>${each.reason}; ${each.means}</td></tr>`)}</tbody></table>`}</section>
    <section class="panel"><h2>Retention</h2>
      ${data.going.length ? html`<table class="list"><thead><tr><th>Topic</th><th class="n">Shard</th><th class="n">First</th><th class="n">Last</th><th class="n">Size</th><th>Why</th></tr></thead>
        <tbody>${data.going.map((each) => html`<tr><td class="name">${each.topic}</td><td class="n">${each.shard}</td><td class="n">${count(each.first)}</td><td class="n">${count(each.last)}</td><td class="n">${bytes(each.bytes)}</td><td>${each.reason}</td></tr>`)}</tbody></table>` : html`<${Empty}>Nothing is to go now.<//>`}</section>`;
}
