"""Two stretches of one model, before and after a change: what moved, by how much, why, and whether the load was alike.

In an open loop the load is what arrives. In a closed loop (so many clients that each wait for their answer, a batch
that is drained) it is how many are in flight, and arrivals follow the service. Both are told apart by what they cannot
do: a larger load has more arrivals and, at the same service, more in flight. Where more arrive and no more are in
flight, or fewer arrive and no fewer are in flight, it is the service that changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import hypot, isinf, log, sqrt
from typing import Literal

from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.histogram import edges, in_buckets, mean
from phasewatch.core.measures.numbers import ratio, stalled_ratio
from phasewatch.core.measures.window import restarted, step
from phasewatch.core.measures.window import scrapes as scrapes_of
from phasewatch.core.model import Estimate, Histogram, Latency, Numbers, Snapshot, Step, Window
from phasewatch.core.report.measure_table import LATENCIES, PHASES
from phasewatch.core.settings import FAMILIES, STATISTICS, Thresholds

Outcome = Literal["better", "worse", "same", "unsure"]
Conclusion = Literal["better", "worse", "mixed", "same", "unsure", "not comparable"]
Unit = Literal["seconds", "ratio", "per_second", "tokens", "tokens_per_second", "requests"]

# Two runs of the same load differ by a few percent: nobody changes a fleet for less than this.
MATERIAL = 0.1
# A normal distribution's 90th and 99th percentile, in standard deviations above its median.
_DEVIATIONS = {"p90": 1.2816, "p99": 2.3263}
_TAIL_DEVIATIONS = 3.0  # of a percentile or a bucket, several of which are looked at
_SURE_DEVIATIONS = 2.0  # of a mean: 95 % of its chance


@dataclass(frozen=True, slots=True)
class Facts:
    """What pages say of one side besides its Numbers; a document has none of it.

    scrapes: of one engine. running, waiting: requests, mean. steady: whether their number hardly varies, as that of
    clients who each wait for their answer. prefix_hits: 0 with caching off. lengths: increases of the histograms of
    prompt and answer tokens. stalled: itl_stalled_ratio with the bounds that buckets allow. labels: configuration.
    """

    scrapes: int = 0
    running: float | None = None
    waiting: float | None = None
    steady: bool = False
    prefix_hits: float | None = None
    lengths: Mapping[str, Histogram] = field(default_factory=dict)
    stalled: Estimate | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What one side says of a model. engines: how many it holds."""

    numbers: Numbers
    engines: int
    facts: Facts = Facts()


@dataclass(frozen=True, slots=True)
class Change:
    """after / before - 1, and between which bounds it lies; None where there is none (high: no upper bound)."""

    ratio: float
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One measure. outcome: None where a side does not know it, and for phases and speeds, which only say why."""

    name: str
    unit: Unit
    before: Estimate | None
    after: Estimate | None
    change: Change | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One measure of what was asked of the engines, or how many were in flight. alike: within 20 %; None where a side
    does not know it."""

    name: str
    unit: Unit
    before: float | None
    after: float | None
    alike: bool | None


