"""One engine against its peers: the same model, the same role, the same moment. Only speeds at equal load compare.

Peers include the idle ones, and those that are asleep, just up, or gone: capacity that is there is not bought.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log, nan, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from phasewatch.core.diagnosis.causes import load_imbalance, replica_outlier
from phasewatch.core.diagnosis.causes._remedies import adds_replicas
from phasewatch.core.diagnosis.causes._row import Finding
from phasewatch.core.diagnosis.causes.load_imbalance import Tokens, Uneven
from phasewatch.core.diagnosis.measures_view import WindowView
from phasewatch.core.diagnosis.objectives import family_of
from phasewatch.core.diagnosis.verdicts import DEMAND, UNKNOWN
from phasewatch.core.formatting import number, seconds
from phasewatch.core.measures.histogram import Floats
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.measures.past import Moment
from phasewatch.core.measures.phases import count_of
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import (
    Advisory,
    Cause,
    Confidence,
    EngineKey,
    EngineReport,
    Remedy,
    State,
    Symptom,
)
from phasewatch.core.settings import Thresholds

Flags = NDArray[np.bool_]

_TROUBLE_OF_QUEUES = (*DEMAND, UNKNOWN.verdict)
_WHAT = {"pace": "a token", "ttft": "a first token"}
_FELT = ("ttft", "itl", "tpot")
# Lengths that spread as widely as they are long (exponential) make means of two equal groups of n and m requests differ
# by a factor of exp(sqrt(1 / n + 1 / m)): three of these are no chance.
_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True)
class Peer:
    """What of one engine is compared. first_tokens: in the window of `seconds`, the measure of its traffic.
    prompt_mean, output_mean: tokens a request. felt: whether a first token or a pace is over its limit."""

    key: EngineKey
    state: State
    now: Moment
    ttft_mean: float | None
    seconds: float
    first_tokens: float
    prompt_mean: float | None
    output_mean: float | None
    hits: float | None
    running_mean: float
    waiting_mean: float
    waiting_max: float
    queued: bool
    open_connections: float | None
    verdict: str | None
    felt: bool

    @property
    def label(self) -> str:
        return f"{self.key.target}/{self.key.engine}"


def peer(
    key: EngineKey,
    state: State,
    verdict: str | None,
    symptoms: Iterable[Symptom],
    view: WindowView,
) -> Peer:
    window, numbers = view.measured
    name, gauges = waiting_for_capacity(window), window.gauges
    waiting = gauges.get(name)
    pages = [page.get(name, 0.0) > 0 for page in scrapes(window)]
    first, prompts = count_of(window, "ttft"), window.increases.get("prompt_tokens")
    return Peer(
        key=key,
        state=state,
        now=view.now,
        ttft_mean=numbers.ttft_seconds.mean,
        seconds=window.seconds,
        first_tokens=first,
        prompt_mean=prompts / first if first and prompts is not None else None,
        output_mean=numbers.tokens.output_mean,
        hits=numbers.tokens.prefix_hit_ratio,
        running_mean=gauges["running"].mean if "running" in gauges else 0.0,
        waiting_mean=waiting.mean if waiting else 0.0,
        waiting_max=waiting.max if waiting else 0.0,
        queued=sum(pages) > len(pages) / 2,
        open_connections=gauges["open_fds"].last if "open_fds" in gauges else None,
        verdict=verdict,
        felt=any(family_of(one.objective) in _FELT for one in symptoms),
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """apart: what sets some engines apart from the others, or None. notes: what is worth a word of single engines.
    pooled: all are idle, and each has about as many connections open as the others: a pool, kept by who uses them."""

    apart: Cause | None
    notes: Mapping[EngineKey, Advisory]
    pooled: bool = False


def compare(peers: Sequence[Peer], thresholds: Thresholds) -> Compared:
    """peers: those that serve or are idle."""
    if len(peers) < 2:
        return Compared(None, {})
    working = [one for one in peers if one.state == "serving"]
    heavy = _heavier(working, thresholds)
    found, notes = _apart(peers, working, heavy, thresholds), _notes(peers, working, heavy, thresholds)
    return Compared(found, notes, pooled=not working and _pooled(peers, thresholds))


def _apart(
    peers: Sequence[Peer], working: Sequence[Peer], heavy: Mapping[Peer, Tokens], thresholds: Thresholds
) -> Cause | None:
    """Slowness at equal traffic first, then uneven queues, then uneven work."""
    slow = _slow(working, thresholds)
    if slow and (len(working) == 2 or len(slow) < len(working) / 2):
        return _outlier(slow, working)
    free = [one for one in peers if one.waiting_max == 0 and not one.felt and one.verdict in ("healthy", None)]
    queues = [one for one in peers if one.queued and one.verdict in _TROUBLE_OF_QUEUES]
    if not queues:
        queues = [one for one in heavy if one.felt]
    return _imbalance(queues, free, heavy, len(peers), thresholds) if queues and free else None


def _heavier(working: Sequence[Peer], thresholds: Thresholds) -> Mapping[Peer, Tokens]:
    """Engines whose requests have far more tokens than those of their peers with as many requests."""
    found: dict[Peer, Tokens] = {}
    first = np.array([one.first_tokens for one in working])
    for kind, values in (
        ("prompt", _known([one.prompt_mean for one in working])),
        ("output", _known([one.output_mean for one in working])),
    ):
        least = min(values[values > 0], default=inf)
        for at, one in enumerate(working):
            if one.first_tokens < thresholds.few_finishes or not values[at] > thresholds.symptom_ratio * least:
                continue
            alike = _equal_traffic(first, at, thresholds) & (values > 0)
            alike[at] = False
            if not alike.any():
                continue
            usual, chance = float(np.median(values[alike])), sqrt(1 / first[at] + 1 / max(1.0, first[alike].sum()))
            if values[at] > thresholds.symptom_ratio * usual and log(values[at] / usual) > _DEVIATIONS * chance:
                found.setdefault(one, Tokens(kind, float(values[at]), usual))
    return found


def _slow(peers: Sequence[Peer], thresholds: Thresholds) -> Mapping[Peer, tuple[str, float, float]]:
    """Engines slower than their peers' median: peer -> (what, its value, the median)."""
    found: dict[Peer, tuple[str, float, float]] = {}
    first = np.array([one.first_tokens for one in peers])
    context, batch = _known([one.now.context for one in peers]), _known([one.now.batch for one in peers])
    values = {what: _known([_value(one, what) for one in peers]) for what in _WHAT}
    # Nobody is slower than a median who is not slower than the fastest: of most that is all there is to ask.
    least = {what: min(known[~np.isnan(known)], default=inf) for what, known in values.items()}
    for at, one in enumerate(peers):
        if one.first_tokens < thresholds.few_finishes:
            continue
        for what, known in values.items():
            mine = _value(one, what)
            if mine is None or not mine > thresholds.symptom_ratio * least[what]:
                continue
            alike = _equal_traffic(first, at, thresholds) & _near(context, at) & ~np.isnan(known)
            if what == "pace":
                alike &= _near(batch, at)
            alike[at] = False
            if alike.sum() < min(2, len(peers) - 1):
                continue
            usual = float(np.median(known[alike]))
            if mine > thresholds.symptom_ratio * usual:
                found.setdefault(one, (what, mine, usual))
    return found


