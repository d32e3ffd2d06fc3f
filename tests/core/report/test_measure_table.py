import re
from collections import Counter

from exported import Exported, names
from fleets import SERVING, STATES
from phasewatch.core.report.families import ENGINE_TABLES, MODEL_TABLES, OTHER_TABLES, families
from phasewatch.core.report.measure_table import MEASURES
from phasewatch.core.settings import Settings

# docs/metrics.md is the list that is read and committed.
NUMBERS = tuple(dict.fromkeys(measure.name for measure in MEASURES if measure.exported != "no"))
JUDGEMENTS = (
    "diagnosis", "diagnosis_score", "diagnosis_confidence", "objective_judged", "objective_missed",
    "objective_missed_surely",
)  # fmt: skip
OF_ENGINES = (
    *NUMBERS, *JUDGEMENTS, "diagnosis_since_timestamp_seconds", "engine_state",
    "objective_observations_total", "objective_over_total", "objective_over_surely_total",
)  # fmt: skip
OTHERS = (
    "objective_seconds", "target_up", "target_scrape_duration_seconds", "target_last_success_timestamp_seconds",
    "target_missing_signals", "target_starting_seconds", "target_restarts_total", "target_scrape_failures_total",
    "target_anomalies_total", "internal_errors_total",
    "target_scrape_timeout_seconds", "build_info", "window_seconds",
    "last_evaluation_timestamp_seconds", "remedy_info",
)  # fmt: skip
# `model_*`: the same merged; engines in each state take the place of engine_state.
OF_MODELS = (*NUMBERS, *JUDGEMENTS, "engines")
ROWS = (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES)


def test_engines_and_models_have_all_numbers_and_the_tables_nothing_unheard_of() -> None:
    assert Counter(row.name for row in ENGINE_TABLES) == Counter(OF_ENGINES)
    assert Counter(row.name for row in MODEL_TABLES) == Counter(OF_MODELS)
    assert Counter(row.name for row in OTHER_TABLES) == Counter(OTHERS)


def test_a_serving_fleet_exports_every_name_of_the_tables() -> None:
    expected = {*OF_ENGINES, *OTHERS, *(f"model_{name}" for name in OF_MODELS)}
    assert names(SERVING) == expected - {"target_starting_seconds"}  # of one that has never answered


def test_every_row_has_a_help_that_ends_as_a_sentence_and_fits_a_line() -> None:
    for row in ROWS:
        assert re.fullmatch(r"[A-Z0-9][^\n]{10,250}\.", row.help), row.name


def test_help_names_vllms_metric_the_window_and_the_estimator() -> None:
    for estimator, words in (("sums", "the exact sums between scrapes"), ("interpolation", "histogram_quantile")):
        shown = families(SERVING, settings=Settings(estimator=estimator), version="1")  # type: ignore[arg-type]
        helps = {family.name: family.help for family in shown}
        for prefix in ("phasewatch_", "phasewatch_model_"):
            p99 = helps[f"{prefix}ttft_p99_seconds"]
            assert "vllm:time_to_first_token_seconds" in p99
            assert "window" in p99
            assert words in p99
        assert not [name for name, text in helps.items() if "{" in text]
    for row in ENGINE_TABLES:
        if row.name in NUMBERS:
            assert re.search(r"vllm:|http_requests_total", row.help), row.name
            assert re.search("window in label window|last scrape", row.help), row.name


# A value is a count of things, a number of a unit, a rate, a mean, or 0 and 1.
SUFFIXES = (
    "_seconds", "_ratio", "_per_second", "_total", "_info", "_requests", "_observations", "_mean", "_signals",
    "_censored", "_tokens",
)  # fmt: skip
WITHOUT = {
    "diagnosis", "diagnosis_score", "diagnosis_confidence", "objective_judged", "objective_missed",
    "objective_missed_surely", "engine_state", "engines", "target_up",
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
