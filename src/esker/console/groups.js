// Groups, and how far behind they are.

import { useRef } from "preact/hooks";
import { drop, get, may, of, post } from "./api.js";
import { Chart, Series } from "./charts.js";
import { Badge, Empty, Problem, Tile, attempt, count, lasting, one, short, sure, usePoll, html } from "./ui.js";

const SHOWN = 6;
const STEPS = [0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 8640000]; // seconds, as people count them
const named = (each) => (each.route ? `route ${each.route}` : each.group);
const page = (each) => `#/groups/${encodeURIComponent(each.topic)}/${encodeURIComponent(each.group)}`;

const fresh = () => ({ records: new Series(), seconds: new Series(), seen: null, turn: 0 });
const all = fresh(); // stays while other pages are looked at

// Lag over time: in records and in seconds.
function useLag(shared) {
  const own = useRef(null);
  return (data, groups) => {
    const state = shared || (own.current ||= fresh());
    if (!data || data === state.seen) return state;
    state.seen = data;
    state.turn += 1;
    const now = Date.now() / 1000;
    const lines = (field) => Object.fromEntries(groups.map((each) => [`${each.topic} · ${named(each)}`, each[field]]));
    state.records.add(now, lines("records"));
    state.seconds.add(now, lines("seconds"));
    return state;
  };
}

const Lags = ({ state, names }) => html`
  <div class="two">
    <section class="panel"><h2>Lag in records</h2><${Chart} whole label="Lag in records" series=${state.records} names=${names} unit=${short} turn=${state.turn} /></section>
    <section class="panel"><h2>Lag in seconds</h2><${Chart} steps=${STEPS} label="Lag in seconds" series=${state.seconds} names=${names} unit=${lasting} turn=${state.turn} /></section>
  </div>`;

// A route reads as a group of its own, route:1; people know it by its name.
async function groupsWithRoutes(abort) {
  const told = await get("/v1/groups", {}, abort);
  if (!told.groups.some((each) => each.group.startsWith("route:"))) return told;
  const { routes } = await get("/v1/routes", {}, abort).catch(() => ({ routes: [] }));
  const known = new Map(routes.map((each) => [each.group, each.route]));
  return { ...told, groups: told.groups.map((each) => ({ ...each, route: known.get(each.group) })) };
}

export function Groups() {
  const { data, problem } = usePoll(groupsWithRoutes, 1000, []);
  const groups = data ? [...data.groups].sort((a, b) => b.records - a.records) : [];
  const first = groups.slice(0, SHOWN);
  const state = useLag(all)(data, first);
  const names = first.map((each) => `${each.topic} · ${named(each)}`);
  return html`
    <div class="head"><h1>Groups</h1>${data && html`<span class="facts"><span>${one(groups.length, "group")}</span></span>`}</div>
    <${Problem} problem=${problem} />
    ${data && !groups.length && html`<${Empty}>No groups yet. Readers that share a topic make one: topic.group("billing").<//>`}
    ${groups.length > 0 && html`
      <${Lags} state=${state} names=${names} />
      <section class="panel"><table class="list">
        <thead><tr><th>Group</th><th>Topic</th><th class="n">Records behind</th><th class="n">Time behind</th><th class="n wide">Caught up in</th><th class="n wide">Members</th><th></th></tr></thead>
        <tbody>${groups.map((each) => html`<tr key=${each.topic + "/" + each.group}>
          <td class="name"><a href=${page(each)} title=${each.group}>${named(each)}</a></td>
          <td class="name"><a href=${"#/topics/" + encodeURIComponent(each.topic)}>${each.topic}</a></td>
          <td class="n">${count(each.records)}</td><td class="n">${lasting(each.seconds)}</td>
          <td class="n wide">${each.eta_seconds == null ? "–" : lasting(each.eta_seconds)}</td><td class="n wide">${count(each.members)}</td>
          <td>${each.paused ? html`<${Badge} tone="warn">paused<//>` : each.records ? "" : html`<${Badge} tone="good">at the end<//>`}</td></tr>`)}</tbody>
      </table></section>`}`;
}

export function Group({ topic, name }) {
  const path = of("topics", topic, "groups", name);
  const { data, problem, again } = usePoll((abort) => get(path, {}, abort), 1000, [topic, name]);
  const state = useLag()(data, data ? [data] : []);
  const act = async (verb, question, detail) => {
    if ((await sure(question, { yes: "Yes", detail })) && (await attempt(() => post(`${path}/${verb}`), `${name}: ${verb}d`))) again();
  };
  async function seek() {
    const to = await sure("Put the group somewhere else", { yes: "Look", input: "Position: earliest, latest, an offset, -100, @-1h", detail: "First you see what it would mean." });
    if (!to) return;
    const told = await attempt(() => post(`${path}/seek`, { to, dry_run: true }));
    if (!told) return;
    const moves = told.moves.map((each) => `shard ${each.shard}: ${count(each.before)} to ${count(each.after)}`).join("; ");
    if ((await sure(`Move ${name} to ${to}?`, { yes: "Move it", danger: true, detail: moves })) && (await attempt(() => post(`${path}/seek`, { to }), `${name} was moved`))) again();
  }
  async function forget() {
    if (!(await sure(`Forget the group ${name}?`, { yes: "Forget it", danger: true, detail: "Where it was is lost. Records are not touched." }))) return;
    if (await attempt(() => drop(path), `${name} is forgotten`)) location.hash = "#/groups";
  }
  return html`
    <div class="head"><h1 class="mono">${name}</h1><span class="facts"><span>reads <a href=${"#/topics/" + encodeURIComponent(topic)}>${topic}</a></span></span>
      ${data && data.paused && html`<${Badge} tone="warn">paused<//>`}
      ${data && may("consume") && html`<span class="buttons">
        ${data.paused ? html`<button type="button" class="plain" onClick=${() => act("resume", `Let ${name} go on?`)}>Resume</button>` : html`<button type="button" class="plain" onClick=${() => act("pause", `Pause ${name}?`, "Nothing is delivered until it is resumed.")}>Pause</button>`}
        <button type="button" class="plain" onClick=${seek}>Seek</button><button type="button" class="plain" onClick=${forget}>Forget</button></span>`}
    </div>
    <${Problem} problem=${problem} />
    ${data && html`
      <div class="tiles">
        <${Tile} label="Behind" value=${count(data.records)} note="records" tone=${data.records ? "" : "good"} />
        <${Tile} label="Behind" value=${lasting(data.seconds)} note="by time" />
        <${Tile} label="Caught up in" value=${data.eta_seconds == null ? "–" : lasting(data.eta_seconds)} note="at this pace" />
        <${Tile} label="Members" value=${count(data.members)} note=${one(data.shards.length, "shard")} />
      </div>
      <${Lags} state=${state} names=${[`${topic} · ${name}`]} />
      <section class="panel"><table class="list"><thead><tr><th class="n">Shard</th><th class="n">Cursor</th><th class="n">End</th><th class="n">Behind</th><th class="n">Time behind</th><th>Held</th></tr></thead>
        <tbody>${data.shards.map((each) => html`<tr><td class="n">${each.shard}</td><td class="n">${count(each.cursor)}</td><td class="n">${count(each.end)}</td><td class="n">${count(each.records)}</td><td class="n">${lasting(each.seconds)}</td><td>${each.owned ? "by a member" : "by nobody"}</td></tr>`)}</tbody></table></section>`}`;
}
