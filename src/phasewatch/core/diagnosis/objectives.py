"""Objectives -> what users feel: which limits are met or missed, how surely, how severely, and which cannot be judged.
No cause is named here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.histogram import Above, bucket_sum, count_above, in_buckets, slowest_bucket
from phasewatch.core.measures.numbers import failed_transfers, failures
from phasewatch.core.measures.past import PastView
from phasewatch.core.measures.phases import count_of, pace_without_prefill
from phasewatch.core.measures.quantile import PERCENTILES
from phasewatch.core.model import (
    Estimate,
    Histogram,
    Latency,
    Numbers,
    ObjectiveResult,
    Result,
    Severity,
    Symptom,
    Window,
)
from phasewatch.core.settings import FAMILIES, Limit, Limits, Thresholds

_FELT_AS = {
    "expected_wait": "ttft", "gave_up": "ttft", "unanswered": "ttft", "own_past": "itl", "still_running": "e2e"
}  # fmt: skip
HANDOVERS = "kv_transfers_failing"
_ENOUGH_GAPS = 100  # for a mean to be compared: a hundred gaps are a few answers
_QS = dict(PERCENTILES)
_STALL = "itl_stall"


class Judged(NamedTuple):
    """An objective's result, and by how much it is over its limit: value / limit (itl_stall: stalled share / 1 %)."""

    result: ObjectiveResult
    ratio: float

    @property
    def missed(self) -> bool:
        return self.result.result == "missed"

    @property
    def symptom(self) -> Symptom:
        one = self.result
        return Symptom(one.objective, one.limit_seconds, one.value, one.surely, one.severity or "warning")


def family_of(objective: str) -> str:
    """ttft, itl, tpot or e2e; symptoms that are no objective belong with what their victims feel: no first token."""
    head = objective.partition("_")[0]
    return head if head in FAMILIES else _FELT_AS.get(objective, objective)


Measured = tuple[Window, Numbers]


