// Where a topic lies: its segments by tier and age, what was lost, what is to go.

import { get, of } from "./api.js";
import { Badge, Empty, Problem, ago, bytes, count, lasting, moment, one, usePoll, html } from "./ui.js";

const TIERS = { log: "being written", sealed: "sealed", cold: "in the cold store" };

export function Segments({ topic, options }) {
  const { data, problem } = usePoll((abort) => get(of("topics", topic, "segments"), {}, abort), 3000, [topic]);
  if (!data) return html`<${Problem} problem=${problem} />`;
  const all = data.shards.flatMap((each) => each.segments);
  const largest = Math.max(1, ...all.map((each) => each.bytes));
  const oldest = Math.min(...all.filter((each) => each.oldest).map((each) => each.oldest), data.now);
  const lost = data.shards.flatMap((each) => each.lost.map((one) => ({ shard: each.shard, ...one })));
  const deleted = data.shards.reduce((sum, each) => sum + each.deleted, 0);
  return html`
    <${Problem} problem=${problem} />
    <section class="panel"><h2>Map of segments</h2>
      <p class="fine">Each bar is a file, as wide as it is large; the older, the paler. ${one(all.length, "segment")}, ${bytes(all.reduce((sum, each) => sum + each.bytes, 0))}.</p>
      ${data.shards.map((shard) => html`
        <div class="shard-map"><h3>Shard ${shard.shard} <span class="fine">offsets ${count(shard.earliest)} to ${count(Math.max(shard.end - 1, 0))}, durable to ${count(shard.durable)}</span></h3>
          <ol class="map" aria-label=${`Segments of shard ${shard.shard}`}>
            ${shard.omitted > 0 && html`<li class="fine">${one(shard.omitted, "older one")}</li>`}
            ${shard.segments.map((each) => html`
              <li class=${"segment " + each.tier} style=${{ flexGrow: Math.max(0.02, each.bytes / largest), "--age": age(each, data.now, oldest) }}
                title=${`offsets ${count(each.base)} to ${count(each.end - 1)}: ${one(each.records, "record")}, ${bytes(each.bytes)}, ${TIERS[each.tier]}, ${moment(each.oldest)} to ${moment(each.newest)}`}>
                <span class="off">${TIERS[each.tier]}, ${one(each.records, "record")}, ${bytes(each.bytes)}, from ${moment(each.oldest)}</span></li>`)}
          </ol></div>`)}
      <div class="legend">${Object.entries(TIERS).map(([tier, text]) => html`<span class=${"swatch " + tier}>${text}</span>`)}</div>
    </section>
    <section class="panel"><h2>Retention</h2>
      <dl class="pairs">
        <div><dt>Age</dt><dd>${options.ttl_us ? lasting(options.ttl_us / 1e6) : "kept for ever"}</dd></div>
        <div><dt>Records a shard</dt><dd>${options.cap_records ? count(options.cap_records) : "no cap"}</dd></div>
        <div><dt>Bytes a shard</dt><dd>${options.cap_bytes ? bytes(options.cap_bytes) : "no cap"}</dd></div>
        <div><dt>At a cap</dt><dd>${options.discard === "reject" ? "appends are refused" : "the oldest go"}</dd></div>
        <div><dt>Oldest record</dt><dd>${all.length ? ago(oldest, data.now) : "–"}</dd></div>
      </dl>
      ${data.going.length ? html`<p>To go now: ${data.going.map((each) => html`<span class="line">shard ${each.shard}, offsets ${count(each.first)} to ${count(each.last)}, ${bytes(each.bytes)} <${Badge} tone="warn">${each.reason}<//></span>`)}</p>` : html`<p class="fine">Nothing is to go now.</p>`}
    </section>
    <section class="panel"><h2>Gaps</h2>
      ${lost.length ? html`
        <table class="list"><thead><tr><th class="n">Shard</th><th class="n">First</th><th class="n">Last</th><th class="n">Records at most</th><th>Why</th></tr></thead>
          <tbody>${lost.map((each) => html`<tr><td class="n">${each.shard}</td><td class="n">${count(each.first)}</td><td class="n">${count(each.last)}</td><td class="n">${count(each.last - each.first + 1)}</td><td>${each.reason}</td></tr>`)}</tbody></table>`
        : html`<${Empty}>Nothing was lost.<//>`}
      ${deleted > 0 && html`<p class="fine">${one(deleted, "record")} deleted on request.</p>`}
    </section>
    <section class="panel"><h2>Segments</h2>
      <table class="list"><thead><tr><th class="n">Shard</th><th class="n">From</th><th class="n">Records</th><th class="n">Size</th><th>Tier</th><th class="wide">Oldest</th><th class="n wide">Youngest</th></tr></thead>
        <tbody>${data.shards.flatMap((shard) => shard.segments.slice(-100).reverse().map((each) => html`<tr><td class="n">${shard.shard}</td><td class="n">${count(each.base)}</td><td class="n">${count(each.records)}</td><td class="n">${bytes(each.bytes)}</td><td>${TIERS[each.tier]}</td><td class="wide">${moment(each.oldest)}</td><td class="n wide">${ago(each.newest, data.now)}</td></tr>`))}</tbody></table>
    </section>`;
}

const age = (each, now, oldest) => (each.newest && now > oldest ? ((now - each.newest) / (now - oldest)).toFixed(3) : "0");
