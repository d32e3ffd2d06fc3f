"""Rule of evidence 8: life events, and what is cold after them; cases of ../shared/cases-2.md, by their names there."""

from collections import Counter

import pytest

from case_pages import Richer, advice, advisory, blamed, kinds
from phasewatch.core.model import EngineReport, ObjectiveResult
from vllm_pages import Scene, Server, answer


def test_events_of_a_life_stand_in_the_report_with_what_changed() -> None:
    server = Server()
    scene = Scene(server)

    def busy() -> None:
        server.engine.set(running=2).serves(4)

    assert [one.kind for one in scene.after(60, busy).events] == []
    server.restart(70)
    server.engine.blocks, server.engine.prefix_caching = 2000, False
    report = scene.after(10, busy)
    assert [(one.kind, one.before, one.after) for one in report.events] == [
        ("restart", 1.7e9, 1.7e9 + 70),
        ("capacity", 64_000, 32_000),
        ("configuration", "enable_prefix_caching=True", "enable_prefix_caching=False"),
    ]
    assert {one.at for one in report.events} == {70}
    server.engine.set(running=0, awake=0)
    scene.rounds(30)
    server.engine.set(awake=1)
    assert [one.kind for one in scene.after(10).events][3:] == ["wake_up"]


# --- KV transfers ------------------------------------------------------------------------------------------------


def handing_over(server: Richer, family: str, lost: int, transfers: int = 20) -> None:
    server.engine.set(running=2).serves(transfers)
    server.adds(family, lost)


@pytest.mark.parametrize(
    "family",
    [
        "nixl_num_failed_transfers_total", "nixl_num_failed_notifications_total", "nixl_num_kv_expired_reqs_total",
        "mooncake_num_failed_recvs_total", "hf3fs_num_failed_load_total",
    ],
)  # fmt: skip
def test_failing_hand_overs_are_a_symptom_of_their_own_though_latencies_are_fine(family: str) -> None:
    server = Richer()
    scene = Scene(server)
    assert answer(scene.after(60, lambda: handing_over(server, family, 0))) == "healthy"
    report = scene.after(60, lambda: handing_over(server, family, 2))
    assert answer(report) == "kv_transfer"
    assert [one.objective for one in report.symptoms] == ["kv_transfers_failing"]
    assert "12 " in report.summary
    leases = "lease" in advice(report)
    assert leases == ("expired" in family)
    assert ("network between prefill and decode" in advice(report)) == (not leases)
    # They stopped: the window still has them, and then no longer.
    easing = scene.after(10, lambda: handing_over(server, family, 0))
    assert easing.causes[0].easing
    assert answer(scene.after(80, lambda: handing_over(server, family, 0))) == "healthy"


@pytest.mark.parametrize("lost", [1, 3])
def test_one_lost_hand_over_of_many_is_no_symptom(lost: int) -> None:
    server = Richer()
    scene = Scene(server)
    scene.after(60, lambda: handing_over(server, "nixl_num_failed_transfers_total", 0, 100))
    scene.round(lambda: handing_over(server, "nixl_num_failed_transfers_total", lost, 100))
    report = scene.after(30, lambda: handing_over(server, "nixl_num_failed_transfers_total", 0, 100))
    assert answer(report) == "healthy"


@pytest.mark.parametrize("role", ["decode", None])
def test_a_decode_engine_that_computes_its_prompts_has_lost_its_prefill_side(role: str | None) -> None:
    server = Server()
    scene = Scene(server, roles={} if role is None else {"s": role})
    report = scene.after(90, lambda: server.engine.set(running=2).serves(2, prefill=6.0, prompt=6000))
    assert answer(report) == ("prefill_long_prompts" if role is None else "kv_transfer")
    assert ("check the connector on both sides" in advice(report)) == (role is not None)


# --- cold starts --------------------------------------------------------------------------------------------------

INTERVALS = pytest.mark.parametrize("interval", [2.0, 10.0])