def _value(one: Peer, what: str) -> float | None:
    return one.now.pace if what == "pace" else one.ttft_mean


def _known(values: Iterable[float | None]) -> Floats:
    """nan where it is not known."""
    return np.array([nan if value is None else value for value in values])


def _equal_traffic(first: Floats, at: int, thresholds: Thresholds) -> Flags:
    """Counts that differ by no more than the ratio, or than two standard deviations of random arrivals."""
    equal: Flags = np.abs(first[at] - first) <= np.maximum(
        (thresholds.traffic_ratio - 1) * first, 2 * np.sqrt(first[at] + first)
    )
    return equal


def _near(load: Floats, at: int) -> Flags:
    """Contexts, or batches, near enough that physics alone cannot make the difference; not where one is unknown."""
    near: Flags = load[at] <= 1.5 * np.maximum(load, 1.0)
    return near


def _outlier(slow: Mapping[Peer, tuple[str, float, float]], working: Sequence[Peer]) -> Cause:
    worst = max(slow, key=lambda one: slow[one][1] / slow[one][2])
    what, value, usual = slow[worst]
    pair = len(working) == 2
    finding = Finding(
        min(1.0, 1 - usual / value),
        {
            "engine": worst.label,
            f"{what}_seconds": value,
            "peers_median_seconds": usual,
            "times_slower": value / usual,
            "outliers": ", ".join(sorted(one.label for one in slow)),
        },
        replica_outlier.summary(worst.label, _WHAT[what], value, usual, pair=pair),
        replica_outlier.REFUTED_BY,
    )
    cause = replica_outlier.CAUSE.cause("peers", finding, _confidence(pair, len(slow)), case=None, missing=())
    peers_queue = any(one.queued for one in working if one not in slow)
    return replace(cause, remedies=replica_outlier.remedies(peers_queue=peers_queue))


