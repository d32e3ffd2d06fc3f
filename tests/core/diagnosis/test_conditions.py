"""Remedies that what was measured contradicts are not named; what an unknown cause says; when the pool is short."""

import pytest

from case_pages import advice, advisory, kinds
from phasewatch.core.model import EngineReport
from vllm_pages import Scene, Server, answer

SAME_PREFIXES = "keep prompt prefixes identical"


def after(server: Server, traffic: object, *objectives: str) -> EngineReport:
    return Scene(server, objectives=objectives, estimator="sums").after(90, traffic)  # type: ignore[arg-type]


@pytest.mark.parametrize(("fullest", "named"), [(0.5, True), (0.999, False)])
def test_a_larger_batch_is_advised_only_with_room_for_it_all_along(fullest: float, named: bool) -> None:
    server = Server()
    rounds = iter(range(100))

    def full_batch() -> None:
        # Of 64,000 tokens 64 are free at the fullest, every third scrape; a prompt takes 600.
        kv = fullest if next(rounds) % 3 == 0 else 0.5
        server.engine.set(running=256, waiting=server.engine.gauges["waiting"] + 40, kv=kv)
        server.engine.serves(40, queue=12.0, prompt=600, output=300, batch=256)

    report = after(server, full_batch)
    assert answer(report) == "queue_batch_limit"
    assert ("--max-num-seqs 256 -> " in advice(report)) == named
    assert advice(report).startswith("shed load")


@pytest.mark.parametrize(("cached", "named"), [(0, True), (15000, True), (27000, False)])
def test_steadier_prefixes_are_advised_only_where_the_cache_misses_much(cached: int, named: bool) -> None:
    server = Server()

    def long_prompts() -> None:
        server.engine.set(running=2, kv=0.2).serves(2, prefill=4.5, prompt=30000, cached=cached, output=50, itl=0.02)

    report = after(server, long_prompts)
    assert answer(report) == "prefill_long_prompts"
    assert (SAME_PREFIXES in advice(report)) == named
    assert "--enable-prefix-caching" not in advice(report)


@pytest.mark.parametrize("on", [True, False])
def test_prefixes_matter_to_a_queue_only_with_the_cache_on(on: bool) -> None:
    server = Server()
    server.engine.prefix_caching = on

    def prefill_behind() -> None:
        server.engine.set(running=9, waiting=server.engine.gauges["waiting"] + 3, kv=0.4)
        server.engine.serves(10, queue=6.0, prefill=0.9, prompt=9000, output=20, batch=4)

    report = after(server, prefill_behind)
    assert answer(report) == "queue_prefill_backlog"
    assert (SAME_PREFIXES in advice(report)) == on
    assert ("--enable-prefix-caching" in advice(report)) == (not on)


@pytest.mark.parametrize("refused", [0, 9])
def test_a_longer_queue_is_advised_only_where_requests_met_its_limit(refused: int) -> None:
    server = Server()

    def failing() -> None:
        server.engine.set(running=4, kv=0.3).serves(40)
        server.rejections += refused
        server.answers(9, "5xx")

    report = after(server, failing)
    assert answer(report) == "requests_failing"
    assert ("--max-num-queued-reqs" in advice(report)) == (refused > 0)


def test_an_unknown_cause_says_what_was_measured_against_which_limit() -> None:
    server = Server()
    report = after(server, lambda: server.engine.set(running=0).serves(6, prompt=10, itl=0.02), "ttft_p99=20ms")
    assert answer(report) == "unknown"
    cause = report.causes[0]
    assert cause.summary.startswith("Cause unknown.")
    assert cause.evidence["limit_seconds"] == 0.02
    value = cause.evidence["ttft_p99_seconds"]
    assert isinstance(value, float)
    assert value > 0.02
    assert (cause.refuted_by, cause.remedies) == ("", ())
    assert "spec_drafts" not in cause.summary + str(report.missing)


def test_signals_that_would_decide_are_named_where_a_server_should_have_them() -> None:
    names = [name for name, _, _ in Server()._families() if "request_prefill" not in name and "queue_time" not in name]
    server = Server(only=names)
    report = after(server, lambda: server.engine.set(running=0).serves(6, prompt=10, itl=0.02), "ttft_p99=20ms")
    assert answer(report) == "unknown"
    assert "missing and would help: " in report.summary
    assert "prefill" in report.summary.partition("would help")[2]
    assert "spec_drafts" not in report.summary


@pytest.mark.parametrize(("free", "short"), [(3999, True), (4015, True), (4017, False)])
def test_the_pool_is_short_of_a_mean_prompt_and_one_block_for_all_that_ask(free: int, short: bool) -> None:
    """64,000 tokens in blocks of 16; a prompt takes 4,000. Seen by the queue's rules and by the advisory."""
    kv = 1 - free / 64000

    def waits(waiting: float) -> EngineReport:
        server = Server()

        def traffic() -> None:
            grown = server.engine.gauges["waiting"] + waiting
            server.engine.set(running=12, waiting=grown, kv=kv).serves(
                10, queue=9.0 if waiting else 0, prefill=0.4, prompt=4000, output=400, batch=12
            )

        return after(server, traffic)

    queued, alone = waits(5), waits(0)
    assert (answer(queued) == "queue_kv_cache") == short
    assert ("kv_tight" in kinds(alone)) == short
    if short:
        assert "a mean prompt has 4,000" in advisory(alone, "kv_tight")
