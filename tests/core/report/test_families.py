import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import fleets
from exported import Exported, names, series, values
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
from phasewatch.core.model import EngineKey, Estimate
from phasewatch.core.report.document import document
from phasewatch.core.report.families import RESERVED_LABELS, families, window_label
from phasewatch.core.settings import Objectives, Settings

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
        "target_anomalies_total", "target_scrape_timeout_seconds",
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
        "window_seconds",
        "remedy_info",
    }
    alone = families(None, settings=Settings(), version="1.2.3")
    assert [family.name for family in alone] == [
        "phasewatch_build_info",
        "phasewatch_window_seconds",
        "phasewatch_remedy_info",
    ]


def test_b01_gauges_that_stand_still_with_the_engine_are_left_out() -> None:
    frozen = fleet((engine(gauges_stale=True),))
    assert not {"running_requests", "waiting_requests", "kv_cache_usage_ratio", "waiting_deferred_requests"} & names(
        frozen
    )
    assert values(frozen, "ttft_observations", window="60s") == [412.0]


@given(st.floats(), st.floats())
@example(1.7537953e9, 1e9)
def test_a13_no_gauge_but_a_timestamp_is_above_a_billion_or_not_a_number(one: float, two: float) -> None:
    odd = replace(
        FULL,
        ttft_seconds=replace(FULL.ttft_seconds, mean=one, p99=Estimate(one, two, one)),
        phases=replace(FULL.phases, queue=replace(FULL.phases.queue, mean_seconds=two, share=one)),
        queue=replace(FULL.queue, waiting=one, expected_wait_seconds=two),
        kv_cache=replace(FULL.kv_cache, time_to_full_seconds=one),
        prefill_time_ratio=two,
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
            ("prefill_time_ratio", row["prefill_time_ratio"]),
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