@INTERVALS
@pytest.mark.parametrize("lived", [True, False], ids=["after a life", "asleep at first sight"])
@pytest.mark.parametrize("at_once", [True, False])
def test_b34_slow_first_tokens_after_waking_up_are_a_cold_start(interval: float, lived: bool, at_once: bool) -> None:
    server = Server()
    scene, engine = Scene(server, interval=interval), server.engine
    if lived:
        scene.rounds(120, lambda: engine.set(running=1).serves(2, prefill=0.1, prompt=300))
    engine.set(running=0, awake=0)
    assert answer(scene.after(60)) == "asleep"
    engine.set(awake=1)
    scene.rounds(20)
    slow = {"prefill": 3.9, "outside": 2.1, "prompt": 300}
    for times in (6,) if at_once else (2, 2, 2):
        scene.round(lambda times=times: engine.set(running=1).serves(times, **slow))  # type: ignore[misc]
    report = scene.round(lambda: engine.set(running=0)).engines[0]
    assert answer(report) == "cold_start"
    assert not {one for one in blamed(report) if one.startswith(("prefill_", "queue_"))}
    assert "since it woke up" in report.summary
    assert "wake_up" in [one.kind for one in report.events]
    assert "wake-up" in advisory(report, "warm_up")


def test_b34_prompts_that_stay_slow_after_that_minute_are_no_cold_start() -> None:
    server = Server()
    scene, engine = Scene(server), server.engine
    engine.set(awake=0)
    scene.after(60)
    engine.set(awake=1)
    report = scene.after(150, lambda: engine.set(running=1).serves(1, prefill=3.9, prompt=6000))
    assert answer(report) == "prefill_long_prompts"


@INTERVALS
@pytest.mark.parametrize("restarts", [True, False])
def test_c30_one_slow_request_right_after_the_start_is_told_as_warm_up(interval: float, restarts: bool) -> None:
    server = Server()
    scene, engine = Scene(server, interval=interval, objectives=["ttft_p99=1s"]), server.engine
    if restarts:
        scene.rounds(60, lambda: engine.serves(4))
        server.restart(60)
    scene.rounds(30)

    def compiles_first() -> None:
        engine.set(running=1).serves(1, prefill=1.53)
        engine.serves(49, prefill=0.05)

    scene.round(compiles_first)
    report = scene.after(20, lambda: engine.set(running=0))
    assert report.verdict in (None, "healthy", "cold_start")
    assert "warm_up" in kinds(report)
    assert ("restart" if restarts else "start") in advisory(report, "warm_up")
    # An hour later it is no longer in any window, nor is a slow one of then a warm-up.
    scene.rounds(120, lambda: engine.serves(4))
    scene.round(compiles_first)
    assert "warm_up" not in kinds(scene.round(lambda: engine.serves(4)).engines[0])


def test_a_queue_behind_steps_that_compile_is_a_cold_start_and_no_batch_limit() -> None:
    """The first request was alone, and nothing has finished yet."""
    server = Server()
    scene, engine = Scene(server, interval=2.0), server.engine
    scene.rounds(20)
    scene.round(lambda: engine.set(running=1).first_tokens(7.0))
    scene.rounds(6, lambda: engine.set(running=1))
    scene.round(lambda: engine.set(running=4, waiting=2).first_tokens(13.0, 2))
    report = scene.after(10, lambda: engine.set(running=4, waiting=2))
    assert answer(report) == "cold_start"


def test_stalls_of_the_same_minute_have_the_same_cause() -> None:
    server = Server()
    scene, engine = Scene(server, interval=2.0), server.engine
    scene.rounds(20)

    def compiles() -> None:
        engine.set(running=3).first_tokens(4.0)
        engine.tokens(4.0, 2, batch=2)

    for _ in range(3):
        scene.round(compiles)
        scene.round(lambda: engine.tokens(0.03, 60, batch=3))
    report = scene.after(10, lambda: engine.set(running=0))
    assert answer(report) == "cold_start"
    symptoms = {one.objective for one in report.symptoms}
    assert (
        {"ttft_p99", "itl_stall"} <= symptoms == {one.symptom for one in report.causes if one.verdict == "cold_start"}
    )