def judge(now: Measured, seen: Callable[[str], Measured], limits: Limits, thresholds: Thresholds) -> tuple[Judged, ...]:
    """Every objective, in the order of the limits. now: the window that verdicts use, with its figures; seen: what goes
    as far back as it takes to have enough observations of a family.

    What lies further back is over where a few requests and no slow one among them have followed in this window.
    """
    found: list[Judged] = []
    for name, limit in limits.items():
        family = name.partition("_")[0]
        measured = seen(family)
        one = _Judging(name, *measured, limit, thresholds).judged()
        if one.result.result != "met" and measured[0] is not now[0]:
            last = _Judging(name, *now, limit, thresholds).judged()
            met = last.result.result == "met" and last.result.surely
            one = last if met and last.result.observations >= thresholds.few_finishes else one
        found.append(one)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Judging:
    """One objective against the window that it is judged over."""

    name: str
    window: Window
    figures: Numbers
    limit: Limit
    thresholds: Thresholds

    @property
    def family(self) -> str:
        return self.name.partition("_")[0]

    @property
    def statistic(self) -> str:
        return self.name.partition("_")[2]

    def judged(self) -> Judged:
        return {"stall": self.stall, "mean": self.mean}.get(self.statistic, self.percentile)()

    @property
    def histogram(self) -> Histogram | None:
        return self.window.histograms.get(self.family)

    @property
    def latency(self) -> Latency:
        latency: Latency = getattr(self.figures, f"{self.family}_seconds")
        return latency

    def percentile(self) -> Judged:
        """Missed: the value is over the limit, and at least two observations are: one slow request is no incident."""
        histogram, limit = self.histogram, self.limit.warning
        if histogram is None:  # a mean at most: old releases have no histogram of TPOT
            return self._says("cannot_tell" if self.latency.count else "no_data", None)
        if histogram.count <= 0:
            return self._says("no_data", None)
        value: Estimate | None = getattr(self.latency, self.statistic)
        if value is None:  # of nothing but one open bucket
            return self._says("cannot_tell", None, over=histogram.count)
        allowed = histogram.count - ceil(_QS[self.statistic] * histogram.count)  # over the limit, of one that is met
        above = count_above(histogram, limit)
        if value.high is None and value.low < limit:
            return self._beyond_the_edges(value, histogram, allowed)
        if not _exceeds(value, limit):
            surely = value.high is not None and value.high <= limit
            return self._says("met", value, surely=surely, over=above.interpolated)
        # The percentile's own rank is over the limit, and so are all ranks above it.
        over = max(round(above.interpolated, 6), min(above.possible, allowed + 1))
        if over < self.thresholds.min_over:
            return self._says("too_few", value, over=over)
        surely = value.low >= limit and above.sure >= self.thresholds.min_over
        return self._says("missed", value, surely=surely, over=over, critical=self._critical(value, histogram))

    def _critical(self, value: Estimate, histogram: Histogram) -> bool:
        limit = self.limit.critical
        if value.high is None and value.low < limit:
            return _open_mean(histogram) > limit and self._wakes(histogram)
        return _exceeds(value, limit) and self._wakes(histogram)

    def _beyond_the_edges(self, value: Estimate, histogram: Histogram, allowed: float) -> Judged:
        """The limit lies above the last finite edge, and so does the percentile. What the sum leaves over for those
        above that edge is their mean: it settles the question, or nothing does."""
        last = len(histogram.bounds) - 1
        over = in_buckets(histogram)[last]
        least, most = bucket_sum(histogram, last)
        limit, enough = self.limit.warning, self.thresholds.min_over
        if most / over <= limit:
            slowest = most - (over - 1) * value.low  # all others just above the edge
            return self._says("met", value, surely=slowest <= limit, over=0.0 if slowest <= limit else over)
        if least / over <= limit:
            return self._says("cannot_tell", value, over=over)
        if over < enough:
            return self._says("too_few", value, over=over)
        # Of those of an interval whose mean is over the limit at least one is: as many as there are such intervals.
        proven = sum(_open_mean(step.histograms.get(self.family)) > limit for step in self.window.steps)
        surely, critical = proven > allowed and proven >= enough, self._critical(value, histogram)
        return self._says("missed", value, surely=surely, over=over, critical=critical, ratio=least / over / limit)

    def mean(self) -> Judged:
        """A mean is exact: what it says is sure."""
        mean, count, histogram, limit = self.latency.mean, self.latency.count, self.histogram, self.limit.warning
        if count <= 0:
            return self._says("no_data", None)
        if mean is None:  # no sum, or one that the buckets contradict
            return self._says("cannot_tell", None)
        value = Estimate(mean, mean, mean)
        over = float(count) if histogram is None else _over(histogram, limit)
        if mean <= limit:
            return self._says("met", value, surely=True, over=0.0 if histogram is None else over)
        over = max(over, 1.0)
        if over < self.thresholds.min_over:
            return self._says("too_few", value, over=over)
        critical = mean > self.limit.critical and (histogram is None or self._wakes(histogram))
        return self._says("missed", value, surely=True, over=over, critical=critical)

    def stall(self) -> Judged:
        """At least two gaps longer than the limit that hold more than 1 % of the streaming time; value: that share."""
        histogram, share = self.histogram, self.figures.itl_stalled_ratio
        if histogram is None or histogram.count <= 0:
            return self._says("no_data", None)
        above = count_above(histogram, self.limit.warning)
        if share is None and above.possible > 0:  # the streaming time is not known
            return self._says("cannot_tell", None, over=above.possible)
        value = Estimate(share or 0.0, share or 0.0, share or 0.0)
        most, enough = self.thresholds.stalled_share, self.thresholds.min_over
        if value.value <= most:
            return self._says("met", value, surely=True, over=above.sure)
        if above.sure < enough:
            return self._says("too_few", value, over=above.sure)
        critical = (
            self.limit.critical > self.limit.warning and count_above(histogram, self.limit.critical).sure >= enough
        )
        return self._says("missed", value, surely=True, over=above.sure, critical=critical, ratio=value.value / most)

    def _wakes(self, histogram: Histogram) -> bool:
        """Whether enough observations are over the critical limit for somebody to be woken."""
        above = count_above(histogram, self.limit.critical)
        # A bucket without an end cannot be split around the limit.
        over = above.possible if self.limit.critical > histogram.bounds[-2:][0] else round(above.interpolated, 6)
        return over >= max(self.thresholds.critical_over, self.thresholds.critical_share * histogram.count)

    def _says(
        self, result: Result, value: Estimate | None, *, surely: bool = False, over: float = 0.0,
        critical: bool = False, ratio: float | None = None,
    ) -> Judged:  # fmt: skip
        count = self.latency.count if self.histogram is None else round(self.histogram.count)
        missed, told = result == "missed", result in ("too_few", "cannot_tell")
        one = ObjectiveResult(
            objective=self.name,
            limit_seconds=self.limit.warning,
            critical_seconds=self.limit.critical,
            result=result,
            surely=surely,
            value=value,
            observations=count,
            over=round(over, 6),
            span_seconds=self.window.seconds,
            severity=None if not missed else "critical" if critical else "warning",
            slowest=slowest_at_least(self.window, self.family) if told else None,
        )
        if ratio is None:
            ratio = value.value / self.limit.warning if missed and value is not None else 0.0
        return Judged(one, ratio)


