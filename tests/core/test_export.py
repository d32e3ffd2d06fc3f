import math
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

import fleets
from fleets import (
    DOWN,
    FULL,
    IDLE,
    MODEL,
    NO_ENGINE,
    QUIET,
    SERVING,
    STATES,
    WALL_OFFSET,
    check_golden,
    engine,
    fleet,
    target,
)
from phasewatch.core.document import document
from phasewatch.core.export import ENGINE_TABLES, MODEL_TABLES, OTHER_TABLES, RESERVED_LABELS, families, window_label
from phasewatch.core.model import EngineKey, Estimate, Fleet, Symptom
from phasewatch.core.settings import Limit, Objectives
from phasewatch.core.verdicts import VERDICTS

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

# The list of the design, "Exported series".
LATENCIES = tuple(
    f"{latency}_{statistic}"
    for latency in ("ttft", "itl", "tpot", "e2e")
    for statistic in (
        "p50_seconds", "p99_seconds", "p99_low_seconds", "p99_high_seconds", "mean_seconds", "observations",
    )
)  # fmt: skip
NUMBERS = (
    *LATENCIES, "itl_stalled_ratio", "phase_mean_seconds", "phase_share_ratio", "running_requests", "waiting_requests",
    "waiting_deferred_requests", "queue_growth_requests_per_second", "arrivals_per_second", "admissions_per_second",
    "expected_wait_seconds", "expected_wait_censored", "gave_up_ratio", "gave_up_before_first_token_ratio",
    "failed_requests_per_second", "kv_cache_usage_ratio", "kv_cache_time_to_full_seconds", "preemptions_per_second",
    "prefix_cache_hit_ratio", "prompt_tokens_per_second", "generation_tokens_per_second", "prompt_tokens_mean",
    "output_tokens_mean", "prefill_speed_tokens_per_second", "decode_speed_tokens_per_second",
    "speculation_acceptance_ratio", "prefill_time_ratio",
)  # fmt: skip
JUDGEMENTS = ("diagnosis", "diagnosis_score", "diagnosis_confidence", "objective_missed", "objective_missed_surely")
OF_ENGINES = (
    *NUMBERS, *JUDGEMENTS, "diagnosis_since_timestamp_seconds", "engine_state", "objective_observations_total",
    "objective_over_total", "objective_over_surely_total",
)  # fmt: skip
OTHERS = (
    "objective_seconds", "target_up", "target_scrape_duration_seconds", "target_last_success_timestamp_seconds",
    "target_missing_signals", "target_restarts_total", "target_scrape_failures_total", "build_info",
    "config_last_reload_successful", "config_last_reload_success_timestamp_seconds",
    "last_evaluation_timestamp_seconds",
)  # fmt: skip
# `model_*`: the same merged; engines in each state take the place of engine_state.
OF_MODELS = (*NUMBERS, *JUDGEMENTS, "engines")
ROWS = (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES)


class Exported(Collector):
    """What the web server will wrap: families built anew at each collection."""

    def __init__(self, shown: Fleet | None, objectives: Objectives | None = None) -> None:
        self.shown = shown
        self.objectives = objectives or Objectives()

    def collect(self) -> Iterator[Metric]:
        return families(
            self.shown,
            objectives=self.objectives,
            version="1.2.3",
            wall_offset=WALL_OFFSET,
            reload_successful=True,
            reloaded_at=WALL_OFFSET,
        )