def _imbalance(
    loaded: Sequence[Peer],
    free: Sequence[Peer],
    heavy: Mapping[Peer, Tokens],
    engines: int,
    thresholds: Thresholds,
) -> Cause:
    worst = max(loaded, key=lambda one: (one.waiting_mean, one.running_mean))
    uneven = Uneven(
        loaded=tuple(sorted(one.label for one in loaded)),
        running=sum(one.running_mean for one in loaded),
        waiting=sum(one.waiting_mean for one in loaded),
        free=len(free),
        idle=tuple(one.label for one in free if one.state == "idle"),
        engines=engines,
        hits=_affinity(worst, free, thresholds),
        tokens=heavy.get(worst),
    )
    finding = Finding(1.0, uneven.evidence, uneven.summary, load_imbalance.REFUTED_BY)
    confidence = _confidence(engines == 2, len(loaded))
    cause = load_imbalance.CAUSE.cause("peers", finding, confidence, case=None, missing=())
    return replace(cause, remedies=uneven.remedies)


def _affinity(loaded: Peer, free: Iterable[Peer], thresholds: Thresholds) -> float | None:
    """Its hit ratio where most of its prompt tokens come from its cache, and far fewer of those of engines with room:
    requests that share a prefix are sent there."""
    others = max((one.hits for one in free if one.hits is not None), default=0.0)
    high = loaded.hits is not None and loaded.hits > max(thresholds.most_scrapes, thresholds.symptom_ratio * others)
    return loaded.hits if high else None


def _confidence(pair: bool, outliers: int) -> Confidence:
    return "low" if pair else "high" if outliers == 1 else "medium"


# --- what is said of one engine because of the others --------------------------------------------------------------


def _notes(
    peers: Sequence[Peer], working: Sequence[Peer], heavy: Mapping[Peer, Tokens], thresholds: Thresholds
) -> Mapping[EngineKey, Advisory]:
    """Of idle engines that should have traffic, and of those that get more tokens with as many requests."""
    rates = [one.first_tokens / one.seconds for one in working if one.first_tokens and one.seconds]
    usual = median(rates) if rates else 0.0
    connections = _connections(peers)
    most = sorted(connections, key=lambda target: -connections[target])[:2]
    found: dict[EngineKey, Advisory] = {}
    for one in peers:
        siblings = next((connections[target] for target in most if target != one.key.target), None)
        if one.state == "idle" and (note := _silent(one, siblings, usual, thresholds)) is not None:
            found[one.key] = note
    for one, tokens in heavy.items():
        found[one.key] = Advisory(
            "tokens_unequal",
            load_imbalance.tokens_evidence(tokens),
            load_imbalance.tokens_summary(one.label, tokens),
            "Balance by tokens (those in flight, or KV cache usage), not by number of requests.",
        )
    return found


