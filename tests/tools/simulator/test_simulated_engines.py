"""What simulated engines do: the scheduler, the KV pool, the two clocks and the faults."""

from dataclasses import replace
from itertools import pairwise

import pytest

from simulated_servers import FLAGS, INSTANT, MACHINE, fleet, series, steady, value
from tools.simulator.config import Arrival, Config, Faults, Flow, FrontEnd, Length, Server
from tools.simulator.kv import BlockPool
from tools.simulator.simulation import DownError, Fleet, Simulator
from tools.simulator.speed import Speed, stop_and_go


def mean(page: str, family: str) -> float:
    found = series(page)
    return value(found, f"{family}_sum") / value(found, f"{family}_count")


def test_the_same_seed_gives_the_same_history_and_another_seed_another() -> None:
    def history(seed: int) -> tuple[str, object]:
        simulated = fleet(steady(rate=5.0), machine=replace(MACHINE, noise=0.1), seed=seed)
        simulated.advance(30)
        return simulated.page("demo"), simulated.truth()

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_small_steps_of_the_clock_give_what_one_large_step_gives() -> None:
    small, large = fleet(steady(rate=5.0)), fleet(steady(rate=5.0))
    for tenth in range(301):
        small.advance(tenth / 10)
    large.advance(30)

    assert small.truth() == large.truth()
    assert small.page("demo") == large.page("demo")


def test_a_lone_request_takes_what_physics_says() -> None:
    simulated = fleet(arrivals=(Arrival(1.0, prompt=1000, output=11),))
    simulated.advance(10)
    page = simulated.page("demo")

    # One step with 1,000 prompt tokens; then ten steps of one stream.
    assert mean(page, "request_prefill_time_seconds") == pytest.approx(0.02 + 1000 * 1e-4)
    assert mean(page, "inter_token_latency_seconds") == pytest.approx(0.02 + 1e-4)
    assert mean(page, "request_decode_time_seconds") == pytest.approx(10 * (0.02 + 1e-4))
    assert mean(page, "time_to_first_token_seconds") == pytest.approx(0.12)
    assert mean(page, "request_time_per_output_token_seconds") == pytest.approx(0.0201)


def test_a_prompt_longer_than_the_token_budget_takes_several_steps_and_stalls_streams_by_chunks() -> None:
    arrivals = (Arrival(0.0, 16, 400), Arrival(2.0, 3000, 2))
    for budget, stall in ((4096, 0.32), (512, 0.071)):
        simulated = fleet(arrivals=arrivals, flags=replace(FLAGS, max_num_batched_tokens=budget))
        simulated.advance(20)
        chunks = simulated.requests[0].chunks
        longest = max(after - before for before, after in pairwise(chunks))
        assert longest == pytest.approx(stall, abs=0.003)
        # iteration_tokens cannot tell the two apart: the prompt is booked whole, at its last chunk.
        page = simulated.page("demo")
        assert value(page, "iteration_tokens_total_bucket", le="2048.0") == (
            value(page, "iteration_tokens_total_count") - 1
        )


def test_no_more_than_max_num_seqs_run_and_the_others_wait() -> None:
    simulated = fleet(Flow(Length(50), Length(100), burst=20), flags=replace(FLAGS, max_num_seqs=4))
    simulated.advance(1.0)
    page = simulated.page("demo")

    assert value(page, "num_requests_running") == 4
    assert value(page, "num_requests_waiting") == 16
    assert value(page, "num_requests_waiting_by_reason", reason="capacity") == 16
    # Queue time is booked when a request finishes: nothing yet, though sixteen wait.
    assert value(page, "request_queue_time_seconds_count") == 0
    simulated.advance(60)
    page = simulated.page("demo")
    assert value(page, "request_queue_time_seconds_count") == 20
    assert value(page, "num_requests_running") == 0
    assert value(page, "kv_cache_usage_perc") == 0


def test_a_short_pool_preempts_and_the_victims_finish_all_the_same() -> None:
    flow = Flow(Length(50), Length(300), burst=6)
    simulated = fleet(flow, flags=replace(FLAGS, kv_blocks=61))
    most = 0.0
    for second in range(40):
        simulated.advance(second)
        most = max(most, value(simulated.page("demo"), "kv_cache_usage_perc"))
    page = simulated.page("demo")

    assert most > 0.9
    assert value(page, "num_preemptions_total") > 0
    assert value(page, "request_success_total", finished_reason="length") == 6
    assert value(page, "generation_tokens_total") == 6 * 300
    assert value(page, "prompt_tokens_total") == 6 * 50  # recomputing is not counted
    assert all(len(each.chunks) == 300 for each in simulated.requests)
    # A pool with room for all does nothing of the kind.
    roomy = fleet(flow)
    roomy.advance(40)
    assert value(roomy.page("demo"), "num_preemptions_total") == 0


