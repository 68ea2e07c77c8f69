// All topics, and how fast they grow.

import { useRef, useState } from "preact/hooks";
import { access, get, may, put } from "./api.js";
import { Chart, Series, Spark } from "./charts.js";
import { Badge, Empty, Problem, Tile, ago, attempt, bytes, count, lasting, one, rate, short, sure, usePoll, html } from "./ui.js";

const EVERY = 1000;

const all = { series: new Series(), before: null, turn: 0 }; // stays while other pages are looked at

// Rates come from two looks at numbers that only grow.
export function useRates(shared) {
  const own = useRef(null);
  return (data) => {
    const state = shared || (own.current ||= { series: new Series(), before: null, turn: 0 });
    if (!data || (state.before && data.now === state.before.now)) return state;
    const before = state.before;
    state.before = data;
    state.turn += 1;
    if (!before || data.now <= before.now) return state;
    const seconds = (data.now - before.now) / 1e6;
    const was = new Map(before.topics.map((each) => [each.topic, each]));
    const found = {};
    let sum = 0;
    for (const each of data.topics) {
      const known = was.get(each.topic);
      if (!known) continue;
      found[each.topic] = Math.max(0, each.appended - known.appended) / seconds;
      sum += found[each.topic];
    }
    const server = data.server && before.server ? { "\0delivered": Math.max(0, data.server.delivered - before.server.delivered) / seconds } : {};
    state.series.add(data.now / 1e6, { ...found, "\0all": sum, ...server });
    return state;
  };
}

export function Overview() {
  const [prefix, setPrefix] = useState("");
  const [limit, setLimit] = useState(100);
  const { data, problem, again } = usePoll((abort) => get("/v1/overview", { prefix, limit }, abort), limit > 200 ? 5 * EVERY : EVERY, [prefix, limit]);
  const { series, turn } = useRates(all)(data);
  const chart = new Series();
  chart.times = series.times;
  for (const [name, from] of [["appended", "\0all"], ["delivered", "\0delivered"]]) if (series.lines.has(from)) chart.lines.set(name, series.lines.get(from));
  const server = data && data.server;
  const busiest = data ? data.topics.map((each) => [each.topic, series.last(each.topic)]) : [];
  const live = new Map(busiest);
  return html`
    <div class="head"><h1>Topics</h1>
      ${may("admin") && html`<button type="button" class="plain" onClick=${() => create(again)}>New topic</button>`}
    </div>
    <${Problem} problem=${problem} />
    ${data && html`
      <div class="tiles">
        <${Tile} label="Appended" value=${rate(series.last("\0all"))} note="records a second" />
        <${Tile} label="Topics" value=${count(data.total)} note=${one(data.topics.filter((each) => each.queue).length, "queue")} />
        <${Tile} label="Records" value=${short(data.topics.reduce((sum, each) => sum + each.count, 0))} note=${bytes(data.topics.reduce((sum, each) => sum + each.bytes, 0))} />
        ${server && html`
          <${Tile} label="Pressure" value=${Math.round(server.pressure * 100) + " %"} note=${"step " + server.rung + " of 4"} tone=${server.rung > 2 ? "bad" : server.rung ? "warn" : ""} />
          <${Tile} label="Streams" value=${count(server.streams)} note=${rate(series.last("\0delivered")) + " records a second"} />
          <${Tile} label="Up" value=${lasting(server.uptime_seconds)} note=${short(server.requests) + " calls, " + one(server.failures, "failure")} tone=${server.failures ? "warn" : ""} />`}
      </div>
      <section class="panel"><h2>Records a second</h2>
        <${Chart} label="Records a second" series=${chart} names=${[...chart.lines.keys()]} unit=${rate} turn=${turn} />
      </section>`}
    <section class="panel">
      <div class="bar">
        <label class="field grow"><span>Names that begin with</span>
          <input type="search" data-filter="" value=${prefix} placeholder="all" onInput=${(event) => setPrefix(event.target.value)} /></label>
        ${data && html`<span class="fine">${data.next ? `the first ${count(data.topics.length)} of ${count(data.total)}` : one(data.topics.length, "topic")}</span>`}
      </div>
      ${data && !data.topics.length
        ? html`<${Empty}>${prefix ? "No topic begins so." : access.value.prefixes.length ? "No topic that this key is for." : "No topics yet. The first record makes one: esker append, or curl, or the library."}<//>`
        : html`
          <table class="list">
            <thead><tr><th>Topic</th><th class="n">Records</th><th class="n">A second</th><th class="wide" aria-label="its course"></th><th class="n">Size</th><th class="n wide">Segments</th><th class="n wide">Youngest</th></tr></thead>
            <tbody>
              ${data && data.topics.map((each) => html`
                <tr key=${each.topic}>
                  <td class="name"><a href=${"#/topics/" + encodeURIComponent(each.topic)}>${each.topic}</a>
                    ${each.queue && html` <a href=${"#/queues/" + encodeURIComponent(each.topic)}><${Badge}>queue<//></a>`}
                    ${each.shards > 1 && html` <${Badge} tone="soft">${each.shards} shards<//>`}</td>
                  <td class="n">${count(each.count)}</td>
                  <td class="n">${rate(live.get(each.topic))}</td>
                  <td class="wide"><${Spark} label="" values=${(series.lines.get(each.topic) || []).slice(-60)} /></td>
                  <td class="n">${bytes(each.bytes)}</td>
                  <td class="n wide">${count(each.segments)}</td>
                  <td class="n wide">${ago(each.newest, data.now)}</td>
                </tr>`)}
            </tbody>
          </table>`}
      ${data && data.next && limit < 1000 && html`<div class="buttons"><button type="button" class="plain" onClick=${() => setLimit(Math.min(1000, limit * 2))}>Show more</button></div>`}
    </section>`;
}

async function create(again) {
  const name = await sure("Make a topic", { yes: "Make it", input: "Name" });
  if (!name) return;
  if (await attempt(() => put("/v1/topics/" + encodeURIComponent(name)), (found) => (found.created ? `${name} is there` : `${name} was there already`))) again();
}
