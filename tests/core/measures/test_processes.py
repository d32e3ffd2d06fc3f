"""Pages of several processes by turns, and what only looks like it. Whole histories: test_evidence_flows (B04)."""

from itertools import pairwise

from phasewatch.core.measures.processes import Processes
from phasewatch.core.measures.window import restarted
from phasewatch.core.model import Snapshot


def page(at: float, count: float, started: float | None) -> Snapshot:
    gauges = {} if started is None else {"start_time": started}
    return Snapshot(at, gauges, {"finished": count, "prompt_tokens": 100 * count, "generation_tokens": 50 * count}, {})


def signs(*pages: tuple[float, float, float | None]) -> list[bool]:
    processes, seen = Processes(), [page(*one) for one in pages]
    return [processes.alternate(before, after, 60.0, anew=restarted(before, after)) for before, after in pairwise(seen)]


def test_a_process_that_began_while_the_other_answered_did_not_take_its_place() -> None:
    assert signs((0, 1000, 5000.0), (10, 1010, 5000.0), (20, 420, 5004.0), (30, 1020, 5000.0)) == [False, True, True]


def test_a_process_that_began_after_the_last_page_of_the_other_did() -> None:
    assert signs((0, 1000, 5000.0), (90, 1010, 5000.0), (120, 3, 5095.0)) == [False, False]


def test_counts_that_fall_in_one_and_the_same_process_are_of_two() -> None:
    assert signs((0, 1000, 5000.0), (10, 420, 5000.0)) == [True]


def test_without_start_times_a_second_fall_or_a_return_tells() -> None:
    started = None
    assert signs((0, 1000, started), (10, 420, started), (20, 1012, started)) == [False, True]
    assert signs((0, 1000, started), (10, 900, started), (20, 1012, started), (30, 912, started)) == [
        False,
        False,
        True,
    ]
    assert signs((0, 1000, started), (10, 4, started), (90, 8, started), (100, 1, started)) == [False, False, False]
    assert signs((0, 4, started), (10, 2, started), (20, 7, started)) == [False, False]