@dataclass(frozen=True, slots=True)
class ChangedLabel:
    """A configuration label whose value changed; None where a side lacks it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """conclusion "unsure": what moved, moved within the bounds. sentence: one line for people. why: what else moved
    that accounts for it. changed: of the configuration."""

    conclusion: Conclusion
    sentence: str
    load: tuple[LoadRow, ...]
    rows: tuple[ComparedRow, ...]
    why: tuple[str, ...] = ()
    changed: tuple[ChangedLabel, ...] = ()


# Requests seen on the gauges of all scrapes together: random ones are counted to 10 % by then.
_ENOUGH_SEEN = 100


@dataclass(frozen=True, slots=True)
class _Side:
    numbers: Numbers
    facts: Facts

    @property
    def in_flight(self) -> float | None:
        """Requests in flight, mean: of the gauges where these saw enough, else arrivals x e2e (Little's law), which
        knows only of those that finished."""
        running, waiting = self.facts.running, self.facts.waiting
        seen = None if running is None else running + (waiting or 0.0)
        arrivals, e2e = self.numbers.queue.arrivals_per_second, self.numbers.e2e_seconds.mean
        if arrivals is None or e2e is None or (seen is not None and seen * self.facts.scrapes >= _ENOUGH_SEEN):
            return seen
        return arrivals * e2e

    def observed(self, family: str) -> Latency:
        """A latency with its count of independent observations: those who run together share each gap."""
        latency: Latency = getattr(self.numbers, f"{family}_seconds")
        together = max(1.0, self.facts.running or 1.0) if family == "itl" else 1.0
        return replace(latency, count=int(latency.count / together))


@dataclass(frozen=True, slots=True)
class _Measure:
    """judged: what users feel, less is better; phases and speeds only say why. floor: up to this it is as good as
    none."""

    name: str
    unit: Unit
    judged: bool
    read: Callable[[_Side], Estimate | None]
    floor: float = 0.0


def settled(pages: Sequence[Snapshot], thresholds: Thresholds) -> tuple[Step, ...]:
    """The steps between an engine's pages, less those in which it (or the watching) was still warming up: the first
    three pages and 10 s, and again after every restart."""
    if not pages:
        return ()
    kept: list[Step] = []
    born, seen = pages[0].at, 1
    for before, after in pairwise(pages):
        if restarted(before, after):
            born, seen = after.at, 1
            continue
        if before.at - born >= thresholds.warm_seconds and seen >= thresholds.warm_pages:
            kept.append(step(before, after))
        seen += 1
    return tuple(kept)


def busy(steps: Sequence[Step]) -> tuple[float, float] | None:
    """From when until when there was anything to do; None where there never was. What lies idle before and after is no
    part of a run that was compared."""
    worked = [one for one in steps if _worked(one)]
    return (worked[0].start, worked[-1].end) if worked else None


def _worked(one: Step) -> bool:
    held = (page.get(name, 0.0) > 0 for page in (one.before, one.after) for name in ("running", "waiting"))
    return any(held) or any(one.increases.get(name, 0.0) > 0 for name in ("generation_tokens", "prompt_tokens"))


_LENGTHS = ("prompt_length", "output_length")


def facts_of(window: Window, engines: Sequence[Window], stall_seconds: float, labels: Mapping[str, str]) -> Facts:
    """window: of all engines together."""
    gauges = {name: [one.gauges[name].mean for one in engines if name in one.gauges] for name in ("running", "waiting")}
    running, waiting = (sum(parts) if len(parts) == len(engines) else None for parts in gauges.values())
    lengths = {name: window.histograms[name] for name in _LENGTHS if name in window.histograms}
    hits, queries = window.increases.get("prefix_hits", 0.0), window.increases.get("prefix_queries")
    prefix_hits = None if queries is None else ratio(hits, queries) if queries else 0.0
    stalled = _stalled(window.histograms.get("itl"), stall_seconds)
    scrapes = max(len(one.steps) for one in engines) + 1
    return Facts(scrapes, running, waiting, _steady(engines), prefix_hits, lengths, stalled, labels)


# Random arrivals, each served by itself, vary by as much as their mean (Poisson).
_STEADY = 0.1


def _steady(engines: Sequence[Window]) -> bool:
    total = spread = 0.0
    for one in engines:
        held = [page["running"] + page.get("waiting", 0.0) for page in scrapes_of(one) if "running" in page]
        if len(held) < 3:
            return False
        middle = sum(held) / len(held)
        total, spread = total + middle, spread + sum((each - middle) ** 2 for each in held) / (len(held) - 1)
    return total >= 2 and spread <= _STEADY * total


def _stalled(itl: Histogram | None, stall_seconds: float) -> Estimate | None:
    """At least the gaps in buckets above the limit at their low edges, or all the time that shorter ones cannot have
    taken; at most all but what shorter ones took at least."""
    least = stalled_ratio(itl, stall_seconds)
    if least is None or itl is None or not itl.total or mean(itl) is None:
        return None
    short = [(count, *edges(itl, at)) for at, count in enumerate(in_buckets(itl)) if edges(itl, at)[0] < stall_seconds]
    taken_at_most = sum(count * high for count, _, high in short if count)
    taken_at_least = sum(count * low for count, low, _ in short if count)
    stalls = itl.count - sum(count for count, *_ in short)
    if stalls <= 0:
        return Estimate(0.0, 0.0, 0.0)
    low = max(least, 1 - taken_at_most / itl.total)
    return Estimate(low, low, max(low, 1 - taken_at_least / itl.total))


def compare(
    before: Numbers, after: Numbers, thresholds: Thresholds, old: Facts = Facts(), new: Facts = Facts()
) -> Comparison:
    """What the change did. Bounds of a percentile are its bucket's, those of a latency's mean are of chance (two
    standard errors); everything else is exact. old, new: what else is known of the two sides."""
    first, second = _Side(before, old), _Side(after, new)
    load = tuple(_load(name, unit, read(first), read(second), thresholds) for name, unit, read in _LOAD)
    rows = tuple(_row(one, first, second) for one in _measures(thresholds))
    changed = _changed(old.labels, new.labels)
    why = _why_not(first, second, load, thresholds)
    if why:
        return Comparison("not comparable", f"Not comparable: {why}.", load, rows, (), changed)
    return _concluded({row.name: row for row in rows}, first, second, load, changed, thresholds)


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ChangedLabel, ...]:
    if not old or not new:
        return ()
    names = (name for name in dict.fromkeys((*old, *new)) if name != "adapters")  # those that ran so far
    return tuple(ChangedLabel(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


# --- load ---------------------------------------------------------------------------------------------------------

_LOAD: tuple[tuple[str, Unit, Callable[[_Side], float | None]], ...] = (
    ("arrivals", "per_second", lambda side: side.numbers.queue.arrivals_per_second),
    ("in_flight", "requests", lambda side: side.in_flight),
    ("prompt_length", "tokens", lambda side: side.numbers.tokens.prompt_mean),
    ("output_length", "tokens", lambda side: side.numbers.tokens.output_mean),
)
LOAD_LABELS = {"arrivals": "arrivals", "in_flight": "in flight", "prompt_length": "prompts", "output_length": "answers"}


def _load(name: str, unit: Unit, before: float | None, after: float | None, thresholds: Thresholds) -> LoadRow:
    alike = None
    if before is not None and after is not None:
        alike = max(before, after) <= thresholds.traffic_ratio * min(before, after)
    return LoadRow(name, unit, before, after, alike)


def _why_not(before: _Side, after: _Side, load: Sequence[LoadRow], thresholds: Thresholds) -> str | None:
    few = min(before.numbers.ttft_seconds.count, after.numbers.ttft_seconds.count)
    if few < thresholds.few_finishes:
        return f"{'no request' if few == 0 else f'only {few} requests'} got a first token on one side"
    arrivals, in_flight, *lengths = load
    longer = [
        one for one in lengths if one.alike is False and not _mix_follows(one, before, after, arrivals, in_flight)
    ]
    other = _other_flow(arrivals, in_flight)
    unlike = [_unlike(one) for one in (*((arrivals,) if other else ()), *longer)]
    allowed = percent(round(thresholds.traffic_ratio - 1, 6))
    return f"the load differs by more than {allowed}: {', '.join(unlike)}" if unlike else None


def _other_flow(arrivals: LoadRow, in_flight: LoadRow) -> bool:
    """Whether more (or less) was asked: arrivals differ, and what is in flight went the same way."""
    if arrivals.alike is not False:
        return False
    return in_flight.alike is None or (in_flight.alike is False and _way(arrivals) == _way(in_flight))


def _way(row: LoadRow) -> int:
    before, after = row.before or 0.0, row.after or 0.0
    return (after > before) - (after < before)


def _mix_follows(row: LoadRow, before: _Side, after: _Side, arrivals: LoadRow, in_flight: LoadRow) -> bool:
    """Whether lengths differ only because some clients wait for their answers: the same kinds of requests, none of them
    rarer where others became more frequent, and no more in flight. Then the mix follows the service."""
    old, new = before.facts.lengths.get(row.name), after.facts.lengths.get(row.name)
    if old is None or new is None or old.bounds != new.bounds or not (old.count and new.count):
        return False
    if in_flight.alike is None or (in_flight.alike is False and _way(in_flight) == _way(arrivals)):
        return False
    counts = list(zip(in_buckets(old), in_buckets(new), strict=True))
    seconds_before, seconds_after = before.numbers.window_seconds, after.numbers.window_seconds
    moves = {_moved_flow(a, b, seconds_before, seconds_after) for a, b in counts}
    return {-1, 1} - moves != set() and _explained_by_mix(old, new)


def _moved_flow(old: float, new: float, seconds_before: float, seconds_after: float) -> int:
    """1 where so many more a second came than is chance (standard deviations of counts), -1 fewer, else 0."""
    expected = (old + new) * seconds_after / (seconds_before + seconds_after)
    spread = sqrt((old + new) * seconds_before * seconds_after) / (seconds_before + seconds_after)
    return 0 if abs(new - expected) <= _TAIL_DEVIATIONS * spread else 1 if new > expected else -1


def _explained_by_mix(old: Histogram, new: Histogram) -> bool:
    """Whether one mean length a bucket, the same on both sides, can make both means: to 10 %, as little matters."""
    was, now = mean(old), mean(new)
    if was is None or now is None:
        return False
    buckets = [
        (a / old.count, b / new.count, *edges(old, at))
        for at, (a, b) in enumerate(zip(in_buckets(old), in_buckets(new), strict=True))
        if a or b
    ]
    if sum(b for a, b, *_ in buckets if not a) > MATERIAL or any(isinf(high) for *_, high in buckets):
        return False  # lengths that were not there before, or that no bucket bounds
    least, most = (_mean_of_mix(buckets, was, most=most) for most in (False, True))
    return least * (1 - MATERIAL) <= now <= most * (1 + MATERIAL)


def _mean_of_mix(buckets: Sequence[tuple[float, float, float, float]], was: float, *, most: bool) -> float:
    """The most (or least) that the new mean can be where the old one is `was`. buckets: share of the old, of the new,
    low and high edge. The old mean's length above the low edges is handed out where it weighs most (least) now."""
    now, left = 0.0, was
    for old, new, low, high in buckets:
        now += new * (high if most and not old else low)
        left -= old * low
    shared = [one for one in buckets if one[0]]
    for old, new, low, high in sorted(shared, key=lambda one: one[1] / one[0], reverse=most):
        taken = min(max(left, 0.0), old * (high - low))
        left -= taken
        now += taken * new / old
    return now


def _unlike(row: LoadRow) -> str:
    unit = "/s" if row.unit == "per_second" else " tokens"
    verb = "rose" if (row.after or 0.0) > (row.before or 0.0) else "fell"
    return f"{LOAD_LABELS[row.name]} {verb} from {number(row.before)} to {number(row.after)}{unit}"


# --- measures -----------------------------------------------------------------------------------------------------


def _measures(thresholds: Thresholds) -> Iterable[_Measure]:
    for family in FAMILIES:
        yield _Measure(f"{family}_mean", "seconds", True, _of_latency(family, _mean))
        for statistic in STATISTICS[1:]:
            yield _Measure(f"{family}_{statistic}", "seconds", True, _of_latency(family, _percentile(statistic)))
        if family == "itl":
            share = thresholds.stalled_share
            yield _Measure("itl_stalled", "ratio", True, _stalled_share, share)
    for phase, _ in PHASES:
        yield _Measure(f"{phase}_mean", "seconds", False, _of_phase(phase))
    for name, unit, read in _REASONS:
        yield _Measure(name, unit, False, read)
    share = thresholds.share_of_requests
    yield _Measure("gave_up", "ratio", True, lambda side: _exact(side.numbers.queue.gave_up_ratio), share)
    yield _Measure("failed", "ratio", True, lambda side: _exact(_failed(side.numbers)), share)


_REASONS: tuple[tuple[str, Unit, Callable[[_Side], Estimate | None]], ...] = (
    ("prefill_speed", "tokens_per_second", lambda side: _exact(side.numbers.tokens.prefill_speed)),
    ("decode_speed", "tokens_per_second", lambda side: _exact(side.numbers.tokens.decode_speed)),
    ("generation_speed", "tokens_per_second", lambda side: _exact(side.numbers.tokens.generation_per_second)),
    ("running", "requests", lambda side: _exact(side.facts.running)),
    ("waiting", "requests", lambda side: _exact(side.facts.waiting)),
    ("prefix_hits", "ratio", lambda side: _exact(_prefix_hits(side))),
    ("kv_capacity", "tokens", lambda side: _exact(side.numbers.kv_cache.capacity_tokens)),
    ("preemptions", "per_second", lambda side: _exact(side.numbers.kv_cache.preemptions_per_second)),
)


def _prefix_hits(side: _Side) -> float | None:
    known = side.facts.prefix_hits
    return side.numbers.tokens.prefix_hit_ratio if known is None else known


def _stalled_share(side: _Side) -> Estimate | None:
    return side.facts.stalled or _exact(side.numbers.itl_stalled_ratio)


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value, value, value)