def _exceeds(value: Estimate, limit: float) -> bool:
    """Where the bounds decide, the value itself is not asked for: it may not be fitted yet."""
    if value.high is not None and value.high <= limit:
        return False
    return value.low >= limit or value.value > limit


def _over(histogram: Histogram, limit: float) -> float:
    above: Above = count_above(histogram, limit)
    return round(above.interpolated, 6)


def _open_mean(histogram: Histogram | None) -> float:
    """The least mean of what lies above the last finite edge; 0 where nothing does."""
    last = -1 if histogram is None else len(histogram.bounds) - 1
    if histogram is None or not (count := in_buckets(histogram)[last]):
        return 0.0
    return bucket_sum(histogram, last)[0] / count


def slowest_at_least(window: Window, family: str) -> float | None:
    """A lower bound of the slowest observation: of what each interval's sum leaves over for its highest bucket."""
    bounds: list[float] = []
    for step in window.steps:
        histogram = step.histograms.get(family)
        highest = None if histogram is None else slowest_bucket(histogram)
        if histogram is not None and highest is not None:
            bounds.append(bucket_sum(histogram, highest)[0] / in_buckets(histogram)[highest])
    return max(bounds, default=None)


# What an objective's family counts.
_COUNTED = {"ttft": "request", "itl": "gap", "tpot": "request", "e2e": "request"}
_USUAL_SPAN = (54.0, 66.0)  # the default window, give or take an interval: no word is lost on it


def name_of(objective: str) -> str:
    """TTFT p99, e2e mean, stalls."""
    family, _, statistic = objective.partition("_")
    return "stalls" if objective == _STALL else f"{family if family == 'e2e' else family.upper()} {statistic}"


def measured(one: ObjectiveResult) -> str:
    """1.8 s, over 60 s where the buckets end; of stalls their share of the streaming time."""
    if one.value is None:
        return "unknown"
    if one.objective == _STALL:
        return f"{percent(one.value.value)} of the streaming time"
    return seconds(one.value.value) if one.value.high is not None else f"over {seconds(one.value.low)}"


def counted(one: ObjectiveResult, of: float | None = None) -> str:
    """120 requests; 1 of 3 requests in 14 min. of: how many of them are meant."""
    return f"{_number(one, of)}{_span(one)}"


def _number(one: ObjectiveResult, of: float | None = None) -> str:
    unit = _COUNTED[one.objective.partition("_")[0]] + ("" if one.observations == 1 else "s")
    part = "" if of is None else f"{number(max(1, round(of)) if of else 0)} of "
    return f"{part}{number(one.observations)} {unit}"


def _span(one: ObjectiveResult) -> str:
    low, high = _USUAL_SPAN
    return "" if low <= one.span_seconds <= high else f" in {seconds(one.span_seconds)}"


