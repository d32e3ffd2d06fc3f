"""The figures of a window, each checked against traffic whose answer is known."""

import math

import pytest

from phasewatch.core.measures.numbers import amount, numbers, ratio
from phasewatch.core.measures.window import window
from phasewatch.core.model import Histogram, Numbers, Step
from phasewatch.core.settings import Thresholds
from vllm_pages import Scene, Server, Traffic


def figures(server: Server, traffic: Traffic, *, seconds: float = 70, interval: float = 10.0) -> Numbers:
    numbers = Scene(server, interval=interval).after(seconds, traffic).numbers
    assert numbers is not None
    return numbers


@pytest.mark.parametrize("interval", [2.0, 10.0])
@pytest.mark.parametrize("old", [False, True])
def test_rates_means_and_lengths_are_exact_whatever_the_interval(interval: float, old: bool) -> None:
    server = Server(old=old)
    numbers = figures(
        server,
        lambda: server.engine.set(running=3, kv=0.25).serves(
            2, queue=0.4, prefill=0.2, outside=0.1, prompt=900, cached=300, output=101, itl=0.02, batch=2
        ),
        interval=interval,
    )
    rate = 2 / interval
    assert numbers.window_seconds == 60
    assert numbers.queue.admissions_per_second == pytest.approx(rate)
    assert numbers.queue.arrivals_per_second == pytest.approx(rate)
    assert numbers.tokens.prompt_per_second == pytest.approx(rate * 900)
    assert numbers.tokens.computed_prompt_per_second == pytest.approx(rate * 600)
    assert numbers.tokens.generation_per_second == pytest.approx(rate * 101)
    assert numbers.tokens.prefix_hit_ratio == pytest.approx(1 / 3)
    assert numbers.tokens.context_mean == pytest.approx(950.5)
    assert numbers.tokens.decode_speed == pytest.approx(50)
    assert numbers.tokens.prefill_speed == (None if old else pytest.approx(3000))
    assert numbers.tpot_seconds.mean == pytest.approx(0.02)
    assert numbers.ttft_seconds.mean == pytest.approx(0.7)
    assert numbers.e2e_seconds.mean == pytest.approx(2.7)
    phases = numbers.phases
    assert [phase.mean_seconds for phase in (phases.queue, phases.prefill, phases.decode)] == [
        pytest.approx(seconds) for seconds in (0.4, 0.2, 2.0)
    ]
    # Prompts take steps of 0.2 s: who arrives meets one rate x 0.2 of the time at most, and waits for half of it.
    outside, step = phases.frontend.mean_seconds, phases.unexplained.mean_seconds
    assert outside is not None
    assert step is not None
    assert outside + step == pytest.approx(0.1)
    assert 0 < step <= rate * 0.2**2 / 2 + 1e-9
    assert numbers.prefill_time_ratio == pytest.approx(rate * 0.2)


def test_the_expected_wait_is_a_lower_bound_where_nobody_is_admitted() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: server.engine.set(running=4, kv=0.5).serves(6))
    admitted = scene.round(lambda: server.engine.set(waiting=30).serves(6)).engines[0].numbers
    assert admitted is not None
    assert (admitted.queue.expected_wait_seconds, admitted.queue.expected_wait_censored) == (pytest.approx(50), False)
    nobody = scene.after(60, lambda: server.engine.tokens(0.03, 40)).numbers
    assert nobody is not None
    assert (nobody.queue.expected_wait_seconds, nobody.queue.expected_wait_censored) == (30 * 60, True)


def test_a_growing_queue_counts_as_arrivals() -> None:
    server = Server()

    def traffic() -> None:
        server.engine.set(running=4, waiting=server.engine.gauges["waiting"] + 5, kv=0.5).serves(10)

    queue = figures(server, traffic).queue
    assert queue.growth_per_second == pytest.approx(0.5)
    assert queue.arrivals_per_second == pytest.approx(1.5)


def test_requests_lost_in_a_restart_are_not_taken_off_the_arrivals() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(40, lambda: server.engine.set(running=50, waiting=40, kv=0.5).serves(6))

    def new_process() -> None:
        server.restart(scene.now)
        server.engine.set(running=4, kv=0.1).serves(6)

    queue = scene.round(new_process).engines[0].windows[60.0].queue
    assert queue.arrivals_per_second == pytest.approx((3 * 6 + 6 + 4) / 40)


def test_who_gave_up_is_unknown_without_http_counters_and_with_several_prompts_a_call() -> None:
    silent, bundled = Server(http=False), Server()

    def three_prompts_a_call() -> None:
        bundled.engine.set(running=3).serves(3)
        bundled.statuses["2xx"] -= 2

    for seen in (
        figures(silent, lambda: silent.engine.set(running=1).serves(3)),
        figures(bundled, three_prompts_a_call),
    ):
        assert seen.queue.gave_up_ratio is None
        assert seen.queue.gave_up_before_first_token_ratio is None