def _of_latency(family: str, read: Callable[[Latency], Estimate | None]) -> Callable[[_Side], Estimate | None]:
    return lambda side: read(getattr(side.numbers, f"{family}_seconds"))


def _of_phase(phase: str) -> Callable[[_Side], Estimate | None]:
    return lambda side: _exact(getattr(side.numbers.phases, phase).mean_seconds)


def _percentile(statistic: str) -> Callable[[Latency], Estimate | None]:
    return lambda latency: getattr(latency, statistic)


def _mean(latency: Latency) -> Estimate | None:
    """The mean of these requests is exact; of the next ones, the same load, it lies within two standard errors."""
    if latency.mean is None:
        return None
    middle = latency.p50
    spread = max(
        (
            (tail.value - middle.value) / deviations
            for name, deviations in _DEVIATIONS.items()
            if middle is not None and (tail := getattr(latency, name)) is not None
        ),
        default=0.0,
    )
    chance = _SURE_DEVIATIONS * max(spread, 0.0) / sqrt(max(latency.count, 1))
    return Estimate(latency.mean, max(0.0, latency.mean - chance), latency.mean + chance)


def _failed(numbers: Numbers) -> float | None:
    failed, arrivals = numbers.queue.failed_per_second, numbers.queue.arrivals_per_second
    return None if failed is None or not arrivals else min(1.0, failed / arrivals)


