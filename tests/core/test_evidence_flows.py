"""Work in flight, flows that balance, and signals that are missing or frozen: real reports, each as its whole kind."""

import pytest

from case_pages import advisory, blamed, kinds, said
from phasewatch.core.model import EngineReport, Symptom
from vllm_pages import Scene, Server, answer

PAGE_INTERVALS = (2.0, 5.0, 10.0, 15.0)


def symptom(report: EngineReport, objective: str) -> Symptom | None:
    return next((one for one in report.symptoms if one.objective == objective), None)


# --- P21: one user, long prefill, silence -------------------------------------------------------------------------


def long_turns(
    scene: Scene, server: Server, *, prefill: float, tokens: int, answer_seconds: float = 8.0, pause: float = 20.0
) -> list[tuple[float, float, EngineReport]]:
    """(since when it computes its prompt, now, report) of each page while it does, over three turns of one user. The
    steps are long and few: every second page shows KV blocks more than before."""
    engine, seen = server.engine, []
    engine.blocks = 16_000
    share = tokens / (engine.blocks * engine.block_size)
    for _ in range(3):
        began = scene.now
        while scene.now + scene.interval < began + prefill:
            done = (scene.now + scene.interval - began) // 7 * 7 / prefill
            [engine_report] = scene.round(lambda done=done: engine.set(running=1, kv=share * done)).engines  # type: ignore[misc]
            seen.append((began, scene.now, engine_report))
        scene.round(
            lambda: (engine.set(running=1, kv=share).first_tokens(prefill, prompt=tokens), engine.tokens(0.05, 10))
        )
        scene.after(answer_seconds, lambda: engine.tokens(0.05, int(20 * scene.interval)))
        scene.round(
            lambda: engine.set(running=0, kv=0).finishes(prefill=prefill, decode=9.0, prompt=tokens, output=200)
        )
        scene.after(pause)
    return seen


@pytest.mark.parametrize(
    ("interval", "old", "prefill", "tokens"),
    [(2.0, False, 60.0, 40_000), (5.0, True, 161.0, 80_000), (10.0, False, 161.0, 80_000), (15.0, True, 161.0, 80_000)],
)
def test_p21_a_first_token_that_is_awaited_for_long_is_missed_before_it_comes(
    interval: float, old: bool, prefill: float, tokens: int
) -> None:
    server = Server(max_model_len=131_072, old=old)
    scene = Scene(server, interval=interval, objectives=["ttft_p99=10s"])
    scene.after(30)
    waited = 0.0
    for began, now, report in long_turns(scene, server, prefill=prefill, tokens=tokens):
        age = now - began
        assert report.numbers is not None
        oldest = report.numbers.queue.oldest_unanswered_seconds
        assert oldest is not None
        assert age - 2 * interval <= oldest <= age
        if oldest <= 10:
            continue
        found = symptom(report, "unanswered")
        assert found is not None
        assert found.value is not None
        assert found.value.value == oldest
        if age > 30:
            assert answer(report) == "prefill_long_prompts"
            assert "has waited at least" in report.summary
            assert report.confidence == "low"
        waited = max(waited, oldest)
    assert waited > prefill - 3 * interval


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_p21_a_request_that_is_answered_in_time_is_no_symptom(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval, objectives=["ttft_p99=10s"])
    for report in (scene.after(interval, lambda: server.engine.set(running=1).serves(2)) for _ in range(30)):
        assert not report.symptoms


# --- C12: a single request that will not stop ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "old", "http"), [(2.0, False, False), (5.0, True, True), (10.0, False, True), (15.0, True, False)]
)
def test_c12_a_long_answer_is_seen_before_it_finishes(interval: float, old: bool, http: bool) -> None:
    server = Server(old=old, http=http)
    engine = server.engine
    scene = Scene(server, interval=interval, objectives=["e2e_p99=60s"])
    scene.after(40)
    scene.round(lambda: (engine.set(running=1, kv=0.033).first_tokens(0.2), engine.tokens(0.0067, 100)))
    began, pages = scene.now, 0
    while scene.now < began + 300:
        speed = 150 - 34 * (scene.now - began) / 600
        report = scene.after(interval, lambda: engine.tokens(1 / speed, int(speed * interval)))  # noqa: B023
        assert "decode_slow" not in blamed(report)
        assert not any(one.objective.startswith("itl") for one in report.symptoms)
        if scene.now - began > 90:
            pages += 1
            assert answer(report) == "output_length"
            assert "has not finished" in report.summary
            assert symptom(report, "still_running") is not None
    assert pages > 10


@pytest.mark.parametrize("interval", [5.0, 15.0])
def test_c12_without_an_e2e_limit_ten_minutes_are_worth_a_word_and_no_verdict(interval: float) -> None:
    server = Server()
    engine = server.engine
    scene = Scene(server, interval=interval)
    scene.after(40)
    scene.round(lambda: (engine.set(running=1, kv=0.033).first_tokens(0.2), engine.tokens(0.0067, 100)))
    report = scene.after(500, lambda: engine.tokens(0.008, int(125 * interval)))
    assert "still_running" not in kinds(report)
    report = scene.after(150, lambda: engine.tokens(0.008, int(125 * interval)))
    assert "has not finished" in advisory(report, "still_running")
    assert not report.symptoms
    report = scene.after(60, lambda: engine.set(running=0, kv=0))
    assert "has not finished" not in said(report)
