// The document's engines, models and targets as elements. Every text goes in as text, never as HTML:
// model names, targets and errors come from outside.

import { clock, estimate, evidence, happened, number, ratio, say, seconds, UNKNOWN, vocabulary, words } from "./text.js";

const EVENTS_SHOWN = 5;
// Colour is never the only sign.
const MARKS = { good: "✓ ", bad: "✕ ", warn: "! ", calm: "" };

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== ""));
  return element;
}

export function tone(engine) {
  if (engine.verdict === "healthy") return "good";
  if (engine.verdict === "unknown") return "warn";
  if (engine.verdict != null || engine.state === "down") return "bad";
  if (engine.advisories.some((note) => vocabulary.suspicious.includes(note.kind))) return "warn";
  return vocabulary.trouble.includes(engine.state) ? "warn" : "calm";
}

export function needsALook(engine) {
  return tone(engine) === "bad" || tone(engine) === "warn";
}

function pills(engine) {
  const line = el("p", { class: "line" }, el("span", { class: `pill ${tone(engine)}` }, MARKS[tone(engine)] + words(engine.verdict ?? engine.state)));
  if (engine.verdict != null) {
    if (engine.verdict !== "healthy" && engine.confidence) line.append(el("span", { class: "pill" }, `confidence ${engine.confidence}`));
    if (engine.state !== "serving") line.append(el("span", { class: "pill" }, words(engine.state)));
    if (engine.causes[0]?.easing) line.append(el("span", { class: "pill good" }, "easing"));
    if (engine.since != null) line.append(el("span", { class: "soft" }, `since ${clock(engine.since)}`));
  }
  if (engine.gauges_stale) line.append(el("span", { class: "pill warn" }, "gauges stale"));
  return line;
}

function first(cause) {
  const remedy = cause?.remedies[0];
  if (!remedy) return null;
  return el("p", { class: "first" }, el("b", {}, `First: ${remedy.change}`), remedy.why,
    remedy.side_effect ? el("span", { class: "soft" }, `Side effect: ${remedy.side_effect}`) : null);
}

function latencies(block) {
  const { latencies: known, percentiles } = vocabulary;
  const rows = known.filter(({ key }) => block[key]?.count).map(({ key, label }) =>
    el("tr", {}, el("th", { scope: "row" }, label),
      ...percentiles.map((percentile) => {
        const [value, bounds] = estimate(block[key][percentile]);
        return el("td", {}, value, bounds && el("small", {}, bounds));
      }),
      el("td", {}, number(block[key].count))));
  if (rows.length === 0) return null;
  const head = el("tr", {}, ...["", ...percentiles, "count"].map((title) => el("th", { scope: "col" }, title)));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
}

// What could not be judged has a mark and a colour of its own: it is not met.
const RESULT_TONES = { met: "good", missed: "bad", too_few: "warn", cannot_tell: "warn", no_data: "calm" };

function objectives(engine) {
  const known = engine.objectives.filter((one) => one.observations > 0);
  if (known.length === 0) return null;
  const rows = known.map((one) => {
    const kind = RESULT_TONES[one.result];
    const share = vocabulary.shares.includes(one.objective);
    const [value, bounds] = share && one.value ? [ratio(one.value.value), ""] : estimate(one.value);
    return el("tr", {}, el("th", { scope: "row" }, words(one.objective)),
      el("td", {}, el("span", { class: `pill ${kind}` }, MARKS[kind] + vocabulary.results[one.result]),
        one.result === "missed" && !one.surely ? el("small", {}, "possibly") : null),
      el("td", {}, value, bounds && el("small", {}, bounds), el("small", {}, `limit ${seconds(one.limit_seconds)}`)),
      el("td", {}, `${number(Math.round(one.over))} of ${number(one.observations)}`, el("small", {}, `in ${seconds(one.span_seconds)}`)));
  });
  const head = el("tr", {}, ...["objective", "result", "measured", "over it"].map((title) => el("th", { scope: "col" }, title)));
  return el("table", { class: "objectives" }, el("thead", {}, head), el("tbody", {}, ...rows));
}

function phases(block) {
  const known = vocabulary.phases.filter(({ key }) => block[key]?.mean_seconds != null);
  if (known.length === 0) return null;
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const legend = el("ul", { class: "legend", "aria-label": "Mean time per finished request in each phase" });
  for (const { key, label } of known) {
    const { mean_seconds: mean, share } = block[key];
    if (share > 0) {
      const part = el("i", { class: key });
      part.style.flexGrow = share;
      bar.append(part);
    }
    legend.append(el("li", {}, el("i", { class: key }), `${label} ${seconds(mean)}`, share == null ? "" : ` · ${ratio(share)}`));
  }
  return el("div", {}, bar, legend);
}

function facts(engine) {
  const rows = vocabulary.groups.map(({ label, numbers }) => [label, numbers.map((one) => say(one, engine))]);
  rows.push(["Engine", [engine.restarts > 0 && `${engine.restarts} restarts seen`]]);
  rows.push(["Events", engine.events.slice(-EVENTS_SHOWN).map(happened)]);
  const shown = rows.map(([name, parts]) => [name, parts.filter(Boolean).join(", ")]).filter(([, text]) => text);
  return shown.length ? el("dl", {}, ...shown.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])) : null;
}

