"""Two stretches of one model, before and after a change: what moved, by how much, and whether the load was alike."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal

from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.window import restarted, step
from phasewatch.core.model import Estimate, Latency, Numbers, Snapshot, Step
from phasewatch.core.report.measure_table import LATENCIES, PHASES
from phasewatch.core.settings import FAMILIES, STATISTICS, Thresholds

Outcome = Literal["better", "worse", "same", "unsure"]
Conclusion = Literal["better", "worse", "mixed", "same", "unsure", "not comparable"]
Unit = Literal["seconds", "ratio", "per_second", "tokens", "tokens_per_second"]

# Two runs of the same load differ by a few percent: nobody changes a fleet for less than this.
MATERIAL = 0.1
# A normal distribution's 90th and 99th percentile, in standard deviations above its median.
_DEVIATIONS = {"p90": 1.2816, "p99": 2.3263}
_SURE_DEVIATIONS = 2.0  # of a mean: 95 % of its chance


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What one side says of a model. engines: how many it holds."""

    numbers: Numbers
    engines: int


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
    """One measure of what was asked of the engines. alike: within 20 %; None where a side does not know it."""

    name: str
    unit: Unit
    before: float | None
    after: float | None
    alike: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """conclusion "unsure": what moved, moved within the bounds. sentence: one line for people."""

    conclusion: Conclusion
    sentence: str
    load: tuple[LoadRow, ...]
    rows: tuple[ComparedRow, ...]


@dataclass(frozen=True, slots=True)
class _Measure:
    """judged: what users feel, less is better; phases and speeds only say why. floor: up to this it is as good as
    none."""

    name: str
    unit: Unit
    judged: bool
    read: Callable[[Numbers], Estimate | None]
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


def compare(before: Numbers, after: Numbers, thresholds: Thresholds) -> Comparison:
    """What the change did. Bounds of a percentile are its bucket's, those of a latency's mean are of chance (two
    standard errors); everything else is exact."""
    load = tuple(_load(name, unit, read(before), read(after), thresholds) for name, unit, read in _LOAD)
    rows = tuple(_row(one, before, after) for one in _measures(thresholds))
    why = _why_not(before, after, load, thresholds)
    if why:
        return Comparison("not comparable", f"Not comparable: {why}.", load, rows)
    verdict, sentence = _conclusion({row.name: row for row in rows}, before, after, load, thresholds)
    return Comparison(verdict, sentence, load, rows)


# --- load ---------------------------------------------------------------------------------------------------------

_LOAD: tuple[tuple[str, Unit, Callable[[Numbers], float | None]], ...] = (
    ("arrivals", "per_second", lambda n: n.queue.arrivals_per_second),
    ("prompt_length", "tokens", lambda n: n.tokens.prompt_mean),
    ("output_length", "tokens", lambda n: n.tokens.output_mean),
)
LOAD_LABELS = {"arrivals": "arrivals", "prompt_length": "prompts", "output_length": "answers"}


def _load(name: str, unit: Unit, before: float | None, after: float | None, thresholds: Thresholds) -> LoadRow:
    alike = None
    if before is not None and after is not None:
        alike = max(before, after) <= thresholds.traffic_ratio * min(before, after)
    return LoadRow(name, unit, before, after, alike)


def _why_not(before: Numbers, after: Numbers, load: Sequence[LoadRow], thresholds: Thresholds) -> str | None:
    few = min(before.ttft_seconds.count, after.ttft_seconds.count)
    if few < thresholds.few_finishes:
        return f"{'no request' if few == 0 else f'only {few} requests'} got a first token on one side"
    unlike = [_unlike(one) for one in load if one.alike is False]
    allowed = percent(round(thresholds.traffic_ratio - 1, 6))
    return f"the load differs by more than {allowed}: {', '.join(unlike)}" if unlike else None


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
            yield _Measure("itl_stalled", "ratio", True, lambda n: _exact(n.itl_stalled_ratio), share)
    for phase, _ in PHASES:
        yield _Measure(f"{phase}_mean", "seconds", False, _of_phase(phase))
    yield _Measure("prefill_speed", "tokens_per_second", False, lambda n: _exact(n.tokens.prefill_speed))
    yield _Measure("decode_speed", "tokens_per_second", False, lambda n: _exact(n.tokens.decode_speed))
    yield _Measure("generation_speed", "tokens_per_second", False, lambda n: _exact(n.tokens.generation_per_second))
    share = thresholds.share_of_requests
    yield _Measure("gave_up", "ratio", True, lambda n: _exact(n.queue.gave_up_ratio), share)
    yield _Measure("failed", "ratio", True, lambda n: _exact(_failed(n)), share)


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value, value, value)


