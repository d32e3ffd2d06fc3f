"""Real problem reports (cases.md, by their names there), each as its whole kind, from pages to the answer.

What a single page or histogram can show stands in test_exposition, test_histogram and test_quantile.
"""

import math
import re

import pytest

from phasewatch.core.model import EngineReport, Fleet, ModelReport
from phasewatch.core.report.measure_table import PHASES
from vllm_pages import Scene, Server, answer

PAGE_INTERVALS = (2.0, 10.0)
SIZES = ((106, 15, 0.904), (3, 0, 0.2), (1, 14, 0.767), (256, 900, 0.999))
# Every size at 10 s, one of them at 2 s.
SITUATIONS = [(10.0, *size) for size in SIZES] + [(2.0, *SIZES[0])]


def busy(server: Server, *, running: float = 4, waiting: float = 0, kv: float = 0.3, requests: int = 4) -> None:
    """An interval of good traffic on every engine."""
    for engine in server.engines:
        engine.set(running=running, waiting=waiting, kv=kv).serves(requests, batch=max(1, running))


def blamed(report: EngineReport) -> set[str]:
    return {cause.verdict for cause in report.causes}


def only_model(fleet: Fleet) -> ModelReport:
    (model,) = fleet.models
    return model


# --- B01, C27, P10: everything stands still -----------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "running", "waiting", "kv"), SITUATIONS)
@pytest.mark.parametrize("engines", [1, 3])
def test_b01_p10_frozen_gauges_without_http_counters_are_a_stall_of_low_confidence_with_both_readings(
    interval: float, running: float, waiting: float, kv: float, engines: int
) -> None:
    server = Server(engines, http=False)
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=running, waiting=waiting, kv=kv))
    for report in scene.rounds(60)[-1].engines:
        assert (answer(report), report.confidence) == ("engine_stalled", "low")
        assert blamed(report) == {"engine_stalled"}
        assert report.missing == ("http_finishes",) or "http_finishes" in report.causes[0].missing
        assert "the engine hangs" in report.summary
        assert "disconnected" in report.summary
        assert "one probe request" in report.summary


@pytest.mark.parametrize(("interval", "running", "waiting", "kv"), SITUATIONS)
@pytest.mark.parametrize("late", [False, True], ids=["with the last step", "in the next interval"])
def test_b01_p10_gauges_that_froze_as_all_clients_left_at_once_are_idle_and_stale(
    interval: float, running: int, waiting: int, kv: float, late: bool
) -> None:
    server = Server()
    scene = Scene(server, interval=interval)

    def leave() -> None:
        server.answers(running + waiting)

    scene.after(60, lambda: busy(server, running=running, waiting=waiting, kv=kv))
    if late:
        scene.round(leave)
    else:
        scene.round(lambda: (busy(server, running=running, waiting=waiting, kv=kv), leave()))
    report = scene.after(3 * interval)
    assert answer(report) == "idle"
    assert report.gauges_stale
    assert scene.after(20 * interval).verdict is None
    busy_again = scene.after(60, lambda: busy(server))
    assert (answer(busy_again), busy_again.gauges_stale) == ("healthy", False)


@pytest.mark.parametrize(("interval", "running", "waiting", "kv"), SITUATIONS)
def test_c27_tokens_that_stop_while_nobody_is_answered_are_a_stall_and_kv_is_only_context(
    interval: float, running: float, waiting: float, kv: float
) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=running, waiting=waiting, kv=kv))

    def more_clients() -> None:
        server.fds += 2

    report = scene.after(max(3 * interval, 12), more_clients)
    assert (answer(report), report.confidence, report.state) == ("engine_stalled", "high", "serving")
    assert blamed(report) == {"engine_stalled"}
    assert report.causes[0].evidence["kv_usage"] == kv
    assert report.since is not None
    assert report.since <= scene.now
    assert answer(scene.after(20 * interval, more_clients)) == "engine_stalled"


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_c27_clients_that_time_out_one_by_one_do_not_hide_the_hang(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=10, waiting=25, kv=0.99))
    assert answer(scene.after(max(3 * interval, 12), lambda: server.answers(1))) == "engine_stalled"
    fleets = scene.rounds(40 * interval, lambda: server.answers(1))  # in the end all have left
    assert {answer(fleet.engines[0]) for fleet in fleets} == {"engine_stalled"}


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_c27_requests_that_end_without_a_single_step_after_all_left_show_that_the_engine_hangs(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=12, kv=0.4))
    scene.round(lambda: server.answers(12))
    assert answer(scene.after(30)) == "idle"
    assert answer(scene.after(60, lambda: server.answers(1))) == "engine_stalled"


