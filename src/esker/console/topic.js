// One topic: its tabs, and the forms to append, export and import.

import { useState } from "preact/hooks";
import { download, get, may, of, post, request } from "./api.js";
import { Records, RecordPage } from "./records.js";
import { Segments } from "./segments.js";
import { useRates } from "./overview.js";
import { Badge, Empty, Field, Problem, attempt, bytes, count, lasting, one, rate, say, short, usePoll, html } from "./ui.js";

const TABS = { "": "Records", segments: "Segments", append: "Append", transfer: "Export and import", options: "Options" };

export function Topic({ name, rest, query }) {
  const { data, problem } = usePoll((abort) => get(of("topics", name), {}, abort), 2000, [name]);
  const look = usePoll((abort) => get("/v1/overview", { prefix: name, limit: 1 }, abort), 1000, [name]);
  const mine = look.data && look.data.topics.find((each) => each.topic === name);
  const { series } = useRates()(look.data);
  const one_record = rest.length === 2 && /^\d+$/.test(rest[0]) && /^\d+$/.test(rest[1]);
  const tab = one_record ? "" : rest[0] || "";
  const home = "#/topics/" + encodeURIComponent(name);
  const gone = problem && problem.status === 404;
  return html`
    <div class="head">
      <h1 class="mono">${name}</h1>
      ${mine && mine.queue && html`<a href=${"#/queues/" + encodeURIComponent(name)}><${Badge}>queue<//></a>`}
      ${data && html`<span class="facts">
        <span><b>${count(data.count)}</b> ${data.count === 1 ? "record" : "records"}</span>
        <span><b>${rate(series.last(name))}</b> a second</span>
        ${mine && html`<span><b>${bytes(mine.bytes)}</b> in ${one(mine.segments, "segment")}</span>`}
        <span>${one(data.shards.length, "shard")}, ${data.options.durability}</span></span>`}
    </div>
    <nav class="tabs" aria-label="Of this topic">
      ${Object.entries(TABS).map(([key, text]) => html`<a href=${key ? `${home}/${key}` : home} aria-current=${tab === key ? "page" : undefined}>${text}</a>`)}
    </nav>
    ${gone ? html`<${Empty}>There is no topic of this name${may("write") ? ". The first record makes it." : "."}<//>` : html`<${Problem} problem=${problem} />`}
    ${one_record && html`<${RecordPage} key=${rest.join("/")} topic=${name} shard=${+rest[0]} offset=${rest[1]} />`}
    ${!one_record && tab === "" && data && html`<${Records} key=${name} topic=${name} state=${data} query=${query} />`}
    ${tab === "segments" && data && html`<${Segments} topic=${name} options=${data.options} />`}
    ${tab === "append" && html`<${Append} topic=${name} />`}
    ${tab === "transfer" && data && html`<${Transfer} topic=${name} shards=${data.shards.length} />`}
    ${tab === "options" && data && html`<${Options} data=${data} />`}`;
}

// ---- append -----------------------------------------------------------------------------------

const EMPTY = { value: "", kind: "text", key: "", tag: "", node: "", headers: "" };

function made(form) {
  const record = form.kind === "base64" ? { base64: form.value.trim() } : { value: form.value };
  if (form.kind === "json") JSON.parse(form.value); // its own text is sent, not what JSON.parse makes of it
  for (const name of ["key", "tag", "node"]) if (form[name]) record[name] = form[name];
  const headers = {};
  for (const line of form.headers.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`a header is written name: value, and not ${line}`);
    headers[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  if (Object.keys(headers).length) record.headers = headers;
  return record;
}

function Append({ topic }) {
  const [form, set] = useState(EMPTY);
  const [problem, fail] = useState(null);
  const [last, done] = useState(null);
  const field = (name) => ({ value: form[name], onInput: (event) => set({ ...form, [name]: event.target.value }) });
  async function send(event) {
    event.preventDefault();
    try {
      const told = await post(of("topics", topic, "records"), { records: [made(form)] });
      fail(null);
      done(told.spans[0]);
      set({ ...form, value: "" });
      say("appended");
    } catch (problem) {
      fail(problem);
    }
  }
  if (!may("write")) return html`<${Empty}>To append needs the scope write, which you do not have here.<//>`;
  return html`
    <form class="panel form" onSubmit=${send}>
      <${Field} label="Value"><textarea name="value" rows="6" class="mono" spellcheck="false" ...${field("value")}></textarea><//>
      <div class="bar">
        <${Field} label="The value is"><select name="kind" ...${field("kind")}><option value="text">text</option><option value="json">JSON, checked</option><option value="base64">bytes, in base64</option></select><//>
        <${Field} label="Key" grow><input name="key" autocomplete="off" ...${field("key")} /><//>
        <${Field} label="Tag" grow><input name="tag" autocomplete="off" ...${field("tag")} /><//>
        <${Field} label="Node" grow><input name="node" autocomplete="off" ...${field("node")} /><//>
      </div>
      <${Field} label="Headers" hint="name: value, one a line"><textarea name="headers" rows="2" class="mono" spellcheck="false" ...${field("headers")}></textarea><//>
      <${Problem} problem=${problem} />
      <div class="buttons">
        ${last && html`<span class="fine">The last one is <a href=${`#/topics/${encodeURIComponent(topic)}/${last.shard}/${last.first}`}>offset ${count(last.first)} of shard ${last.shard}</a>.</span>`}
        <button type="submit" class="main">Append</button>
      </div>
    </form>`;
}

