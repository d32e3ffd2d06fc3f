import json
import math
from dataclasses import replace
from typing import Any

import pytest

import fleets
from fleets import ABOVE, FULL, NONE, QUIET, SERVING, check_golden, engine, fleet, slow_engine
from phasewatch.core.model import EngineKey, Estimate, Fleet, Latency
from phasewatch.core.report.document import document
from phasewatch.core.report.measure_table import MEASURES
from phasewatch.core.settings import FAMILIES

# Written out from the design: a key more or less is another schema.
ESTIMATE = {"value", "low", "high", "censored"}


def numbers_tree() -> dict[str, Any]:
    """The blocks of numbers as the rows of measure_table place them."""
    tree: dict[str, Any] = {}
    for measure in MEASURES:
        *blocks, name = measure.path.split(".")
        place = tree
        for block in blocks:
            place = place.setdefault(block, {})
        place[name] = None
    for latency in FAMILIES:
        block = tree[f"{latency}_seconds"]
        block.update({name: ESTIMATE for name, value in block.items() if value is not None})
    return tree


NUMBERS = numbers_tree()
CAUSE = {
    "verdict": None, "symptom": None, "score": None, "confidence": None, "evidence": "any", "summary": None,
    "remedies": [{"change", "why", "when", "side_effect", "since"}], "refuted_by": None,
    "easing": None,
}  # fmt: skip
OBJECTIVE = {
    "objective": None, "limit_seconds": None, "critical_seconds": None, "result": None, "surely": None,
    "value": ESTIMATE, "observations": None, "over": None, "span_seconds": None,
}  # fmt: skip
SYMPTOM = {"objective": None, "limit_seconds": None, "value": ESTIMATE, "surely": None, "severity": None}
ENGINE = {
    **dict.fromkeys(
        (
            "target",
            "model_name",
            "engine",
            "role",
            "state",
            "gauges_stale",
            "verdict",
            "confidence",
            "score",
            "summary",
            "since",
            "previous_verdict",
            "missing",
            "restarts",
        )
    ),
    "causes": [CAUSE],
    "objectives": [OBJECTIVE],
    "symptoms": [SYMPTOM],
    "events": [{"at", "kind", "before", "after"}],
    "advisories": [{"kind": None, "evidence": "any", "summary": None, "remedy": None}],
    **NUMBERS,
}
MODEL = {
    **dict.fromkeys(("model_name", "role", "verdict", "confidence", "outliers")),
    "engines": "any",
    "causes": [CAUSE],
    "objectives": [OBJECTIVE],
    "symptoms": [SYMPTOM],
    **NUMBERS,
    "kv_cache": {*NUMBERS["kv_cache"], "usage_max", "usage_mean", "worst_engine"},
}
DOCUMENT = {
    "schema": None,
    "at": None,
    "window_seconds": None,
    "engines": [ENGINE],
    "models": [MODEL],
    "targets": [
        {"target", "url", "state", "starting_seconds", "last_error", "last_success_age_seconds", "scrape_seconds"}
        | {"anomalies"}
    ],
}


def differences(value: Any, expected: Any, path: str = "$") -> list[str]:
    """Where the keys of a document are others than the tree says. A set is a dict of plain values."""
    if expected is None:
        return [f"{path} should be plain"] if isinstance(value, dict) else []
    if expected == "any":
        return [] if isinstance(value, dict) else [f"{path} should be a dict"]
    if isinstance(expected, list):
        return [line for at, item in enumerate(value) for line in differences(item, expected[0], f"{path}[{at}]")]
    if value is None and expected == ESTIMATE:
        return []
    tree = dict.fromkeys(expected) if isinstance(expected, set) else expected
    if not isinstance(value, dict) or set(value) != set(tree):
        return [f"{path}: {sorted(set(value or ()) ^ set(tree))}"]
    return [line for key in tree for line in differences(value[key], tree[key], f"{path}.{key}")]