def _of_latency(family: str, read: Callable[[Latency], Estimate | None]) -> Callable[[Numbers], Estimate | None]:
    return lambda numbers: read(getattr(numbers, f"{family}_seconds"))


def _of_phase(phase: str) -> Callable[[Numbers], Estimate | None]:
    return lambda numbers: _exact(getattr(numbers.phases, phase).mean_seconds)


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


def _row(measure: _Measure, before: Numbers, after: Numbers) -> ComparedRow:
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
_OPPOSITE: tuple[tuple[Outcome, Outcome], ...] = (("better", "worse"), ("worse", "better"))


def _conclusion(
    rows: Mapping[str, ComparedRow], before: Numbers, after: Numbers, load: Sequence[LoadRow], thresholds: Thresholds
) -> tuple[Conclusion, str]:
    # With speculation a step makes several tokens: ITL counts steps and TPOT tells the pace. Without, they agree.
    drafts = any(one.speculation.mean_accepted_length is not None for one in (before, after))
    survivors = rows["gave_up"].outcome in ("better", "worse")
    left_out = {"itl" if drafts else "tpot"} | ({"ttft", "e2e"} if survivors else set())
    said = [*_shares(rows, thresholds)]
    for family in _SAID_IN_ORDER:
        if family not in left_out:
            said += _family(rows, family, _LABELS[family], before, after)
    conclusion = _overall({outcome for outcome, _ in said})
    phrases = [phrase for wanted in _ORDER for outcome, phrase in said if outcome == wanted]
    if survivors:
        phrases.append("TTFT and e2e are those of the clients who stayed and say nothing here")
    unknown = [LOAD_LABELS[one.name] for one in load if one.alike is None]
    if unknown:
        phrases.append(f"whether the load was alike is not known ({', '.join(unknown)})")
    head = {"same": "No change", "unsure": "No change beyond the bounds"}.get(conclusion, conclusion.capitalize())
    return conclusion, f"{head}: {'; '.join(phrases)}." if phrases else f"{head}."


def _overall(outcomes: set[Outcome]) -> Conclusion:
    if {"better", "worse"} <= outcomes:
        return "mixed"
    return next((outcome for outcome in ("better", "worse", "unsure") if outcome in outcomes), "same")


_SHARES = (
    ("itl_stalled", "stalls", " of the streaming time"),
    ("gave_up", "clients that give up", ""),
    ("failed", "failing requests", ""),
)


def _shares(rows: Mapping[str, ComparedRow], thresholds: Thresholds) -> Iterable[tuple[Outcome, str]]:
    """Stalls, and requests that gave up or failed: said only where there are any."""
    for name, subject, whole in _SHARES:
        row = rows[name]
        if row.before is None or row.after is None or row.outcome is None:
            continue
        old, new = row.before.value, row.after.value
        shares = f"({percent(old)}{whole}, then {percent(new)})"
        if row.outcome == "same":
            if max(old, new) > thresholds.share_of_requests:
                yield "same", f"{subject} stayed {shares}"
            continue
        verb = "are gone" if new == 0 else "are new" if old == 0 else "fell" if new < old else "rose"
        yield row.outcome, f"{subject} {verb} {shares}"


def _family(
    rows: Mapping[str, ComparedRow], family: str, label: str, before: Numbers, after: Numbers
) -> Iterable[tuple[Outcome, str]]:
    """What the mean and the tail of one latency say together. A median between two groups of requests flips with
    their mix: it is shown, but decides nothing."""
    few = min(getattr(before, f"{family}_seconds").count, getattr(after, f"{family}_seconds").count)
    tail = _tail(few)
    known = [row for row in (rows[f"{family}_mean"], rows[f"{family}_{tail}"]) if row.outcome is not None]
    for outcome, other in _OPPOSITE:
        moved = [row for row in known if row.outcome == outcome]
        if moved:
            phrase = f"{label} {_moved(max(moved, key=lambda row: abs(row.change.ratio) if row.change else 0.0))}"
            below = rows[f"{family}_p90"]
            against = tail == "p99" and below.outcome == other and all(row.outcome != other for row in known)
            yield outcome, f"{phrase} (but {_moved(below)})" if against else phrase
    if known and not any(row.outcome in ("better", "worse") for row in known):
        row = next((row for row in known if row.outcome == "same"), known[0])
        values = f"{_statistic(row)} {_value(row.before)}, then {_value(row.after)}"
        if row.outcome == "same":
            yield "same", f"{label} stayed ({values})"
        else:
            yield "unsure", f"{label} moved within the bounds ({values})"


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
