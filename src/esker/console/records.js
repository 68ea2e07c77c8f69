// Records as a list, and one record.
//
// The list is a window. Followed, it holds the last few hundred records that came, and a pause keeps
// them where they are: the log goes on without us, and so do we when we follow again. Looked through,
// it holds the records around a place, and reads more at either end as one scrolls; what leaves at
// the other end is forgotten. So ten million records cost what three hundred do.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { batch, signal } from "@preact/signals";
import { get, of, watch } from "./api.js";
import { Badge, Empty, Problem, bytes, clock, copy, count, day, dump, keyOf, moment, one, pretty, preview, raw, size, html } from "./ui.js";

const PAGE = 200; // records of one call
const MOST = 600; // rows at once
const BACK = 60; // records that a follower begins with
const SHOW_MS = 150; // between two times that what came is shown
const AWAY_MS = 3000; // for which a page may be out of sight and still be connected
const CATCH_UP = 2000; // records behind which following again begins anew

const row = (record) => ({ id: `${record.shard}-${record.offset}`, at: record.offset, record });
const hole = (gap) => ({ id: `gap-${gap.shard}-${gap.first}-${gap.last}`, at: gap.first, gap });

// Positions as people write them: times may go without their @.
export function position(text) {
  const given = text.trim();
  if (/^\d{4}-\d\d-\d\d/.test(given)) {
    const at = new Date(given.replace(" ", "T"));
    return Number.isNaN(at.getTime()) ? "@" + given : "@" + at.toISOString();
  }
  return /^-\d+(\.\d+)?(us|ms|s|m|h|d|w)$/.test(given) ? "@" + given : given;
}

class List {
  constructor(topic, shards) {
    this.topic = topic;
    this.shards = shards;
    this.shard = shards > 1 ? null : 0; // null: all of them, which only following can
    this.where = "";
    this.rows = signal([]);
    this.mode = signal("live"); // live, paused, looking
    this.state = signal("opening");
    this.problem = signal(null);
    this.busy = signal(false);
    this.moved = signal({ by: 0, top: false }); // rows that were put before what is seen; or begin at the top
    this.first = this.next = this.earliest = this.end = 0;
    this.ends = new Map();
    this._stream = null;
    this._came = [];
    this._timer = 0;
    this._turn = 0;
  }

  // ---- following

  follow(from) {
    this.stop();
    this._turn += 1;
    batch(() => {
      this.mode.value = "live";
      this.problem.value = null;
      this.state.value = "opening";
      if (from === undefined) this.rows.value = [];
    });
    const query = { start: from === undefined ? String(-BACK) : from, shard: this.shard, where: this.where };
    this._stream = watch(this.topic, query, {
      state: (state, problem) => batch(() => {
        this.state.value = state;
        this.problem.value = problem || null;
      }),
      event: (kind, told) => this._heard(kind, told),
    });
  }

  _heard(kind, told) {
    if (kind === "record") {
      this.ends.set(told.shard, told.next);
      for (const each of told.records) this._came.push(row(each));
    } else if (kind === "gap" && told.reason === "recreated") this._anew(told.shard);
    else if (kind === "gap") this._came.push(hole(told));
    else if (kind === "topic-deleted") this._came.push({ id: `gone-${told.shard}-${told.next}`, note: "the topic was deleted here" });
    else if (kind === "error") this.problem.value = new Error(told.message);
    else if (kind === "caught-up") this.ends.set(told.shard, told.next);
    if (this._came.length > MOST) this._came = this._came.slice(-MOST);
    if (!this._timer) this._timer = setTimeout(() => this._show(), SHOW_MS);
  }

  // The offsets of what was there are given out again, and a row is known by its offset.
  _anew(shard) {
    const others = (rows) => rows.filter((each) => !each.record || each.record.shard !== shard);
    this._came = [...others(this._came), { id: `anew-${shard}-${Date.now()}`, note: "the topic was made anew here, and its offsets begin again" }];
    this.rows.value = others(this.rows.value);
  }