def _row(measure: _Measure, before: _Side, after: _Side) -> ComparedRow:
    old, new = measure.read(before), measure.read(after)
    change = None if old is None or new is None else _change(old, new)
    outcome = None if old is None or new is None or not measure.judged else _outcome(old, new, measure.floor)
    return ComparedRow(measure.name, measure.unit, old, new, change, outcome)


def _change(before: Estimate, after: Estimate) -> Change | None:
    if before.value <= 0:
        return None
    return Change(
        after.value / before.value - 1,
        -1.0 if not before.high else after.low / before.high - 1,
        None if after.high is None or before.low <= 0 else after.high / before.low - 1,
    )


def _outcome(before: Estimate, after: Estimate, floor: float) -> Outcome:
    if max(before.value, after.value) <= floor or abs(after.value - before.value) < MATERIAL * before.value:
        return "same"
    if after.high is not None and after.high <= before.low:
        return "better"
    return "worse" if before.high is not None and before.high <= after.low else "unsure"


# --- the sentence -------------------------------------------------------------------------------------------------

_LABELS = {family: label for family, label, _ in LATENCIES}
_SAID_IN_ORDER = ("itl", "tpot", "ttft", "e2e")
_ORDER: tuple[Outcome, ...] = ("better", "worse", "same", "unsure")
_AGAINST: Mapping[Outcome | None, Outcome] = {"better": "worse", "worse": "better"}


