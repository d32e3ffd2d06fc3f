"""Each cause proven by traffic that has it, at sizes other than the recordings', and not by what only looks like it."""

from collections.abc import Callable

import pytest

from phasewatch.core.model import EngineReport
from vllm_pages import Engine, Scene, Server, answer

Traffic = Callable[[Server], object]


def after(traffic: Traffic, *objectives: str, server: Server | None = None, seconds: float = 90) -> EngineReport:
    server = server or Server()
    scene = Scene(server, objectives=objectives, estimator="sums")
    return scene.after(seconds, lambda: traffic(server))


def grows(engine: Engine, by: float, *, running: float, kv: float) -> Engine:
    """A queue that grows by so many an interval."""
    return engine.set(running=running, waiting=engine.gauges["waiting"] + by, kv=kv)


def full_batch(server: Server) -> None:
    # Prefill takes a fifth of the time: 40 prompts of 50 ms in 10 s.
    grows(server.engine, 40, running=256, kv=0.5).serves(40, queue=12.0, prompt=600, output=300, batch=256)


def full_pool(server: Server) -> None:
    # 64,000 tokens in all; 3 % of them are free, and a prompt takes 4,000.
    grows(server.engine, 5, running=12, kv=0.97).serves(10, queue=9.0, prefill=0.4, prompt=4000, output=400, batch=12)


def prefill_behind(server: Server) -> None:
    # A prompt takes 0.9 s, and ten come in 10 s: most of the time is theirs.
    grows(server.engine, 3, running=9, kv=0.4).serves(10, queue=6.0, prefill=0.9, prompt=9000, output=20, batch=4)


def long_prompts(server: Server) -> None:
    server.engine.set(running=2, kv=0.2).serves(2, prefill=4.5, prompt=30000, output=50, itl=0.02)


def long_prompts_uncached(server: Server) -> None:
    server.engine.prefix_caching = False
    long_prompts(server)


def slow_front_end(server: Server) -> None:
    server.engine.set(running=6, kv=0.1).serves(12, prefill=0.2, outside=5.0, output=60)
    server.cpu_seconds += 9.9


def shared_steps(server: Server) -> None:
    """Eight streams; every few seconds a prompt of 2 s stops them all."""
    engine = server.engine.set(running=8, kv=0.4)
    engine.first_tokens(2.3, 1, prompt=16000)
    engine.finishes(1, prefill=2.2, decode=6.0, prompt=16000, output=200)
    engine.tokens(0.03, 1600, batch=8)
    engine.tokens(2.2, 8, batch=8)


def large_batch(server: Server) -> None:
    server.engine.set(running=400, kv=0.8).serves(80, prefill=0.1, output=100, itl=0.18, batch=400)


def evictions(server: Server) -> None:
    engine = server.engine.set(running=8, kv=1.0)
    engine.counters["num_preemptions_total"] += 4
    engine.serves(5, prompt=500, output=100, batch=8)
    engine.tokens(3.0, 6, batch=8)


def long_answers(server: Server) -> None:
    server.engine.set(running=20, kv=0.3).serves(6, output=4000, itl=0.02, batch=20)


def errors(server: Server) -> None:
    server.engine.set(running=4, kv=0.3).serves(40)
    server.answers(4, "5xx")


def refusals(server: Server) -> None:
    server.engine.set(running=4, kv=0.3).serves(40)
    server.rejections += 9
    server.answers(9, "5xx")


PROVEN: tuple[tuple[str, Traffic, tuple[str, ...], set[str]], ...] = (
    ("queue_batch_limit", full_batch, (), {"high"}),
    ("queue_kv_cache", full_pool, (), {"high"}),
    ("queue_prefill_backlog", prefill_behind, (), {"high", "medium"}),
    ("prefill_long_prompts", long_prompts, (), {"medium"}),  # 12 requests a minute
    ("prefill_cache_off", long_prompts_uncached, (), {"medium"}),
    ("frontend", slow_front_end, (), {"high"}),
    ("decode_interference", shared_steps, ("ttft_p99=10s",), {"high", "medium"}),
    ("decode_batch", large_batch, (), {"low"}),
    ("decode_preemption", evictions, (), {"high", "medium"}),
    ("output_length", long_answers, ("e2e_p99=30s",), {"high", "medium"}),
    ("requests_failing", errors, (), {"high", "medium"}),
    ("requests_failing", refusals, (), {"high", "medium"}),
)


@pytest.mark.parametrize(
    ("verdict", "traffic", "objectives", "confidence"), PROVEN, ids=[row[1].__name__ for row in PROVEN]
)
def test_a_cause_is_proven_by_its_traffic(
    verdict: str, traffic: Traffic, objectives: tuple[str, ...], confidence: set[str]
) -> None:
    report = after(traffic, *objectives)
    assert answer(report) == verdict
    assert report.confidence in confidence
    leading = report.causes[0]
    assert leading.remedies
    assert leading.evidence
    assert leading.refuted_by
    assert 0.5 <= leading.score <= 1


def test_without_the_size_of_the_pool_a_full_one_is_told_by_its_usage_with_low_confidence() -> None:
    server = Server()
    server.engine.blocks = None
    report = after(full_pool, server=server)
    assert (answer(report), report.confidence) == ("queue_kv_cache", "low")


