"""One engine against its peers: the same model, the same role, the same moment. Only speeds at equal load compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from phasewatch.core.diagnosis.causes import load_imbalance, replica_outlier
from phasewatch.core.diagnosis.causes._row import Finding
from phasewatch.core.diagnosis.verdicts import DEMAND, UNKNOWN
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.measures.past import Moment, moment
from phasewatch.core.measures.phases import count_of
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Cause, Confidence, EngineKey, Numbers, Window
from phasewatch.core.settings import Thresholds

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
    for one in peers:
        if one.first_tokens < thresholds.few_finishes:
            continue
        others = [other for other in peers if other is not one and _equal_traffic(one, other, thresholds)]
        for what in ("pace", "ttft"):
            values = (_value(other, what) for other in others if _alike(one, other, what, thresholds))
            alike = [value for value in values if value is not None]
            mine = _value(one, what)
            if mine is None or len(alike) < min(2, len(peers) - 1):
                continue
            if mine > thresholds.symptom_ratio * median(alike):
                found.setdefault(one, (what, mine, median(alike)))
    return found


def _value(one: Peer, what: str) -> float | None:
    return one.now.pace if what == "pace" else one.ttft_mean


def _equal_traffic(one: Peer, other: Peer, thresholds: Thresholds) -> bool:
    """Counts that differ by no more than the ratio, or than two standard deviations of random arrivals."""
    difference = abs(one.first_tokens - other.first_tokens)
    return difference <= max(
        (thresholds.traffic_ratio - 1) * other.first_tokens, 2 * sqrt(one.first_tokens + other.first_tokens)
    )


def _alike(one: Peer, other: Peer, what: str, thresholds: Thresholds) -> bool:
    """Contexts (and for a pace also batches) near enough that physics alone cannot make the difference."""
    for mine, theirs in (
        (one.now.context, other.now.context),
        *(((one.now.batch, other.now.batch),) * (what == "pace")),
    ):
        if mine is None or theirs is None or mine > 1.5 * max(theirs, 1.0):
            return False
    return True


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