  _show() {
    this._timer = 0;
    if (!this._came.length) return;
    const known = new Set(this.rows.value.map((each) => each.id));
    const fresh = this._came.filter((each) => !known.has(each.id));
    this._came = [];
    if (fresh.length) this.rows.value = [...this.rows.value, ...fresh].slice(-MOST);
  }

  stop() {
    if (this._stream) this._stream.close();
    this._stream = null;
    clearTimeout(this._timer);
    this._show();
  }

  pause() {
    this.stop();
    this.mode.value = "paused";
  }

  behind(state) {
    if (this.mode.value === "live" || this.where) return 0;
    return state.shards.reduce((sum, each) => sum + (this.ends.has(each.shard) ? Math.max(0, each.end - this.ends.get(each.shard)) : 0), 0);
  }

  resume(state) {
    // One offset says where to go on only if there is one shard; else what is near the end is enough.
    const at = this.shard === null ? undefined : this.ends.get(this.shard);
    const near = this.mode.value === "paused" && at !== undefined && this.behind(state) <= CATCH_UP;
    this.follow(near ? String(at) : undefined);
  }

  // ---- looking through

  async _page(query, shard) {
    return get(of("topics", this.topic, "records"), { shard, limit: PAGE, where: this.where, ...query });
  }

  static items(page) {
    return [...page.records.map(row), ...page.gaps.map(hole)].sort((a, b) => a.at - b.at);
  }

  async seek(place) {
    this.stop();
    if (this.shard === null) this.shard = 0;
    const turn = (this._turn += 1);
    this.mode.value = "looking";
    await this._work(async () => {
      let page = await this._page({ start: place }, this.shard);
      let items = List.items(page);
      // What a filter does not want is passed over, as far as one call goes, then by another one.
      for (let tries = 0; !items.length && !page.caught_up && tries < 50 && turn === this._turn; tries += 1) {
        page = await this._page({ start: page.next }, this.shard);
        items = List.items(page);
      }
      if (turn !== this._turn) return;
      this.next = page.next;
      this.end = page.end;
      this.earliest = page.earliest;
      this.first = items.length ? items[0].at : page.next;
      this._put(items, 0, true);
      this.ends.set(this.shard, page.next);
      if (items.length < 40) await this._before(turn);
    });
  }

  async later() {
    if (this.mode.value !== "looking" || this.busy.value) return;
    const turn = this._turn;
    await this._work(async () => {
      const page = await this._page({ start: this.next }, this.shard);
      if (turn !== this._turn) return;
      const items = List.items(page);
      this.next = page.next;
      this.end = page.end;
      this.ends.set(this.shard, page.next);
      if (!items.length) return;
      const all = [...this.rows.value, ...items];
      const cut = Math.max(0, all.length - MOST);
      this._put(all.slice(cut), -cut);
      this.first = this.rows.value[0].at;
    });
  }

  async before() {
    if (this.mode.value !== "looking" || this.busy.value) return;
    await this._work(() => this._before(this._turn));
  }

  async _before(turn) {
    let found = [];
    let to = this.first;
    const step = this.where ? PAGE * 25 : PAGE;
    for (let tries = 0; !found.length && to > this.earliest && tries < 50 && turn === this._turn; tries += 1) {
      const from = Math.max(this.earliest, to - step);
      for (let at = from; at < to; ) {
        const page = await this._page({ start: at, stop: to, limit: this.where ? 1000 : PAGE }, this.shard);
        found.push(...List.items(page));
        if (page.next <= at) break;
        at = page.next;
      }
      to = from;
    }
    if (turn !== this._turn) return;
    this.first = to;
    if (!found.length) return;
    found = found.slice(-MOST / 2);
    const all = [...found, ...this.rows.value];
    const left = all.slice(0, MOST);
    if (left.length < all.length) this.next = left[left.length - 1].at + 1;
    this._put(left, found.length);
    this.first = found[0].at;
  }

