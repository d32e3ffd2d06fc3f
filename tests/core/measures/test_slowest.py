"""The slowest observations, and how long those wait who arrive while steps run."""

import random
from itertools import pairwise

import pytest

from phasewatch.core.measures.slowest import Slowest, at_most, slowest, waits_for_steps
from phasewatch.core.measures.window import step, window
from phasewatch.core.model import Histogram, Snapshot

EDGES = (0.3, 0.5, 1.0, 5.0, 10.0, float("inf"))


def cumulative(values: list[float]) -> Histogram:
    return Histogram(EDGES, tuple(float(sum(one <= edge for one in values)) for edge in EDGES), sum(values))


def seen(*intervals: list[float]) -> Slowest | None:
    """What was observed between scrapes, by the window's slowest."""
    pages, values = [Snapshot(0.0, {}, {}, {"prefill": cumulative([])})], list[float]()
    for at, more in enumerate(intervals, 1):
        values = values + more
        pages.append(Snapshot(2.0 * at, {}, {}, {"prefill": cumulative(values)}))
    whole = window([step(*both) for both in pairwise(pages)])
    assert whole is not None
    return slowest(whole, ["prefill"]).get("prefill")


def test_one_observation_between_two_scrapes_is_known_exactly() -> None:
    found = seen([0.1], [6.3], [0.12])
    assert found is not None
    assert found.mean(1) == pytest.approx(6.3)
    assert found.mean(3) == pytest.approx(6.52 / 3)
    assert found.value(1.5) == pytest.approx(0.12)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_the_slowest_lie_within_their_buckets_and_add_up(count: int) -> None:
    values = [0.1] * 10 + [0.4] * 9 + [7.0]
    found = seen(values)
    assert found is not None
    assert found.count == pytest.approx(20)
    assert found.mean(20) * 20 == pytest.approx(sum(values))
    rest = count - 1
    least = (5.0 + 0.3 * min(rest, 9)) / count
    most = (10.0 + 0.5 * min(rest, 9) + 0.3 * max(0, rest - 9)) / count
    assert least <= found.mean(count) <= most


def test_more_than_there_are_have_the_mean_of_all() -> None:
    found = Slowest.of([(2.0, 1.0), (4.0, 1.0)])
    assert found.mean(10) == 3
    assert found.value(5) == 0
    assert found.first(1).values == (4.0,)


def test_a_sum_that_contradicts_the_buckets_says_nothing_of_the_slowest() -> None:
    bad = Histogram(EDGES, (2.0,) * 6, 40.0)
    pages = [
        Snapshot(0.0, {}, {}, {"prefill": Histogram(EDGES, (0.0,) * 6, 0.0)}),
        Snapshot(2, {}, {}, {"prefill": bad}),
    ]
    whole = window([step(*pages)])
    assert whole is not None
    assert slowest(whole, ["prefill"]).get("prefill") is None


def test_waits_for_running_steps_are_those_that_random_arrivals_see() -> None:
    rate, seconds, steps = 4.0, 60.0, [(5.0, 3.0), (0.4, 20.0)]
    found = waits_for_steps(Slowest.of(steps), rate, seconds)
    dice, seen_waits, runs = random.Random(1), list[float](), 2000
    taken = [length for length, count in steps for _ in range(int(count))]
    for _ in range(runs):
        for length in taken:
            arrivals = rate * length
            seen_waits += [dice.uniform(0, length) for _ in range(int(arrivals + dice.random()))]
    seen_waits.sort(reverse=True)
    for count in (5, 20, 60):
        longest = seen_waits[: count * runs]
        assert found.mean(count) == pytest.approx(sum(longest) / len(longest), rel=0.03)
    # The mean of all arrivals: the sum of the squares / (2 x window).
    assert found.seconds[-1] / (rate * seconds) == pytest.approx((3 * 25 + 20 * 0.16) / 120, rel=0.01)


def test_no_more_steps_fit_than_the_window_has_room_for() -> None:
    found = waits_for_steps(Slowest.of([(5.0, 100.0)]), 1.0, 60.0)
    assert found.count == pytest.approx(60)


def test_what_took_longer_than_the_longest_step_was_several() -> None:
    assert at_most(Slowest.of([(6.0, 1.0), (0.2, 5.0)]), 1.5).values == (1.5, 0.2)
    assert at_most(Slowest.of([(6.0, 1.0), (0.2, 5.0)]), 1.5).counts == (4.0, 5.0)