def _concluded(
    rows: Mapping[str, ComparedRow],
    before: _Side,
    after: _Side,
    load: Sequence[LoadRow],
    changed: tuple[ChangedLabel, ...],
    thresholds: Thresholds,
) -> Comparison:
    # With speculation a step makes several tokens: ITL counts steps and TPOT tells the pace. Without, they agree.
    drafts = any(one.numbers.speculation.mean_accepted_length is not None for one in (before, after))
    survivors = rows["gave_up"].outcome in ("better", "worse")
    left_out = {"itl" if drafts else "tpot"} | ({"ttft", "e2e"} if survivors else set())
    said = [*_shares(rows, thresholds)]
    for family in _SAID_IN_ORDER:
        if family not in left_out:
            said += [
                (outcome, _LABELS[family], phrase)
                for outcome, phrase in _family(rows, family, _LABELS[family], before, after)
            ]
    conclusion = _overall({outcome for outcome, *_ in said})
    phrases = [phrase for wanted in _ORDER for outcome, _, phrase in said if outcome == wanted]
    if survivors:
        phrases.append("TTFT and e2e are those of the clients who stayed and say nothing here")
    unknown = _unknown(load)
    if unknown:
        phrases.append(f"whether the load was alike is not known ({', '.join(unknown)})")
    head = {"same": "No change", "unsure": "No change beyond the bounds"}.get(conclusion, conclusion.capitalize())
    if conclusion == "mixed":
        head += f" ({_sides_of(said)})"
    head += _at_the_same(load, rows)
    if load[0].alike and load[1].alike is False and before.facts.steady and after.facts.steady:
        phrases.append(
            f"{number(load[1].before)} in flight, then {number(load[1].after)}, hardly varying: if so many clients ask,"
            " that is another load"
        )
    phrases += [
        f"{LOAD_LABELS[one.name]} {number(one.before)} tokens, then {number(one.after)}: the mix follows the service"
        for one in load[2:]
        if one.alike is False
    ]
    sentence = f"{head}: {'; '.join(phrases)}." if phrases else f"{head}."
    why = tuple(_why(rows, said, before, after, thresholds)) if conclusion in ("better", "worse", "mixed") else ()
    if why:
        sentence += f" {'Why:' if conclusion == 'mixed' else f'{conclusion.capitalize()} because'} {_listed(why)}."
    if changed:
        sentence += f" Configuration changed: {', '.join(_label_said(one) for one in changed)}."
    return Comparison(conclusion, sentence, tuple(load), tuple(rows.values()), why, changed)


