"""A window's steps as one array, kept as pages come in."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.measures.window import since
from phasewatch.core.measures.window_arrays import Recent, alike, together
from phasewatch.core.model import Histogram, Step

SECONDS = 5.0
EDGES = (0.1, 0.5, float("inf"))
OTHER_EDGES = (0.1, 0.2, 0.5, float("inf"))


def grown(at: int, counts: tuple[int, int], edges: tuple[float, ...] = EDGES) -> Step:
    """Observations at or below the first edge, and between the last two."""
    below, above = counts
    histogram = Histogram(edges, (float(below),) * (len(edges) - 2) + (float(below + above),) * 2, 0.3 * sum(counts))
    return Step(at * SECONDS, (at + 1) * SECONDS, {}, {}, {}, {"itl": histogram}, False)


counts = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(st.lists(counts, min_size=1, max_size=150), st.integers(1, 40))
def test_a_slice_has_the_rows_of_the_steps_of_its_window(many: list[tuple[int, int]], reach: int) -> None:
    recent, steps, handed_out = Recent(), [grown(at, one) for at, one in enumerate(many)], []
    for upto in range(1, len(steps) + 1):
        longest = steps[max(0, upto - 60) : upto]
        recent.take(longest, "itl")
        start = steps[upto - 1].end - reach * SECONDS
        wanted = alike([step.histograms["itl"] for step in since(longest, start)])
        handed_out.append((recent.window(start), wanted))
    # All are looked at when all have been handed out: none may change with what comes later.
    for found, wanted in handed_out:
        assert found is not None
        assert len(found.rows) == len(found.ends) == (0 if wanted is None else len(wanted.rows))
        if wanted is not None:
            assert found.bounds == wanted.bounds
            assert np.array_equal(found.rows, wanted.rows)


def test_a_window_in_which_the_edges_changed_is_no_slice() -> None:
    recent = Recent()
    steps = [grown(at, (1, 1), EDGES if at < 3 else OTHER_EDGES) for at in range(6)]
    recent.take(steps, "itl")
    assert recent.window(steps[2].start) is None
    after = recent.window(steps[3].start)
    assert after is not None
    assert (after.bounds, len(after.rows)) == (OTHER_EDGES, 3)


def test_rows_of_several_engines_are_put_in_the_order_of_time() -> None:
    both = []
    for first in (0, 1):
        recent = Recent()
        recent.take([grown(at, (1 + at, 0)) for at in range(first, 6, 2)], "itl")
        both.append(recent.window(0.0))
    even, odd = both
    assert even is not None
    assert odd is not None
    joined = together([even, odd])
    assert joined is not None
    assert joined.rows[:, 2].tolist() == [1, 2, 3, 4, 5, 6]
    other = Recent()
    other.take([grown(0, (1, 1), OTHER_EDGES)], "itl")
    theirs = other.window(0.0)
    assert theirs is not None
    assert together([even, theirs]) is None