@pytest.mark.parametrize(("prefill", "confidence"), [(0.005, "high"), (0.8, "low")])
def test_where_prompts_shorter_than_the_batch_hide_prefills_share_of_time_its_bound_decides_the_confidence(
    prefill: float, confidence: str
) -> None:
    def short_prompts(server: Server) -> None:
        grows(server.engine, 40, running=256, kv=0.5).serves(
            40, queue=12.0, prompt=100, prefill=prefill, output=300, batch=256
        )

    report = after(short_prompts)
    assert report.numbers is not None
    assert report.numbers.prefill_time_ratio is None
    assert (answer(report), report.confidence) == ("queue_batch_limit", confidence)


def test_without_process_metrics_a_full_batch_is_told_with_less_confidence() -> None:
    report = after(full_batch, server=Server(process=False))
    assert (answer(report), report.confidence) == ("queue_batch_limit", "medium")
    assert "start_time" in report.missing


@pytest.mark.parametrize("traffic", [full_batch, full_pool, long_prompts, large_batch, evictions, shared_steps])
def test_the_same_gauges_with_objectives_met_are_healthy(traffic: Traffic) -> None:
    """No verdict without a symptom: overload is told by what users feel."""
    report = after(
        lambda server: (traffic(server), server.engine.set(waiting=0)),
        "ttft_p99=1h", "itl_p99=1h", "itl_stall=1h",
    )  # fmt: skip
    assert answer(report) == "healthy"


def test_one_slow_request_is_no_incident_and_two_are_one() -> None:
    def slow(requests: int) -> EngineReport:
        server = Server()
        scene = Scene(server, estimator="sums")
        scene.after(60, lambda: server.engine.set(running=1).serves(5))
        return scene.round(lambda: server.engine.serves(requests, outside=8.0)).engines[0]

    assert answer(slow(1)) == "healthy"
    assert answer(slow(2)) != "healthy"


def test_requests_that_wait_for_something_else_than_room_are_no_queue() -> None:
    def deferred(server: Server) -> None:
        server.engine.set(running=4, waiting=30, deferred=30, kv=0.2).serves(8, queue=4.0)

    report = after(deferred)
    assert not {cause.verdict for cause in report.causes if cause.verdict.startswith("queue_")}
    assert report.numbers is not None
    assert report.numbers.queue.waiting_deferred == 30


def test_a_queue_leads_although_the_pace_is_further_over_its_limit() -> None:
    """Demand above capacity explains the rest, and every flag only moves the pain."""

    def both(server: Server) -> None:
        grows(server.engine, 40, running=256, kv=0.5).serves(100, queue=3.0, output=100, itl=2.0, batch=256)

    report = after(both)
    assert answer(report) == "queue_batch_limit"
    assert {cause.symptom for cause in report.causes} >= {"itl_p99"}


def test_clients_that_give_up_before_the_first_token_are_a_symptom_and_later_ones_are_not() -> None:
    def impatient(server: Server) -> None:
        server.engine.set(running=4, waiting=0, kv=0.3).serves(20)
        server.answers(3)

    def stop_buttons(server: Server) -> None:
        server.engine.set(running=4, kv=0.3).serves(20)
        server.engine.first_tokens(0.05, 3)
        server.engine.tokens(0.03, 30)
        server.answers(3)

    early, late = after(impatient), after(stop_buttons)
    assert [symptom.objective for symptom in early.symptoms] == ["gave_up"]
    assert answer(early) == "unknown"
    assert (answer(late), late.symptoms) == ("healthy", ())
    assert late.numbers is not None
    assert late.numbers.queue.gave_up_ratio == pytest.approx(3 / 23)


def test_a_prefill_sum_that_cannot_be_true_proves_nothing() -> None:
    """vLLM can add an uptime to a queue time: the bucket edges contradict the mean."""

    def broken(server: Server) -> None:
        server.engine.set(running=2, kv=0.2).serves(4, prefill=0.1, outside=4.0)
        server.engine._sums["request_queue_time_seconds"] += 1e6  # type: ignore[assignment]

    report = after(broken)
    assert report.numbers is not None
    assert report.numbers.phases.queue.mean_seconds is None
    assert report.numbers.phases.frontend.mean_seconds is None
    assert not {cause.verdict for cause in report.causes if cause.verdict.startswith("queue_")}


@pytest.mark.parametrize("gone", ["time_to_first_token_seconds", "inter_token_latency_seconds"])
def test_what_is_not_on_the_page_is_missing_and_never_fine(gone: str) -> None:
    everything = [name for name, _, _ in Server()._families() if not name.endswith(gone)]
    report = after(lambda server: server.engine.set(running=2).serves(4, outside=5.0), server=Server(only=everything))
    assert {"time_to_first_token_seconds": "ttft", "inter_token_latency_seconds": "itl"}[gone] in report.missing


def test_a_page_with_neither_ttft_nor_itl_is_unknown_not_healthy() -> None:
    server = Server(only=["vllm:num_requests_running", "vllm:num_requests_waiting"])
    report = after(lambda server: server.engine.set(running=2), server=server, seconds=30)
    assert answer(report) != "healthy"
