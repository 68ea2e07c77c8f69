// Calls to the server, the key of this tab, and streams.
//
// The key is kept in sessionStorage: it is gone with the tab, and no other site can read it. It goes
// out in the header Authorization and in nothing else. Streams and downloads cannot send a header,
// so they get a ticket: good once, for half a minute.

import { signal } from "@preact/signals";

const KEY = "esker-key";

export const access = signal(null); // what GET /v1/access said; null until it is known
export const refused = signal(""); // why there is none: the log-in form shows it

export class Refusal extends Error {
  constructor(status, told) {
    super(told.message || `the server said ${status}`);
    this.status = status;
    this.code = told.code || "";
    this.detail = told.detail || null;
  }
}

export const key = () => sessionStorage.getItem(KEY) || "";

function headers(more) {
  const found = { ...more };
  if (key()) found.Authorization = `Bearer ${key()}`;
  return found;
}

export async function request(method, path, { body, type, signal: abort, more } = {}) {
  const given = headers(more);
  if (body !== undefined) given["Content-Type"] = type || "application/json";
  const text = body === undefined || typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, { method, headers: given, body: text, signal: abort, cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refusal(0, { code: "unreachable", message: "the server does not answer" });
  }
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  if (answer.status === 401) {
    refused.value = key() ? "This key is not known here, or no longer good." : "";
    access.value = { locked: true, scopes: [], prefixes: [] };
  }
  throw new Refusal(answer.status, told.error || {});
}

export const get = (path, query, abort) => request("GET", path + search(query), { signal: abort });
export const post = (path, body = {}, query) => request("POST", path + search(query), { body });
export const put = (path, body = {}) => request("PUT", path, { body });
export const drop = (path) => request("DELETE", path);

export function search(query) {
  const found = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return found.length ? "?" + new URLSearchParams(found) : "";
}

export const of = (...parts) => "/v1/" + parts.map(encodeURIComponent).join("/");

// ---- who asks ---------------------------------------------------------------------------------

export async function enter(given) {
  if (given !== undefined) sessionStorage.setItem(KEY, given.trim());
  try {
    access.value = await get("/v1/access");
    refused.value = "";
  } catch (problem) {
    if (problem.status === 403) {
      refused.value = "This key may not read, and the console does little else.";
      access.value = { locked: true, scopes: [], prefixes: [] };
    } else if (problem.status !== 401) {
      refused.value = problem.message;
      access.value = { locked: true, unreachable: true, scopes: [], prefixes: [] };
    }
  }
}

export function leave() {
  sessionStorage.removeItem(KEY);
  refused.value = "";
  access.value = { locked: true, scopes: [], prefixes: [] };
}

export const may = (scope) => Boolean(access.value && access.value.scopes.includes(scope));

async function ticket(topics) {
  if (!access.value || !access.value.keys) return {};
  return { ticket: (await post("/v1/tickets", { topics })).ticket };
}

// ---- streams ----------------------------------------------------------------------------------

// A watch that comes back by itself, each time with a ticket of its own, behind its last event.
export function watch(topic, query, heard) {
  let source = null;
  let timer = 0;
  let last = "";
  let ended = false;
  let tries = 0;

  async function open() {
    let proof;
    try {
      proof = await ticket([topic]);
    } catch (problem) {
      return again(problem);
    }
    if (ended) return;
    const place = last ? { cursor: last } : { start: query.start };
    source = new EventSource("/v1/watch" + search({ topics: topic, ...query, ...place, ...proof }));
    source.onopen = () => {
      tries = 0;
      heard.state("live");
    };
    source.onerror = () => again();
    for (const kind of ["record", "gap", "caught-up", "topic-deleted", "lagging", "error", "bye"]) {
      source.addEventListener(kind, (event) => {
        if (event.data === undefined) return; // the connection's own error
        if (event.lastEventId) last = event.lastEventId;
        heard.event(kind, JSON.parse(event.data));
      });
    }
  }

  function again(problem) {
    if (source) source.close();
    source = null;
    if (ended) return;
    heard.state("waiting", problem);
    tries += 1;
    timer = setTimeout(open, Math.min(10_000, 500 * 2 ** Math.min(tries, 5)));
  }

  open();
  return {
    close() {
      ended = true;
      clearTimeout(timer);
      if (source) source.close();
    },
  };
}

// A file of any size goes past the page straight to the disk.
export async function download(topic, query) {
  const proof = await ticket([topic]);
  const link = document.createElement("a");
  link.href = of("topics", topic, "export") + search({ ...query, ...proof });
  link.download = "";
  document.body.append(link);
  link.click();
  link.remove();
}