def test_a_request_is_let_in_only_when_its_whole_prompt_fits() -> None:
    arrivals = (Arrival(0.0, 500, 200), Arrival(1.0, 600, 10))
    simulated = fleet(arrivals=arrivals, flags=replace(FLAGS, kv_blocks=61, max_num_batched_tokens=64))
    simulated.advance(2.0)

    page = simulated.page("demo")
    assert value(page, "num_requests_running") == 1
    assert value(page, "num_requests_waiting") == 1
    assert value(page, "kv_cache_usage_perc") < 0.7


@pytest.mark.parametrize("idle", [False, True])
def test_a_hang_freezes_everything_but_the_web_server(idle: bool) -> None:
    flow = Flow(Length(50), Length(100), clients=0 if idle else 3, rate=1.0, start=32.0 if idle else 0.0)
    simulated = fleet(flow, faults=Faults(engine_speed=((30.0, 0.0),)))
    simulated.advance(31)
    before = series(simulated.page("demo"))
    simulated.advance(60)
    after = series(simulated.page("demo"))

    still = {key for key in before if before[key] == after[key]}
    assert {name for name, _ in before.keys() - still} <= {"process_open_fds", "process_cpu_seconds_total"}
    assert after["process_open_fds", ()] > before["process_open_fds", ()]
    assert value(after, "num_requests_running") == (0 if idle else value(before, "num_requests_running"))
    assert (value(after, "num_requests_running") > 0) is not idle


def test_an_engine_that_wakes_from_a_hang_goes_on() -> None:
    simulated = fleet(Flow(Length(50), Length(100), clients=3), faults=Faults(engine_speed=((10.0, 0.0), (30.0, 1.0))))
    simulated.advance(60)

    assert all(each.done for each in simulated.requests if each.sent < 50)
    gaps = [b - a for each in simulated.requests for a, b in pairwise(each.chunks)]
    assert 20 < max(gaps) < 20.1


def test_a_slow_engine_slows_its_phases_and_leaves_the_rest_alone() -> None:
    pages = []
    for speed in (1.0, 0.5):
        simulated = fleet(Flow(Length(500), Length(50), every=4.0), faults=Faults(engine_speed=((0.0, speed),)))
        simulated.advance(60)
        pages.append(simulated.page("demo"))

    for family in ("inter_token_latency_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"):
        assert mean(pages[1], family) == pytest.approx(2 * mean(pages[0], family))


def test_a_slow_front_end_shows_in_ttft_and_e2e_but_in_no_engine_clock() -> None:
    slow = replace(INSTANT, tokenise_seconds=0.8, output_seconds=0.05)
    simulated = fleet(Flow(Length(500), Length(2), every=4.0), frontend=slow)
    simulated.advance(60)
    page = simulated.page("demo")

    engine = mean(page, "request_queue_time_seconds") + mean(page, "request_prefill_time_seconds")
    assert engine == pytest.approx(0.07, abs=0.001)
    assert mean(page, "time_to_first_token_seconds") - engine == pytest.approx(0.85, abs=0.001)
    assert mean(page, "inter_token_latency_seconds") == pytest.approx(0.0201)
    lag = mean(page, "e2e_request_latency_seconds") - mean(page, "time_to_first_token_seconds")
    assert lag > mean(page, "request_decode_time_seconds") + 0.02


def test_a_front_end_that_stands_still_delivers_late_in_bundles() -> None:
    speed = stop_and_go(5.0, 60.0, 0.5, 2.0)
    simulated = fleet(Flow(Length(50), Length(60), every=3.0), faults=Faults(frontend_speed=speed))
    simulated.advance(60)
    page = simulated.page("demo")

    assert mean(page, "time_to_first_token_seconds") < 0.1  # stamped only when the handler gets to run
    gaps = [b - a for each in simulated.requests for a, b in pairwise(each.chunks)]
    assert max(gaps) == pytest.approx(2.0, abs=0.1)
    assert value(page, "inter_token_latency_seconds_bucket", le="0.025") == value(
        page, "inter_token_latency_seconds_count"
    )


def test_clients_that_give_up_leave_no_trace_in_engine_families() -> None:
    flow = Flow(Length(50), Length(100), rate=4.0, timeout=4.0)
    simulated = fleet(flow, flags=replace(FLAGS, max_num_seqs=2))
    simulated.advance(100)
    page = simulated.page("demo")
    found = series(page)

    gone = [each for each in simulated.requests if each.error == "TimeoutError"]
    assert len(gone) > 100
    http = sum(n for key, n in found.items() if key[0] == "http_requests_total" and ("status", "2xx") in key[1])
    assert http == value(found, "request_success_total") + len(gone)
    assert value(found, "request_success_total", finished_reason="abort") == 0
    assert value(found, "time_to_first_token_seconds_count") <= sum(bool(each.chunks) for each in simulated.requests)
    assert value(found, "num_requests_waiting") <= 16  # four seconds' arrivals: those who left are forgotten


