from dataclasses import replace

import pytest

import fleets
from exported import series, values
from fleets import SERVING, WALL_OFFSET, engine, fleet
from phasewatch.core.diagnosis.verdicts import REMEDIES, VERDICTS
from phasewatch.core.model import Estimate, ObjectiveResult, Result, Severity
from phasewatch.core.settings import Limit, Objectives


def test_every_verdict_is_there_and_exactly_the_leading_one_is_one() -> None:
    for report in SERVING.engines:
        shown = {v: values(SERVING, "diagnosis", target=report.key.target, verdict=v) for v in VERDICTS}
        assert shown == {v: [float(v == report.verdict)] for v in VERDICTS}
    assert values(SERVING, "diagnosis_confidence", target="gpu-1:8000", level="high") == [1.0]
    assert values(SERVING, "diagnosis_confidence", target="gpu-1:8000", level="low") == [0.0]


def test_scores_are_of_the_causes_found_and_the_best_of_each_verdict() -> None:
    twice = (
        fleets.CAUSE,
        replace(fleets.CAUSE, score=0.9, symptom="ttft_p50"),
        replace(fleets.CAUSE, verdict="frontend", score=0.1),
    )
    shown = fleet((engine(causes=twice),))
    assert values(shown, "diagnosis_score", verdict="queue_batch_limit") == [0.9]
    assert values(shown, "diagnosis_score", verdict="frontend") == [0.1]
    assert len(values(shown, "diagnosis_score")) == 2


def test_since_is_on_the_wall_clock() -> None:
    assert set(values(SERVING, "diagnosis_since_timestamp_seconds")) == {WALL_OFFSET + 40.0}


def ttft(
    result: Result, value: Estimate | None, *, surely: bool = False, severity: Severity | None = None
) -> ObjectiveResult:
    return ObjectiveResult("ttft_p99", 2.5, 8.0, result, surely, value, 400, 40.0, 60.0, severity)


STALL = Estimate(0.3, 0.3, 0.3)


@pytest.mark.parametrize(
    ("result", "missed", "surely"),
    [
        (ttft("met", Estimate(1.0, 0.5, 2.5), surely=True), (0.0, 0.0), (0.0, 0.0)),
        (ttft("missed", Estimate(4.0, 2.5, 5.0), surely=True, severity="warning"), (1.0, 0.0), (1.0, 0.0)),
        (ttft("missed", Estimate(3.0, 1.0, 5.0), severity="warning"), (1.0, 0.0), (0.0, 0.0)),
        (ttft("missed", Estimate(9.7, 7.5, 10.0), surely=True, severity="critical"), (1.0, 1.0), (1.0, 0.0)),
        (ttft("missed", Estimate(15.0, 10.0, 20.0), surely=True, severity="critical"), (1.0, 1.0), (1.0, 1.0)),
        (
            ObjectiveResult("itl_stall", 1.0, 2.0, "missed", True, STALL, 400, 40.0, 60.0, "critical"),
            (1.0, 1.0),
            (1.0, 1.0),
        ),
    ],
)
def test_an_objective_is_missed_by_severity_and_as_surely_as_the_bucket_allows(
    result: ObjectiveResult, missed: tuple[float, float], surely: tuple[float, float]
) -> None:
    shown = fleet((engine(objectives=(result,)),))
    for name, expected in (("objective_missed", missed), ("objective_missed_surely", surely)):
        found = [values(shown, name, objective=result.objective, severity=s) for s in ("warning", "critical")]
        assert found == [[value] for value in expected]
    assert values(shown, "objective_judged", objective=result.objective) == [1.0]


@pytest.mark.parametrize("result", ["too_few", "cannot_tell", "no_data"])
def test_an_objective_that_cannot_be_judged_is_neither_missed_nor_met(result: Result) -> None:
    shown = fleet((engine(objectives=(ttft(result, Estimate(161.0, 160.0, 320.0)),)),))
    assert values(shown, "objective_judged", objective="ttft_p99") == [0.0]
    assert not values(shown, "objective_missed") + values(shown, "objective_missed_surely")


def test_an_engine_without_traffic_keeps_no_alert_on_an_objective_alive() -> None:
    shown = fleet((engine(state="idle", objectives=(fleets.MISSED,)),), (replace(fleets.model({"idle": 1})),))
    for name in ("objective_judged", "objective_missed", "model_objective_missed"):
        assert not values(shown, name)


def test_limits_are_those_of_each_model() -> None:
    objectives = Objectives({"ttft_p99": Limit(2.5, 10.0)}, {"b": {"ttft_p99": Limit(1.0, 2.0)}})
    shown = fleet((engine("x", model_name="a"), engine("y", model_name="a"), engine("x", model_name="b")))
    for model_name, severity, seconds in (("a", "warning", 2.5), ("a", "critical", 10.0), ("b", "critical", 2.0)):
        found = values(shown, "objective_seconds", objectives, model_name=model_name, severity=severity)
        assert found == [seconds]


def test_objective_counts_are_counters_by_objective_and_severity() -> None:
    one = fleet((engine(),))
    assert values(one, "objective_observations_total", objective="ttft_p99") == [9_120.0]
    assert values(one, "objective_over_total", objective="ttft_p99", severity="warning") == [310.25]
    assert values(one, "objective_over_surely_total", objective="ttft_p99", severity="critical") == [12.0]


def test_the_first_remedy_of_every_verdict_that_has_one_is_there_before_the_first_evaluation() -> None:
    for shown in (None, SERVING):
        found = {dict(labels)["verdict"]: dict(labels) for name, labels in series(shown) if name == "remedy_info"}
        assert set(found) == set(VERDICTS) - {"healthy", "unknown"}
        for verdict, labels in found.items():
            first = REMEDIES[verdict][0]
            assert labels == {"verdict": verdict, "change": first.change, "when": first.when}