def series(shown: Fleet | None, objectives: Objectives | None = None) -> Series:
    """Every series by name (without prefix) and labels; a series that is there twice fails."""
    found: Series = {}
    for family in Exported(shown, objectives).collect():
        for sample in family.samples:
            key = (sample.name.removeprefix("phasewatch_"), frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def values(shown: Fleet | None, name: str, objectives: Objectives | None = None, **labels: str) -> list[float]:
    """The values of the series of that name that carry these labels."""
    return [v for (n, of), v in series(shown, objectives).items() if n == name and labels.items() <= dict(of).items()]


def names(shown: Fleet | None) -> set[str]:
    return {name for name, _ in series(shown)}


# --- the tables


def test_the_tables_have_exactly_the_names_of_the_design() -> None:
    assert Counter(row.name for row in ENGINE_TABLES) == Counter(OF_ENGINES)
    assert Counter(row.name for row in MODEL_TABLES) == Counter(OF_MODELS)
    assert Counter(row.name for row in OTHER_TABLES) == Counter(OTHERS)


def test_a_serving_fleet_exports_every_name_of_the_design() -> None:
    expected = {*OF_ENGINES, *OTHERS, *(f"model_{name}" for name in OF_MODELS)}
    assert names(SERVING) == expected


def test_every_row_has_a_help_that_ends_as_a_sentence_and_fits_a_line() -> None:
    for row in ROWS:
        assert re.fullmatch(r"[A-Z0-9][^\n]{10,250}\.", row.help), row.name


def test_help_names_vllms_metric_the_window_and_the_estimator() -> None:
    [p99] = [row.help for row in ENGINE_TABLES if row.name == "ttft_p99_seconds"]
    assert "vllm:time_to_first_token_seconds" in p99
    assert "window" in p99
    assert "histogram_quantile" in p99
    for row in ENGINE_TABLES:
        if row.name in NUMBERS:
            assert re.search(r"vllm:|http_requests_total", row.help), row.name
            assert re.search("window of the label|last page", row.help), row.name


# A value is a count of things, a number of a unit, a rate, a mean, or 0 and 1.
SUFFIXES = (
    "_seconds", "_ratio", "_per_second", "_total", "_info", "_requests", "_observations", "_mean", "_signals",
    "_censored",
)  # fmt: skip
WITHOUT = {
    "diagnosis", "diagnosis_score", "diagnosis_confidence", "objective_missed", "objective_missed_surely",
    "engine_state", "engines", "target_up", "config_last_reload_successful",
}  # fmt: skip


def test_a_name_ends_in_its_unit() -> None:
    for row in ROWS:
        assert re.fullmatch("[a-z][a-z0-9_]*", row.name)
        assert row.name.endswith(SUFFIXES) != (row.name in WITHOUT), row.name


def test_total_is_for_counters_only_and_the_unit_is_declared() -> None:
    for family in Exported(SERVING).collect():
        assert (family.type == "counter") == all(sample.name.endswith("_total") for sample in family.samples)
        assert family.type in ("gauge", "counter", "info")
        assert family.unit == next((unit for unit in ("seconds", "ratio") if family.name.endswith(f"_{unit}")), "")


def test_no_family_comes_twice_or_empty() -> None:
    for shown in STATES.values():
        found = list(Exported(shown).collect())
        assert len({family.name for family in found}) == len(found)
        assert all(family.samples for family in found)


# --- the formats


@pytest.mark.parametrize("name", STATES)
def test_promtool_finds_nothing_to_say_about_the_page_in_any_state(promtool: Path, name: str) -> None:
    page = generate_latest(Exported(STATES[name]))
    ran = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


@pytest.mark.parametrize("name", STATES)
def test_both_formats_read_back_as_the_same_series(name: str) -> None:
    shown = Exported(STATES[name])
    expected = {("phasewatch_" + of, labels): value for (of, labels), value in series(shown.shown).items()}
    for text, parse in (
        (generate_latest(shown).decode(), parse_text),
        (generate_openmetrics(shown).decode(), parse_openmetrics),
    ):
        read = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parse(text)
            for sample in family.samples
        }
        assert read == expected


def test_the_page_of_a_serving_fleet_is_the_golden_one() -> None:
    check_golden("serving.prom", generate_latest(Exported(SERVING)).decode())


AWKWARD = ["plain", 'quo"te', "back\\slash", "new\nline", 'all\\"\n', "\\n", "ünï", '{a="b"}', "comma,", " "]


@pytest.mark.parametrize("model_name", AWKWARD)
def test_d11_awkward_model_names_come_back_as_they_were(model_name: str) -> None:
    awkward = Exported(
        fleet((engine(model_name=model_name),), (fleets.model({"serving": 1}, model_name=model_name),), (target(),))
    )
    for parsed in (
        parse_text(generate_latest(awkward).decode()),
        parse_openmetrics(generate_openmetrics(awkward).decode()),
    ):
        seen = {
            sample.labels["model_name"] for one in parsed for sample in one.samples if "model_name" in sample.labels
        }
        assert seen == {model_name}


