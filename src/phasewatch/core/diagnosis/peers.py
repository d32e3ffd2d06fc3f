"""One engine against its peers: the same model, the same role, the same moment. Only speeds at equal load compare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from phasewatch.core.diagnosis.causes import load_imbalance, replica_outlier
from phasewatch.core.diagnosis.causes._row import Finding
from phasewatch.core.diagnosis.verdicts import DEMAND, UNKNOWN
from phasewatch.core.measures.histogram import Floats
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.measures.past import Moment, moment
from phasewatch.core.measures.phases import count_of
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Cause, Confidence, EngineKey, Numbers, Window
from phasewatch.core.settings import Thresholds

Flags = NDArray[np.bool_]

_TROUBLE_OF_QUEUES = (*DEMAND, UNKNOWN.verdict)
_WHAT = {"pace": "a token", "ttft": "a first token"}


@dataclass(frozen=True, slots=True)
class Peer:
    """What of one engine is compared. first_tokens: in the window, the measure of its traffic."""

    key: EngineKey
    now: Moment
    ttft_mean: float | None
    first_tokens: float
    waiting_mean: float
    waiting_max: float
    queued: bool
    verdict: str | None

    @property
    def label(self) -> str:
        return f"{self.key.target}/{self.key.engine}"


def peer(key: EngineKey, verdict: str | None, window: Window, numbers: Numbers) -> Peer:
    name = waiting_for_capacity(window)
    waiting = window.gauges.get(name)
    pages = [page.get(name, 0.0) > 0 for page in scrapes(window)]
    return Peer(
        key=key,
        now=moment(0.0, window, numbers),
        ttft_mean=numbers.ttft_seconds.mean,
        first_tokens=count_of(window, "ttft"),
        waiting_mean=waiting.mean if waiting else 0.0,
        waiting_max=waiting.max if waiting else 0.0,
        queued=sum(pages) > len(pages) / 2,
        verdict=verdict,
    )


def compare(peers: Sequence[Peer], thresholds: Thresholds) -> Cause | None:
    """What sets some engines apart from the others, or None. Slowness at equal traffic first, then uneven queues."""
    if len(peers) < 2:
        return None
    slow = _slow(peers, thresholds)
    if slow and (len(peers) == 2 or len(slow) < len(peers) / 2):
        return _outlier(slow, len(peers))
    queues = {one: one.waiting_mean for one in peers if one.queued and one.verdict in _TROUBLE_OF_QUEUES}
    free = [one for one in peers if one.waiting_max == 0 and one.verdict in ("healthy", None)]
    if not queues or not free:
        return None
    return _imbalance(queues, free, len(peers))


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


def _outlier(slow: Mapping[Peer, tuple[str, float, float]], engines: int) -> Cause:
    worst = max(slow, key=lambda one: slow[one][1] / slow[one][2])
    what, value, usual = slow[worst]
    pair = engines == 2
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
    return replica_outlier.CAUSE.cause("peers", finding, _confidence(pair, len(slow)), view=None, missing=())


def _imbalance(queues: Mapping[Peer, float], free: Sequence[Peer], engines: int) -> Cause:
    waiting = sum(queues.values())
    named = ", ".join(sorted(one.label for one in queues))
    finding = Finding(
        1.0,
        {"engines": named, "waiting_mean": waiting, "free_engines": float(len(free)), "all_engines": float(engines)},
        load_imbalance.summary(waiting, named, len(free), engines),
        load_imbalance.REFUTED_BY,
    )
    return load_imbalance.CAUSE.cause("peers", finding, _confidence(engines == 2, len(queues)), view=None, missing=())


def _confidence(pair: bool, outliers: int) -> Confidence:
    return "low" if pair else "high" if outliers == 1 else "medium"
