"""Cases from the field about tokens that come slowly: what the past, the gaps and the batch bear out."""

import pytest

from case_pages import advice, blamed, said
from phasewatch.core.model import EngineReport
from vllm_pages import Scene, Server, answer

# --- the past is the best known ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "interval"), [(0.02, 5.0), (0.02, 10.0), (0.024, 10.0), (0.011, 15.0)])
def test_x3_a_pace_that_no_gap_ever_had_is_not_remembered(gap: float, interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    engine = server.engine.set(running=4, kv=0.2)

    def traffic() -> None:
        engine.tokens(gap, round(4 * interval / gap), batch=4)
        slow = scene.now == 210
        engine.first_tokens(8.0 if slow else 0.1, 6 if slow else 1, prompt=200)
        engine.finishes(6 if slow else 1, prefill=8.0 if slow else 0.09, decode=200 * gap, prompt=200, output=200)

    reports = [fleet.engines[0] for fleet in scene.rounds(900, traffic)]
    assert not any(blamed(report) & {"decode_slow"} for report in reports)
    assert {answer(report) for report in reports[-15:]} == {"healthy"}


def turn(scene: Scene, context: int, itl: float, seconds: float) -> EngineReport:
    """One conversation of a lone user goes on: nearly all of its prompt is cached."""
    engine = scene.servers[0].engine.set(running=1, kv=0.5)

    def answer_comes() -> None:
        engine.tokens(itl, round(scene.interval / itl))
        if scene.now % 60 == 0:
            engine.first_tokens(0.3, prompt=context, cached=context - 300)
            engine.finishes(prefill=0.29, decode=60.0, prompt=context, cached=context - 300, output=round(60 / itl))

    return scene.after(seconds, answer_comes)


@pytest.mark.parametrize(("interval", "seconds"), [(5.0, 120.0), (10.0, 120.0), (15.0, 2700.0)])  # 16 minutes, 6 hours
def test_c48_a_drift_over_turns_keeps_the_first_pace_and_names_the_uptime(seconds: float, interval: float) -> None:
    scene = Scene(Server(max_model_len=131072), interval=interval, objectives=("ttft_p99=10s", "itl_p99=10s"))
    for number, milliseconds in enumerate((60, 105, 150, 195, 245, 290, 340, 386)):
        report = turn(scene, 41_000 + 1000 * number, milliseconds / 1000, seconds)
        if number:
            assert answer(report) == "decode_slow", number
            assert report.causes[0].evidence["own_past_pace_seconds"] == pytest.approx(0.060, rel=0.1)
    assert report.causes[0].evidence["times_slower"] == pytest.approx(386 / 60, rel=0.1)
    assert "uptime" in report.summary
    assert "restart" in advice(report)
    assert "version" in advice(report)


def held(server: Server, interval: float, *, running: int, gap: float, prompt: int, done: int = 1) -> None:
    """So many streams of such prompts, none of them cached."""
    engine = server.engine.set(running=running, kv=0.2)
    engine.tokens(gap, max(1, round(interval / gap)) * running, batch=running)
    if done:
        engine.first_tokens(0.12, done, prompt=prompt)
        engine.finishes(done, prefill=0.11, decode=5.0, prompt=prompt, output=200)


@pytest.mark.parametrize("interval", [2.0, 5.0, 10.0, 15.0])
def test_c22_a_pace_far_beyond_what_longer_contexts_cost_is_no_context_and_no_batch(interval: float) -> None:
    """Contexts four times as long, at a smaller batch, and steps of 30 times the time."""
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(180, lambda: held(server, interval, running=12, gap=0.026, prompt=1100))
    scene.round(lambda: held(server, interval, running=5, gap=0.8, prompt=4600, done=5))
    fleets = scene.rounds(600, lambda: held(server, interval, running=5, gap=0.8, prompt=4600, done=0))
    for report in (fleet.engines[0] for fleet in fleets):
        assert not blamed(report) & {"decode_context", "decode_batch"}
        for cause in report.causes:
            assert float(cause.evidence.get("own_past_pace_seconds", 1.0)) >= 0.025
    assert answer(report) == "decode_slow"


@pytest.mark.parametrize("interval", [2.0, 5.0, 10.0])
def test_c33_the_past_is_what_it_was_while_the_window_still_holds_both_paces(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(240, lambda: held(server, interval, running=7, gap=0.034, prompt=300))
    for fleet in scene.rounds(120, lambda: held(server, interval, running=7, gap=0.16, prompt=300)):
        for cause in fleet.engines[0].causes:
            if cause.verdict == "decode_slow":
                assert cause.evidence["own_past_pace_seconds"] == pytest.approx(0.034, rel=0.1)
                assert "uptime" not in cause.summary
    assert answer(fleet.engines[0]) == "decode_slow"


@pytest.mark.parametrize("interval", [2.0, 5.0, 10.0])
def test_c48_a_context_that_grows_by_itself_is_named_with_the_pace_it_had_when_it_was_short(interval: float) -> None:
    """One conversation, 14 ms a step and 0.9 us for each token of context."""
    scene = Scene(Server(max_model_len=131072), interval=interval, objectives=("ttft_p99=10s", "itl_p99=60ms"))
    for context in range(8_000, 110_000, 6_000):
        pace = 0.014 + 0.9e-6 * context
        report = turn(scene, context, pace, 60.0)
        assert not blamed(report) & {"decode_slow", "decode_batch"}, context
        for cause in (one for one in report.causes if one.verdict == "decode_context"):
            # A turn's prompt is known when it ends.
            then = 0.014 + 0.9e-6 * float(cause.evidence["earlier_context_tokens"])
            assert 0.9 * then <= float(cause.evidence["earlier_pace_seconds"]) <= 1.1 * (then + 0.9e-6 * 6_000)
    assert answer(report) == "decode_context"


# --- pauses -----------------------------------------------------------------------------------------------------------


def pauses(server: Server, interval: float, *, every: float, pause: float, prompt: int = 60) -> None:
    """20 streams at 18 ms a token, all of which stop so long, so often; a short prompt a second."""
    engine = server.engine.set(running=20, kv=0.3)
    count = max(1, round(interval / every))
    engine.tokens(pause, 20 * count, batch=20)
    engine.tokens(0.018, round((interval - count * pause) / 0.018) * 20, batch=20)
    for _ in range(round(interval)):
        engine.first_tokens(0.06, prompt=prompt)
        engine.finishes(prefill=0.05, decode=4.0, prompt=prompt, output=200)


@pytest.mark.parametrize("interval", [2.0, 5.0, 10.0, 15.0])
@pytest.mark.parametrize(("every", "pause"), [(1.5, 0.23), (1.2, 0.28), (1.0, 0.7)])
def test_c36_streams_that_all_stop_again_and_again_are_a_pause_of_the_host(
    every: float, pause: float, interval: float
) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    report = scene.after(120, lambda: pauses(server, interval, every=every, pause=pause))
    assert answer(report) == "decode_pause"
    assert report.causes[0].evidence["pause_at_least_seconds"] <= pause
    assert report.causes[0].evidence["pause_at_most_seconds"] >= pause
    assert "CPU throttling" in advice(report)


@pytest.mark.parametrize("lacks", ["process", "iterations", "prefill"])
def test_c36_is_told_with_fewer_families_too_and_misses_nothing_that_the_server_rightly_lacks(lacks: str) -> None:
    server = Server(process=lacks != "process", old=lacks == "iterations")
    scene = Scene(server)
    report = scene.after(120, lambda: pauses(server, 10.0, every=1.5, pause=0.23))
    assert answer(report) == "decode_pause"
    assert report.causes[0].confidence in ("low", "medium")
    assert "spec_drafts" not in said(report)


def test_c36_pauses_that_grow_say_so_and_ask_for_a_restart() -> None:
    server = Server()
    scene = Scene(server, objectives=("itl_p99=100ms", "ttft_p99=60s"))
    for pause in (0.18, 0.45, 0.9):
        report = scene.after(240, lambda pause=pause: pauses(server, 10.0, every=1.25, pause=pause))  # type: ignore[misc]
        assert answer(report) == "decode_pause"
    assert "grow with its uptime" in report.summary
    assert "restart" in advice(report)


@pytest.mark.parametrize("interval", [2.0, 5.0, 10.0])
def test_gaps_that_long_prompts_can_have_made_are_no_pause(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)

    def traffic() -> None:
        engine = server.engine.set(running=20, kv=0.3)
        prompts = max(1, round(interval / 1.4))
        engine.observe("time_to_first_token_seconds", 0.5, prompts)
        engine.observe("iteration_tokens_total", 3020, prompts)
        engine.counters["prompt_tokens_total"] += 3000 * prompts
        engine.counters["computed"] += 3000 * prompts
        engine.observe("inter_token_latency_seconds", 0.45, 20 * prompts)
        engine.tokens(0.018, round((interval - 0.45 * prompts) / 0.018) * 20, batch=20)
        engine.finishes(prompts, prefill=0.44, decode=4.0, prompt=3000, output=200)

    report = scene.after(120, traffic)
    assert answer(report) == "decode_interference"


# --- a jump in the step-time curve ------------------------------------------------------------------------------------


def batch_of(server: Server, interval: float, running: int, itl: float) -> None:
    """So many streams, of short prompts."""
    engine = server.engine.set(running=running, kv=0.3)
    engine.tokens(itl, round(interval / itl) * running, batch=running)
    engine.first_tokens(0.08, prompt=200)
    engine.finishes(prefill=0.07, decode=30.0, prompt=200, output=100)


def steps_of(sizes: tuple[tuple[int, float], ...], interval: float, **server: bool) -> EngineReport:
    """60 s at each of these batches and seconds a token."""
    scene = Scene(Server(**server), interval=interval)  # type: ignore[arg-type]
    for running, itl in sizes:
        report = scene.after(60, lambda running=running, itl=itl: batch_of(scene.servers[0], interval, running, itl))  # type: ignore[misc]
    return report


CLIFFS = (
    (((2, 0.028), (6, 0.030), (8, 0.031), (10, 0.225)), 8, 10),
    (((1, 0.035), (2, 1.6)), 1, 2),
    (((16, 0.04), (48, 0.05), (64, 0.055), (72, 0.3)), 64, 72),
)


@pytest.mark.parametrize("interval", [2.0, 5.0, 10.0, 15.0])
@pytest.mark.parametrize(("sizes", "good", "bad"), CLIFFS)
def test_p24_a_step_that_jumps_between_two_batches_is_a_cliff_and_no_slow_host(
    sizes: tuple[tuple[int, float], ...], good: int, bad: int, interval: float
) -> None:
    report = steps_of(sizes, interval)
    assert answer(report) == "decode_batch_cliff"
    evidence = report.causes[0].evidence
    assert (evidence["last_good_batch"], evidence["running"]) == (
        pytest.approx(good, rel=0.05),
        pytest.approx(bad, rel=0.25),
    )
    # Steps of 1.6 s leave too few gaps in 2 s: windows tell them, and these hold both batches for a while.
    least = 2.0 * sizes[-2][1] if interval * bad / sizes[-1][1] < 5 else 0.9 * sizes[-1][1]
    assert least <= evidence["step_seconds"] <= 1.1 * sizes[-1][1]
    assert "cudagraph_capture_sizes" in advice(report)
    assert "--max-num-seqs at the last good batch" in advice(report)


@pytest.mark.parametrize("interval", [5.0, 10.0])
def test_p24_the_same_step_where_this_batch_was_fast_before_is_a_slow_host(interval: float) -> None:
    report = steps_of(((8, 0.031), (10, 0.033), (8, 0.031), (10, 0.225)), interval)
    assert answer(report) == "decode_slow"


@pytest.mark.parametrize("interval", [5.0, 10.0])
def test_p24_a_step_that_grows_with_the_batch_is_the_batch(interval: float) -> None:
    report = steps_of(((2, 0.035), (8, 0.05), (20, 0.085), (40, 0.15), (60, 0.2)), interval)
    assert answer(report) == "decode_batch"