// The leading cause's summary is on the card already; a verdict that explains two symptoms has its remedies told once.
function cause(one, lead, told) {
  const remedies = told ? [] : one.remedies;
  return el("div", { class: "cause" },
    el("p", {}, el("b", {}, words(one.verdict)), ` explains ${words(one.symptom)} (score ${ratio(one.score)}, confidence ${one.confidence})`),
    lead ? null : el("p", {}, one.summary),
    remedies.length ? el("ol", {}, ...remedies.map((r) => el("li", {}, `${r.change} (${r.when}): ${[r.why, r.side_effect && `side effect: ${r.side_effect}`].filter(Boolean).join("; ")}`))) : null,
    Object.keys(one.evidence).length ? el("dl", {}, ...Object.entries(one.evidence).flatMap(([name, value]) =>
      [el("dt", {}, words(name)), el("dd", {}, evidence(name, value))])) : null,
    one.refuted_by ? el("p", { class: "soft" }, `Doubt it if: ${one.refuted_by}`) : null);
}

function more(engine, isOpen) {
  const parts = engine.causes.map((one, index) =>
    cause(one, index === 0, engine.causes.slice(0, index).some((before) => before.verdict === one.verdict)));
  if (engine.symptoms.length) {
    parts.push(el("p", {}, "Symptoms: ", engine.symptoms.map((s) =>
      `${words(s.objective)}${s.value ? ` ${vocabulary.shares.includes(s.objective) ? ratio(s.value.value) : estimate(s.value).filter(Boolean).join(" ")}` : ""}` +
      `${s.limit_seconds == null ? "" : `, limit ${seconds(s.limit_seconds)}`} (${s.surely ? "proven" : "possible"}, ${s.severity})`).join("; ")));
  }
  if (engine.advisories.length) parts.push(el("ul", {}, ...engine.advisories.map((a) => el("li", {}, `${a.summary} ${a.remedy}`))));
  if (engine.missing.length) parts.push(el("p", { class: "soft" }, `Missing signals: ${engine.missing.map(words).join(", ")}`));
  if (parts.length === 0) return null;
  return el("details", isOpen ? { open: "" } : {}, el("summary", {}, "Evidence and further remedies"), ...parts);
}

export function engineCard(engine, error, isOpen) {
  const why = engine.verdict == null ? vocabulary.states[engine.state] : null;
  const numbers = latencies(engine);
  const empty = !numbers && engine.state === "serving" ? "No request got a first token in the window." : null;
  return el("article", { class: `card ${tone(engine)}` },
    el("div", {}, el("h3", {}, engine.model_name || UNKNOWN),
      el("p", { class: "where" }, engine.target, engine.engine === "0" ? "" : ` · engine ${engine.engine}`, engine.role ? ` · ${engine.role}` : "")),
    pills(engine),
    engine.summary ? el("p", { class: "summary" }, engine.summary) : null,
    why && !engine.summary ? el("p", { class: "soft" }, why) : null,
    error ? el("p", { class: "error" }, error) : null,
    first(engine.causes[0]),
    objectives(engine), numbers, empty && el("p", { class: "soft" }, empty),
    phases(engine.phases), facts(engine), more(engine, isOpen));
}

// A target without a known engine has a card too, so that it is seen.
export function targetCard(target) {
  const kind = ["warming_up", "starting"].includes(target.state) ? "calm" : target.state === "down" ? "bad" : "warn";
  return el("article", { class: `card ${kind}` },
    el("div", {}, el("h3", {}, target.target), el("p", { class: "where" }, target.url ?? "")),
    el("p", { class: "line" }, el("span", { class: `pill ${kind}` }, MARKS[kind] + words(target.state))),
    target.starting_seconds == null ? null : el("p", { class: "soft" }, `${vocabulary.states.starting} Asked for ${seconds(target.starting_seconds)}.`),
    target.last_error ? el("p", { class: "error" }, target.last_error) : el("p", { class: "soft" }, vocabulary.states[target.state] ?? ""));
}

function table(title, columns, rows) {
  const head = el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)));
  return [el("h2", {}, title), el("div", { class: "wide", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)))];
}

export function modelsTable(models) {
  return table("Models", ["Model", "Engines", "Verdict", "TTFT p99", "ITL p99", "Waiting", "KV worst"], models.map((model) => el("tr", {},
    el("th", { scope: "row", class: "text" }, model.model_name || UNKNOWN, model.role ? ` (${model.role})` : ""),
    el("td", {}, Object.entries(model.engines).filter(([, n]) => n).map(([state, n]) => `${n} ${words(state)}`).join(", ")),
    el("td", {}, model.verdict ? words(model.verdict) : UNKNOWN),
    ...["ttft_seconds", "itl_seconds"].map((key) => {
      const [value, bounds] = estimate(model[key].p99);
      return el("td", {}, value, bounds && el("small", {}, bounds));
    }),
    el("td", {}, number(model.queue.waiting)),
    el("td", {}, ratio(model.kv_cache.usage_max)))));
}

export function targetsTable(targets) {
  return table("Targets", ["Target", "State", "Last successful scrape", "Scrape time", "Last error", "Anomalies"], targets.map((target) => el("tr", {},
    el("th", { scope: "row", class: "text" }, target.target, target.url ? el("small", { class: "where" }, target.url) : null),
    el("td", {}, words(target.state)),
    el("td", {}, target.last_success_age_seconds == null ? "never" : `${seconds(Math.round(target.last_success_age_seconds))} ago`),
    el("td", {}, seconds(target.scrape_seconds)),
    el("td", { class: "text" }, target.last_error ?? ""),
    el("td", { class: "text" }, target.anomalies.map((one) => `${words(one.kind)} (${one.count}): ${one.last}`).join("; ")))));
}