def told(one: ObjectiveResult) -> str:
    """What is known of one objective, in half a sentence; never the word "met": its value stands beside it."""
    name, limit, slowest = name_of(one.objective), seconds(one.limit_seconds), one.slowest
    at_least = "" if slowest is None else f", slowest at least {seconds(slowest)}"
    match one.result:
        case "met" if one.objective == _STALL:
            share = "" if one.value is None or not one.value.value else f": {measured(one)}"
            return f"{name if share else 'no stall'} over {limit}{share} ({counted(one)})"
        case "met":
            return f"{name} {measured(one)} (limit {limit}, {counted(one)})"
        case "missed":
            over = "over" if one.surely else "probably over"
            return f"{name} {measured(one)}, {over} the limit of {limit} ({counted(one, one.over)})"
        case "too_few":
            span = _span(one) and f" (all{_span(one)})"
            return f"{name} too few to judge: {_number(one, one.over)} over {limit}{at_least}{span}"
        case "cannot_tell" if one.value is not None and one.value.high is None:
            above = f"{counted(one, one.over)} above {seconds(one.value.low)}, the last bucket edge"
            return f"{name} {measured(one)}, cannot tell if over {limit}: {above}"
        case "cannot_tell":
            return f"{name} cannot tell: the buckets and sums of {counted(one)} do not say"
        case "no_data":
            return f"{name} no observation"


def wait_limit(limits: Limits) -> Limit | None:
    """The TTFT limit that an expected wait is held against: p99's, else the most lenient one there is."""
    ttft = [limit for name, limit in limits.items() if name.startswith("ttft_")]
    return limits.get("ttft_p99") or max(ttft, key=lambda limit: limit.warning, default=None)


def expected_wait_over(numbers: Numbers, limits: Limits) -> bool:
    wait, limit = numbers.queue.expected_wait_seconds, wait_limit(limits)
    return wait is not None and limit is not None and wait > limit.warning


def other_symptoms(
    window: Window, numbers: Numbers, limits: Limits, thresholds: Thresholds, *, wait_over_before: bool
) -> Mapping[Symptom, float]:
    """Symptoms that are no objective, each with value / limit: expected_wait (at two successive pages),
    kv_transfers_failing, requests_failing, gave_up (before the first token)."""
    found: dict[Symptom, float] = {}
    wait, limit = numbers.queue.expected_wait_seconds, wait_limit(limits)
    if wait is not None and limit is not None and wait > limit.warning and wait_over_before:
        high = None if numbers.queue.expected_wait_censored else wait
        severity: Severity = "critical" if wait > limit.critical else "warning"
        found[Symptom("expected_wait", limit.warning, Estimate(wait, wait, high), True, severity)] = (
            wait / limit.warning
        )
    requests = max(window.increases.get("http_finishes", 0.0), window.increases.get("finished", 0.0))
    failed, lost = failures(window) or 0.0, failed_transfers(window)
    handed_over = max(count_of(window, "kv_transfer") + lost, count_of(window, "ttft"))
    gave_up = (numbers.queue.gave_up_before_first_token_ratio or 0.0) * window.increases.get("http_finishes", 0.0)
    for name, count, whole in (
        (HANDOVERS, lost, handed_over),
        ("requests_failing", failed, max(requests, failed)),
        ("gave_up", gave_up, window.increases.get("http_finishes", 0.0)),
    ):
        if count >= thresholds.min_over and count / whole > thresholds.share_of_requests:
            share = min(1.0, count / whole)
            found[Symptom(name, None, Estimate(share, share, share), True, "warning")] = (
                share / thresholds.share_of_requests
            )
    return found


def slower_than_past(
    window: Window, numbers: Numbers, past: PastView, thresholds: Thresholds
) -> Mapping[Symptom, float]:
    """Clearly slower than this engine's own past at the same batch and context, objectives or not.

    Never sure: opinions must agree on it for a while.
    """
    pace, same = pace_without_prefill(window, numbers.itl_seconds.mean, numbers.prefill_time_ratio), past.same_pace
    if pace is None or same is None or numbers.itl_seconds.count < _ENOUGH_GAPS:
        return {}
    limit = max(thresholds.symptom_ratio, past.same_spread) * same
    if pace <= limit:
        return {}
    return {Symptom("own_past", limit, Estimate(pace, pace, pace), False, "warning"): pace / limit}