def test_d11_text_that_utf8_cannot_carry_does_not_cost_the_page() -> None:
    page = generate_latest(Exported(fleet((engine(model_name="bad\udcff"),))))
    assert b'model_name="bad?"' in page


@given(st.text())
def test_d11_no_model_name_breaks_the_page(model_name: str) -> None:
    page = generate_latest(Exported(fleet((engine(model_name=model_name),)))).decode()
    states = [sample for one in parse_text(page) if one.name == "phasewatch_engine_state" for sample in one.samples]
    kept = model_name.encode("utf-8", "replace").decode()
    assert {sample.labels.get("model_name", "") for sample in states} == {kept}


# --- labels


def test_an_engine_carries_its_own_labels_and_those_of_its_target() -> None:
    own = {
        "target": "gpu-1:8000",
        "model_name": MODEL,
        "engine": "0",
        "role": "decode",
        "namespace": "llm",
        "pod": "gpu-1",
    }
    shown = series(fleet((engine(role="decode"),), targets=(target(),)))
    assert ("running_requests", frozenset(own.items())) in shown
    assert ("ttft_p99_seconds", frozenset({**own, "window": "60s"}.items())) in shown
    assert ("ttft_p99_seconds", frozenset({**own, "window": "5m"}.items())) in shown
    assert ("engine_state", frozenset({**own, "state": "serving"}.items())) in shown


def test_a_target_cannot_bring_labels_of_prometheus_or_ours_or_names_that_are_none() -> None:
    brought = dict.fromkeys(RESERVED_LABELS, "x") | {
        "__name__": "x",
        "a-b": "x",
        "1st": "x",
        "zone": "eu",
        "rack": "",
    }
    shown = series(fleet((engine(),), targets=(target(labels=brought),)))
    labels = {frozenset(of) for name, of in shown if name in ("target_up", "running_requests")}
    assert labels == {
        frozenset({"target": "gpu-1:8000", "zone": "eu"}.items()),
        frozenset({"target": "gpu-1:8000", "zone": "eu", "model_name": MODEL, "engine": "0"}.items()),
    }


def test_no_series_ever_carries_instance_job_or_quantile() -> None:
    for shown in STATES.values():
        for _, labels in series(shown):
            assert not {"instance", "job", "quantile", "le"} & {name for name, _ in labels}


def test_a_model_carries_its_name_and_its_role_only() -> None:
    merged = replace(fleets.model({"serving": 1}), role="prefill")
    assert ("model_running_requests", frozenset({"model_name": MODEL, "role": "prefill"}.items())) in series(
        fleet(models=(merged,))
    )


@pytest.mark.parametrize(
    ("seconds", "label"),
    [(60.0, "60s"), (300.0, "5m"), (2.5, "2.5s"), (90.0, "90s"), (120.0, "2m"), (3600.0, "1h"), (30, "30s")],
)
def test_a_window_is_labelled_as_people_write_it(seconds: float, label: str) -> None:
    assert window_label(seconds) == label


# --- absent is not zero


def test_an_idle_engine_counts_zero_observations_and_has_no_percentile() -> None:
    assert values(IDLE, "ttft_observations") == [0.0, 0.0]
    assert values(IDLE, "running_requests") == [0.0]
    assert values(IDLE, "kv_cache_usage_ratio") == [0.0]
    assert not [name for name in names(IDLE) if re.search("_p[0-9]+_|_mean_seconds|share", name)]
    assert not values(IDLE, "objective_missed")
    assert set(values(IDLE, "diagnosis")) == set(values(IDLE, "diagnosis_confidence")) == {0.0}
    assert not values(IDLE, "diagnosis_since_timestamp_seconds")


def test_a_histogram_that_the_page_lacks_has_no_observations_at_all() -> None:
    old = fleet(
        (engine(windows={60.0: QUIET}, missing=("tpot",)),), (fleets.model({"serving": 1}, windows={60.0: QUIET}),)
    )
    assert not values(old, "tpot_observations") + values(old, "model_tpot_observations")
    assert values(old, "ttft_observations") == values(old, "model_ttft_observations") == [0.0]