def _unknown(load: Sequence[LoadRow]) -> list[str]:
    """Arrivals or requests in flight: one of them is enough."""
    arrivals, in_flight, *lengths = load
    flow = (arrivals,) if in_flight.alike is None else ()
    return [LOAD_LABELS[one.name] for one in (*flow, *lengths) if one.alike is None]


def _sides_of(said: Sequence[tuple[Outcome, str, str]]) -> str:
    """`TTFT worse, ITL better`."""
    subjects = {
        wanted: [*dict.fromkeys(subject for outcome, subject, _ in said if outcome == wanted)]
        for wanted in ("better", "worse")
    }
    return ", ".join(f"{_listed(names)} {wanted}" for wanted, names in subjects.items())


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _at_the_same(load: Sequence[LoadRow], rows: Mapping[str, ComparedRow]) -> str:
    """Where arrivals follow the service: what stayed instead, and how long a request takes now."""
    arrivals, in_flight, *_ = load
    if arrivals.alike is not False:
        return ""
    flows = f"{number(arrivals.before)}/s, then {number(arrivals.after)}/s"
    held = f"{number(in_flight.before)} in flight, then {number(in_flight.after)}"
    if in_flight.alike:
        text = f" at the same concurrency ({held}; arrivals follow the service, {flows})"
    else:
        text = f" with {'more' if _way(arrivals) > 0 else 'fewer'} arrivals ({flows}; {held})"
    change = rows["e2e_mean"].change
    if change is not None and rows["e2e_mean"].outcome in ("better", "worse"):
        text += f", requests take {_times(1 + change.ratio)} as long"
    return text


def _times(ratio: float) -> str:
    near = {2.0: "twice", 0.5: "half"}
    word = next((word for value, word in near.items() if abs(ratio / value - 1) < MATERIAL / 2), None)
    return word or f"{number(ratio)} times"


def _overall(outcomes: set[Outcome]) -> Conclusion:
    if {"better", "worse"} <= outcomes:
        return "mixed"
    return next((outcome for outcome in ("better", "worse", "unsure") if outcome in outcomes), "same")


# What more of a measure does to a latency. least: a smaller difference is no reason; unit as said.
_EFFECTS: tuple[tuple[str, str, str, float, Mapping[str, Outcome]], ...] = (
    ("kv_capacity", "KV cache capacity", " tokens", 0.0, {"TTFT": "better", "ITL": "better", "e2e": "better"}),
    ("prefix_hits", "the prefix hit ratio", "", 0.05, {"TTFT": "better", "ITL": "better", "e2e": "better"}),
    ("preemptions", "preemptions", "/s", 0.0, {"TTFT": "worse", "ITL": "worse", "stalls": "worse", "e2e": "worse"}),
    ("waiting", "waiting", " requests", 1.0, {"TTFT": "worse", "e2e": "worse"}),
    ("running", "running", " requests", 1.0, {"ITL": "worse", "TPOT": "worse"}),
)


def _why(
    rows: Mapping[str, ComparedRow],
    said: Sequence[tuple[Outcome, str, str]],
    before: _Side,
    after: _Side,
    thresholds: Thresholds,
) -> Iterable[str]:
    """What moved clearly, in the way that accounts for one of the outcomes."""
    outcomes = {(subject, outcome) for outcome, subject, _ in said}
    queued = False
    drafts = [one.numbers.speculation.mean_accepted_length for one in (before, after)]
    if [one is None for one in drafts].count(True) == 1:
        tokens = number(drafts[0] if drafts[1] is None else drafts[1])
        yield f"speculation is {'off' if drafts[1] is None else 'on'} ({tokens} tokens a step with it)"
    for name, label, unit, least, effects in _EFFECTS:
        row = rows[name]
        if row.before is None or row.after is None:
            continue
        old, new = row.before.value, row.after.value
        if max(old, new) <= thresholds.traffic_ratio * min(old, new) or abs(new - old) < least:
            continue
        seconds_of = before.numbers.window_seconds, after.numbers.window_seconds
        if name == "preemptions" and max(old * seconds_of[0], new * seconds_of[1]) < thresholds.min_over:
            continue
        if name == "running" and not _admitted_otherwise(old, new, before, after, thresholds):
            continue
        wanted = {subject: effect if new > old else _AGAINST[effect] for subject, effect in effects.items()}
        if outcomes & set(wanted.items()):
            queued |= name == "waiting"
            yield f"{label} {_by_how_much(row, old, new, unit)}"
    if not queued:
        yield from _phase(rows, outcomes)


