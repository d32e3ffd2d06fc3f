"""Two stretches compared: what counts as better, what stays within its bounds, and when loads differ too much."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.model import (
    Estimate,
    Histogram,
    KvCache,
    Latency,
    Numbers,
    Phase,
    Phases,
    Queue,
    Snapshot,
    Speculation,
    Tokens,
)
from phasewatch.core.report.compare import ComparedRow, Comparison, Facts, busy, compare, settled
from phasewatch.core.settings import Thresholds

THRESHOLDS = Thresholds()


def exact(value: float) -> Estimate:
    return Estimate(value, value, value)


def latency(mean: float, p50: float, p90: float, p99: float, *, count: int = 1000, width: float = 0.0) -> Latency:
    """width: how far the bucket reaches to either side, as a share of the value."""
    tails = (Estimate(value, value * (1 - width), value * (1 + width)) for value in (p50, p90, p99))
    return Latency(count, mean, **dict(zip(("p50", "p90", "p99"), tails, strict=True)))


BASE = Numbers(
    window_seconds=60.0,
    ttft_seconds=latency(0.3, 0.25, 0.5, 0.9),
    itl_seconds=latency(0.03, 0.028, 0.04, 0.06, count=50_000),
    tpot_seconds=latency(0.03, 0.03, 0.035, 0.04),
    e2e_seconds=latency(3.0, 2.8, 4.5, 6.0),
    itl_stalled_ratio=0.0,
    phases=Phases(Phase(0.01), Phase(0.2), Phase(2.7), Phase(0.02)),
    queue=Queue(arrivals_per_second=10.0, gave_up_ratio=0.0, failed_per_second=0.0),
    kv_cache=KvCache(),
    tokens=Tokens(prompt_mean=500.0, output_mean=100.0, prefill_speed=2500.0, decode_speed=33.0),
    prefill_time_ratio=0.2,
    speculation=Speculation(),
)


def compared(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    return compare(replace(BASE, **before), replace(BASE, **after), THRESHOLDS)


def row(comparison: Comparison, name: str) -> ComparedRow:
    return next(one for one in comparison.rows if one.name == name)


# --- what moved


def test_the_same_figures_are_no_change() -> None:
    found = compared({}, {})
    assert found.conclusion == "same"
    assert found.sentence == (
        "No change: ITL stayed (mean 30 ms, then 30 ms); TTFT stayed (mean 300 ms, then 300 ms);"
        " e2e stayed (mean 3 s, then 3 s)."
    )


def test_a_tail_that_fell_out_of_its_bucket_is_better_and_one_that_rose_is_worse() -> None:
    slow, quick = latency(0.3, 0.25, 0.5, 3.0, width=0.2), latency(0.3, 0.25, 0.5, 0.8, width=0.2)
    better, worse = (compared({"ttft_seconds": a}, {"ttft_seconds": b}) for a, b in ((slow, quick), (quick, slow)))
    assert (better.conclusion, worse.conclusion) == ("better", "worse")
    assert "TTFT p99 fell from 3 s to 800 ms" in better.sentence
    assert "TTFT p99 rose from 800 ms to 3 s" in worse.sentence


def test_a_change_that_the_buckets_may_have_made_up_decides_nothing() -> None:
    found = compared(
        {"ttft_seconds": latency(0.3, 0.25, 0.5, 1.0, width=0.5)},
        {"ttft_seconds": latency(0.3, 0.25, 0.5, 1.4, width=0.5)},
    )
    assert row(found, "ttft_p99").outcome == "unsure"
    assert found.conclusion == "same", "the mean stayed"
    wide = latency(0.3, 0.25, 0.5, 1.0, width=0.5), latency(0.4, 0.35, 0.7, 1.4, width=0.5, count=200)
    unsure = compared({"ttft_seconds": wide[0]}, {"ttft_seconds": replace(wide[1], mean=None)})
    assert unsure.conclusion == "unsure"
    assert unsure.sentence.startswith("No change beyond the bounds: ")
    assert "TTFT moved within the bounds (p99 1 s, then 1.4 s)" in unsure.sentence


def test_bounds_of_a_change_come_from_both_buckets() -> None:
    found = compared(
        {"ttft_seconds": Latency(1000, 1.0, p99=Estimate(2.0, 1.0, 4.0))},
        {"ttft_seconds": Latency(1000, 1.0, p99=Estimate(6.0, 5.0, 8.0))},
    )
    change = row(found, "ttft_p99").change
    assert change is not None
    assert (change.ratio, change.low, change.high) == (2.0, 0.25, 7.0)
    assert row(found, "ttft_p99").outcome == "worse"


def test_a_value_above_the_last_edge_leaves_the_change_open_above() -> None:
    above = Estimate(40.0, 40.0, None, "above_last_edge")
    found = compared({"ttft_seconds": latency(1, 1, 1, 2)}, {"ttft_seconds": Latency(1000, 1.0, p99=above)})
    change = row(found, "ttft_p99").change
    assert change is not None
    assert (change.low, change.high) == (19.0, None)
    assert row(found, "ttft_p99").outcome == "worse"
    assert "TTFT p99 rose from 2 s to over 40 s" in found.sentence


def test_below_a_hundred_requests_the_slowest_one_alone_decides_nothing() -> None:
    few = {"count": 40}
    found = compared(
        {"ttft_seconds": latency(0.3, 0.25, 0.5, 0.9, **few)}, {"ttft_seconds": latency(0.3, 0.25, 0.5, 9.0, **few)}
    )
    assert row(found, "ttft_p99").outcome == "worse", "it is still shown"
    assert "TTFT stayed (mean" in found.sentence
    assert found.conclusion == "same"


def test_a_mean_of_few_scattered_requests_may_move_by_chance() -> None:
    def moved(count: int) -> Comparison:
        return compared(
            {"e2e_seconds": latency(3.0, 2.0, 6.0, 9.0, count=count)},
            {"e2e_seconds": replace(latency(4.0, 2.0, 6.0, 9.0, count=count), mean=4.0)},
        )

    assert row(moved(20), "e2e_mean").outcome == "unsure"
    assert row(moved(2000), "e2e_mean").outcome == "worse"


def test_stalls_are_said_to_be_gone_or_new() -> None:
    found = compared({"itl_stalled_ratio": 0.3}, {"itl_stalled_ratio": 0.0})
    assert found.conclusion == "better"
    assert "stalls are gone (30 % of the streaming time, then 0 %)" in found.sentence
    assert "stalls are new" in compared({"itl_stalled_ratio": 0.0}, {"itl_stalled_ratio": 0.3}).sentence
    assert "stalls" not in compared({"itl_stalled_ratio": 0.002}, {"itl_stalled_ratio": 0.008}).sentence


def test_one_phase_better_and_the_other_worse_is_mixed() -> None:
    found = compared(
        {}, {"ttft_seconds": latency(0.1, 0.1, 0.15, 0.2), "itl_seconds": latency(0.06, 0.06, 0.08, 0.1, count=50_000)}
    )
    assert found.conclusion == "mixed"
    assert found.sentence.index("TTFT") < found.sentence.index("ITL"), "the better news first"


def test_a_p90_that_moves_against_the_tail_is_named() -> None:
    found = compared(
        {"itl_seconds": latency(0.09, 0.05, 0.07, 3.0, count=5000)},
        {"itl_seconds": latency(0.07, 0.04, 0.19, 0.29, count=5000)},
    )
    assert "ITL p99 fell from 3 s to 290 ms (but p90 rose from 70 ms to 190 ms)" in found.sentence


def test_with_speculation_the_pace_is_told_per_token_not_per_step() -> None:
    slower_steps = {
        "itl_seconds": latency(0.06, 0.06, 0.08, 0.1, count=50_000),
        "tpot_seconds": latency(0.02, 0.02, 0.022, 0.025),
        "speculation": Speculation(0.7, 3.0),
    }
    found = compared({}, slower_steps)
    assert found.conclusion == "better"
    assert "TPOT" in found.sentence
    assert "ITL" not in found.sentence


def test_where_clients_began_to_give_up_the_latency_of_the_rest_is_no_improvement() -> None:
    found = compared({}, {"ttft_seconds": latency(0.1, 0.1, 0.1, 0.1), "queue": replace(BASE.queue, gave_up_ratio=0.9)})
    assert found.conclusion == "worse"
    assert "clients that give up are new (0 %, then 90 %)" in found.sentence
    assert "TTFT and e2e are those of the clients who stayed" in found.sentence


def test_failing_requests_make_a_change_worse() -> None:
    found = compared({}, {"queue": replace(BASE.queue, failed_per_second=1.0)})
    assert found.conclusion == "worse"
    assert "failing requests are new (0 %, then 10 %)" in found.sentence


# --- load


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ({"queue": replace(BASE.queue, arrivals_per_second=13.0)}, "arrivals rose from 10 to 13/s"),
        ({"tokens": replace(BASE.tokens, prompt_mean=300.0)}, "prompts fell from 500 to 300 tokens"),
        ({"tokens": replace(BASE.tokens, output_mean=130.0)}, "answers rose from 100 to 130 tokens"),
    ],
)
def test_a_load_that_differs_by_more_than_a_fifth_cannot_be_compared(after: dict[str, Any], says: str) -> None:
    found = compared({}, after | {"itl_stalled_ratio": 0.5})
    assert found.conclusion == "not comparable"
    assert found.sentence == f"Not comparable: the load differs by more than 20 %: {says}."
    assert row(found, "itl_stalled").outcome == "worse", "the figures are still there to look at"


def test_a_load_within_a_fifth_is_alike() -> None:
    queue, tokens = replace(BASE.queue, arrivals_per_second=11.9), replace(BASE.tokens, prompt_mean=420.0)
    found = compared({}, {"queue": queue, "tokens": tokens})
    assert [one.alike for one in found.load] == [True, True, True, True]
    assert found.conclusion == "same"


def test_an_unknown_load_is_compared_and_said_to_be_unknown() -> None:
    found = compared({"queue": Queue()}, {})
    assert [one.alike for one in found.load] == [None, None, True, True]
    assert found.sentence.endswith("whether the load was alike is not known (arrivals).")


@pytest.mark.parametrize(("count", "says"), [(0, "no request got"), (4, "only 4 requests got")])
def test_next_to_no_requests_cannot_be_compared(count: int, says: str) -> None:
    found = compared({}, {"ttft_seconds": Latency(count)})
    assert found.conclusion == "not comparable"
    assert says in found.sentence


def test_what_a_side_does_not_know_has_no_change_and_no_outcome() -> None:
    nothing = replace(BASE, tpot_seconds=Latency(0), itl_stalled_ratio=None, phases=Phases())
    found = compare(BASE, nothing, THRESHOLDS)
    for name in ("tpot_mean", "tpot_p99", "itl_stalled", "queue_mean"):
        assert (row(found, name).after, row(found, name).change, row(found, name).outcome) == (None, None, None)
    assert found.conclusion == "same"


def test_phases_and_speeds_say_why_but_decide_nothing() -> None:
    found = compared({}, {"phases": Phases(Phase(9.0), Phase(0.2), Phase(2.7), Phase(0.02))})
    assert row(found, "queue_mean").outcome is None
    assert found.conclusion == "same"


_SECONDS = st.floats(0.001, 100.0)


@given(_SECONDS, _SECONDS, st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_a_change_lies_within_its_bounds_and_swapping_the_sides_turns_a_sure_one_round(
    old: float, new: float, old_width: float, new_width: float
) -> None:
    before, after = (
        {"ttft_seconds": Latency(1000, None, p99=Estimate(value, value * (1 - width), value * (1 + width)))}
        for value, width in ((old, old_width), (new, new_width))
    )
    there, back = row(compared(before, after), "ttft_p99"), row(compared(after, before), "ttft_p99")
    assert there.change is not None
    assert there.change.low - 1e-9 <= there.change.ratio
    assert there.change.high is None or there.change.ratio <= there.change.high + 1e-9
    assert {there.outcome, back.outcome} not in ({"better"}, {"worse"})


# --- the stretch of a recording


def pages(*times: float, born: float = 0.0) -> list[Snapshot]:
    """An engine whose first-token count grows by one a second."""
    return [
        Snapshot(
            at,
            {"start_time": born},
            {"finished": at - born},
            {"ttft": Histogram((1.0, float("inf")), (at - born,) * 2, at - born)},
        )
        for at in times
    ]


def test_the_first_ten_seconds_and_three_pages_are_warm_up() -> None:
    steps = settled(pages(*range(0, 30, 2)), THRESHOLDS)
    assert (steps[0].start, steps[-1].end) == (10, 28)
    sparse = settled(pages(0, 30, 60, 90), THRESHOLDS)
    assert [one.start for one in sparse] == [60]
    assert settled(pages(0, 2, 4), THRESHOLDS) == ()
    assert settled([], THRESHOLDS) == ()


def test_after_a_restart_the_engine_warms_up_again() -> None:
    both = pages(*range(0, 20, 2)) + pages(*range(30, 50, 2), born=29.0)
    assert [one.start for one in settled(both, THRESHOLDS)] == [10, 12, 14, 16, 40, 42, 44, 46]


# --- closed loops, mixes, chance


def test_more_arrivals_with_no_more_in_flight_follow_the_service() -> None:
    quicker = {"queue": replace(BASE.queue, arrivals_per_second=20.0), "e2e_seconds": latency(1.5, 1.4, 2.2, 3.0)}
    there, back = compared({}, quicker), compared(quicker, {})
    assert (there.conclusion, back.conclusion) == ("better", "worse")
    assert there.sentence.startswith(
        "Better at the same concurrency (30 in flight, then 30; arrivals follow the service, 10/s, then 20/s), requests"
        " take half as long: "
    )


def test_more_arrivals_with_fewer_in_flight_are_compared_and_said() -> None:
    found = compared(
        {}, {"queue": replace(BASE.queue, arrivals_per_second=15.0), "e2e_seconds": latency(1.0, 0.9, 1.5, 2.0)}
    )
    assert found.conclusion == "better"
    assert "Better with more arrivals (10/s, then 15/s; 30 in flight, then 15)" in found.sentence


def facts(**given: Any) -> Facts:
    return Facts(scrapes=50, running=given.pop("running", 10.0), waiting=given.pop("waiting", 0.0), **given)


def test_gauges_that_saw_enough_tell_what_is_in_flight_and_littles_law_else() -> None:
    seen = compare(BASE, BASE, THRESHOLDS, facts(), replace(facts(), scrapes=5))
    assert (seen.load[1].name, seen.load[1].before, seen.load[1].after) == ("in_flight", 10.0, 30.0)


def lengths(**counts: int) -> dict[str, Histogram]:
    """Prompts of so many tokens each: short ones of 50, long ones of 3,000."""
    short, long = counts["short"], counts["long"]
    bounds = (100.0, 2000.0, 5000.0, float("inf"))
    total = 50.0 * short + counts.get("tokens", 3000) * long
    return {"prompt_length": Histogram(bounds, (short, short, short + long, short + long), total)}


@pytest.mark.parametrize(
    ("after", "mean", "comparable"),
    [
        ({"short": 240, "long": 40}, 471.4, True),  # more short ones, as many long ones
        ({"short": 40, "long": 120}, 2262.5, False),  # fewer of one, more of the other
        ({"short": 80, "long": 40, "tokens": 4900}, 1666.7, False),  # longer ones than before
    ],
)
def test_lengths_whose_mix_alone_shifted_with_the_service_are_no_other_load(
    after: dict[str, int], mean: float, comparable: bool
) -> None:
    old, new = (replace(BASE, tokens=replace(BASE.tokens, prompt_mean=value)) for value in (1033.3, mean))
    found = compare(old, new, THRESHOLDS, facts(lengths=lengths(short=80, long=40)), facts(lengths=lengths(**after)))
    assert (found.conclusion != "not comparable") == comparable
    assert ("the mix follows the service" in found.sentence) == comparable


def test_clients_in_a_closed_loop_that_became_more_are_pointed_out() -> None:
    slower = replace(BASE, e2e_seconds=latency(6.0, 5.6, 9.0, 12.0))
    found = compare(BASE, slower, THRESHOLDS, facts(running=30.0, steady=True), facts(running=60.0, steady=True))
    assert "30 in flight, then 60, hardly varying: if so many clients ask, that is another load" in found.sentence
    assert "hardly varying" not in compare(BASE, slower, THRESHOLDS, facts(running=30.0), facts(running=60.0)).sentence


def test_reasons_are_those_that_account_for_what_came_out() -> None:
    slower = {
        "ttft_seconds": latency(3.0, 2.5, 5.0, 9.0),
        "kv_cache": KvCache(capacity_tokens=32_000.0, preemptions_per_second=0.5),
        "tokens": replace(BASE.tokens, prefix_hit_ratio=0.1),
    }
    before = {
        "kv_cache": KvCache(capacity_tokens=64_000.0, preemptions_per_second=0.0),
        "tokens": replace(BASE.tokens, prefix_hit_ratio=0.6),
    }
    worse = compared(before, slower)
    assert worse.why == (
        "KV cache capacity halved (64,000 tokens, then 32,000 tokens)",
        "the prefix hit ratio fell (60 %, then 10 %)",
        "preemptions rose (0/s, then 0.5/s)",
    )
    assert "Worse because KV cache capacity halved" in worse.sentence
    better = compared(before, slower | {"ttft_seconds": latency(0.1, 0.1, 0.2, 0.3)})
    assert better.why == (), "less room makes nothing better"


def test_labels_that_changed_are_named_and_adapters_are_traffic() -> None:
    old, new = {"block_size": "16", "adapters": "a", "x": "1"}, {"block_size": "32", "adapters": "b", "y": "2"}
    found = compare(BASE, BASE, THRESHOLDS, facts(labels=old), facts(labels=new))
    assert [(one.name, one.before, one.after) for one in found.changed] == [
        ("block_size", "16", "32"), ("x", "1", None), ("y", None, "2"),
    ]  # fmt: skip
    assert found.sentence.endswith("Configuration changed: block_size 16 -> 32, x 1 -> (not set), y (not set) -> 2.")


def test_a_tail_of_a_few_hundred_requests_that_chance_may_move_decides_nothing() -> None:
    def moved(count: int) -> Comparison:
        return compared(
            {"ttft_seconds": replace(latency(0.3, 0.25, 0.5, 0.9, count=count), mean=None)},
            {"ttft_seconds": replace(latency(0.3, 0.25, 0.5, 1.05, count=count), mean=None)},
        )

    assert moved(200).conclusion == "unsure"
    assert moved(20_000).conclusion == "worse"


def test_stalls_that_fill_all_the_time_on_both_sides_are_the_same() -> None:
    both = replace(BASE, itl_stalled_ratio=0.8), replace(BASE, itl_stalled_ratio=0.5)
    everything = facts(stalled=Estimate(1.0, 1.0, 1.0))
    assert row(compare(*both, THRESHOLDS, everything, everything), "itl_stalled").outcome == "same"
    assert row(compare(*both, THRESHOLDS), "itl_stalled").outcome == "better", "a document has no bounds"


def test_what_is_idle_before_and_after_is_no_part_of_the_run() -> None:
    def at(second: float, running: float) -> Snapshot:
        return Snapshot(second, {"running": running, "waiting": 0.0}, {}, {})

    held = [at(second, 1.0 if 40 <= second < 60 else 0.0) for second in range(0, 100, 10)]
    assert busy(settled(held, THRESHOLDS)) == (30, 60)
    assert busy(settled([at(second, 0.0) for second in range(0, 60, 10)], THRESHOLDS)) is None