@pytest.mark.parametrize("state", ["down", "stale", "no_engine_metrics"])
def test_an_engine_whose_last_page_failed_shows_its_state_and_nothing_that_would_freeze(state: fleets.State) -> None:
    gone = fleet((engine(state=state),), (fleets.model({state: 1}),), (target(state=state),))
    of_engine = {name for name, labels in series(gone) if "engine" in dict(labels)}
    of_model = {name for name, _ in series(gone) if name.startswith("model_")}
    assert of_engine == {"engine_state"}
    assert of_model == {"model_engines"}
    assert values(gone, "engine_state", state=state) == [1.0]
    assert values(gone, "model_engines", state=state) == [1.0]


def test_a_target_that_is_down_keeps_its_counters_and_the_time_of_its_last_success() -> None:
    assert {name for name in names(DOWN) if name.startswith("target_")} == {
        "target_up", "target_last_success_timestamp_seconds", "target_restarts_total", "target_scrape_failures_total",
    }  # fmt: skip
    assert values(DOWN, "target_up") == [0.0]
    assert values(DOWN, "target_last_success_timestamp_seconds") == [WALL_OFFSET + 120.0 - 95.0]
    assert values(DOWN, "target_scrape_failures_total", reason="refused") == [9.0]
    assert not values(STATES["never_seen"], "target_last_success_timestamp_seconds")


def test_a_target_without_engine_metrics_is_up() -> None:
    assert values(NO_ENGINE, "target_up") == [1.0]
    assert values(NO_ENGINE, "target_missing_signals") == [40.0]


def test_before_the_first_evaluation_only_the_service_is_shown() -> None:
    assert names(None) == {
        "build_info",
        "config_last_reload_successful",
        "config_last_reload_success_timestamp_seconds",
    }
    alone = families(None, objectives=Objectives(), version="1.2.3")
    assert [family.name for family in alone] == ["phasewatch_build"]


def test_b01_gauges_that_stand_still_with_the_engine_are_left_out() -> None:
    frozen = fleet((engine(gauges_stale=True),))
    assert not {"running_requests", "waiting_requests", "kv_cache_usage_ratio", "waiting_deferred_requests"} & names(
        frozen
    )
    assert values(frozen, "ttft_observations", window="60s") == [412.0]


@given(st.floats(), st.floats(allow_nan=True, allow_infinity=True))
def test_a13_no_gauge_but_a_timestamp_is_above_a_billion_or_not_a_number(one: float, two: float) -> None:
    odd = replace(
        FULL,
        ttft_seconds=replace(FULL.ttft_seconds, mean=one, p99=Estimate(one, two, one)),
        phases=replace(FULL.phases, queue=replace(FULL.phases.queue, mean_seconds=two, share=one)),
        queue=replace(FULL.queue, waiting=one, expected_wait_seconds=two),
        kv_cache=replace(FULL.kv_cache, time_to_full_seconds=one),
        rho=two,
    )
    report = engine(
        windows={60.0: odd},
        since=one,
        causes=(replace(fleets.CAUSE, score=two),),
        objective_counts={("over", "ttft_p99", "warning"): one},
    )
    merged = fleets.model({"serving": 1}, windows={60.0: odd})
    shown = series(fleet((report,), (merged,), (target(scrape_seconds=one, last_success_age_seconds=two),)))
    for (name, _), value in shown.items():
        assert math.isfinite(value), name
        assert value < 1e9 or name.endswith(("_timestamp_seconds", "_total")), name


@pytest.mark.parametrize("name", STATES)
def test_a13_no_state_exports_a_creation_time(name: str) -> None:
    for (exported, _), value in series(STATES[name]).items():
        assert value < 1e9 or exported.endswith("_timestamp_seconds"), exported
        assert "_created" not in exported


# --- verdicts and objectives


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


BOTH = Objectives({"ttft_p99": Limit(2.5, 8.0), "itl_p99": Limit(0.1, 0.2), "itl_stall": Limit(1.0, 2.0)})