def test_a_stall_that_was_there_before_the_first_page_cannot_tell_a_hang_from_clients_that_left() -> None:
    server = Server()
    busy(server, running=106, waiting=15, kv=0.904)
    report = Scene(server).after(60)
    assert (answer(report), report.confidence) == ("engine_stalled", "low")
    assert "one probe request" in report.summary


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_before_its_first_request_has_finished_an_engine_may_stand_still_for_a_minute(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)

    def arrives() -> None:
        server.engine.set(running=1, kv=0.1)

    assert scene.round(arrives).engines[0].verdict is None
    assert scene.after(50).verdict != "engine_stalled"
    assert answer(scene.after(40)) == "engine_stalled"


def test_an_engine_that_has_shown_long_steps_is_given_three_times_as_long() -> None:
    server = Server()
    scene = Scene(server, interval=2)
    scene.after(30, lambda: busy(server))
    for _ in range(3):
        scene.after(8)  # steps of 8 to 10 s
        scene.round(lambda: busy(server))
    assert answer(scene.after(22)) != "engine_stalled"
    assert answer(scene.after(8)) == "engine_stalled"


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_a_long_chunked_prefill_that_moves_only_the_kv_cache_is_no_stall(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=1))

    def chunk() -> None:
        server.engine.set(running=1, kv=server.engine.gauges["kv"] + 0.002)

    fleets = scene.rounds(180, chunk)
    assert "engine_stalled" not in {answer(fleet.engines[0]) for fleet in fleets}


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_an_idle_engine_is_no_stall_and_connections_that_pile_up_on_one_are_of_low_confidence(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server))
    server.engine.set(running=0, kv=0)
    assert answer(scene.after(120)) == "idle"

    def connects() -> None:
        server.fds += 1

    # Three of them make a pile; it must stay one for 10 s and three scrapes.
    assert answer(scene.after(3 * interval, connects)) == "idle"
    report = scene.after(max(10, 3 * interval) + interval, connects)
    assert (answer(report), report.state, report.confidence) == ("engine_stalled", "idle", "low")
    assert "one probe request" in report.summary


# --- C11, P9, C23: nobody is let in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "running", "waiting"), [(10.0, 1, 14), (10.0, 2, 3), (10.0, 40, 400), (2.0, 1, 14)]
)
def test_p9_c11_a_queue_behind_endless_answers_is_an_admission_stall_and_no_hang(
    interval: float, running: int, waiting: int
) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=running))

    def endless() -> None:
        server.engine.set(running=running, waiting=waiting, kv=server.engine.gauges["kv"] + 0.0001)
        server.engine.tokens(0.19, round(5.4 * interval) * running, batch=running)

    server.engine.set(kv=0.765)
    early = scene.rounds(50, endless)
    assert "admission_stalled" not in {answer(fleet.engines[0]) for fleet in early}
    report = scene.after(40, endless)
    assert (answer(report), report.state) == ("admission_stalled", "serving")
    assert "none has been admitted" in report.summary
    assert any("max_tokens" in remedy.change for remedy in report.causes[0].remedies)
    assert answer(scene.after(20 * interval, endless)) == "admission_stalled"


def test_p9_an_engine_that_answers_long_requests_by_habit_is_given_three_times_the_longest() -> None:
    server = Server()
    scene = Scene(server)
    server.engine.finishes(2, decode=55.0, output=1000)  # slower than 50 s, at most 60 s
    scene.after(60, lambda: busy(server, running=1))

    def endless() -> None:
        server.engine.set(running=1, waiting=14, kv=0.5)
        server.engine.tokens(0.19, 54)

    assert "admission_stalled" not in {answer(fleet.engines[0]) for fleet in scene.rounds(170, endless)}
    assert answer(scene.after(20, endless)) == "admission_stalled"


