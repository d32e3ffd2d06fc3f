"""Cases from the field about tokens that come slowly: what the past, the gaps and the batch bear out."""

import pytest

from case_pages import advice, blamed
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
    assert {answer(report) for report in reports[-40:]} == {"healthy"}


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