@pytest.mark.parametrize(
    ("symptom", "missed", "surely"),
    [
        (None, (0.0, 0.0), (0.0, 0.0)),
        (Symptom("ttft_p99", 2.5, Estimate(4.0, 2.5, 5.0), True, "warning"), (1.0, 0.0), (1.0, 0.0)),
        (Symptom("ttft_p99", 2.5, Estimate(3.0, 1.0, 5.0), False, "warning"), (1.0, 0.0), (0.0, 0.0)),
        (Symptom("ttft_p99", 2.5, Estimate(9.7, 7.5, 10.0), True, "critical"), (1.0, 1.0), (1.0, 0.0)),
        (Symptom("ttft_p99", 2.5, Estimate(15.0, 10.0, 20.0), True, "critical"), (1.0, 1.0), (1.0, 1.0)),
        (Symptom("itl_stall", 1.0, Estimate(0.3, 0.3, 0.3), True, "critical"), (1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_an_objective_is_missed_by_severity_and_as_surely_as_the_bucket_allows(
    symptom: Symptom | None, missed: tuple[float, float], surely: tuple[float, float]
) -> None:
    shown = fleet((engine(symptoms=(symptom,) if symptom else ()),))
    objective = symptom.objective if symptom else "ttft_p99"
    for name, expected in (("objective_missed", missed), ("objective_missed_surely", surely)):
        found = [values(shown, name, BOTH, objective=objective, severity=s) for s in ("warning", "critical")]
        assert found == [[value] for value in expected]


def test_an_objective_that_was_not_measured_is_neither_missed_nor_met() -> None:
    measured = replace(FULL, itl_stalled_ratio=None, itl_seconds=fleets.NONE)
    shown = fleet((engine(windows={60.0: measured}),))
    assert [len(values(shown, "objective_missed", BOTH, objective=name)) for name in BOTH.limits] == [2, 0, 0]


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


# --- the page as a whole


def test_the_page_has_the_numbers_of_the_document() -> None:
    for row in document(SERVING)["engines"]:
        labels = {"target": row["target"], "window": "60s"}
        for name, shown in (
            ("ttft_p99_seconds", row["ttft_seconds"]["p99"]["value"]),
            ("itl_p99_high_seconds", row["itl_seconds"]["p99"]["high"]),
            ("itl_p50_seconds", row["itl_seconds"]["p50"]["value"]),
            ("e2e_observations", row["e2e_seconds"]["count"]),
            ("arrivals_per_second", row["queue"]["arrivals_per_second"]),
            ("preemptions_per_second", row["kv_cache"]["preemptions_per_second"]),
            ("prefill_time_ratio", row["rho"]),
            ("decode_speed_tokens_per_second", row["tokens"]["decode_speed"]),
            ("speculation_acceptance_ratio", row["speculation"]["acceptance_ratio"]),
        ):
            assert values(SERVING, name, **labels) == [shown], name
        for phase, known in row["phases"].items():
            assert values(SERVING, "phase_mean_seconds", phase=phase, **labels) == [known["mean_seconds"]]
            assert values(SERVING, "phase_share_ratio", phase=phase, **labels) == [known["share"]]


def test_an_open_bucket_has_a_lower_bound_and_no_upper_one() -> None:
    slow = fleet((fleets.slow_engine(),))
    assert values(slow, "e2e_p99_seconds") == values(slow, "e2e_p99_low_seconds") == [7680.0, 7680.0]
    assert not values(slow, "e2e_p99_high_seconds")


def test_an_engine_and_window_costs_less_than_120_series() -> None:
    """Everything known, every standard objective counted: the most an engine can have."""
    objectives = Objectives()
    severities = {"observations": ("",), "over": ("warning", "critical"), "over_surely": ("warning", "critical")}
    counts = {
        (kind, name, severity): 1.0
        for name in objectives.of(MODEL)
        for kind in severities
        for severity in severities[kind]
    }
    busy = replace(fleets.slow_engine(), objective_counts=counts, windows={60.0: FULL, 300.0: FULL})
    of_engine = [name for name, labels in series(fleet((busy,))) if "engine" in dict(labels)]
    assert len(of_engine) / len(busy.windows) < 120, len(of_engine)


def test_dropping_an_engine_drops_its_series_at_once() -> None:
    fewer = replace(SERVING, engines=SERVING.engines[:1], targets=SERVING.targets[:1])
    assert {dict(labels).get("target") for _, labels in series(fewer)} == {None, "gpu-2:8000"}


def test_engines_of_one_target_do_not_write_the_same_series() -> None:
    ranks = tuple(engine(key=EngineKey("gpu-1:8000", MODEL, str(rank))) for rank in range(12))
    assert len(values(fleet(ranks), "running_requests")) == 12