# --- KV cache without traffic -------------------------------------------------------------------------------------


@INTERVALS
@pytest.mark.parametrize(("kv", "told"), [(0.96, True), (0.2, True), (0.001, False), (0.0, False)])
@pytest.mark.parametrize("awake", [1, 0])
def test_c44_blocks_held_by_an_idle_engine_are_told_before_traffic_returns(
    interval: float, kv: float, told: bool, awake: int
) -> None:
    server = Server()
    scene, engine = Scene(server, interval=interval), server.engine
    scene.rounds(60, lambda: engine.set(running=2, kv=0.3).serves(4))
    engine.set(running=0, kv=kv, awake=awake)
    report = scene.after(180)
    assert (report.state, report.verdict) == ("idle" if awake else "asleep", None)
    assert ("kv_held" in kinds(report)) == told
    busy = scene.after(20, lambda: engine.set(running=2, kv=max(kv, 0.3), awake=1).serves(4))
    assert "kv_held" not in kinds(busy)


def test_a_pool_too_small_for_the_longest_allowed_request_or_for_those_present_is_told() -> None:
    info = 'vllm:cache_config_info{engine="0",kv_cache_size_tokens="16000",kv_cache_max_concurrency="0.5"}'
    small = Richer()
    small.more = Counter({info: 1})
    text = advisory(Scene(small).after(60, lambda: small.engine.set(running=1).serves(2)), "kv_small")
    assert "the longest allowed request has 32,000" in text
    many = Server()
    many.engine.blocks = 500  # 8,000 tokens
    scene = Scene(many)
    report = scene.after(60, lambda: many.engine.set(running=8, kv=0.5).serves(2, prompt=1500, batch=8))
    assert "holds about 5 requests of 1,510 tokens" in advisory(report, "kv_small")
    many.engine.blocks = 5000
    assert "kv_small" not in kinds(scene.after(90, lambda: many.engine.serves(2, prompt=1500, batch=8)))


def test_adapters_without_a_slot_are_told_while_requests_wait_for_them() -> None:
    server = Richer()
    lora = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="c"}'
    server.more = Counter({lora: 1})
    scene = Scene(server)
    report = scene.after(60, lambda: server.engine.set(running=2, waiting=1, deferred=1).serves(4))
    assert "1 LoRA adapters that have no slot (max_loras 2)" in advisory(report, "adapters_waiting")
    report = scene.after(90, lambda: server.engine.set(running=2, waiting=0, deferred=0).serves(4))
    assert "adapters_waiting" not in kinds(report)


# --- what else makes prefill slow ---------------------------------------------------------------------------------


def result_of(report: EngineReport, objective: str = "ttft_p99") -> ObjectiveResult:
    return next(one for one in report.objectives if one.objective == objective)


def _prompts(server: Server, times: int = 2, **how: float) -> None:
    server.engine.set(running=1).serves(times, **how)  # type: ignore[arg-type]


@INTERVALS
@pytest.mark.parametrize(("prompt", "prefill"), [(300, 0.1), (3000, 0.9)])
def test_prompts_that_compute_slower_than_before_are_no_matter_of_length(
    interval: float, prompt: int, prefill: float
) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(180, lambda: _prompts(server, prompt=prompt, prefill=prefill))
    report = scene.after(90, lambda: _prompts(server, prompt=prompt, prefill=5 * max(prefill, 0.7)))
    assert answer(report) == "prefill_slow"
    assert "before" in report.summary
    assert "shorter prompts" not in advice(report)
    assert "LoRA" not in advice(report)
    assert answer(scene.after(90, lambda: _prompts(server, prompt=prompt, prefill=prefill))) == "healthy"