def _admitted_otherwise(old: float, new: float, before: _Side, after: _Side, thresholds: Thresholds) -> bool:
    """Whether another part of those in flight runs: a batch that grows or shrinks with what is in flight is an effect
    of the service, one that is admitted otherwise is a cause."""
    if not before.in_flight or not after.in_flight:
        return False
    was, now = old / before.in_flight, new / after.in_flight
    return (now > was) == (new > old) and max(was, now) > thresholds.traffic_ratio * min(was, now)


def _phase(rows: Mapping[str, ComparedRow], outcomes: Set[tuple[str, Outcome]]) -> Iterable[str]:
    """The part of TTFT that moved most, where it makes up most of the move."""
    whole = rows["ttft_mean"]
    if whole.before is None or whole.after is None or whole.after.value == whole.before.value:
        return
    moved = whole.after.value - whole.before.value
    if ("TTFT", "worse" if moved > 0 else "better") not in outcomes:
        return
    parts = []
    for phase, label in PHASES:
        row = rows[f"{phase}_mean"]
        if phase in ("queue", "prefill") and row.before is not None and row.after is not None:
            parts.append(((row.after.value - row.before.value) / moved, label, row))
    share, label, row = max(parts, key=lambda part: part[0], default=(0.0, "", whole))
    if share > 0.5 and row.before is not None and row.after is not None:
        verb = "rose" if moved > 0 else "fell"
        yield f"{label} {verb} ({seconds(row.before.value)}, then {seconds(row.after.value)})"


def _by_how_much(row: ComparedRow, old: float, new: float, unit: str) -> str:
    verb = {"half": "halved", "twice": "doubled"}.get(_times(new / old) if old else "")
    values = (percent(old), percent(new)) if row.unit == "ratio" else (f"{number(old)}{unit}", f"{number(new)}{unit}")
    return f"{verb or ('rose' if new > old else 'fell')} ({values[0]}, then {values[1]})"


def _label_said(one: ChangedLabel) -> str:
    old, new = (_UNSET if value is None else value for value in (one.before, one.after))
    return f"{one.name} {old} -> {new}"


_UNSET = "(not set)"

_SHARES = (
    ("itl_stalled", "stalls", " of the streaming time"),
    ("gave_up", "clients that give up", ""),
    ("failed", "failing requests", ""),
)


def _shares(rows: Mapping[str, ComparedRow], thresholds: Thresholds) -> Iterable[tuple[Outcome, str, str]]:
    """Stalls, and requests that gave up or failed: said only where there are any."""
    for name, subject, whole in _SHARES:
        row = rows[name]
        if row.before is None or row.after is None or row.outcome is None:
            continue
        old, new = row.before.value, row.after.value
        shares = f"({percent(old)}{whole}, then {percent(new)})"
        if row.outcome == "same":
            if max(old, new) > thresholds.share_of_requests:
                yield "same", subject, f"{subject} stayed {shares}"
            continue
        if row.outcome == "unsure":
            continue
        verb = "are gone" if new == 0 else "are new" if old == 0 else "fell" if new < old else "rose"
        yield row.outcome, subject, f"{subject} {verb} {shares}"


