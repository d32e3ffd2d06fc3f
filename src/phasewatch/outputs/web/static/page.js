// Asks for the fleet every few seconds and redraws what has changed.

import { el, engineCard, modelsTable, needsALook, targetCard, targetsTable } from "./cards.js";
import { clock, seconds, vocabulary, words } from "./text.js";

const ASK_SECONDS = 3;
const PATIENCE_SECONDS = 10;
const byId = (id) => document.getElementById(id);

// key -> {shown, element}: a card is rebuilt only when its engine has changed, so that open details stay open.
let cards = new Map();
let at = null; // of the last document, in the server's time
let answered = null; // performance.now() of the last good answer
let ageThen = 0; // seconds between the evaluation and that answer, both in the server's time
let interval = 10;
let failure = null;

const now = () => performance.now() / 1000;

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function redrawCards(fleet) {
  const errors = new Map(fleet.targets.map((target) => [target.target, target.last_error]));
  const withEngines = new Set(fleet.engines.map((engine) => engine.target));
  const entries = [
    ...fleet.engines.map((engine) => ({
      key: JSON.stringify(["engine", engine.target, engine.model_name, engine.engine]),
      data: [engine, errors.get(engine.target)],
      trouble: needsALook(engine),
      draw: (open) => engineCard(engine, errors.get(engine.target), open),
    })),
    ...fleet.targets.filter((target) => !withEngines.has(target.target)).map((target) => ({
      key: JSON.stringify(["target", target.target]),
      data: [target.state, target.url, target.last_error],
      trouble: target.state !== "warming_up",
      draw: () => targetCard(target),
    })),
  ];
  entries.sort((a, b) => b.trouble - a.trouble); // stable: the document's order within both halves
  const next = new Map();
  for (const { key, data, draw } of entries) {
    const shown = JSON.stringify(data);
    const before = cards.get(key);
    const open = before?.element.querySelector("details")?.open ?? false;
    const focused = before?.element.querySelector("summary") === document.activeElement && document.activeElement !== null;
    const element = before?.shown === shown ? before.element : draw(open);
    next.set(key, { shown, element, focused: focused && element !== before?.element });
  }
  cards = next;
  const section = byId("engines");
  const grid = section.firstElementChild ?? section.appendChild(el("div", { class: "cards" }));
  const elements = [...next.values()].map((card) => card.element);
  // Moving an element would close nothing, but scroll and selection suffer: only when something is new.
  if (elements.length !== grid.children.length || elements.some((element, index) => grid.children[index] !== element)) {
    grid.replaceChildren(...elements);
  }
  for (const card of next.values()) if (card.focused) card.element.querySelector("summary")?.focus();
  return entries.filter((entry) => entry.trouble).length;
}

function redraw(fleet) {
  const trouble = redrawCards(fleet);
  const several = fleet.models.filter((model) => Object.values(model.engines).reduce((a, b) => a + b, 0) > 1);
  byId("models").hidden = several.length === 0;
  byId("models").replaceChildren(...(several.length ? modelsTable(several) : []));
  byId("targets").hidden = fleet.targets.length === 0;
  byId("targets").replaceChildren(...(fleet.targets.length ? targetsTable(fleet.targets) : []));
  const nothing = byId("nothing");
  nothing.hidden = fleet.engines.length + fleet.targets.length > 0;
  nothing.textContent = fleet.at == null
    ? "The first round of scrapes is running. Numbers appear when every target has answered or failed."
    : "No targets are configured. Add them to the configuration, or set VLLM_TARGETS.";
  const counts = `${plural(fleet.engines.length, "engine")} on ${plural(fleet.targets.length, "target")}`;
  const verdicts = [...new Set(fleet.engines.filter(needsALook).map((engine) => words(engine.verdict ?? engine.state)))];
  byId("overview").textContent = fleet.at == null ? ""
    : trouble ? `${counts}, ${trouble} to look at${verdicts.length ? `: ${verdicts.join(", ")}` : ""}` : `${counts}, no problems`;
  document.title = trouble ? `(${trouble}) phasewatch` : "phasewatch";
}

function redrawAge() {
  const age = at == null || answered == null ? null : ageThen + now() - answered;
  const isOld = age != null && age > 3 * interval + ASK_SECONDS;
  const alarm = byId("alarm");
  if (failure) {
    alarm.textContent = `phasewatch does not answer (${failure}). ` +
      (age == null ? "Retrying." : `The numbers below are ${seconds(Math.round(age))} old.`);
  } else if (isOld) {
    alarm.textContent = `phasewatch answers, but its last evaluation is ${seconds(Math.round(age))} old; see its log.`;
  }
  alarm.hidden = !failure && !isOld;
  byId("main").classList.toggle("old", (failure != null && answered != null) || isOld);
  byId("fresh").textContent = age == null ? "" : `evaluated ${clock(at)}, ${Math.max(0, Math.round(age))} s ago`;
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_SECONDS * 1000) });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer;
}

async function ask() {
  try {
    // After an outage it may be another version that answers.
    if (failure != null || !vocabulary.groups) Object.assign(vocabulary, await (await get("api/v1/vocabulary")).json());
    const answer = await get("api/v1/fleet");
    const fleet = await answer.json();
    interval = Number(answer.headers.get("Phasewatch-Interval-Seconds")) || interval;
    // The server's own clock on both sides: the browser's may be wrong.
    const serverNow = Date.parse(answer.headers.get("Date") ?? "") / 1000;
    const isNew = fleet.at !== at || failure != null;
    ageThen = fleet.at == null ? 0 : Math.max(0, (Number.isNaN(serverNow) ? Date.now() / 1000 : serverNow) - fleet.at);
    [at, answered, failure] = [fleet.at, now(), null];
    if (isNew || at == null) redraw(fleet);
  } catch (error) {
    failure = error.name === "TimeoutError" ? "timed out" : error instanceof TypeError ? "no connection" : error.message;
    if (answered == null) byId("nothing").textContent = "No answer from phasewatch yet.";
  }
  redrawAge();
  setTimeout(ask, ASK_SECONDS * 1000);
}

setInterval(redrawAge, 1000);
ask();
