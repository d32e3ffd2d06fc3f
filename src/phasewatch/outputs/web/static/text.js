// Numbers as people read them. Absent is not zero: what is unknown is "–".

export const UNKNOWN = "–";

function figures(value) {
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}

function unit(value) {
  const size = Math.abs(value);
  if (size < 0.9995) return [1000, "ms"];
  if (size < 599.5) return [1, "s"];
  return size < 7200 ? [1 / 60, "min"] : [1 / 3600, "h"];
}

export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value === 0) return "0 s";
  const [factor, name] = unit(value);
  return `${figures(value * factor)} ${name}`;
}

// [value, bounds]: "310 ms" and "(250–500)"; beyond the first or last bucket only one side is known.
export function estimate(value) {
  if (value == null) return [UNKNOWN, ""];
  if (value.high == null) return [`> ${seconds(value.low)}`, "last bucket"];
  if (value.censored === "below_first_edge") return [`≤ ${seconds(value.high)}`, "first bucket"];
  if (value.low === value.high) return [seconds(value.value), ""];
  const [factor, name] = unit(value.value);
  const bound = (edge) => (unit(edge)[1] === name || edge === 0 ? figures(edge * factor) : seconds(edge));
  return [seconds(value.value), `(${bound(value.low)}–${bound(value.high)})`];
}

export function ratio(value) {
  if (value == null) return UNKNOWN;
  const percent = value * 100;
  if (percent > 0 && percent < 0.05) return "< 0.1 %";
  return `${percent.toFixed(percent > 0 && percent < 10 ? 1 : 0)} %`;
}

export function number(value) {
  if (value == null) return UNKNOWN;
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : figures(value);
}

export function clock(unixSeconds) {
  const time = new Date(unixSeconds * 1000);
  const today = time.toDateString() === new Date().toDateString();
  return today ? time.toLocaleTimeString() : time.toLocaleString();
}

export function words(name) {
  return name.replaceAll("_", " ");
}

// A piece of evidence is written as its name says, as on the terminal.
export function evidence(name, value) {
  if (typeof value !== "number") return value == null ? UNKNOWN : String(value);
  if (/_seconds$|^seconds_/.test(name)) return seconds(value);
  if (/_(ratio|share)$|_share_of_|^kv_usage_/.test(name)) return ratio(value);
  return number(value);
}

// How the server's table of numbers names and says them; filled once, before the first fleet is drawn.
export const vocabulary = {};

const at = (row, path) => path.split(".").reduce((value, name) => value?.[name], row);
const FORMS = { seconds, ratio, tokens: (value) => number(Math.round(value)) };

// One number of an engine's row in its own words; null where it is unknown or not worth a word.
export function say({ path, unit, text, least, most, bound }, engine) {
  const value = at(engine, path);
  if (value == null || Math.abs(value) < least || (most != null && Math.abs(value) > most)) return null;
  const over = bound && at(engine, bound) ? "over " : "";
  const sign = value > 0 ? "+" : "";
  return text.replace("{+}", sign + number(value)).replace("{}", over + (FORMS[unit] ?? number)(value));
}

const side = (value) => (value == null || value === "" ? "none" : typeof value === "number" ? number(value) : value);

// What happened to an engine: "12:03:10 restarted".
export function happened({ at: when, kind, before, after }) {
  const text = vocabulary.events[kind] ?? words(kind);
  return `${clock(when)} ${text.replace("{before}", () => side(before)).replace("{after}", () => side(after))}`;
}