def test_p9_before_any_request_has_finished_an_admission_stall_takes_ten_minutes() -> None:
    server = Server()
    scene = Scene(server)
    server.engine.first_tokens(0.1)

    def endless() -> None:
        server.engine.set(running=1, waiting=14, kv=0.5)
        server.engine.tokens(0.19, 54)

    assert "admission_stalled" not in {answer(fleet.engines[0]) for fleet in scene.rounds(590, endless)}
    assert answer(scene.after(30, endless)) == "admission_stalled"


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_room_that_is_left_unused_after_a_finish_is_an_admission_stall(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server, running=4, waiting=2))

    def streams(running: int) -> None:
        server.engine.set(running=running, waiting=6, kv=0.3)
        server.engine.tokens(0.03, 4 * running, batch=running)

    scene.round(lambda: (streams(3), server.engine.finishes()))
    assert answer(scene.after(max(10, 3 * interval), lambda: streams(3))) == "admission_stalled"


@pytest.mark.parametrize(("interval", "waiting"), [(10.0, 1), (10.0, 6), (10.0, 300), (2.0, 6)])
def test_c23_waiting_for_capacity_on_an_empty_engine_is_a_stall_that_names_the_contradiction(
    interval: float, waiting: int
) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60, lambda: busy(server))
    scene.round(lambda: server.engine.set(running=0, waiting=waiting, kv=0))
    report = scene.after(60)
    assert (answer(report), report.confidence) == ("engine_stalled", "high")
    assert "capacity" in report.summary
    assert "0 %" in report.summary
    assert any("restart" in remedy.change.lower() for remedy in report.causes[0].remedies)
    assert answer(scene.after(20 * interval)) == "engine_stalled"


# --- B05, B11, B17, P1: several engines and replicas --------------------------------------------------------------


def test_b05_p1_engines_of_one_page_are_added_and_the_worst_pool_is_named() -> None:
    server = Server(2)
    scene = Scene(server)

    def traffic() -> None:
        server.engines[0].set(running=12, waiting=3, kv=0.40).serves(8, batch=12)
        server.engines[1].set(running=30, waiting=9, kv=0.97).serves(2, outside=3.0, batch=30)

    fleet = scene.rounds(70, traffic)[-1]
    model = only_model(fleet)
    queue = model.windows[60.0].queue
    assert (queue.running, queue.waiting) == (42, 12)
    assert (model.kv_usage_max, model.kv_usage_mean) == (0.97, pytest.approx(0.685))
    assert model.worst_engine == "s/1"
    assert model.engines == {"serving": 2}
    # Six rounds: 48 fast and 12 slow first tokens; the median lies among the fast ones, p90 among the slow ones.
    ttft = model.windows[60.0].ttft_seconds
    assert ttft.count == 60
    assert ttft.p50 is not None
    assert ttft.p90 is not None
    assert ttft.p50.high == 0.06
    assert (ttft.p90.low, ttft.p90.high) == (2.5, 5)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_b05_a_fleet_is_the_same_in_any_order_of_its_servers(order: tuple[int, ...]) -> None:
    servers = [Server(name=f"s{n}") for n in range(4)]
    scene = Scene(*(servers[n] for n in order))

    def traffic() -> None:
        for n, server in enumerate(servers):
            server.engine.set(running=n, waiting=2 * n, kv=n / 10).serves(n + 1)

    model = only_model(scene.rounds(70, traffic)[-1])
    assert model.windows[60.0].queue.running == 6
    assert model.windows[60.0].queue.waiting == 12
    assert model.kv_usage_max == 0.3
    assert model.worst_engine == "s3/0"
    assert model.windows[60.0].ttft_seconds.count == 60


def test_b05_what_grows_on_each_engine_grows_by_the_sum_in_the_model() -> None:
    """Pages of several engines interleave in time: slopes and changes are per engine, then added."""
    servers = [Server(name="a"), Server(name="b")]
    scene = Scene(*servers)

    def traffic() -> None:
        for server, growth, base in zip(servers, (1, 3), (0, 100), strict=True):
            waiting = server.engine.gauges["waiting"] or base
            server.engine.set(running=4, waiting=waiting + growth, kv=0.5).serves(10)

    fleet = scene.rounds(70, traffic)[-1]
    engines = [report.numbers for report in fleet.engines]
    model = only_model(fleet).windows[60.0]
    assert [numbers.queue.growth_per_second for numbers in engines if numbers] == [
        pytest.approx(0.1),
        pytest.approx(0.3),
    ]
    assert model.queue.growth_per_second == pytest.approx(0.4)
    assert [numbers.queue.arrivals_per_second for numbers in engines if numbers] == [
        pytest.approx(1.1),
        pytest.approx(1.3),
    ]
    assert model.queue.arrivals_per_second == pytest.approx(2.4)
    assert model.kv_cache.time_to_full_seconds is None