@INTERVALS
@pytest.mark.parametrize("every", [12.0, 16.0])
def test_a_young_engine_with_few_requests_has_a_past_as_well(interval: float, every: float) -> None:
    server = Server()
    scene, wait = Scene(server, interval=interval), max(every, interval)

    def some(prefill: float) -> None:
        """One request every so often: twenty of them reach far behind the minute that is judged."""
        server.engine.set(running=0)
        if scene.now % wait < interval:
            _prompts(server, times=1, prompt=1000, prefill=prefill)

    scene.after(180, lambda: some(0.5))
    report = scene.after(80, lambda: some(4.0))
    assert result_of(report).span_seconds > 100, "it is judged over much of the time before"
    assert answer(report) == "prefill_slow"


def test_prompts_that_are_longer_and_as_fast_as_before_are_long() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(180, lambda: _prompts(server, prompt=1000, prefill=0.5))
    report = scene.after(90, lambda: _prompts(server, prompt=8000, prefill=4.2))
    assert answer(report) == "prefill_long_prompts"
    assert "prefill_slow" not in blamed(report)


def test_an_adapter_that_was_just_loaded_is_the_first_thing_to_look_at() -> None:
    server = Richer()
    scene = Scene(server)
    scene.after(180, lambda: _prompts(server, prompt=300, prefill=0.1))
    server.more = Counter(
        {'vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",waiting_lora_adapters=""}': 1}
    )
    report = scene.after(50, lambda: _prompts(server, prompt=300, prefill=4.0))
    assert answer(report) == "prefill_slow"
    assert advice(report).startswith("wait until the LoRA adapters are loaded")
    assert [one.kind for one in report.events] == ["adapters"]


@INTERVALS
@pytest.mark.parametrize("before", [0.9, 0.6])
def test_hits_far_below_the_best_known_are_why_prompts_are_computed(interval: float, before: float) -> None:
    server = Server()
    scene, prompt = Scene(server, interval=interval), 4000
    cached = round(prompt * before)
    scene.after(300, lambda: _prompts(server, prompt=prompt, cached=cached, prefill=4 * (1 - before), outside=0.01))
    report = scene.after(90, lambda: _prompts(server, prompt=prompt, prefill=4.0))
    assert answer(report) == "prefill_cache_misses"
    assert f"{before:.0%}".replace("%", " %") in report.summary
    # An hour of misses does not make them usual.
    assert answer(scene.after(600, lambda: _prompts(server, prompt=prompt, prefill=4.0))) == "prefill_cache_misses"


@pytest.mark.parametrize("size", [16, 784])
def test_a_block_longer_than_the_prompts_can_have_no_hit(size: int) -> None:
    server = Server()
    server.engine.block_size = size
    report = Scene(server).after(90, lambda: _prompts(server, prompt=600, prefill=3.5))
    assert answer(report) == ("prefill_long_prompts" if size == 16 else "prefill_cache_misses")
    assert ("--block-size" in advice(report)) == (size == 784)
    assert "route by prefix (cache" not in advice(report)


def test_prompts_whose_blocks_were_lost_on_the_way_explain_as_many_slow_first_tokens() -> None:
    """Twenty prompts an interval come from elsewhere; of six computed here, as many as transfers were lost."""
    for lost, verdict in ((6, "kv_transfer"), (4, "kv_transfer"), (2, "prefill_long_prompts")):
        server = Richer()
        scene = Scene(server, objectives=["ttft_p90=2.5s"])

        def traffic(server: Richer = server, lost: int = lost) -> None:
            server.engine.set(running=2).serves(20, prompt=1, prefill=0.01)
            server.engine.serves(6, prompt=6000, prefill=5.0)
            server.adds("prompt_tokens_by_source_total", 20 * 6000, source="external_kv_transfer")
            server.adds("nixl_num_failed_transfers_total", lost)

        report = scene.after(90, traffic)
        of_ttft = [one for one in report.causes if one.symptom == "ttft_p90"]
        assert of_ttft[0].verdict == verdict