def every_value(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in every_value(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in every_value(item)]
    return [value]


@pytest.mark.parametrize("name", fleets.STATES)
def test_the_keys_are_those_of_the_design_in_every_state(name: str) -> None:
    assert differences(document(fleets.STATES[name]), DOCUMENT) == []


def test_the_serving_fleet_shows_every_list_of_the_design_with_something_in_it() -> None:
    shown = document(SERVING)
    slow = next(row for row in shown["engines"] if row["causes"])
    assert slow["symptoms"]
    assert slow["advisories"]
    assert slow["events"]
    assert slow["causes"][0]["remedies"]
    assert shown["models"][0]["causes"]
    assert shown["targets"]


def test_an_engine_row_is_flat_and_shows_the_first_window() -> None:
    first, second = replace(FULL, e2e_seconds=ABOVE), replace(FULL, ttft_seconds=Latency(9_000, 1.0))
    [row] = document(fleet((engine(windows={60.0: first, 300.0: second}),)))["engines"]
    assert (row["target"], row["model_name"], row["engine"]) == ("gpu-1:8000", fleets.MODEL, "0")
    assert row["ttft_seconds"]["count"] == 412
    assert row["ttft_seconds"]["p99"] == {"value": 9.7, "low": 7.5, "high": 10.0, "censored": None}
    assert row["e2e_seconds"]["p99"] == {"value": 7680.0, "low": 7680.0, "high": None, "censored": "above_last_edge"}
    assert row["queue"]["expected_wait_censored"] is False
    assert row["prefill_time_ratio"] == 0.06


def test_an_engine_without_a_window_has_every_key_and_no_number() -> None:
    [row] = document(fleet((engine(state="down", windows={}),)))["engines"]
    for block in ("ttft_seconds", "itl_seconds", "phases", "queue", "kv_cache", "tokens", "speculation"):
        assert set(every_value(row[block])) == {None}, block
    assert row["prefill_time_ratio"] is None


def test_no_traffic_counts_zero_and_a_missing_histogram_counts_null() -> None:
    [row] = document(fleet((engine(windows={60.0: QUIET}, missing=("itl",)),)))["engines"]
    assert row["ttft_seconds"] == {"count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None}
    assert row["itl_seconds"]["count"] is None


def test_a_model_counts_null_only_where_all_its_engines_lack_the_histogram() -> None:
    quiet = fleets.model({"idle": 2}, windows={60.0: QUIET})
    without = engine("a", windows={60.0: QUIET}, missing=("tpot", "itl"))
    older = engine("b", windows={60.0: QUIET}, missing=("tpot",))
    [row] = document(fleet((without, older), (quiet,)))["models"]
    assert row["tpot_seconds"]["count"] is None
    assert row["itl_seconds"]["count"] == 0


def test_what_a_cause_lacks_is_named_once_in_the_engines_missing() -> None:
    [row] = document(fleet((slow_engine(),)))["engines"]
    assert row["missing"] == ["kv_transfer", "computed_prompt_tokens"]
    assert "missing" not in row["causes"][0]


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_carry_is_null(nonsense: float) -> None:
    broken = replace(
        FULL,
        window_seconds=nonsense,
        ttft_seconds=Latency(3, nonsense, Estimate(nonsense, 0.0, nonsense)),
        itl_seconds=NONE,
        itl_stalled_ratio=nonsense,
        prefill_time_ratio=nonsense,
        queue=replace(FULL.queue, expected_wait_seconds=nonsense),
    )
    cause = replace(fleets.CAUSE, score=nonsense, evidence={"ratio": nonsense, "words": "kept"})
    shown = document(
        Fleet(
            nonsense,
            nonsense,
            (engine(windows={60.0: broken}, causes=(cause,), since=nonsense, score=nonsense),),
            (replace(fleets.model({"serving": 1}, windows={60.0: broken}), kv_usage_max=nonsense),),
            (fleets.target(last_success_age_seconds=nonsense, scrape_seconds=nonsense),),
        )
    )
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["engines"][0]["causes"][0]["evidence"] == {"ratio": None, "words": "kept"}


@pytest.mark.parametrize("name", fleets.STATES)
def test_json_carries_the_document_unchanged_and_without_nan(name: str) -> None:
    shown = document(fleets.STATES[name], wall_offset=fleets.WALL_OFFSET)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_d11_text_that_utf8_cannot_carry_does_not_cost_the_answer() -> None:
    name = "bad\udcff"
    cause = replace(fleets.CAUSE, summary=name, evidence={name: name})
    report = engine(name, model_name=name, summary=name, causes=(cause,))
    shown = document(fleet((report,), (fleets.model({"serving": 1}, model_name=name),), (fleets.target(name),)))
    assert json.loads(json.dumps(shown, ensure_ascii=False).encode()) == shown
    assert shown["engines"][0]["model_name"] == "bad?"


def test_numbers_keep_their_full_precision() -> None:
    [row] = document(fleet((engine(windows={60.0: replace(FULL, prefill_time_ratio=0.1 + 0.2)}),)))["engines"]
    assert json.loads(json.dumps(row))["prefill_time_ratio"] == 0.1 + 0.2


def test_times_are_shown_on_the_wall_clock_where_it_is_known() -> None:
    shown = document(SERVING, wall_offset=1_000_000.0)
    assert (shown["at"], shown["engines"][0]["since"]) == (1_000_120.0, 1_000_040.0)
    assert document(SERVING)["at"] == 120.0
    assert shown["targets"][0]["last_success_age_seconds"] == 1.5


def test_rows_come_in_the_same_order_whatever_the_order_of_the_scrapes() -> None:
    long = "9" * 5_000
    keys = [EngineKey("a", "m", engine) for engine in ("10", long, "2", "")] + [EngineKey("a", "l", "x")]
    rows = [engine(key=key) for key in keys] + [engine("Z")]
    shown = [document(fleet(tuple(order)))["engines"] for order in (rows, rows[::-1])]
    assert shown[0] == shown[1]
    order = [(row["target"], row["model_name"], row["engine"]) for row in shown[0]]
    assert order == [("Z", fleets.MODEL, "0"), ("a", "l", "x"), *(("a", "m", name) for name in ("", "2", "10", long))]


def test_the_document_of_a_serving_fleet_is_the_golden_one() -> None:
    shown = json.dumps(document(SERVING, wall_offset=fleets.WALL_OFFSET), indent=1) + "\n"
    check_golden("serving.json", shown)
