from itertools import pairwise

import pytest

from phasewatch.core.measures.history import History, of_this_process, reach
from phasewatch.core.measures.window import step, window
from phasewatch.core.model import Histogram, Snapshot, Step

EDGES = (1.0, float("inf"))


def page(at: float, seen: float, *, birth: float = 0.0) -> Snapshot:
    ttft = Histogram(EDGES, (seen, seen), seen / 2)
    return Snapshot(at, {"running": at % 7, "start_time": birth}, {"finished": seen}, {"ttft": ttft})


def steps_of(pages: list[Snapshot]) -> list[Step]:
    return [step(before, after) for before, after in pairwise(pages)]


def kept(pages: list[Snapshot], *, window_seconds: float = 300.0, enough: int = 20, oldest: float = 1800.0) -> History:
    """As an engine keeps them: what leaves its longest window is handed over page by page."""
    history, newer = History(), list[Step]()
    for one in steps_of(pages):
        newer.append(one)
        left = [old for old in newer if old.start < one.end - window_seconds]
        newer = newer[len(left) :]
        last = next(page for page in pages if page.at == one.end)
        history.take(left, newer, last, ("ttft", "itl"), enough=enough, oldest=one.end - oldest)
    return history


def test_a_busy_engine_keeps_nothing_of_what_has_left_its_windows() -> None:
    assert not kept([page(at, at) for at in range(0, 3000, 10)]).steps


def test_a_quiet_engine_keeps_minutes_and_no_more_of_them_than_it_takes() -> None:
    pages = [page(at, at // 60) for at in range(0, 3600, 10)]
    steps = list(kept(pages).steps)
    assert all(one.end - one.start == 60 for one in steps[1:-1])
    assert [one.end for one in steps[:-1]] == [one.start for one in steps[1:]], "one right after the other"
    whole = window((*steps, *steps_of([one for one in pages if one.at >= steps[-1].end])))
    assert whole is not None
    assert 20 <= whole.histograms["ttft"].count <= 21
    assert whole.histograms["ttft"].total == pytest.approx(whole.histograms["ttft"].count / 2)


def test_nothing_older_than_the_longest_span_is_kept() -> None:
    pages = [page(at, at // 600) for at in range(0, 6000, 10)]
    assert kept(pages).steps[0].start >= pages[-1].at - 1800


def test_the_reach_counts_every_engine_also_where_intervals_begin_together() -> None:
    one = steps_of([page(at, at // 100) for at in range(0, 1010, 10)])
    both = [step for pair in zip(reversed(one), reversed(one), strict=True) for step in pair]
    assert reach(reversed(one), "ttft", 950.0, wanted=4, oldest=0.0) == 590.0
    assert reach(both, "ttft", 950.0, wanted=4, oldest=0.0) == 790.0
    assert reach(both, "ttft", 950.0, wanted=1e9, oldest=500.0) == 500.0


def test_what_was_before_a_restart_is_of_another_process() -> None:
    pages = [
        *(page(at, at) for at in range(0, 100, 10)),
        *(page(at, at - 99, birth=99.0) for at in range(100, 200, 10)),
    ]
    newest_first = list(of_this_process(reversed(steps_of(pages))))
    assert newest_first[-1].restarted
    assert newest_first[-1].end == 100