def test_prefills_share_of_time_is_not_told_from_iterations_that_several_processes_count() -> None:
    server = Server(process=False)
    assert figures(server, lambda: server.engine.set(running=3).serves(2, prompt=900)).prefill_time_ratio is None


def test_no_prompt_computed_is_a_share_of_zero_and_not_unknown() -> None:
    server = Server()
    server.engine.serves(1)
    assert figures(server, lambda: server.engine.set(running=1).tokens(0.03, 300)).prefill_time_ratio == 0


@pytest.mark.parametrize(
    ("usage", "growth", "left"), [(0.5, 0.01, 450), (0.2, 0.0, None), (0.1, 0.0, None), (0.9, -0.01, None)]
)
def test_the_time_until_the_pool_is_full_is_told_only_while_it_fills(
    usage: float, growth: float, left: float | None
) -> None:
    server = Server()
    server.engine.set(kv=usage)

    def traffic() -> None:
        server.engine.set(running=1, kv=server.engine.gauges["kv"] + growth).serves(1)

    known = figures(server, traffic).kv_cache.time_to_full_seconds
    assert known == (None if left is None else pytest.approx(left - 20, abs=1))


@pytest.mark.parametrize("interval", [1.7, 2.3, 10.1])
def test_t07_a_gauge_that_stands_still_has_no_slope(interval: float) -> None:
    server = Server()
    server.engine.set(kv=0.1, waiting=3)
    known = figures(server, lambda: server.engine.set(running=1).serves(1), interval=interval)
    assert (known.kv_cache.time_to_full_seconds, known.queue.growth_per_second) == (None, 0)


@pytest.mark.parametrize(("usage", "free"), [(0.0, 64000.0), (0.97, 1920.0), (1.0, 0.0), (None, None)])
def test_free_tokens_are_what_usage_leaves_of_the_capacity(usage: float | None, free: float | None) -> None:
    gauges = {"kv_blocks": 4000.0, "block_size": 16.0} | ({} if usage is None else {"kv_usage": usage})
    one = window([Step(0.0, 60.0, gauges, gauges, {}, {}, False)])
    assert one is not None
    assert numbers(one, Thresholds()).kv_cache.free_tokens == (None if free is None else pytest.approx(free))


@pytest.mark.parametrize("gap", [0.9, 2.0, 3.0, 30.0])
def test_stalls_are_weighed_by_time(gap: float) -> None:
    server = Server()

    def traffic() -> None:
        server.engine.set(running=4).tokens(0.02, 1000)
        server.engine.tokens(gap, 2)

    # gaps x low bucket edge / all the streaming time
    expected = 2 * {0.9: 0.0, 2.0: 1.0, 3.0: 2.5, 30.0: 20.0}[gap] / (20 + 2 * gap)
    ratio = figures(server, traffic).itl_stalled_ratio
    assert ratio == pytest.approx(expected)


def contradictory(**increases: float) -> Numbers:
    """A minute whose counters cannot all be true; two first tokens."""
    seen = Histogram((1.0, math.inf), (2.0, 2.0), 1.0)
    gauges = {"running": 0.0, "waiting": 0.0}
    one = window([Step(0.0, 60.0, gauges, gauges, increases, {"ttft": seen}, False)])
    assert one is not None
    return numbers(one, Thresholds())


def test_t07_a_ratio_outside_0_to_1_is_a_contradiction_not_a_number() -> None:
    assert [ratio(*given) for given in ((1, 2), (2, 2), (0, 3), (2, 1), (-1, 2), (1, 0), (None, 1), (1, None))] == [
        0.5, 1, 0, None, None, None, None, None
    ]  # fmt: skip
    many_left = contradictory(http_finishes=2, http_2xx=20, finished=0).queue
    assert (many_left.gave_up_ratio, many_left.gave_up_before_first_token_ratio) == (None, None)
    hits = contradictory(prefix_hits=30, prefix_queries=10, prompt_tokens=10).tokens
    assert (hits.prefix_hit_ratio, hits.computed_prompt_per_second, hits.computed_prompt_mean) == (None, None, None)
    assert contradictory(spec_accepted_tokens=9, spec_draft_tokens=3).speculation.acceptance_ratio is None


def test_t07_an_amount_is_never_below_zero_nor_without_end() -> None:
    assert [amount(value) for value in (0, 2.5, -1, math.inf, math.nan, None)] == [0, 2.5, None, None, None, None]


def test_t07_a_speed_by_sums_that_their_buckets_contradict_is_unknown() -> None:
    bounds, counts = (1.0, math.inf), (2.0, 2.0)
    lengths, prefill = Histogram((100.0, math.inf), counts, -50.0), Histogram(bounds, counts, 1.0)
    histograms = {"computed_prompt_length": lengths, "prefill": prefill, "itl": Histogram(bounds, counts, -1.0)}
    one = window([Step(0.0, 60.0, {}, {}, {}, histograms, False)])
    assert one is not None
    figures = numbers(one, Thresholds(), stall_seconds=0.5)
    assert (figures.tokens.prefill_speed, figures.itl_stalled_ratio) == (None, None)