def test_b05_prefill_takes_the_mean_share_of_several_engines_not_their_sum() -> None:
    server = Server(3)
    scene = Scene(server)

    def traffic() -> None:
        for engine in server.engines:
            engine.set(running=2, kv=0.3).serves(4, prompt=2000, prefill=0.8, batch=2)

    fleet = scene.rounds(70, traffic)[-1]
    shares = [report.numbers.prefill_time_ratio for report in fleet.engines if report.numbers is not None]
    # 2 prompts a second x 0.16 s each; where streams share a step, less the step that they would have taken anyway.
    assert shares == [pytest.approx(0.32, rel=0.05)] * 3
    assert only_model(fleet).windows[60.0].prefill_time_ratio == pytest.approx(shares[0])


def test_b11_replicas_with_different_token_edges_merge_by_edge_in_the_model() -> None:
    servers = [Server(name="a", max_model_len=8192), Server(name="b", max_model_len=32768)]
    scene = Scene(*servers)

    def traffic() -> None:
        servers[0].engine.set(running=1).serves(10, prompt=1500)
        servers[1].engine.set(running=1).serves(10, prompt=15000)

    model = only_model(scene.rounds(70, traffic)[-1])
    tokens = model.windows[60.0].tokens
    assert model.engines == {"serving": 2}
    assert model.windows[60.0].ttft_seconds.count == 120
    assert tokens.prompt_mean == pytest.approx(8250)


def test_b17_the_models_percentiles_come_from_added_buckets_and_the_slow_replica_speaks_for_itself() -> None:
    servers = [Server(name="a"), Server(name="b")]
    scene = Scene(*servers)

    def traffic() -> None:
        servers[0].engine.set(running=4).serves(165, prefill=0.065)
        if scene.now <= 60 and scene.now % 10 == 0:
            servers[1].engine.set(running=1).serves(2 if scene.now > 20 else 1, outside=0.0, prefill=6.0)

    fleet = scene.rounds(70, traffic)[-1]
    slow = next(report for report in fleet.engines if report.key.target == "b")
    ttft = only_model(fleet).windows[60.0].ttft_seconds
    assert ttft.count == 999
    assert ttft.p99 is not None
    assert ttft.p99.high == 0.08
    assert slow.numbers is not None
    assert slow.numbers.ttft_seconds.count == 9
    assert slow.numbers.ttft_seconds.p50 is not None
    assert (slow.numbers.ttft_seconds.p50.low, slow.numbers.ttft_seconds.p50.high) == (5, 7.5)
    assert slow.verdict not in (None, "healthy")


# --- B09, P2, P3, B13, P6: what a histogram cannot say ------------------------------------------------------------


@pytest.mark.parametrize("each", [0.001, 0.0001, 0.0])
def test_b09_p2_a_queue_that_nobody_waited_in_has_an_exact_mean_and_is_no_cause(each: float) -> None:
    server = Server()
    scene = Scene(server, objectives=("ttft_p99=10ms",))  # missed, so that every rule looks

    def traffic() -> None:
        server.engine.set(running=1).serves(200, queue=each, prefill=0.027, outside=0.002)

    report = scene.after(70, traffic)
    assert report.numbers is not None
    phases = report.numbers.phases
    assert phases.queue.mean_seconds == pytest.approx(each, abs=1e-9)
    assert phases.prefill.mean_seconds == pytest.approx(0.027)
    # Prefill takes all of the engine's time here: those who arrive wait for the running step longer than 2 ms.
    assert (phases.frontend.mean_seconds, phases.unexplained.mean_seconds) == (0, pytest.approx(0.002))
    assert report.numbers.ttft_seconds.p50 is not None
    assert report.numbers.ttft_seconds.p50.value == pytest.approx(0.03, abs=0.001)
    assert not {cause for cause in blamed(report) if cause.startswith("queue_")}
    shares = [getattr(phases, name).share for name, _ in PHASES]
    assert sum(share for share in shares if share is not None) == pytest.approx(1)


