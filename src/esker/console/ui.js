// What all pages share: numbers and times as text, values as text or hex, polling, dialogs.

import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import htm from "htm";

export const html = htm.bind(h);

// ---- numbers and times ------------------------------------------------------------------------

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FEW = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (number) => WHOLE.format(number);
export const short = (number) => (Math.abs(number) < 10_000 ? count(number) : SHORT.format(number));
export const rate = (number) => (number == null ? "–" : number < 100 ? FEW.format(number) : short(number));
export const one = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

export function bytes(number) {
  if (number == null) return "–";
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit && number < 100 ? number.toFixed(1) : Math.round(number)} ${UNITS[unit]}`;
}

export function lasting(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.95) return seconds > 0 ? `${Math.round(seconds * 1000)} ms` : "0 s";
  if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${FEW.format(seconds / 3600)} h`;
  return `${FEW.format(seconds / 86_400)} d`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(stamp) {
  const at = new Date(stamp / 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function day(stamp) {
  const at = new Date(stamp / 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export const moment = (stamp) => (stamp ? `${day(stamp)} ${clock(stamp)}` : "–");
export const ago = (stamp, now) => (stamp ? lasting(Math.max(0, (now - stamp) / 1e6)) + " ago" : "–");

// ---- bytes as text ----------------------------------------------------------------------------

export function raw(base64) {
  const text = atob(base64);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

export const hex = (data, most = data.length) =>
  Array.from(data.subarray(0, most), (byte) => byte.toString(16).padStart(2, "0")).join(" ");

export function dump(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, 65_536); at += 16) {
    const row = data.subarray(at, at + 16);
    const text = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex(row).padEnd(47)}  ${text}`);
  }
  if (data.length > 65_536) lines.push(`… ${count(data.length - 65_536)} bytes more`);
  return lines.join("\n");
}

export const size = (record) =>
  record.base64 !== undefined ? raw(record.base64).length : new TextEncoder().encode(record.value).length;

export const preview = (record, most = 240) =>
  record.base64 !== undefined ? "0x " + hex(raw(record.base64.slice(0, 88)), 64) : record.value.slice(0, most);

export const keyOf = (record) =>
  record.key_base64 !== undefined ? "0x " + hex(raw(record.key_base64), 24) : record.key;

const PRETTY_MAX = 300_000; // letters; what is longer is shown as it is

// JSON with line breaks, made from its own text: numbers stay as they were written, however long.
export function pretty(text) {
  if (text.length > PRETTY_MAX) return null;
  try {
    const found = JSON.parse(text);
    if (found === null || typeof found !== "object") return null;
  } catch {
    return null;
  }
  const out = [];
  let depth = 0;
  let before = "";
  const line = () => "\n" + "  ".repeat(Math.min(depth, 40));
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs) || []) {
    const opened = before === "{" || before === "[";
    const closes = token === "}" || token === "]";
    depth -= closes;
    if ((opened && !closes) || before === "," || (closes && !opened)) out.push(line());
    out.push(token === ":" ? ": " : token);
    depth += token === "{" || token === "[";
    before = token;
  }
  return out.join("");
}

// ---- polling ----------------------------------------------------------------------------------

// Asks again and again while the page is seen; what came last stays when a call fails.
export function usePoll(ask, every, needs) {
  const [state, set] = useState({ data: null, problem: null });
  const again = useRef(() => {});
  useEffect(() => {
    let timer = 0;
    let ended = false;
    const abort = new AbortController();
    async function turn() {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await ask(abort.signal);
          if (!ended) set({ data, problem: null });
        } catch (problem) {
          if (!ended && problem.name !== "AbortError") set((was) => ({ data: was.data, problem }));
        }
      }
      if (!ended) timer = setTimeout(turn, every);
    }
    again.current = turn;
    turn();
    const seen = () => document.hidden || turn();
    document.addEventListener("visibilitychange", seen);
    return () => {
      ended = true;
      clearTimeout(timer);
      abort.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, needs);
  return { ...state, again: () => again.current() };
}

// ---- small parts ------------------------------------------------------------------------------

export const Problem = ({ problem }) =>
  problem && html`<p class="problem" role="alert">${problem.message || String(problem)}</p>`;

export const Tile = ({ label, value, note, tone }) => html`
  <div class=${"tile" + (tone ? " " + tone : "")}>
    <div class="label">${label}</div>
    <div class="value">${value}</div>
    ${note && html`<div class="note">${note}</div>`}
  </div>`;

export const Badge = ({ tone, children, title }) => html`<span class=${"badge " + (tone || "")} title=${title}>${children}</span>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Field = ({ label, hint, children, grow }) => html`
  <label class=${"field" + (grow ? " grow" : "")}><span>${label}${hint && html` <i>${hint}</i>`}</span>${children}</label>`;

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("copied");
  } catch {
    say("the browser did not allow to copy", "bad");
  }
}

// ---- what is said at the edge -----------------------------------------------------------------

export const toasts = signal([]);
let numbered = 0;

export function say(text, tone = "good") {
  const toast = { text, tone, number: (numbered += 1) };
  toasts.value = [...toasts.value.slice(-3), toast];
  setTimeout(() => (toasts.value = toasts.value.filter((each) => each !== toast)), 6000);
}

export const Toasts = () => html`
  <div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map((each) => html`<div key=${each.number} class=${"toast " + each.tone}>${each.text}</div>`)}
  </div>`;

// Do something, and say how it went.
export async function attempt(work, done) {
  try {
    const found = await work();
    if (done) say(typeof done === "function" ? done(found) : done);
    return found;
  } catch (problem) {
    say(problem.message, "bad");
    return undefined;
  }
}

// ---- are you sure -----------------------------------------------------------------------------

const asked = signal(null);

export function sure(question, { yes = "Do it", danger = false, detail = "", input = null } = {}) {
  return new Promise((answer) => (asked.value = { question, yes, danger, detail, input, answer }));
}

export function Sure() {
  const box = useRef(null);
  const field = useRef(null);
  const now = asked.value;
  useLayoutEffect(() => {
    if (now && box.current && !box.current.open) box.current.showModal();
  }, [now]);
  if (!now) return null;
  const end = (answer) => {
    const given = answer && now.input ? field.current.value : answer;
    asked.value = null;
    now.answer(given);
  };
  return html`
    <dialog ref=${box} class="sure" aria-labelledby="sure-question" onCancel=${(event) => { event.preventDefault(); end(false); }}>
      <form onSubmit=${(event) => { event.preventDefault(); end(true); }}>
        <h2 id="sure-question">${now.question}</h2>
        ${now.detail && html`<p>${now.detail}</p>`}
        ${now.input && html`<${Field} label=${now.input}><input ref=${field} name="answer" autocomplete="off" autofocus /><//>`}
        <div class="buttons">
          <button type="button" class="plain" autofocus=${now.danger && !now.input} onClick=${() => end(false)}>Cancel</button>
          <button type="submit" class=${now.danger ? "danger" : "main"} autofocus=${!now.danger && !now.input}>${now.yes}</button>
        </div>
      </form>
    </dialog>`;
}
