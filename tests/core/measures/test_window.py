"""What changed between pages: baselines, restarts, gauges over time, and several engines as one."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.measures.window import fleet_window, restarted, since, step, window
from phasewatch.core.model import GaugeWindow, Histogram, Snapshot, Window

INF = float("inf")


def histogram(*counts: float, total: float | None = None) -> Histogram:
    """Edges 0.1, 1, +Inf."""
    return Histogram((0.1, 1.0, INF), counts, float(sum(counts)) if total is None else total)


def page(at: float, *, gauges: dict[str, float] | None = None, counters: dict[str, float] | None = None,
         ttft: Histogram | None = None) -> Snapshot:  # fmt: skip
    return Snapshot(at, gauges or {}, counters or {}, {} if ttft is None else {"ttft": ttft})


def over(*pages: Snapshot) -> Window:
    built = window([step(before, after) for before, after in pairwise(pages)])
    assert built is not None
    return built


def test_the_first_sight_of_a_counter_is_a_baseline_and_counts_nothing() -> None:
    one = over(
        page(0), page(10, counters={"finished": 500}, ttft=histogram(5, 5, 5)), page(20, counters={"finished": 503})
    )
    assert one.increases == {"finished": 3}
    assert "ttft" not in one.histograms


def test_a_counter_that_is_gone_for_a_page_counts_again_from_its_return() -> None:
    pages = [
        page(0, counters={"finished": 5}),
        page(10),
        page(20, counters={"finished": 50}),
        page(30, counters={"finished": 51}),
    ]
    assert over(*pages).increases == {"finished": 1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ttft": histogram(9, 9, 9)}, {"ttft": histogram(1, 2, 2)}),
        ({"ttft": histogram(9, 9, 9)}, {"ttft": histogram(1, 20, 20)}),  # only a bucket fell
        ({"ttft": histogram(0, 0, 5)}, {"ttft": histogram(0, 6, 7)}),  # only the last bucket, seen less the others
        ({"gauges": {"start_time": 1e9}}, {"gauges": {"start_time": 1e9 + 30}}),
        ({"gauges": {"created": 1e9}}, {"gauges": {"created": 1e9 + 30}}),
        ({"counters": {"generation_tokens": 900_000}}, {"counters": {"generation_tokens": 2400}}),
    ],
    ids=["count", "bucket", "last bucket", "start time", "creation time", "tokens"],
)
def test_a_restart_is_seen_in_any_of_its_signs_p5(before: dict, after: dict) -> None:  # type: ignore[type-arg]
    assert restarted(page(0, **before), page(10, **after))
    one = step(page(0, **before), page(10, **after))
    assert one.restarted
    assert one.histograms == {name: value for name, value in after.items() if name == "ttft"}
    assert one.increases == after.get("counters", {})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ttft": histogram(1, 2, 3, total=9.0)}, {"ttft": histogram(1, 2, 3, total=4.0)}),
        ({"gauges": {"start_time": 1e9}}, {"gauges": {"start_time": 1e9 + 0.01}}),
        ({"gauges": {"start_time": 1e9}}, {"gauges": {"start_time": 1e9 - 30}}),
        ({"counters": {"http_finishes": 9}}, {"counters": {"http_finishes": 1}}),
        ({"ttft": histogram(1, 2, 3)}, {}),
    ],
    ids=["a sum that fell", "jitter", "a clock set back", "a counter of the web server", "gone"],
)
def test_what_is_no_restart(before: dict, after: dict) -> None:  # type: ignore[type-arg]
    one = step(page(0, **before), page(10, **after))
    assert not one.restarted
    assert all(value >= 0 for value in one.increases.values())
    assert all(min(one.counts) >= 0 for one in one.histograms.values())


def test_the_old_processs_gauges_say_nothing_of_the_new_one() -> None:
    one = over(page(0, gauges={"running": 99, "start_time": 1}), page(10, gauges={"running": 1, "start_time": 100}))
    assert one.gauges["running"] == GaugeWindow(last=1, mean=1, max=1)


def test_a_gauges_mean_is_weighted_by_time() -> None:
    pages = [page(0, gauges={"running": 0}), page(2, gauges={"running": 10}), page(10, gauges={"running": 10})]
    assert over(*pages).gauges["running"] == GaugeWindow(last=10, mean=9, max=10)


def test_a_window_begins_with_a_page_and_never_reaches_over_its_length() -> None:
    pages = [page(float(at)) for at in (0, 9, 21, 30, 41)]
    steps = [step(before, after) for before, after in pairwise(pages)]
    assert [one.start for one in since(steps, 41 - 30)] == [21, 30]
    assert window(since(steps, 41)) is None


counts = st.lists(st.integers(0, 50), min_size=3, max_size=3)


@given(st.lists(st.tuples(counts, st.integers(0, 500), st.booleans()), min_size=2, max_size=12))
def test_nothing_ever_decreases_whatever_the_pages_say(pages: list[tuple[list[int], int, bool]]) -> None:
    snapshots = [
        page(
            float(at),
            counters={"finished": float(value)} if there else {},
            ttft=histogram(*(float(sum(each[: n + 1])) for n in range(3))),
        )
        for at, (each, value, there) in enumerate(pages)
    ]
    one = over(*snapshots)
    assert all(value >= 0 for value in one.increases.values())
    for found in one.histograms.values():
        assert min(found.counts) >= 0
        assert list(found.counts) == sorted(found.counts)
    assert one.seconds == len(pages) - 1
    assert one.restarts <= len(pages) - 1


@given(st.lists(counts, min_size=1, max_size=8))
def test_what_grew_over_a_window_is_the_difference_of_its_ends(growth: list[list[int]]) -> None:
    total = [0, 0, 0]
    pages = [page(0, ttft=histogram(0, 0, 0))]
    for at, each in enumerate(growth, 1):
        total = [before + sum(each[: n + 1]) for n, before in enumerate(total)]
        pages.append(page(float(at), ttft=histogram(*map(float, total))))
    assert over(*pages).histograms["ttft"].counts == tuple(map(float, total))


def test_a_fleet_adds_what_adds_and_leaves_out_what_is_of_one_engine() -> None:
    a = over(*(page(at, gauges={"running": 4, "kv_usage": 0.4}, counters={"finished": at}) for at in (0.0, 10.0)))
    b = over(*(page(at, gauges={"running": 6, "kv_usage": 0.9}, counters={"finished": at}) for at in (1.0, 9.0)))
    both = fleet_window([a, b])
    assert both is not None
    assert both.gauges["running"].last == 10
    assert "kv_usage" not in both.gauges
    assert both.increases == {"finished": 18}
    assert both.seconds == 10
    assert fleet_window([]) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.floats(0, 9), st.booleans()), min_size=1, max_size=12
    ),
    st.sampled_from([0, 3]),
)
def test_a_window_is_its_last_page_less_its_first_or_its_steps_added_up(
    grown: list[tuple[int, int, float, bool]], restart: int
) -> None:
    pages = [page(0, gauges={"running": 1}, counters={"finished": 7}, ttft=histogram(1, 2, 4))]
    for at, (fast, slow, seconds, listed) in enumerate(grown, start=1):
        last = pages[-1]
        counts, total = last.histograms["ttft"].counts, last.histograms["ttft"].total or 0.0
        if at == restart:
            counts, total = (0.0, 0.0, 0.0), 0.0
        seen = histogram(counts[0] + fast, counts[1] + fast + slow, counts[2] + fast + slow, total=total + seconds)
        finished = (0.0 if at == restart else last.counters["finished"]) + fast + slow
        gauges = {"running": float(fast)} if listed else {}
        pages.append(page(10.0 * at, gauges=gauges, counters={"finished": finished}, ttft=seen))
    steps = [step(before, after) for before, after in pairwise(pages)]
    quick, plain = window(steps), window([replace(one, pages=None) for one in steps])
    assert quick is not None
    assert plain is not None
    assert (quick.seconds, quick.restarts, quick.increases) == (plain.seconds, plain.restarts, plain.increases)
    assert quick.gauges == plain.gauges
    ours, added = quick.histograms["ttft"], plain.histograms["ttft"]
    assert (ours.bounds, ours.counts) == (added.bounds, added.counts)
    assert ours.total == pytest.approx(added.total, abs=1e-9)


def test_a_signal_that_was_gone_for_a_page_is_not_taken_from_the_ends() -> None:
    pages = [page(at, ttft=None if at == 10 else histogram(at, at, at)) for at in (0, 10, 20, 30)]
    assert over(*pages).histograms["ttft"].count == 10


def test_a_window_names_what_it_has_before_anything_is_read() -> None:
    one = over(
        page(0, gauges={"running": 2}, ttft=histogram(1, 1, 1)),
        page(10, gauges={"running": 4}, ttft=histogram(1, 2, 2)),
    )
    assert (list(one.histograms), list(one.gauges)) == (["ttft"], ["running"])
    assert (one.gauges.get("waiting"), one.histograms.get("itl")) == (None, None)
    assert one.gauges["running"] == GaugeWindow(last=4, mean=3, max=4)
    with pytest.raises(KeyError):
        one.gauges["waiting"]