def test_p3_a_percentile_past_the_last_edge_is_a_lower_bound_that_surely_misses() -> None:
    server = Server()
    scene = Scene(server)

    def traffic() -> None:
        server.engine.set(running=4).serves(3, outside=9000.0)

    report = scene.after(70, traffic)
    assert report.numbers is not None
    p99 = report.numbers.ttft_seconds.p99
    assert p99 is not None
    assert (p99.value, p99.low, p99.high, p99.censored) == (2560, 2560, None, "above_last_edge")
    (symptom,) = (one for one in report.symptoms if one.objective == "ttft_p99")
    assert (symptom.surely, symptom.severity) == (True, "critical")


@pytest.mark.parametrize("silence", [60, 600])
def test_b13_p6_without_traffic_there_is_a_count_of_zero_and_no_latency(silence: float) -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: busy(server))
    server.engine.set(running=0, kv=0)
    report = scene.after(silence + 10)
    assert (answer(report), report.gauges_stale) == ("idle", False)
    assert report.numbers is not None
    for latency in (report.numbers.ttft_seconds, report.numbers.itl_seconds, report.numbers.e2e_seconds):
        assert (latency.count, latency.mean, latency.p50, latency.p99) == (0, None, None, None)
    assert report.numbers.queue.admissions_per_second == 0
    assert report.numbers.phases.queue.mean_seconds is None
    assert report.numbers.tokens.prompt_mean is None


# --- B15, P4, P5: restarts and old events -------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(5000, 12), (5000, 0), (1, 1), (12, 5000)])
@pytest.mark.parametrize("process", [True, False], ids=["with", "without process times"])
def test_b15_p5_after_a_restart_what_is_there_counts_as_new_and_nothing_is_negative(
    before: int, after: int, process: bool
) -> None:
    server = Server(process=process)
    server.engine.serves(before, output=10)
    # Other latencies than before, so that a bucket falls even where the count does not.
    scene = Scene(server, interval=15)
    scene.rounds(45)

    def new_process() -> None:
        server.restart(scene.now - 5)
        server.engine.serves(after, prefill=0.3, output=10)

    seen_before = scene.watcher.evaluate(scene.now).engines[0].restarts
    report = scene.round(new_process).engines[0]
    if (before, after) == (1, 1) and not process:
        return  # nothing on such a page tells
    assert (seen_before, report.restarts) == (0, 1)
    assert report.state == "warming_up"
    assert report.numbers is not None
    assert report.numbers.ttft_seconds.count == after
    assert report.numbers.tokens.generation_per_second == pytest.approx(after * 10 / report.numbers.window_seconds)
    assert scene.after(30).restarts == 1


def test_b15_all_engines_of_a_page_restart_together_and_once() -> None:
    server = Server(3)
    scene = Scene(server)
    scene.rounds(40, lambda: busy(server))

    def new_process() -> None:
        server.restart(scene.now - 5)
        busy(server, requests=50)

    fleet = scene.round(new_process)
    assert [report.restarts for report in fleet.engines] == [1, 1, 1]
    assert fleet.targets[0].restarts == 1
    assert [report.restarts for report in scene.rounds(60, lambda: busy(server))[-1].engines] == [1, 1, 1]


def test_p4_a_preemption_of_long_ago_is_not_reported_for_ever() -> None:
    server = Server()
    server.engine.counters["num_preemptions_total"] += 1
    scene = Scene(server, objectives=("itl_p99=10ms", "itl_stall=1s"))  # missed, so that every rule looks
    report = scene.after(120, lambda: busy(server))
    assert report.verdict not in (None, "healthy")
    assert report.numbers is not None
    assert report.numbers.kv_cache.preemptions_per_second == 0
    assert "decode_preemption" not in blamed(report)


# --- overload is a matter of latency, not of gauges ---------------------------------------------------------------


@pytest.mark.parametrize("kv", [0.5, 0.98, 1.0])
def test_a_full_cache_with_good_latency_is_healthy(kv: float) -> None:
    server = Server()
    report = Scene(server).after(120, lambda: busy(server, kv=kv, requests=20))
    assert (answer(report), report.confidence) == ("healthy", "high")


def test_no_number_of_any_case_is_nan() -> None:
    server = Server(2)
    scene = Scene(server)
    for traffic in (lambda: busy(server), lambda: None, lambda: server.restart(scene.now), lambda: busy(server)):
        for fleet in scene.rounds(40, traffic):
            assert not re.search(r"\bnan\b", repr(fleet), re.I)
            assert math.isfinite(fleet.at)
