// Queues: jobs by where they are, and what can be done with them.

import { useState } from "preact/hooks";
import { get, may, of, post } from "./api.js";
import { Badge, Empty, Field, Problem, attempt, count, keyOf, lasting, one, preview, sure, usePoll, html } from "./ui.js";

const PLACES = ["ready", "leased", "delayed", "parked", "dead"];
const LISTED = 50;

async function queues(abort) {
  const found = [];
  let cursor = "";
  for (let pages = 0; pages < 10; pages += 1) {
    const told = await get("/v1/overview", { limit: 1000, cursor }, abort);
    found.push(...told.topics.filter((each) => each.queue));
    if (!told.next) break;
    cursor = told.next;
  }
  return Promise.all(found.slice(0, 200).map((each) => get(of("queues", each.topic), {}, abort).catch((problem) => ({ queue: each.topic, problem }))));
}

export function Queues() {
  const { data, problem } = usePoll(queues, 2000, []);
  return html`
    <div class="head"><h1>Queues</h1>${data && html`<span class="facts"><span>${one(data.length, "queue")}</span></span>`}</div>
    <${Problem} problem=${problem} />
    ${data && !data.length && html`<${Empty}>No queues yet. A topic becomes one with store.queue("emails"), or PUT /v1/queues/emails.<//>`}
    ${data && data.length > 0 && html`<section class="panel"><table class="list">
      <thead><tr><th>Queue</th><th class="n">Ready</th><th class="n">Leased</th><th class="n">Delayed</th><th class="n wide">Parked</th><th class="n">Dead</th><th class="n wide">Oldest</th><th></th></tr></thead>
      <tbody>${data.map((each) => html`<tr key=${each.queue}>
        <td class="name"><a href=${"#/queues/" + encodeURIComponent(each.queue)}>${each.queue}</a></td>
        ${each.problem ? html`<td colspan="7">${each.problem.message}</td>` : html`
          <td class="n">${count(each.ready)}</td><td class="n">${count(each.leased)}</td><td class="n">${count(each.delayed)}</td><td class="n wide">${count(each.parked)}</td>
          <td class=${"n" + (each.dead ? " bad" : "")}>${count(each.dead)}</td><td class="n wide">${lasting(each.oldest_seconds)}</td>
          <td>${each.paused && html`<${Badge} tone="warn">paused<//>`}</td>`}</tr>`)}</tbody></table></section>`}`;
}

export function Queue({ name }) {
  const path = of("queues", name);
  const ask = async (abort) => {
    const [state, ready, leased, delayed, dead] = await Promise.all([
      get(path, {}, abort), get(path + "/jobs", { limit: LISTED }, abort), get(path + "/leases", { limit: LISTED }, abort), get(path + "/delayed", { limit: LISTED }, abort), get(path + "/dead", { limit: LISTED }, abort),
    ]);
    return { state, ready: ready.jobs, leased: leased.jobs, delayed: delayed.jobs, dead: dead.jobs, dead_count: dead.count };
  };
  const { data, problem, again } = usePoll(ask, 1500, [name]);
  // Every change is asked about, done, told and seen at once.
  async function change(question, how, verb, body, told) {
    const given = await sure(question, how);
    if (given === false) return;
    const found = await attempt(() => post(`${path}/${verb}`, typeof body === "function" ? body(given) : body), told);
    if (found) again();
  }
  const places = (each) => ({ jobs: [{ shard: each.shard, offset: each.offset }] });
  const label = (each) => `job ${count(each.offset)}`;
  if (!data) return html`<div class="head"><h1 class="mono">${name}</h1></div><${Problem} problem=${problem} />`;
  const { state } = data;
  return html`
    <div class="head"><h1 class="mono">${name}</h1>
      <span class="facts"><span><b>${count(state.unfinished)}</b> unfinished</span><span>oldest ${lasting(state.oldest_seconds)}</span><span>lease ${lasting(state.options.lease)}</span><span>given up after ${state.options.max_deliveries || "never"}</span><span><a href=${"#/topics/" + encodeURIComponent(name)}>records</a></span></span>
      ${state.paused && html`<${Badge} tone="warn">paused<//>`}
      <span class="buttons">
        ${may("admin") && (state.paused
          ? html`<button type="button" class="plain" onClick=${() => change(`Hand out jobs of ${name} again?`, { yes: "Resume" }, "resume", {}, "resumed")}>Resume</button>`
          : html`<button type="button" class="plain" onClick=${() => change(`Hand out nothing of ${name}?`, { yes: "Pause", detail: "Workers wait until it is resumed. What they hold they may finish." }, "pause", {}, "paused")}>Pause</button>`)}
        ${may("delete") && html`<button type="button" class="plain" disabled=${!state.unfinished} onClick=${() => change(`Throw away all waiting jobs of ${name}?`, { yes: "Purge", danger: true, detail: `${one(state.ready + state.delayed + state.parked, "job")} will never be done.` }, "purge", {}, (found) => `${one(found.count, "job")} thrown away`)}>Purge waiting</button>`}
      </span>
    </div>
    <${Problem} problem=${problem} />
    <div class="shares" role="img" aria-label=${PLACES.map((each) => `${each} ${state[each]}`).join(", ")}>
      ${PLACES.filter((each) => state[each]).map((each) => html`<span class=${"share " + each} style=${{ flexGrow: state[each] }}></span>`)}</div>
    <div class="board">
      <${Column} title="Ready" total=${state.ready} jobs=${data.ready} note="handed out next">
        ${() => null}<//>
      <${Column} title="Leased" total=${state.leased} jobs=${data.leased} note="somebody works on them" more=${(each) => html`<span>${lasting(each.seconds_left)} left</span><span>process ${each.pid}</span><span>delivery ${each.deliveries}</span>`}>
        ${(each) => may("admin") && html`
          <button type="button" class="plain" onClick=${() => change(`Take ${label(each)} from its holder?`, { yes: "Release", detail: "It is ready at once, and this delivery does not count. Its holder may be at it still: then it is done twice." }, "leases/release", places(each), "released")}>Release</button>
          <button type="button" class="plain" onClick=${() => change(`Has ${label(each)} failed?`, { yes: "Nack", danger: true, input: "Why", detail: "It counts as a failed delivery, and comes again or is given up." }, "leases/nack", (why) => ({ ...places(each), reason: String(why) }), "nacked")}>Nack</button>`}<//>
      <${Column} title="Delayed" total=${state.delayed} jobs=${data.delayed} note="wait for their time" more=${(each) => html`<span>in ${lasting(each.seconds_left)}</span>`}
        foot=${html`
          ${state.parked > 0 && html`<h2>Parked <b>${count(state.parked)}</b></h2><p class="fine">wait for a job with the same key</p>`}
          ${state.moving > 0 && html`<p class="fine">${count(state.moving)} on their way to the dead letters</p>`}
          ${state.gone > 0 && html`<p class="problem">${one(state.gone, "job")} lost or deleted before anybody had them</p>`}
          ${may("write") && html`<${Put} path=${path} again=${again} />`}`}>
        ${() => null}<//>
      <${Column} title="Dead" tone="bad" total=${data.dead_count} jobs=${data.dead} note="given up" more=${(each) => html`<span>${one(each.deliveries, "delivery").replace("deliverys", "deliveries")}</span>${each.reason && html`<span class="why">${each.reason}</span>`}`}
        top=${data.dead_count > 0 && html`<div class="buttons">
          ${may("consume") && html`<button type="button" class="plain" onClick=${() => change(`Put all dead jobs of ${name} back?`, { yes: "Requeue all", detail: one(data.dead_count, "job") }, "dead/requeue", { all: true }, (found) => `${one(found.count, "job")} put back`)}>Requeue all</button>`}
          ${may("delete") && html`<button type="button" class="plain" onClick=${() => change(`Throw all dead jobs of ${name} away?`, { yes: "Purge all", danger: true, detail: one(data.dead_count, "job") }, "dead/purge", { all: true }, (found) => `${one(found.count, "job")} thrown away`)}>Purge all</button>`}</div>`}>
        ${(each) => html`
          ${may("consume") && html`<button type="button" class="plain" onClick=${() => change(`Put ${label(each)} back?`, { yes: "Requeue", detail: "It is ready at once, as if it were new." }, "dead/requeue", places(each), (found) => `${one(found.count, "job")} put back`)}>Requeue</button>`}
          ${may("delete") && html`<button type="button" class="plain" onClick=${() => change(`Throw ${label(each)} away?`, { yes: "Purge", danger: true }, "dead/purge", places(each), (found) => `${one(found.count, "job")} thrown away`)}>Purge</button>`}`}<//>
    </div>`;
}

const Column = ({ title, total, jobs, note, more, top, foot, tone, children }) => html`
  <section class=${"column " + (tone && total ? tone : "")} aria-label=${title}>
    <h2>${title} <b>${count(total)}</b></h2><p class="fine">${note}</p>${top}
    <div class="jobs">${jobs.map((each) => html`
      <article key=${each.shard + "-" + each.offset} class="job">
        <div class="meta"><span>#${each.offset}${each.shard ? ` of shard ${each.shard}` : ""}</span>${keyOf(each) != null && html`<span class="user">${keyOf(each)}</span>`}${more && more(each)}</div>
        <div class="text user">${preview(each, 160)}</div>
        <div class="acts">${children(each)}</div>
      </article>`)}</div>
    ${total > jobs.length && html`<p class="fine">and ${count(total - jobs.length)} more</p>`}${foot}
  </section>`;

function Put({ path, again }) {
  const [value, set] = useState("");
  const [delay, wait] = useState("");
  async function send(event) {
    event.preventDefault();
    const body = { jobs: [{ value }], ...(delay ? { delay } : {}) };
    if (await attempt(() => post(path + "/jobs", body), "put")) {
      set("");
      again();
    }
  }
  return html`<form class="form put" onSubmit=${send}>
    <${Field} label="Put a job"><textarea name="job" rows="2" class="mono" required value=${value} onInput=${(event) => set(event.target.value)}></textarea><//>
    <div class="bar"><${Field} label="Not before" hint="30s, 1h" grow><input name="delay" value=${delay} onInput=${(event) => wait(event.target.value)} /><//><button type="submit" class="plain">Put</button></div></form>`;
}
