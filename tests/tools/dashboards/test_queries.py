"""Steps 3 and 4 of conventions 3.6: every query parses, and is executed on a real Prometheus."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import promql_parser
import pytest
from prometheus_client.metrics_core import Metric

import fleets
from boards import BOARDS, Target, annotations, expand, shown, targets, variables
from histories import START, Filled, exported, scraped, text_of
from phasewatch.core.model import KvCache
from phasewatch.core.report.measure_table import SeriesRow
from phasewatch.core.report.status_table import ENGINE_ROWS, TARGET_ROWS
from phasewatch.outputs.backfill import Backfill

# The histories are made once for a worker, and take longer than the questions.
pytestmark = pytest.mark.xdist_group("dashboards")

QUERIES = [*targets(), *annotations()]
MOST_SERIES = 60
ENGINE = "phasewatch-engine"
# Without a limit in the configuration there is no line for it; these tests set ttft, itl and e2e.
NO_LIMIT = {f"{ENGINE}: TPOT F", f"{ENGINE}: TPOT G"}


def empty(answers: dict[str, list[dict[str, Any]]]) -> set[str]:
    return {name for name, series in answers.items() if not series}


def ask_all(filled: Filled, **one_engine: str) -> dict[str, list[dict[str, Any]]]:
    """The answer to every query; Engine shows one replica."""
    return {str(q): filled.ask(q, **(one_engine if q.board == ENGINE else {})) for q in QUERIES}


def numbers(series: dict[str, Any]) -> list[float]:
    points = series["values"] if "values" in series else [series["value"]]
    return [float(value) for _, value in points]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_parses_once_its_variables_are_filled_in(query: Target) -> None:
    promql_parser.parse(expand(query.expr))
    several = {"model_name": "(a|b\\\\.c)", "target": "(x:8000|y:8000)", "engine": "0", "namespace": "(llm|)"}
    promql_parser.parse(expand(query.expr, several, scrape=60, span=86_400))


# --- states


def test_recorded_incidents_fill_every_panel(lived_through: Filled) -> None:
    answers = ask_all(lived_through, target="interference")
    assert empty(answers) == {
        *NO_LIMIT,
        f"{ENGINE}: Accepted drafts A",  # this engine does not speculate; the peers' line is there
        "phasewatch-itself: Missing signals A",  # these pages have all
        f"{ENGINE}: Restarts ",  # another engine's
    }


def test_the_timeline_tells_each_incident_by_its_name(lived_through: Filled) -> None:
    (query,) = [q for q in QUERIES if (q.board, q.panel) == ("phasewatch-triage", "Verdicts")]
    words = {
        int(value): option["text"]
        for panel in shown(BOARDS["phasewatch-triage"])
        if panel["title"] == "Verdicts"
        for mapping in panel["fieldConfig"]["defaults"]["mappings"]
        for value, option in mapping["options"].items()
    }
    told = {
        series["metric"]["target"]: {words[int(number)] for number in numbers(series)}
        for series in lived_through.ask(query)
    }
    assert "queue_batch_limit" in told["burst"]
    assert "decode_interference" in told["interference"]
    assert "queue_kv_cache" in told["kv-exhausted"]
    assert {"healthy", "down"} <= told["restart"]
    assert told["prefix-on"] <= {"warming_up", "serving", "healthy"}


def test_one_engine_and_another_window_can_be_chosen(lived_through: Filled) -> None:
    for query in QUERIES:
        if query.board == "phasewatch-triage" and query.kind == "range" and query.panel != "Restarts":
            chosen = lived_through.ask(query, target="burst", engine="0", model_name="demo-llama", window="5m")
            assert chosen, query
            assert {series["metric"].get("target", "burst") for series in chosen} == {"burst"}


# Panels that have nothing to show where nobody sends requests. All others go on: state, queue, memory, scrapes.
SILENT = {
    "phasewatch-capacity": {"Headroom in requests", "Time until a KV cache is full", "Prefix cache hits",
                            "Prefill speed", "Decode speed"},
    "phasewatch-engine": {"TTFT", "ITL", "TPOT", "Phases", "Shares of the phases", "Prompt length", "Output length",
                          "Prefill speed", "Decode speed", "Stalled", "Prefix cache hits", "Accepted drafts",
                          "TTFT buckets", "ITL buckets", "Queue buckets", "End-to-end buckets"},
    "phasewatch-fleet": {"Objectives", "Most degraded replicas"},
    "phasewatch-itself": {"Restarts seen"},
    "phasewatch-objectives": {"Burn rates of TTFT", "Burn rates of ITL", "Share of observations over the TTFT limit",
                              "Share of observations over the ITL limit", "Budget of TTFT left in this range",
                              "Budget of ITL left in this range", "TTFT objectives, met or missed",
                              "ITL objectives, met or missed"},
    "phasewatch-triage": {"Causes now, and what to do first", "Phases", "TTFT p99 by engine", "Prompt length",
                          "Output length", "Most degraded engines"},
}  # fmt: skip


def test_a_silent_fleet_leaves_these_panels_to_their_text(silent: Filled) -> None:
    drawn: dict[tuple[str, str], bool] = defaultdict(bool)
    for query in targets():
        limit = "phasewatch_objective_seconds" in query.expr and query.panel != "Limits of every model"
        answered = bool(silent.ask(query, **({"target": "gpu-1:8000"} if query.board == ENGINE else {})))
        # A limit's line alone is no data.
        drawn[query.board, query.panel] |= answered and not limit
    found: dict[str, set[str]] = defaultdict(set)
    for (board, panel), something in drawn.items():
        if not something:
            found[board].add(panel)
    also_lines_of_limits = {
        "phasewatch-engine": {"End to end"},
        "phasewatch-fleet": {"TTFT of $model_name", "ITL of $model_name"},
        "phasewatch-triage": {"TTFT", "ITL"},
    }
    assert found == {board: names | also_lines_of_limits.get(board, set()) for board, names in SILENT.items()}


def test_every_panel_says_what_it_means_that_there_is_nothing_to_show() -> None:
    for board in BOARDS.values():
        for panel in shown(board):
            if panel["type"] != "text":
                text = panel["fieldConfig"]["defaults"]["noValue"]
                assert len(text) > 8, panel["title"]
                assert text != "No data"


# --- 200 engines


def test_at_200_engines_nothing_is_missing_and_no_panel_draws_more_than_60_lines(large: Filled) -> None:
    answers = ask_all(large, target="gpu-3:8000", model_name="model-3")
    assert {name: len(series) for name, series in answers.items() if len(series) > MOST_SERIES} == {}
    heatmaps = {f"{ENGINE}: {what} buckets A" for what in ("TTFT", "ITL", "Queue", "End-to-end")}
    alerts = {f"{ENGINE}: Firing alerts "}  # of another model
    assert empty(answers) == {*NO_LIMIT, *heatmaps, *alerts}


def test_values_are_numbers_and_shares_lie_between_0_and_1(large: Filled, lived_through: Filled) -> None:
    units = {
        (name, panel["title"]): panel["fieldConfig"]["defaults"].get("unit")
        for name, board in BOARDS.items()
        for panel in shown(board)
        if panel["type"] != "text"
    }
    for filled, engine in ((large, "gpu-3:8000"), (lived_through, "interference")):
        for query in targets():
            for series in filled.ask(query, **({"target": engine} if query.board == ENGINE else {})):
                assert all(map(math.isfinite, numbers(series))), query
                assert min(numbers(series)) >= 0 or query.panel == "Growth of the queue", query
                if units[query.board, query.panel] == "percentunit":
                    assert max(numbers(series)) <= 1 + 1e-9, query


# --- variables


def test_variables_offer_what_there_is_and_each_narrows_the_next(large: Filled, lived_through: Filled) -> None:
    for board in BOARDS.values():
        of = {variable["name"]: variable for variable in variables(board)}
        if "model_name" in of:
            assert len(large.values(of["model_name"])) == 10
            assert large.values(of["model_name"], namespace="nowhere") == []
        if {"target", "model_name"} <= set(of):
            assert len(large.values(of["target"])) == 200
            assert len(large.values(of["target"], model_name="model-3")) == 20
            assert large.values(of["engine"], target="gpu-3:8000") == ["0"]
        if "window" in of:
            assert sorted(large.values(of["window"])) == ["5m", "60s"]
        # A deployment without namespaces has no such label: nothing to choose, and All finds everything.
        assert lived_through.values(of["namespace"]) == []
    assert large.values(of["namespace"]) == ["llm"]


def test_a_fleet_without_namespaces_is_found_by_all_and_by_nothing(lived_through: Filled) -> None:
    (query,) = [q for q in QUERIES if (q.board, q.panel) == ("phasewatch-triage", "Verdicts")]
    assert len(lived_through.ask(query)) == len(lived_through.ask(query, namespace="")) == 6


# --- cases


BUCKETS = ("time_to_first_token", "request_queue_time", "e2e_request_latency", "inter_token_latency")


COUNTERS: list[SeriesRow[Any]] = [row for row in (*ENGINE_ROWS, *TARGET_ROWS) if row.name.endswith("_total")]


def counters(scrape: int) -> Iterator[tuple[int, list[Metric]]]:
    """An hour of every counter, scraped each `scrape` seconds."""
    for at in range(0, 3600, scrape):
        page = []
        for row in COUNTERS:
            family = Metric(f"phasewatch_{row.name.removesuffix('_total')}", "", "counter")
            for objective in ("ttft_p99", "itl_p99") if "objective" in row.labels else ("",):
                own = {**dict.fromkeys(row.labels, "x"), "objective": objective, "severity": "warning"}
                shared = {"target": "a", "engine": "0", "model_name": "m"}
                family.add_sample(f"phasewatch_{row.name}", {**shared, **{name: own[name] for name in row.labels}}, at)
            page.append(family)
        for name in BUCKETS:
            family = Metric(f"vllm:{name}_seconds", "", "histogram")
            labels = {"instance": "a", "job": "vllm", "engine": "0", "model_name": "m"}
            for le in ("0.1", "+Inf"):
                family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, 5)
            page.append(family)
        yield at, page


RATES = [q for q in QUERIES if "$__rate_interval" in q.expr]


@pytest.mark.parametrize("scrape", [15, 30, 60])
def test_f05_f11_rates_have_data_at_every_scrape_interval_that_the_data_source_is_told(
    filled: Callable[..., Filled], scrape: int
) -> None:
    """F11: vLLM's buckets stand still in this hour; heatmaps are drawn all the same."""
    written = Backfill()
    for at, page in counters(scrape):
        written.add(page, START + at)
    there = filled(text_of(written), START, START + 3600 - scrape)
    assert len(RATES) > 8
    at = START + 3600 - scrape + 5  # between two scrapes, as nearly always
    for query in RATES:
        assert there.server.query(expand(query.expr, scrape=scrape), at), query
    if scrape == 60:  # what went wrong elsewhere: the data source believes 15 s
        assert not any(there.server.query(expand(query.expr, scrape=15), at) for query in RATES)


def test_f09_two_engines_show_the_fullest_and_the_mean_never_the_sum(filled: Callable[..., Filled]) -> None:
    query = {q.ref: q for q in targets() if (q.board, q.panel) == ("phasewatch-fleet", "KV cache of $model_name")}
    for shares, most, mean in (((0.4, 0.4), 0.4, 0.4), ((0.95, 0.05), 0.95, 0.5)):
        written = Backfill()
        engines = tuple(
            fleets.engine(f"gpu-{n}:8000", windows={60.0: replace(fleets.FULL, kv_cache=KvCache(share))})
            for n, share in enumerate(shares)
        )
        written.add(scraped(exported(fleets.fleet(engines), START)), START)
        there = filled(text_of(written), START, START)
        assert [numbers(series) for series in there.ask(query["A"])] == [[most]]
        assert [numbers(series) for series in there.ask(query["B"])] == [[pytest.approx(mean)]]