  _put(rows, by, top = false) {
    batch(() => {
      this.rows.value = rows;
      this.moved.value = { by, top };
    });
  }

  // From what was followed, back to what came before it.
  lookBack(state) {
    const shard = state.shards[this.shard];
    const rows = this.rows.value.filter((each) => each.record);
    if (this.mode.value !== "paused" || !shard || !rows.length) return;
    this._turn += 1;
    this.first = rows[0].at;
    this.next = this.ends.has(this.shard) ? this.ends.get(this.shard) : rows[rows.length - 1].at + 1;
    this.earliest = shard.earliest;
    this.end = shard.end;
    this.mode.value = "looking";
    this.before();
  }

  async _work(work) {
    this.busy.value = true;
    try {
      await work();
      this.problem.value = null;
    } catch (problem) {
      this.problem.value = problem;
    } finally {
      this.busy.value = false;
    }
  }
}

// ---- the list on the page ---------------------------------------------------------------------

const PARTS = [
  ["key", 'key == "…"'],
  ["tag", 'tag == "…"'],
  ["header", 'header.name == "…"'],
  ["JSON field", 'json.field == "…"'],
];

export function Records({ topic, state, query }) {
  const list = useMemo(() => new List(topic, state.shards.length), [topic, state.shards.length]);
  const [place, setPlace] = useState(query.at || "");
  const [where, setWhere] = useState(query.where || "");
  const [open, setOpen] = useState(null);
  const filter = useRef(null);
  const shown = list.rows.value;
  const mode = list.mode.value;

  useEffect(() => {
    list.where = query.where || "";
    if (query.shard !== undefined && /^\d+$/.test(query.shard)) list.shard = Math.min(+query.shard, state.shards.length - 1);
    if (query.at) list.seek(position(query.at));
    else list.follow();
    // A browser has six connections to a server, for all its tabs: one that nobody sees needs none.
    let timer = 0;
    let asleep = false;
    const seen = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(() => list.mode.value === "live" && ((asleep = true), list.stop()), AWAY_MS);
      else if (asleep) {
        asleep = false;
        if (list.mode.value === "live") list.follow();
      }
    };
    document.addEventListener("visibilitychange", seen);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      list.stop();
    };
  }, [list]);

  // Where we look stands in the address, so that it can be kept and sent.
  function note(more) {
    const told = new URLSearchParams(Object.entries({ shard: state.shards.length > 1 ? list.shard : null, where: list.where, ...more }).filter(([, value]) => value || value === 0));
    history.replaceState(null, "", `#/topics/${encodeURIComponent(topic)}${String(told) && "?" + told}`);
  }
  const go = (text) => {
    setPlace(text);
    list.seek(position(text));
    note({ at: text });
  };
  const toggle = () => {
    if (mode === "live") return list.pause();
    setPlace("");
    list.resume(state);
    note({});
  };
  const again = () => {
    if (mode === "looking") list.seek(place ? position(place) : String(list.first));
    else list.follow();
    note({ at: mode === "looking" ? place : "" });
  };
  const filtered = (text) => {
    setWhere(text);
    list.where = text.trim();
    again();
  };
  const sharded = (value) => {
    list.shard = value === "" ? null : +value;
    if (mode === "looking" && value !== "") list.seek(place ? position(place) : "earliest");
    else list.follow();
    note({ at: mode === "looking" && value !== "" ? place : "" });
  };
  const behind = list.behind(state);
  return html`
    <div class="panel records">
      <form class="bar" onSubmit=${(event) => { event.preventDefault(); if (place.trim()) go(place.trim()); }}>
        <button type="button" class=${"follow " + mode} data-follow="" aria-pressed=${mode === "live"} onClick=${toggle}>
          <i aria-hidden="true"></i>${mode === "live" ? "Live" : mode === "paused" ? "Paused" : "Follow"}</button>
        ${state.shards.length > 1 && html`
          <label class="field"><span class="off">Shard</span><select name="shard" aria-label="Shard" value=${list.shard === null ? "" : String(list.shard)} onChange=${(event) => sharded(event.target.value)}>
            <option value="">all shards</option>${state.shards.map((each) => html`<option value=${String(each.shard)}>shard ${each.shard}</option>`)}</select></label>`}
        <label class="field grow"><span class="off">Seek to</span><input name="seek" autocomplete="off" spellcheck="false" aria-label="Seek to an offset or a time"
          placeholder="seek: 1200, -100, -15m, 2026-11-18 10:00" value=${place} onInput=${(event) => setPlace(event.target.value)} /></label>
        <button type="submit" class="plain">Seek</button>
        <button type="button" class="plain" onClick=${() => go("earliest")} title="the first record that is there">First</button>
      </form>
      <form class="bar" onSubmit=${(event) => { event.preventDefault(); filtered(where); }}>
        <label class="field grow"><span class="off">Filter</span><input ref=${filter} name="where" data-filter="" class="mono" autocomplete="off" spellcheck="false" aria-label="Filter"
          placeholder=${'filter: tag == "eu" and json.amount > 100'} value=${where} onInput=${(event) => setWhere(event.target.value)} /></label>
        <span class="chips">${PARTS.map(([name, text]) => html`<button type="button" class="chip" onClick=${() => {
          setWhere(where ? `${where} and ${text}` : text);
          filter.current.focus();
        }}>${name}</button>`)}</span>
        <button type="submit" class="plain">Filter</button>
        ${list.where && html`<button type="button" class="plain" onClick=${() => filtered("")}>Clear</button>`}
      </form>
      <${Problem} problem=${list.problem.value} />
      <div class="where-we-are" role="status">
        ${mode === "live" && (list.state.value === "live" ? "following" : list.state.value === "waiting" ? "the connection is lost, trying again" : "opening")}
        ${mode === "paused" && (behind ? `paused, ${one(behind, "record")} since` : "paused")}
        ${mode === "looking" && (shown.length ? `offsets ${count(list.first)} to ${count(list.next - 1)} of ${count(list.earliest)} to ${count(Math.max(list.end - 1, 0))}` : "nothing here")}
        ${list.where && html` <${Badge} tone="soft">filtered<//>`} ${list.busy.value && " · reading"}
      </div>
      <${Rows} list=${list} topic=${topic} state=${state} open=${open} onOpen=${setOpen} onFilter=${filtered} onJump=${go} />
    </div>
    ${open && html`<${Drawer} topic=${topic} record=${open} onClose=${() => setOpen(null)} />`}`;
}

function Rows({ list, topic, state, open, onOpen, onFilter, onJump }) {
  const box = useRef(null);
  const stick = useRef(true);
  const last = useRef(0);
  const rows = list.rows.value;
  const mode = list.mode.value;
  const moved = list.moved.value;
  const was = useRef(mode);
  if (mode === "live" && was.current !== "live") stick.current = true;
  was.current = mode;
  const HEIGHT = 30;

  useLayoutEffect(() => {
    if (mode === "live" && box.current) {
      if (stick.current) box.current.scrollTop = box.current.scrollHeight;
      last.current = box.current.scrollTop;
    }
  }, [rows, mode]);
  useLayoutEffect(() => {
    const first = box.current && box.current.querySelector(".row");
    if (first && moved.by) box.current.scrollTop += moved.by * first.offsetHeight;
    else if (moved.top) box.current.scrollTop = 0;
    last.current = box.current.scrollTop;
  }, [moved]);
  useEffect(() => {
    // what does not fill the box cannot be scrolled: more is read without being asked
    const at = box.current;
    if (mode === "looking" && rows.length && at.scrollHeight <= at.clientHeight && list.next < list.end) list.later();
  }, [rows, mode]);
  function scrolled() {
    const at = box.current;
    const below = at.scrollHeight - at.scrollTop - at.clientHeight;
    stick.current = below < HEIGHT * 2;
    const up = at.scrollTop < last.current - 4;
    last.current = at.scrollTop;
    if (mode === "live" && up && !stick.current) list.pause(); // who scrolls up wants to read
    if (mode === "paused" && up && at.scrollTop < HEIGHT * 10) list.lookBack(state);
    if (mode !== "looking") return;
    if (below < HEIGHT * 20) list.later();
    else if (at.scrollTop < HEIGHT * 20) list.before();
  }
  function typed(event) {
    const way = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!way || !event.target.dataset.row) return;
    let next = event.target;
    do next = way > 0 ? next.nextElementSibling : next.previousElementSibling;
    while (next && !next.dataset.row);
    if (next) next.focus();
    event.preventDefault();
  }
  const number = list.shard === null ? 0 : list.shard;
  const shard = state.shards[number] || state.shards[0];
  let before = "";
  return html`
    <div class="rows-frame">
      <div class="rows" ref=${box} onScroll=${scrolled} onKeyDown=${typed} role="list" aria-label="Records" tabindex="-1" data-mode=${mode}>
        ${!rows.length && !list.busy.value && html`<${Empty}>${list.where ? "No record that the filter wants" : mode === "live" && state.count === 0 ? "No records yet" : "No records here"}${mode === "live" ? "; new ones appear as they come." : "."}<//>`}
        ${rows.map((each) => {
          if (each.note) return html`<div key=${each.id} class="hole">${each.note}</div>`;
          if (each.gap) return html`<div key=${each.id} class="hole" role="listitem">offsets ${count(each.gap.first)} to ${count(each.gap.last)} are gone: ${each.gap.reason}</div>`;
          const record = each.record;
          const today = day(record.timestamp);
          const fresh = today !== before;
          before = today;
          return html`
            ${fresh && html`<div key=${"day-" + each.id} class="day">${today}</div>`}
            <div key=${each.id} role="listitem" class=${"row" + (open && open.offset === record.offset && open.shard === record.shard ? " chosen" : "")}
              tabindex="0" data-row=${each.id} onClick=${() => onOpen(record)} onKeyDown=${(event) => event.key === "Enter" && event.target === event.currentTarget && onOpen(record)}>
              <span class="offset">${list.shards > 1 && html`<i>${record.shard}/</i>`}${record.offset}</span>
              <span class="time" title=${moment(record.timestamp)}>${clock(record.timestamp)}</span>
              <span class="key">${keyOf(record)}</span>
              <span class="tag">${record.tag && html`<button type="button" class="chip" title="only this tag" tabindex="-1" onClick=${(event) => { event.stopPropagation(); onFilter(`tag == ${JSON.stringify(record.tag)}`); }}>${record.tag}</button>`}</span>
              <span class=${"text" + (record.base64 !== undefined ? " hex" : "")}>${preview(record)}</span>
            </div>`;
        })}
      </div>
      ${shard && shard.end > shard.earliest && html`
        <input type="range" class="scrub" aria-label="Place in the shard" title="where in the shard" min=${shard.earliest} max=${Math.max(shard.end - 1, shard.earliest)} step="1"
          value=${mode === "looking" ? list.first : shard.end - 1} onChange=${(event) => onJump(event.target.value)} />`}
    </div>`;
}

// ---- one record -------------------------------------------------------------------------------

function Detail({ topic, record }) {
  const text = record.base64 === undefined ? pretty(record.value) : null;
  const [view, choose] = useState("");
  const views = record.base64 === undefined ? (text ? ["JSON", "Text", "Hex"] : ["Text", "Hex"]) : ["Hex", "Base64"];
  const shown = views.includes(view) ? view : views[0];
  const data = () => (record.base64 !== undefined ? raw(record.base64) : new TextEncoder().encode(record.value));
  const body = { JSON: () => text, Text: () => record.value, Hex: () => dump(data()), Base64: () => record.base64 }[shown]();
  const link = `#/topics/${encodeURIComponent(topic)}/${record.shard}/${record.offset}`;
  const address = location.origin + location.pathname + link;
  return html`
    <dl class="pairs">
      <div><dt>Offset</dt><dd>${count(record.offset)} of shard ${record.shard}</dd></div>
      <div><dt>Time</dt><dd>${moment(record.timestamp)}</dd></div>
      ${keyOf(record) != null && html`<div><dt>Key</dt><dd class="mono user">${keyOf(record)}</dd></div>`}
      ${record.tag != null && html`<div><dt>Tag</dt><dd class="mono user">${record.tag}</dd></div>`}
      ${record.node != null && html`<div><dt>Node</dt><dd class="mono user">${record.node}</dd></div>`}
      <div><dt>Size</dt><dd>${bytes(size(record))}</dd></div>
    </dl>
    ${record.headers && html`<h3>Headers</h3><dl class="pairs">${Object.entries(record.headers).map(([name, value]) => html`<div><dt class="mono user">${name}</dt><dd class="mono user">${typeof value === "string" ? value : dump(raw(value.base64))}</dd></div>`)}</dl>`}
    <div class="bar value-bar"><h3>Value</h3>
      <span class="switch" role="group" aria-label="Shown as">${views.map((name) => html`<button type="button" aria-pressed=${name === shown} onClick=${() => choose(name)}>${name}</button>`)}</span>
      <button type="button" class="plain" onClick=${() => copy(record.base64 !== undefined ? record.base64 : record.value)}>Copy</button></div>
    <pre class="value-box user" tabindex="0" aria-label="Value">${body}</pre>
    <div class="buttons"><button type="button" class="plain" onClick=${() => copy(address)}>Copy link</button><a class="plain button" href=${link}>Permalink</a></div>`;
}

