// Routes: what goes from topic to topic, and how far behind it is.

import { get, may, of, post } from "./api.js";
import { Chart, Series } from "./charts.js";
import { Badge, Empty, Problem, attempt, count, lasting, one, short, sure, usePoll, html } from "./ui.js";

const state = { series: new Series(), seen: null, turn: 0 }; // stays while other pages are looked at
const TONES = { running: "good", waiting: "soft", paused: "warn", stopped: "bad" };

export function Routes() {
  const { data, problem, again } = usePoll((abort) => get("/v1/routes", {}, abort), 1000, []);
  if (data && data !== state.seen) {
    state.seen = data;
    state.turn += 1;
    state.series.add(Date.now() / 1000, Object.fromEntries(data.routes.slice(0, 6).map((each) => [each.route, each.records])));
  }
  async function act(each, verb, detail) {
    const question = verb === "pause" ? `Pause ${each.route}?` : `Let ${each.route} go on?`;
    if ((await sure(question, { yes: verb === "pause" ? "Pause" : "Resume", detail })) && (await attempt(() => post(of("routes", each.route, verb)), `${each.route}: ${verb}d`))) again();
  }
  const routes = data ? data.routes : [];
  const usual = routes.every((each) => each.route === `${each.source}->${each.destination}`) ? " wide" : ""; // a phone has no room to say it twice
  return html`
    <div class="head"><h1>Routes</h1>${data && html`<span class="facts"><span>${one(routes.length, "route")}</span></span>`}</div>
    <${Problem} problem=${problem} />
    ${data && !routes.length && html`<${Empty}>No routes yet. store.route("orders", "payments", where="json.paid == true") makes one.<//>`}
    ${routes.length > 0 && html`
      <section class="panel"><h2>Lag in records</h2><${Chart} whole label="Lag in records" series=${state.series} names=${[...state.series.lines.keys()].slice(0, 6)} unit=${short} turn=${state.turn} /></section>
      <section class="panel"><table class="list">
        <thead><tr><th class=${usual}>Route</th><th>From, to</th><th class="wide">Where</th><th>State</th><th class="n">Behind</th><th class="n wide">Time behind</th><th class="n wide">Forwarded</th><th class="n wide">Filtered</th><th class="n wide">Missed</th><th></th></tr></thead>
        <tbody>${routes.map((each) => html`<tr key=${each.route}>
          <td class=${"name" + usual}>${each.route}</td>
          <td class="name"><a href=${"#/topics/" + encodeURIComponent(each.source)}>${each.source}</a> → <a href=${"#/topics/" + encodeURIComponent(each.destination)}>${each.destination}</a></td>
          <td class="wide mono user">${each.where || html`<span class="fine">all</span>`}</td>
          <td><${Badge} tone=${TONES[each.state]} title=${each.reason}>${each.state}<//> ${each.exactly_once && html`<${Badge} tone="soft">once<//>`}</td>
          <td class="n">${count(each.records)}</td><td class="n wide">${lasting(each.seconds)}</td><td class="n wide">${count(each.forwarded)}</td><td class="n wide">${count(each.filtered)}</td><td class=${"n wide" + (each.missed ? " bad" : "")}>${count(each.missed)}</td>
          <td class="acts">${may("admin") && (each.state === "paused"
            ? html`<button type="button" class="plain" onClick=${() => act(each, "resume")}>Resume</button>`
            : html`<button type="button" class="plain" onClick=${() => act(each, "pause", "Nothing is forwarded until it is resumed; nothing is lost meanwhile.")}>Pause</button>`)}</td></tr>`)}</tbody></table></section>`}`;
}
