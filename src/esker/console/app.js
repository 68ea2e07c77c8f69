// The frame around all pages: where we are, who we are, light or dark, keys on the keyboard.
//
//   #/                          all topics
//   #/topics/NAME               records; /append /transfer /segments /options; /SHARD/OFFSET is one record
//   #/groups, #/groups/TOPIC/GROUP
//   #/queues, #/queues/NAME
//   #/routes, #/store
//
// Where we are stands behind the #, which no server ever sees.

import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { access, enter, leave, refused } from "./api.js";
import { theme } from "./charts.js";
import { Badge, Field, Problem, Sure, Toasts, html } from "./ui.js";
import { Overview } from "./overview.js";
import { Topic } from "./topic.js";
import { Group, Groups } from "./groups.js";
import { Queue, Queues } from "./queues.js";
import { Routes } from "./routes.js";
import { Store } from "./store.js";

// ---- where we are -----------------------------------------------------------------------------

const place = signal(parsed());

function parsed() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

window.addEventListener("hashchange", () => (place.value = parsed()));

function Page() {
  const { parts, query } = place.value;
  const [room, name, ...rest] = parts;
  if (!room) return html`<${Overview} />`;
  if (room === "topics" && name) return html`<${Topic} key=${name} name=${name} rest=${rest} query=${query} />`;
  if (room === "groups" && rest[0]) return html`<${Group} key=${name + "/" + rest[0]} topic=${name} name=${rest[0]} />`;
  if (room === "groups") return html`<${Groups} />`;
  if (room === "queues" && name) return html`<${Queue} key=${name} name=${name} />`;
  if (room === "queues") return html`<${Queues} />`;
  if (room === "routes") return html`<${Routes} />`;
  if (room === "store") return html`<${Store} />`;
  return html`<h1>Nothing here</h1><p>There is no such page. <a href="#/">All topics</a></p>`;
}

// ---- light or dark ----------------------------------------------------------------------------

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
const chosen = signal(localStorage.getItem("esker-theme") || "auto");

function dress(next) {
  chosen.value = next in THEMES ? next : "auto";
  document.documentElement.dataset.theme = chosen.value;
  localStorage.setItem("esker-theme", chosen.value);
  theme.value += 1;
}

dress(chosen.value);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (theme.value += 1));

const Theme = () => html`
  <div class="switch" role="group" aria-label="Colours">
    ${Object.entries(THEMES).map(
      ([name, text]) => html`<button type="button" aria-pressed=${chosen.value === name} onClick=${() => dress(name)}>${text}</button>`,
    )}
  </div>`;

// ---- keys on the keyboard ---------------------------------------------------------------------

const helping = signal(false);
const WAYS = { o: "#/", g: "#/groups", q: "#/queues", r: "#/routes", s: "#/store" };
const KEYS = [
  ["g then o, g, q, r, s", "go to topics, groups, queues, routes, store"],
  ["/", "to the filter of this page"],
  ["Space or p", "pause or follow records"],
  ["j, k or arrows", "next and previous record in a list"],
  ["Enter", "open what is chosen"],
  ["Esc", "close, or leave a field"],
  ["?", "this list"],
];
let going = 0;

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const within = event.target.closest && event.target.closest("input, textarea, select, [contenteditable]");
  if (within) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "?") helping.value = true;
  else if (going && Date.now() - going < 1500 && WAYS[event.key]) location.hash = WAYS[event.key];
  else if (event.key === "/") {
    const field = document.querySelector("[data-filter]");
    if (field) {
      field.focus();
      event.preventDefault();
    }
  } else if (event.key === "p" || (event.key === " " && !event.target.closest("button, a, summary"))) {
    const button = document.querySelector("[data-follow]");
    if (button) {
      button.click();
      event.preventDefault();
    }
  }
  going = event.key === "g" ? Date.now() : 0;
}

document.addEventListener("keydown", typed);

function Help() {
  const box = useRef(null);
  useLayoutEffect(() => {
    if (helping.value && box.current && !box.current.open) box.current.showModal();
  });
  if (!helping.value) return null;
  const end = () => (helping.value = false);
  return html`
    <dialog ref=${box} class="sure" aria-labelledby="help-title" onClose=${end}>
      <h2 id="help-title">Keys</h2>
      <dl class="keys">${KEYS.map(([keys, does]) => html`<dt>${keys}</dt><dd>${does}</dd>`)}</dl>
      <div class="buttons"><button type="button" class="main" autofocus onClick=${end}>Close</button></div>
    </dialog>`;
}

// ---- who we are -------------------------------------------------------------------------------

function Login() {
  const [given, set] = useState("");
  const lost = access.value.unreachable;
  return html`
    <main class="login" id="main">
      <form onSubmit=${(event) => { event.preventDefault(); enter(given); }}>
        <h1><img src="/console/icon.svg" alt="" width="28" height="28" /> Esker</h1>
        <p>${lost ? "The server could not be asked." : "This server asks for a key. It stays in this tab, and is gone when you close it."}</p>
        ${!lost && html`
          <${Field} label="Key">
            <input type="password" name="key" autocomplete="off" spellcheck="false" placeholder="esk_…" required autofocus
              value=${given} onInput=${(event) => set(event.target.value)} />
          <//>`}
        <${Problem} problem=${refused.value} />
        <div class="buttons"><button type="submit" class="main">${lost ? "Try again" : "Log in"}</button></div>
      </form>
    </main>`;
}

const ROOMS = [
  ["", "Topics"],
  ["groups", "Groups"],
  ["queues", "Queues"],
  ["routes", "Routes"],
  ["store", "Store"],
];

function App() {
  const main = useRef(null);
  const here = place.value.parts[0] || "";
  const at = place.value.parts.join("/");
  useEffect(() => {
    document.title = at ? `${place.value.parts.slice(1).join(" / ") || here} · Esker` : "Esker";
    if (main.current && at) main.current.scrollTop = 0;
  }, [at]);
  const who = access.value;
  if (!who) return html`<main class="login" aria-busy="true"></main>`;
  if (who.locked) return html`<${Login} /><${Toasts} />`;
  const looking = !who.scopes.some((scope) => scope !== "read");
  const marked = here === "topics" ? "" : here;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header class="side">
      <a class="brand" href="#/"><img src="/console/icon.svg" alt="" width="24" height="24" /> Esker</a>
      <nav aria-label="Rooms">
        ${ROOMS.map(([room, text]) => html`<a href=${"#/" + room} aria-current=${marked === room ? "page" : undefined}>${text}</a>`)}
      </nav>
      <div class="foot">
        ${looking && html`<${Badge} tone="warn" title=${who.read_only ? "the server was started so" : "the key may read, and nothing else"}>read-only<//>`}
        ${who.keys && html`<div class="who"><span title="the id of the key of this tab">${who.key}</span> <button type="button" class="link" onClick=${leave}>Log out</button></div>`}
        <${Theme} />
        <div class="fine"><span>${location.host}</span><span>v${who.version}</span><button type="button" class="link" onClick=${() => (helping.value = true)}>Keys ?</button></div>
      </div>
    </header>
    <main id="main" ref=${main} tabindex="-1"><${Page} /></main>
    <${Toasts} /><${Sure} /><${Help} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
enter();