def _connections(peers: Iterable[Peer]) -> dict[str, float]:
    """Open ones of each target, where known: its engines share them."""
    return {one.key.target: one.open_connections for one in peers if one.open_connections is not None}


def _pooled(peers: Sequence[Peer], thresholds: Thresholds) -> bool:
    connections = _connections(peers)
    known = len(connections) > 1 and connections.keys() == {one.key.target for one in peers}
    return known and not _piled(max(connections.values()), min(connections.values()), thresholds)


def _silent(one: Peer, most: float | None, usual: float, thresholds: Thresholds) -> Advisory | None:
    """most: open connections of the sibling that has most. usual: first tokens a second of a sibling with traffic.
    Where an equal part would have been five requests, none is no chance (0.7 %); nor are open connections far above
    those of every sibling."""
    busy = usual * one.seconds >= thresholds.few_finishes
    mine = one.open_connections
    evidence: dict[str, float | str] = {}
    reasons = []
    if busy:
        evidence["siblings_admissions_per_second"] = usual
        reasons.append(f"siblings are busy ({number(usual)} requests a second each)")
    if mine is not None and most is not None and _piled(mine, most, thresholds):
        evidence |= {"open_connections": mine, "siblings_open_connections": most}
        reasons.append(f"{number(mine)} connections are open (siblings at most {number(most)})")
    if not reasons:
        return None
    return Advisory(
        "no_traffic",
        evidence,
        f"No traffic or not serving: nothing has run here for {seconds(one.seconds)}, while {' and '.join(reasons)}.",
        "Send it one request. If no answer comes, take it out of rotation and read its log; if one does, routing leaves"
        " it out.",
    )


def _piled(mine: float, most: float, thresholds: Thresholds) -> bool:
    return mine > thresholds.symptom_ratio * most and mine - most >= thresholds.connections_above_rest


# What is there already comes before a new replica; where it is up, the new one is not wanted at all.
_SPARE: tuple[tuple[tuple[State, ...], str, str, bool], ...] = (
    (("idle",), "route requests to {}; probe it first", "no request reaches it while this engine is in trouble", True),
    (("asleep",), "wake {} (POST /wake_up)", "it is in sleep mode while this engine is in trouble", True),
    (("warming_up",), "give {} its share first", "it has just come up", True),
    (("stale", "down", "no_engine_metrics"), "bring {} back", "its scrapes fail: it may be down", False),
)


def among(report: EngineReport, siblings: Iterable[EngineReport], apart: Cause | None) -> EngineReport:
    """The report, with "add a replica" only where no sibling of its model and role has the capacity that it lacks.

    apart: what sets engines of the model apart from the others.
    """
    if not any(adds_replicas(remedy) for cause in report.causes for remedy in cause.remedies):
        return report
    names: dict[State, list[str]] = {}
    for other in siblings:
        if other.key != report.key:
            names.setdefault(other.state, []).append(f"{other.key.target}/{other.key.engine}")
    spare: list[Remedy] = []
    enough = False
    for states, change, why, up in _SPARE:
        named = [name for state in states for name in names.get(state, ())]
        if named:
            shown = ", ".join(named[:_MOST_NAMED]) + (", ..." if len(named) > _MOST_NAMED else "")
            spare.append(Remedy(change.format(shown), why, "now", "TTFT and ITL both improve"))
            enough |= up
    if apart is not None and apart.verdict == load_imbalance.CAUSE.verdict:
        spare, enough = [*apart.remedies, *spare], True
    if not spare:
        return report
    return replace(report, causes=tuple(_with_spare(cause, spare, enough) for cause in report.causes))


_MOST_NAMED = 3


def _with_spare(cause: Cause, spare: Sequence[Remedy], enough: bool) -> Cause:
    if not any(map(adds_replicas, cause.remedies)):
        return cause
    remedies: list[Remedy] = []
    for remedy in cause.remedies:
        if adds_replicas(remedy):
            remedies += spare
        if not (enough and adds_replicas(remedy)):
            remedies.append(remedy)
    return replace(cause, remedies=tuple(remedies))
