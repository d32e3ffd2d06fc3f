"""What users of a simulated service felt, from what their clients saw: does an incident count?"""

import math
from collections.abc import Iterable
from itertools import pairwise

from phasewatch.core.measures.quantile import PERCENTILES
from tools.simulator.messages import Request
from tools.simulator.scenarios import Scenario

WINDOW_SECONDS = 60.0
# An incident counts if it misses its objective by this much in two windows.
FACTOR = 1.5
_PERCENTILES = dict(PERCENTILES)


def _statistic(values: list[float], which: str) -> float:
    if not values:
        return 0.0
    if which == "mean":
        return sum(values) / len(values)
    return sorted(values)[math.ceil(_PERCENTILES[which] * len(values)) - 1]


def _gaps(requests: Iterable[Request], start: float, end: float) -> list[float]:
    return [
        after - before
        for each in requests
        for before, after in pairwise(each.chunks)
        if start < each.sent + after <= end
    ]


def _values(requests: list[Request], kind: str, limit: float, start: float, end: float) -> list[float]:
    """Seconds of one latency that clients saw in the window; first tokens also if waited for longer than the limit."""
    if kind == "itl":
        return _gaps(requests, start, end)
    if kind == "ttft":
        values = [each.chunks[0] for each in requests if each.chunks and start < each.sent + each.chunks[0] <= end]
        for each in requests:
            first = each.chunks[0] if each.chunks else each.ended if each.ended is not None else math.inf
            if each.sent <= end < each.sent + first and end - each.sent > limit:
                values.append(end - each.sent)
        return values
    done = [each for each in _ended(requests, start, end) if each.done and len(each.chunks) > 1]
    if kind == "e2e":
        return [each.chunks[-1] for each in done]
    if kind == "tpot":
        return [(each.chunks[-1] - each.chunks[0]) / (each.generated - 1) for each in done]
    raise ValueError(f"no latency {kind!r}; there are: ttft, itl, tpot, e2e")


def _ended(requests: list[Request], start: float, end: float) -> list[Request]:
    return [each for each in requests if each.ended is not None and start < each.sent + each.ended <= end]


def measured(requests: list[Request], objective: str, limit: float, start: float, end: float) -> float:
    """value / limit of an objective in (start, end] as clients saw it; 1 is just met.

    TTFT counts first tokens that came in the window, and requests that have already waited longer than the limit.
    itl_stall: share of the streaming time in gaps over the limit, per 1 %. failing: share of failed, per 1 %.
    progress: 1.5 (and more) if nothing came for the whole window while somebody waited.
    """
    kind, _, which = objective.partition("_")
    if which in _PERCENTILES:
        values = _values(requests, kind, limit, start, end)
        ratio = _statistic(values, which) / limit
        # One slow request is no incident, whatever the percentile of a few.
        return ratio if sum(value > limit for value in values) >= 2 else min(ratio, 1.0)
    if objective == "itl_stall":
        gaps = _gaps(requests, start, end)
        stalls = [gap for gap in gaps if gap > limit]
        return sum(stalls) / sum(gaps) / 0.01 if len(stalls) >= 2 else 0.0
    if objective == "failing":
        ended = _ended(requests, start, end)
        failed = [each for each in ended if each.error and each.error != "TimeoutError"]
        return len(failed) / len(ended) / 0.01 if len(failed) >= 2 else 0.0
    if objective == "progress":
        moved = any(start < each.sent + chunk <= end for each in requests for chunk in each.chunks)
        waits = any(each.sent <= start and (each.ended is None or each.sent + each.ended > end) for each in requests)
        return FACTOR if waits and not moved else 0.0
    return _statistic(_values(requests, kind, limit, start, end), which) / limit


def counts(scenario: Scenario, requests: list[Request]) -> bool:
    """Whether the history is what the scenario says.

    Missed by FACTOR in two windows of at most 60 s, and met before the onset; healthy ones: never missed.
    """
    mine = [each for each in requests if scenario.felt_by in (None, each.target)]
    quiet = scenario.duration if scenario.misses is None and scenario.kind != "restart" else scenario.onset
    times = [WINDOW_SECONDS * n for n in range(1, int(quiet // WINDOW_SECONDS) + 1)]
    for time in times:
        for objective, limit in scenario.objectives.items():
            if measured(requests, objective, limit, time - WINDOW_SECONDS, time) > 1.0:
                return False
    if scenario.misses is None:
        return True
    limit = scenario.objectives.get(scenario.misses, 1.0)
    end = scenario.duration
    if scenario.kind == "cold_start":  # it is over by itself: one window holds it
        return measured(mine, scenario.misses, limit, scenario.onset, scenario.onset + WINDOW_SECONDS) >= FACTOR
    length = min(WINDOW_SECONDS, (end - scenario.felt) / 2)
    return all(
        measured(mine, scenario.misses, limit, end - (n + 1) * length, end - n * length) >= FACTOR for n in range(2)
    )
