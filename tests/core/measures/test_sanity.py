"""What cannot be true is said, and left out of what is judged."""

import pytest

from phasewatch.core.measures.sanity import consistent
from phasewatch.core.measures.window import window
from phasewatch.core.model import Anomaly, EngineReport, Step, Window
from phasewatch.core.settings import Thresholds
from vllm_pages import Engine, Scene, Server, answer


def watched(*, ttft: bool, itl: bool, error: str = "stop") -> tuple[EngineReport, tuple[Anomaly, ...]]:
    """A minute and a half of traffic that the named histograms count; the counters count it all."""
    server = Server()

    def traffic() -> None:
        engine = server.engine.set(running=2, kv=0.1)
        engine.first_tokens(0.1, 5) if ttft else uncounted(engine, 5)
        engine.tokens(0.03, 200) if itl else uncounted(engine, 200)
        engine.finishes(5, output=41, reason=error)

    fleet = Scene(server).rounds(90, traffic)[-1]
    return fleet.engines[0], fleet.targets[0].anomalies


def uncounted(engine: Engine, tokens: int) -> None:
    engine.counters["generation_tokens_total"] += tokens


@pytest.mark.parametrize(
    ("ttft", "itl", "still"),
    [(True, False, "ITL stands"), (False, True, "TTFT stands"), (False, False, "TTFT and ITL")],
)
def test_t6_a_latency_that_stands_still_while_tokens_flow_is_not_met(ttft: bool, itl: bool, still: str) -> None:
    report, anomalies = watched(ttft=ttft, itl=itl)
    assert {"ttft", "itl"} & set(report.missing) == {
        name for name, known in (("ttft", ttft), ("itl", itl)) if not known
    }
    assert [(one.kind, still in one.last) for one in anomalies] == [("contradiction", True)]
    assert (answer(report), report.confidence) == (("healthy", "medium") if ttft or itl else ("unknown", "low"))
    said = "Not judged, signal missing" if ttft or itl else "neither TTFT nor ITL"
    assert said in report.summary
    assert report.numbers is not None
    assert report.numbers.queue.gave_up_before_first_token_ratio in (0, None)


def test_latencies_that_count_all_tokens_contradict_nothing() -> None:
    report, anomalies = watched(ttft=True, itl=True)
    assert (answer(report), report.confidence, report.missing, anomalies) == ("healthy", "medium", (), ())


def test_answers_of_one_token_have_no_gaps_and_contradict_nothing() -> None:
    server = Server()
    report = Scene(server).after(90, lambda: server.engine.set(running=1).serves(5, output=1))
    assert (answer(report), report.missing) == ("healthy", ())


def test_requests_that_began_before_may_end_without_a_first_token_in_the_window() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: server.engine.set(running=8).serves(3))

    def endings() -> None:
        server.engine.set(running=server.engine.gauges["running"] - 1).finishes(1, output=900)
        server.engine.tokens(0.03, 900)

    report = scene.after(70, endings)
    assert "ttft" not in report.missing


def window_of(**increases: float) -> Window:
    one = window([Step(0.0, 60.0, {}, {}, increases, {}, False)])
    assert one is not None
    return one


@pytest.mark.parametrize(
    ("part", "whole", "says"),
    [
        ("prefix_hits", "prefix_queries", "More tokens found in the prefix cache (36) than those looked up (12)"),
        ("spec_accepted_tokens", "spec_draft_tokens", "More draft tokens accepted (36) than those drafted (12)"),
    ],
)
def test_a_part_above_its_whole_is_said(part: str, whole: str, says: str) -> None:
    one = window_of(**{part: 36.0, whole: 12.0})
    _, (found,) = consistent(one, Thresholds())
    assert found.summary.startswith(says)
    assert consistent(window_of(**{part: 12.0, whole: 12.0}), Thresholds())[1] == ()