// ---- export and import ------------------------------------------------------------------------

function Transfer({ topic, shards }) {
  const [ask, set] = useState({ format: "ndjson", start: "", stop: "", shard: "", where: "" });
  const field = (name) => ({ value: ask[name], onInput: (event) => set({ ...ask, [name]: event.target.value }) });
  const fetch_it = async (event) => {
    event.preventDefault();
    await attempt(async () => {
      await get(of("topics", topic, "ranges"), { start: ask.start || "earliest", stop: ask.stop, shard: ask.shard }); // what is wrong with it is told here
      if (ask.where) await get(of("topics", topic, "records"), { where: ask.where, limit: 1, shard: ask.shard || 0, start: "latest" });
      await download(topic, ask);
    });
  };
  return html`
    <form class="panel form" onSubmit=${fetch_it}>
      <h2>Export</h2>
      <div class="bar">
        <${Field} label="As"><select name="format" ...${field("format")}><option value="ndjson">NDJSON, can be imported again</option><option value="csv">CSV, for spreadsheets</option><option value="arrow">Arrow stream</option></select><//>
        <${Field} label="From" hint="offset, -100, @-1h" grow><input name="start" placeholder="earliest" ...${field("start")} /><//>
        <${Field} label="Up to" grow><input name="stop" placeholder="the end, now" ...${field("stop")} /><//>
        ${shards > 1 && html`<${Field} label="Shard"><select name="shard" ...${field("shard")}><option value="">all</option>${Array.from({ length: shards }, (_, at) => html`<option value=${at}>${at}</option>`)}</select><//>`}
      </div>
      <${Field} label="Only records where" hint=${'tag == "eu" and json.amount > 100'}><input name="where" class="mono" spellcheck="false" ...${field("where")} /><//>
      <div class="buttons"><button type="submit" class="main">Download</button></div>
    </form>
    <${Import} topic=${topic} />`;
}

const LINES = 1000;
const SIZE = 1 << 20;

// A line as the server takes it. Where it was read from is left out; text is not parsed without need.
export function imported(line) {
  const found = JSON.parse(line);
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error("no JSON object");
  if (found.gap) return null;
  if (!("offset" in found) && !("shard" in found)) return line;
  if (typeof found.value !== "string" && found.value !== undefined && /\d{16,}/.test(JSON.stringify(line)))
    throw new Error("has a number too long for a browser; leave out offset and shard");
  delete found.offset;
  delete found.shard;
  return JSON.stringify(found);
}

async function* linesOf(file) {
  const reader = file.stream().pipeThrough(new TextDecoderStream("utf-8", { fatal: true })).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
  yield rest;
}

function Import({ topic }) {
  const [file, choose] = useState(null);
  const [going, tell] = useState(null);
  const [problem, fail] = useState(null);
  if (!may("write")) return null;
  async function send(event) {
    event.preventDefault();
    fail(null);
    const run = crypto.randomUUID();
    let [sent, gaps, number, batch, room] = [0, 0, 0, [], 0];
    const flush = async () => {
      if (!batch.length) return;
      const body = batch.join("\n");
      const key = `import-${run}-${number}`; // a call that is made again counts once
      for (let tries = 0; ; tries += 1) {
        try {
          await request("POST", of("topics", topic, "records"), { body, type: "application/x-ndjson", more: { "Idempotency-Key": key } });
          break;
        } catch (problem) {
          if (tries > 4 || ![0, 429, 503].includes(problem.status)) throw problem;
          await new Promise((wake) => setTimeout(wake, 500 * 2 ** tries));
        }
      }
      sent += batch.length;
      [batch, room] = [[], 0];
      tell({ sent, gaps, done: false });
    };
    try {
      for await (const line of linesOf(file)) {
        number += 1;
        if (!line.trim()) continue;
        let one;
        try {
          one = imported(line);
        } catch (wrong) {
          throw new Error(`line ${count(number)}: ${wrong.message}`);
        }
        if (one === null) gaps += 1;
        else if (batch.push(one) >= LINES || (room += one.length) > SIZE) await flush();
      }
      await flush();
      tell({ sent, gaps, done: true });
    } catch (problem) {
      fail(new Error(`${problem.message}; ${one(sent, "record")} before it ${sent === 1 ? "was" : "were"} appended`));
    }
  }
  return html`
    <form class="panel form" onSubmit=${send}>
      <h2>Import</h2>
      <p class="fine">NDJSON, a record in each line: <code>${'{"value": "…", "key": "…", "tag": "…"}'}</code>. What was exported here can be imported as it is. Records are appended behind those that are there.</p>
      <div class="bar"><${Field} label="File" grow><input type="file" name="file" required accept=".ndjson,.jsonl,.json,.txt" onChange=${(event) => choose(event.target.files[0])} /><//>
        <button type="submit" class="main" disabled=${!file || (going && !going.done && !problem)}>Import</button></div>
      <${Problem} problem=${problem} />
      ${going && html`<p role="status">${one(going.sent, "record")} ${going.done ? "imported" : "so far"}${going.gaps ? `, ${one(going.gaps, "gap")} left out` : ""}.</p>`}
    </form>`;
}

// ---- options ----------------------------------------------------------------------------------

function told(name, value) {
  if (name.endsWith("_us")) return value ? lasting(value / 1e6) : "none";
  if (name.endsWith("_bytes")) return value ? bytes(value) : "none";
  if (!value && ["segment_records", "cap_records", "hot_segments"].includes(name)) return "none";
  if (typeof value === "number") return value ? short(value) : "0";
  return String(value);
}

const Options = ({ data }) => html`
  <section class="panel"><h2>Options</h2>
    <dl class="pairs">${Object.entries(data.options).map(([name, value]) => html`<div><dt>${name.replace(/_us$/, "")}</dt><dd>${told(name, value)}</dd></div>`)}</dl>
    <h2>Shards</h2>
    <table class="list"><thead><tr><th class="n">Shard</th><th class="n">Earliest</th><th class="n">Durable to</th><th class="n">End</th></tr></thead>
      <tbody>${data.shards.map((each) => html`<tr><td class="n">${each.shard}</td><td class="n">${count(each.earliest)}</td><td class="n">${count(each.durable)}</td><td class="n">${count(each.end)}</td></tr>`)}</tbody></table>
  </section>`;
