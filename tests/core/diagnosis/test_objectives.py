from collections.abc import Mapping

import pytest

from phasewatch.core.diagnosis.objectives import judge, told
from phasewatch.core.measures.numbers import numbers
from phasewatch.core.measures.window import window
from phasewatch.core.model import Histogram, ObjectiveResult, Step
from phasewatch.core.settings import Limit, Thresholds

EDGES = (1.0, 2.5, 5.0, 10.0, float("inf"))
LIMIT = Limit(2.5, 5.0)


def histogram(counts: tuple[float, ...], total: float | None) -> Histogram:
    """counts: of each bucket alone."""
    return Histogram(EDGES, tuple(sum(counts[: at + 1]) for at in range(len(counts))), total)


def judged(objective: str, *parts: Histogram, limit: Limit = LIMIT) -> ObjectiveResult:
    """parts: of each interval of ten seconds."""
    family = objective.partition("_")[0]
    none: Mapping[str, float] = {}
    steps = [Step(10.0 * at, 10.0 * at + 10, none, none, none, {family: one}, False) for at, one in enumerate(parts)]
    whole = window(steps)
    assert whole is not None
    measured = whole, numbers(whole, Thresholds(), stall_seconds=limit.warning)
    (one,) = judge(measured, lambda _: measured, {objective: limit}, Thresholds())
    return one.result


@pytest.mark.parametrize(
    ("objective", "counts", "total", "expected", "surely"),
    [
        ("ttft_p99", (0, 0, 0, 0, 0), 0.0, "no_data", False),
        ("ttft_p99", (30, 0, 0, 0, 0), 9.0, "met", True),
        ("ttft_p99", (199, 0, 1, 0, 0), 103.0, "met", True),  # one of 200 is what a p99 allows
        ("ttft_p99", (29, 0, 1, 0, 0), 19.0, "too_few", False),
        ("ttft_p99", (0, 0, 0, 0, 1), 161.0, "too_few", False),
        ("ttft_p99", (28, 0, 2, 0, 0), 22.0, "missed", True),
        ("ttft_p99", (28, 0, 0, 0, 2), None, "missed", True),
        ("ttft_p50", (2, 0, 1, 0, 0), 5.0, "met", True),
        ("ttft_p50", (0, 0, 1, 0, 0), 4.0, "too_few", False),
        ("ttft_p90", (17, 0, 3, 0, 0), 20.0, "missed", True),
        ("ttft_mean", (30, 0, 0, 0, 0), 9.0, "met", True),
        ("ttft_mean", (30, 0, 0, 0, 0), None, "cannot_tell", False),
        ("ttft_mean", (9, 0, 0, 0, 1), 204.5, "too_few", False),
        ("ttft_mean", (8, 0, 0, 0, 2), 404.5, "missed", True),
        ("tpot_p99", (0, 0, 0, 0, 0), 0.0, "no_data", False),
    ],
)
def test_an_objective_has_the_result_that_its_observations_bear(
    objective: str, counts: tuple[float, ...], total: float | None, expected: str, surely: bool
) -> None:
    one = judged(objective, histogram(counts, total))
    assert (one.result, one.surely) == (expected, surely)
    assert one.observations == sum(counts)
    assert ("met" in told(one).split()) is False
    assert (one.severity is None) == (expected != "missed")


@pytest.mark.parametrize(
    ("counts", "total", "expected", "surely"),
    [
        ((98, 0, 0, 0, 2), 98 * 0.5 + 800, "missed", False),  # 400 s each, but perhaps 790 s and 10 s
        ((98, 0, 0, 0, 2), 38.0, "met", True),  # 28 s at most
        ((98, 0, 0, 0, 2), 98 * 0.5 + 59, "cannot_tell", False),  # 5 to 54 s each
        ((98, 0, 0, 0, 2), None, "cannot_tell", False),
        ((99, 0, 0, 0, 1), None, "met", True),  # one of a hundred is what a p99 allows
        ((50, 0, 0, 0, 1), 25 + 400.0, "too_few", False),
    ],
)
def test_a_limit_above_the_last_edge_is_settled_by_what_the_sum_leaves_over(
    counts: tuple[float, ...], total: float | None, expected: str, surely: bool
) -> None:
    one = judged("ttft_p99", histogram(counts, total), limit=Limit(30.0, 60.0))
    assert (one.result, one.surely) == (expected, surely)
    if expected == "cannot_tell":
        assert one.over == 2
        assert "over 10 s, cannot tell if over 30 s: 2 of 100 requests" in told(one)


def test_intervals_of_their_own_prove_what_their_sum_alone_does_not() -> None:
    slow = histogram((0, 0, 0, 0, 1), 400.0)
    one = judged("ttft_p99", histogram((98, 0, 0, 0, 0), 49.0), slow, slow, limit=Limit(30.0, 60.0))
    assert (one.result, one.surely, one.over) == ("missed", True, 2)


def test_a_stall_alone_is_too_few_and_without_a_sum_cannot_be_told() -> None:
    limit = Limit(2.5, 5.0)
    assert judged("itl_stall", histogram((50, 0, 1, 0, 0), 30.0), limit=limit).result == "too_few"
    assert judged("itl_stall", histogram((50, 0, 2, 0, 0), 35.0), limit=limit).result == "missed"
    assert judged("itl_stall", histogram((50_000, 0, 2, 0, 0), 25_000.0), limit=limit).result == "met"
    assert judged("itl_stall", histogram((50, 0, 2, 0, 0), None), limit=limit).result == "cannot_tell"
    assert judged("itl_stall", histogram((50, 0, 0, 0, 0), None), limit=limit).result == "met"


def test_what_is_told_of_too_few_has_the_count_the_limit_and_the_slowest() -> None:
    one = judged("ttft_p99", histogram((2, 0, 0, 0, 0), 1.0), histogram((0, 0, 0, 0, 1), 161.0))
    assert told(one) == "TTFT p99 too few to judge: 1 of 3 requests over 2.5 s, slowest at least 161 s (all in 20 s)"