def test_every_request_has_ended_or_is_still_open() -> None:
    flow = replace(steady(rate=8.0), timeout=3.0, leave=0.1)
    simulated = fleet(flow, faults=Faults(fail_5xx=(10.0, 0.1), fail_error=(20.0, 0.1), restart=(40.0, 10.0)))
    simulated.advance(70)

    ended = [each for each in simulated.requests if each.ended is not None]
    open_now = [each for each in simulated.requests if each.ended is None]
    assert {each.error for each in ended} == {
        None, "TimeoutError", "internal error", "engine error", "ClientOSError", "ClientConnectorError",
    }  # fmt: skip
    assert all(each.done is (each.error is None) for each in ended)
    assert all(70 - each.sent <= 3.0 for each in open_now)
    target = simulated.targets["demo"]
    assert set(target.open) == {each.number for each in open_now}


def test_a_restart_refuses_connections_and_begins_at_zero() -> None:
    simulated = fleet(steady(), faults=Faults(restart=(20.0, 15.0)))
    simulated.advance(19)
    before = series(simulated.page("demo"))
    simulated.advance(25)
    with pytest.raises(DownError, match="ConnectionRefusedError"):
        simulated.page("demo")
    simulated.advance(36)
    after = series(simulated.page("demo"))

    assert value(after, "generation_tokens_total") < value(before, "generation_tokens_total")
    assert value(after, "generation_tokens_created") == value(before, "generation_tokens_created") + 35
    assert after["process_start_time_seconds", ()] == before["process_start_time_seconds", ()] + 35
    assert any(each.error == "ClientConnectorError" for each in simulated.requests)


def test_broken_admission_lets_the_running_finish_and_nobody_in() -> None:
    simulated = fleet(steady(), faults=Faults(admission_stop=(10.0, float("inf"))))
    simulated.advance(30)
    page = simulated.page("demo")
    simulated.advance(40)
    later = simulated.page("demo")

    assert value(page, "num_requests_running") == 0
    assert value(page, "num_requests_waiting") > 20
    assert value(later, "num_requests_waiting") > value(page, "num_requests_waiting")
    assert value(later, "time_to_first_token_seconds_count") == value(page, "time_to_first_token_seconds_count")


def test_a_full_queue_answers_503_and_says_so() -> None:
    flags = replace(FLAGS, max_num_seqs=2, max_num_queued_reqs=5)
    simulated = fleet(Flow(Length(50), Length(100), burst=30), flags=flags, frontend=FrontEnd())
    simulated.advance(2)
    page = series(simulated.page("demo"))

    rejected = value(page, "admission_rejections_total", reason="max_num_queued_reqs")
    assert rejected > 15
    assert (
        page["http_requests_total", (("handler", "/v1/completions"), ("method", "POST"), ("status", "5xx"))] == rejected
    )
    assert sum(each.status == 503 for each in simulated.requests) == rejected


def test_a_router_spreads_traffic_as_it_is_told() -> None:
    servers = tuple(Server(MACHINE, FLAGS, name=f"replica{n}") for n in range(3))
    shares = {}
    for routing, weights in (("round_robin", ()), ("least_loaded", ()), ("weighted", (0.8, 0.1, 0.1))):
        config = Config(servers, (steady(rate=6.0, output=10),), routing=routing, weights=weights)  # type: ignore[arg-type]
        simulated = Fleet(config, 1)
        simulated.advance(60)
        shares[routing] = [
            sum(each.target == name for each in simulated.requests) / len(simulated.requests)
            for name in simulated.targets
        ]

    assert shares["round_robin"] == pytest.approx([1 / 3] * 3, abs=0.01)
    assert max(shares["least_loaded"]) < 0.6
    assert shares["weighted"] == pytest.approx([0.8, 0.1, 0.1], abs=0.05)


def test_a_simulator_is_a_fleet_of_one() -> None:
    server = Server(MACHINE, FLAGS)
    alone = Simulator(Config((server,), (steady(),)), 3)
    alone.advance(20)
    assert value(alone.page(), "request_success_total") > 10
    with pytest.raises(ValueError, match="one server"):
        Simulator(Config((server, replace(server, name="other"))), 3)
    with pytest.raises(ValueError, match="name of its own"):
        Fleet(Config((server, server)), 3)


def test_a_pool_reuses_the_block_that_was_free_longest() -> None:
    pool = BlockPool(5, caching=True)
    pool.allocate(2)
    assert pool.publish(("head", 0))
    assert pool.publish(("head", 1))
    pool.release([("head", 0), ("head", 1)], 0)
    assert (pool.free, pool.usage) == (4, 0.0)
    assert pool.hits([("head", 0), ("head", 1), ("head", 2)]) == 2

    pool.allocate(3)  # the two that never held anything, then the tail of the head
    assert pool.hits([("head", 0), ("head", 1)]) == 1
    pool.acquire([("head", 0)])
    assert pool.free == 0


def test_work_is_done_when_a_changing_speed_has_done_it() -> None:
    speed = Speed(((10.0, 0.5), (20.0, 0.0), (30.0, 2.0)))
    assert speed.finish(0.0, 5.0) == 5.0
    assert speed.finish(8.0, 4.0) == 14.0
    assert speed.finish(18.0, 2.0) == 30.5
    assert speed.finish(25.0, 0.0) == 30.0
    assert Speed(((1.0, 0.0),)).finish(0.5, 1.0) == float("inf")