function Drawer({ topic, record, onClose }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const typed = (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && onClose();
    document.addEventListener("keydown", typed);
    return () => document.removeEventListener("keydown", typed);
  }, []);
  return html`
    <aside class="drawer" ref=${box} aria-label="Record">
      <div class="bar"><h2>Record ${count(record.offset)}</h2><button type="button" class="plain" onClick=${onClose} aria-label="Close the record">Close</button></div>
      <${Detail} key=${record.shard + "-" + record.offset} topic=${topic} record=${record} />
    </aside>`;
}

export function RecordPage({ topic, shard, offset }) {
  const [found, set] = useState(null);
  const [problem, fail] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    get(of("topics", topic, "records"), { shard, start: offset, stop: String(BigInt(offset) + 1n), limit: 1 }, abort.signal)
      .then(set)
      .catch((wrong) => wrong.name !== "AbortError" && fail(wrong));
    return () => abort.abort();
  }, []);
  const record = found && found.records[0];
  const home = "#/topics/" + encodeURIComponent(topic);
  const step = (by) => `${home}/${shard}/${BigInt(offset) + by}`;
  return html`
    <section class="panel record">
      <div class="bar"><h2>Record ${count(Number(offset))}</h2>
        <span class="buttons">${BigInt(offset) > 0n && html`<a class="plain button" href=${step(-1n)}>Previous</a>`}<a class="plain button" href=${step(1n)}>Next</a>
        <a class="plain button" href=${`${home}?shard=${shard}&at=${offset}`}>Among others</a></span></div>
      <${Problem} problem=${problem} />
      ${record && html`<${Detail} topic=${topic} record=${record} />`}
      ${found && !record && html`<${Empty}>${found.gaps.length ? `This record is gone: ${found.gaps[0].reason}.` : Number(offset) >= found.end ? `It is not there yet: the shard ends before offset ${count(found.end)}.` : "This record was deleted."}<//>`}
    </section>`;
}