def _family(
    rows: Mapping[str, ComparedRow], family: str, label: str, before: _Side, after: _Side
) -> Iterable[tuple[Outcome, str]]:
    """What the mean and the tail of one latency say together. Where the mean moved, if within chance, and the tail did
    not, the next lower part of the tail says whether it did. A median between two groups of requests flips with their
    mix: it is shown, but decides nothing. What moves against is told beside it."""
    latencies = before.observed(family), after.observed(family)
    counts = [getattr(side.numbers, f"{family}_seconds").count for side in (before, after)]
    tail = _tail(min(counts))
    rows = {
        **rows,
        **{
            name: _beyond_chance(rows[name], rows[f"{family}_p95"], *latencies, few=min(counts) < _TEN_ABOVE)
            for name in (f"{family}_{statistic}" for statistic in _BELOW)
        },
    }
    mean_row, tail_row = rows[f"{family}_mean"], rows[f"{family}_{tail}"]
    known = [row for row in (mean_row, tail_row) if row.outcome is not None]
    if tail == "p99" and mean_row.outcome == "unsure" and not any(row.outcome in _AGAINST for row in known):
        lower = [row for row in (rows[f"{family}_p95"], rows[f"{family}_p90"]) if row.outcome in _AGAINST]
        if len({row.outcome for row in lower}) == 1:
            known = lower
    # p99 counts gaps, not answers: where stalls went the way of the mean, so did the tail of the time.
    beside: list[ComparedRow] = []
    if family in ("itl", "tpot") and mean_row.outcome in _AGAINST and mean_row.outcome == rows["itl_stalled"].outcome:
        beside = [row for row in known if row.outcome == _AGAINST[mean_row.outcome]]
        known = [row for row in known if row not in beside]
    for other, outcome in _AGAINST.items():
        moved = [row for row in known if row.outcome == outcome]
        if moved:
            phrase = f"{label} {_moved(max(moved, key=lambda row: abs(row.change.ratio) if row.change else 0.0))}"
            below = rows[f"{family}_p90"]
            against = [below] if tail == "p99" and below.outcome == other else []
            against = [] if any(row.outcome == other for row in known) else beside or against
            yield outcome, f"{phrase} (but {_moved(against[0])})" if against else phrase
    if known and not any(row.outcome in _AGAINST for row in known):
        row = next((row for row in known if row.outcome == "same"), known[0])
        values = f"{_statistic(row)} {_value(row.before)}, then {_value(row.after)}"
        if row.outcome == "same":
            yield "same", f"{label} stayed ({values})"
        else:
            yield "unsure", f"{label} moved within the bounds ({values})"


# The percentile below, from which on a latency is taken to fall off exponentially.
_BELOW = {"p90": "p50", "p95": "p90", "p99": "p90"}


# Below so many observations fewer than ten lie above the p99: a few neighbours make it.
_TEN_ABOVE = 1000


def _beyond_chance(row: ComparedRow, p95: ComparedRow, before: Latency, after: Latency, *, few: bool) -> ComparedRow:
    """Unsure where a tail moved by no more than the next requests, the same load, may move it; a p99 of less than ten
    observations also where the p95 did not move with it. before, after: with the count of independent observations."""
    statistic = _statistic(row)
    if row.outcome not in _AGAINST or row.before is None or row.after is None:
        return row
    if statistic == "p99" and few and p95.change is not None:
        moved = p95.change.ratio if row.outcome == "worse" else -p95.change.ratio
        if moved < MATERIAL:
            return replace(row, outcome="unsure")
    chance = _TAIL_DEVIATIONS * hypot(*(_chance(statistic, one) for one in (before, after)))
    return row if abs(row.after.value - row.before.value) > chance else replace(row, outcome="unsure")


def _chance(statistic: str, latency: Latency) -> float:
    """The standard error of a percentile: scale x sqrt(p / ((1 - p) n)) for an exponential tail."""
    below = _BELOW[statistic]
    value, lower = getattr(latency, statistic), getattr(latency, below)
    if value is None or lower is None or not latency.count:
        return 0.0
    share, least = int(statistic[1:]) / 100, int(below[1:]) / 100
    scale = max(0.0, value.value - lower.value) / log((1 - least) / (1 - share))
    return float(scale * sqrt(share / ((1 - share) * latency.count)))


def _tail(observations: int) -> str:
    """The highest percentile that more than one observation stands for: the slowest one alone is no tail."""
    return "p99" if observations >= 100 else "p90" if observations >= 10 else "p50"


def _moved(row: ComparedRow) -> str:
    verb = "fell" if row.outcome == "better" else "rose"
    return f"{_statistic(row)} {verb} from {_value(row.before)} to {_value(row.after)}"


def _statistic(row: ComparedRow) -> str:
    return row.name.rpartition("_")[2]


def _value(estimate: Estimate | None) -> str:
    if estimate is not None and estimate.high is None:
        return f"over {seconds(estimate.low)}"
    return seconds(estimate.value if estimate else None)
