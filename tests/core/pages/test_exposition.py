"""Pages of every version, shape and format become the same signals; what cannot be trusted is refused or reported."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from phasewatch.core.model import Histogram, Page, Snapshot
from phasewatch.core.pages.catalog import CATALOG, CORE_SIGNALS, PREFIXES, Signal
from phasewatch.core.pages.exposition import ExpositionError, PageReader, parse
from support import EXPECTED, real_pages
from support_pages import FIVE_FAMILIES, PAGES, fixture_page, read_page, strip_page

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def page(*lines: str) -> Page:
    return parse("\n".join(lines) + "\n", at=7.0)


def only(read: Page) -> Snapshot:
    (snapshot,) = read.engines.values()
    return snapshot


def ttft(labels: str, *counts: float, name: str = "vllm:time_to_first_token_seconds") -> list[str]:
    """Buckets 0.1, 1 and +Inf, with count and a sum of 4."""
    les = ("0.1", "1.0", "+Inf")
    buckets = [f'{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in zip(les, counts, strict=True)]
    return [*buckets, f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} 4.0"]


# --- versions -----------------------------------------------------------------------------------------------------

# What a version does not say yet (or no more), among the signals that some fixture page has.
ABSENT = {
    "vllm-0.8.5.prom": {
        "waiting_capacity", "waiting_deferred", "awake", "kv_blocks", "kv_capacity_tokens",
        "kv_concurrency", "prefix_caching",
        "computed_prompt_tokens", "external_prompt_tokens", "external_prefix_hits",
        "finished_error", "tpot", "computed_prompt_length", "rejections",
    },
    "vllm-0.10.2.prom": {
        "waiting_capacity", "waiting_deferred", "awake", "kv_capacity_tokens", "kv_concurrency",
        "computed_prompt_tokens",
        "external_prompt_tokens", "external_prefix_hits", "finished_error", "tpot",
        "computed_prompt_length", "rejections",
    },
    "vllm-0.11.2.prom": {
        "waiting_capacity", "waiting_deferred", "kv_capacity_tokens", "kv_concurrency", "computed_prompt_tokens",
        "external_prompt_tokens", "finished_error", "computed_prompt_length", "rejections",
    },
    "vllm-0.20.0.prom": {"kv_capacity_tokens", "kv_concurrency", "rejections"},
    "vllm-0.33.0.prom": set(),
    "vllm-0.33.0-rust.prom": {
        "awake", "block_size", "kv_blocks", "kv_capacity_tokens", "kv_concurrency", "prefix_caching", "created",
        "finished_error",
        "rejections", "start_time", "open_fds", "cpu_seconds",
    },
}  # fmt: skip


def everything(snapshot: Snapshot) -> dict[str, object]:
    return {**snapshot.gauges, **snapshot.counters, **snapshot.histograms}


@pytest.mark.parametrize("name", ABSENT)
def test_the_same_traffic_reads_the_same_from_every_version(name: str) -> None:
    read = parse(fixture_page(name), at=7.0, content_type=OPENMETRICS if "rust" in name else "text/plain")
    newest = everything(only(parse(fixture_page("vllm-0.33.0.prom"), at=7.0)))
    # 0.8.5 counts the prefix cache in blocks.
    in_blocks = {"prefix_queries", "prefix_hits"} if name == "vllm-0.8.5.prom" else set()
    assert read.anomalies == ()
    assert list(read.engines) == [(MODEL, "0")]
    assert read.kind == "engine"
    found = everything(only(read))
    assert newest.keys() - found.keys() == ABSENT[name]
    assert {key: value for key, value in found.items() if key not in in_blocks} == {
        key: value for key, value in newest.items() if key in found and key not in in_blocks
    }


def test_the_newest_version_reads_as_written() -> None:
    read = parse(fixture_page("vllm-0.33.0.prom"), at=7.0)
    snapshot = only(read)
    assert snapshot.at == read.at == 7.0
    assert snapshot.gauges == {
        "running": 3, "waiting": 2, "waiting_capacity": 1, "waiting_deferred": 1, "kv_usage": 0.42, "awake": 1,
        "created": 1.7537953e9, "block_size": 16, "kv_blocks": 27000, "kv_capacity_tokens": 432000,
        "kv_concurrency": 13.18, "prefix_caching": 1, "start_time": 1.75379521e9, "open_fds": 57,
    }  # fmt: skip
    assert snapshot.counters == {
        "finished_abort": 0, "prompt_tokens": 18240, "computed_prompt_tokens": 16440, "external_prompt_tokens": 0,
        "generation_tokens": 5000, "preemptions": 4, "prefix_queries": 5400, "prefix_hits": 1800,
        "external_prefix_hits": 0, "finished": 38,
        "finished_length": 8, "finished_error": 0, "rejections": 0, "http_finishes": 41,
        "http_2xx": 39, "http_5xx": 0, "cpu_seconds": 91.5,
    }  # fmt: skip
    assert snapshot.histograms["itl"].count == 3990
    assert snapshot.histograms["itl"].bounds[:2] == (0.01, 0.025)
    assert snapshot.histograms["itl"].bounds[-1] == math.inf
    assert snapshot.histograms["iteration_tokens"].count == 1238
    assert read.http["http_finishes"] == 41


def test_the_cache_labels_of_0_8_5_are_none_where_they_are_none() -> None:
    gauges = only(parse(fixture_page("vllm-0.8.5.prom"), at=7.0)).gauges
    assert gauges["block_size"] == 16
    assert not {"kv_blocks", "kv_capacity_tokens", "prefix_caching"} & gauges.keys()


# --- the named cases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "lines",
    [
        ['kv_cache_usage_perc{engine="0",model_name="m"} 0.42'],
        ['gpu_cache_usage_perc{model_name="m"} 0.42'],
        ['gpu_cache_usage_perc{model_name="m"} 0.42', 'kv_cache_usage_perc{engine="0",model_name="m"} 0.42'],
    ],
    ids=["new", "old", "both"],
)
def test_a01_the_kv_gauge_is_one_number_whatever_its_name(prefix: str, lines: list[str]) -> None:
    read = page(*(prefix + line for line in lines))
    assert {id_: snapshot.gauges for id_, snapshot in read.engines.items()} == {("m", "0"): {"kv_usage": 0.42}}


def test_a01_a_page_with_neither_name_says_absent_not_zero() -> None:
    assert "kv_usage" not in only(page('vllm:num_requests_running{engine="0",model_name="m"} 3')).gauges


def test_a03_old_and_new_histogram_count_once() -> None:
    labels = 'engine="0",model_name="m"'
    old = ttft(labels, 400, 900, 1000, name="vllm:time_per_output_token_seconds")
    new = ttft(labels, 400, 900, 1000, name="vllm:inter_token_latency_seconds")
    for lines in (old + new, new + old, old, new):
        itl = only(page(*lines)).histograms["itl"]
        assert (itl.counts, itl.total) == ((400, 900, 1000), 4.0)


TWO_NAMES = [row for row in CATALOG if len(row.names) > 1 and row.kind != "histogram"]


@pytest.mark.parametrize("row", TWO_NAMES, ids=lambda row: row.name)
def test_a03_the_newest_name_wins_per_engine_and_nothing_is_added(row: Signal) -> None:
    """Engine 1 has only the oldest name: it is read there, and engine 0 is not touched by it."""
    lines = [f'vllm:{name}{{engine="0",model_name="m"}} {value / 10}' for value, name in enumerate(row.names, 1)]
    lines.append(f'vllm:{row.names[-1]}{{engine="1",model_name="m"}} 0.9')
    read = page(*reversed(lines))
    assert [everything(snapshot)[row.name] for snapshot in read.engines.values()] == [0.1, 0.9]


@pytest.mark.parametrize(
    ("prefix", "labels", "engine"),
    [("ray_vllm:", 'WorkerId="w1"', "w1"), ("ray_vllm_", 'WorkerId="w1",ReplicaId="r1"', "w1/r1")],
)
def test_a05_both_ray_prefixes_are_recognised_and_workers_are_replicas(prefix: str, labels: str, engine: str) -> None:
    other = labels.replace("w1", "w2")
    read = page(
        f'{prefix}num_requests_running{{model_name="m",engine="0",{labels}}} 4',
        f'{prefix}num_requests_running{{model_name="m",engine="0",{other}}} 6',
        *ttft(f'model_name="m",{labels}', 1, 2, 3, name=f"{prefix}time_to_first_token_seconds"),
    )
    assert read.engines["m", engine].gauges["running"] == 4
    assert read.engines["m", engine].histograms["ttft"].count == 3
    assert read.engines["m", engine.replace("w1", "w2")].gauges["running"] == 6


@pytest.mark.parametrize(
    ("name", "engine", "twin"),
    [
        ("ray-vllm-0.10.2.prom", "5e1f03", "vllm-0.10.2.prom"),
        ("ray-vllm-0.12.0.prom", "5e1f03/a81b", "vllm-0.11.2.prom"),
    ],
)
def test_a05_a_page_of_ray_says_what_the_engine_itself_would(name: str, engine: str, twin: str) -> None:
    read, direct = parse(fixture_page(name), at=7.0), only(parse(fixture_page(twin), at=7.0))
    assert list(read.engines) == [(MODEL, engine)]
    assert read.anomalies == ()
    for key, value in everything(read.engines[MODEL, engine]).items():
        assert value == everything(direct)[key], key
    assert read.engines[MODEL, engine].histograms.keys() == direct.histograms.keys()


def test_a07_a_serving_framework_without_engine_metrics_is_no_engine() -> None:
    read = page("# TYPE ray_serve_num_http_requests_total counter", 'ray_serve_num_http_requests_total{route="/"} 50')
    assert (read.kind, read.engines, read.http) == ("none", {}, {})


def test_a07_with_the_stat_logger_off_only_the_web_server_speaks() -> None:
    read = page(
        "# TYPE http_requests_total counter",
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 50',
    )
    assert (read.kind, read.engines) == ("none", {})
    assert read.http == {"http_finishes": 50, "http_2xx": 50, "http_5xx": 0}


def test_a07_families_that_are_only_declared_are_told_apart() -> None:
    read = page("# HELP vllm:prompt_tokens_total Prefill tokens.", "# TYPE vllm:prompt_tokens_total counter")
    assert (read.kind, read.engines) == ("declared", {})


@pytest.mark.parametrize("text", ["", "\n", "  \r\n\n"])
@pytest.mark.parametrize("content_type", ["text/plain; version=0.0.4", OPENMETRICS])
def test_a09_an_empty_body_is_no_page(text: str, content_type: str) -> None:
    with pytest.raises(ExpositionError, match="empty"):
        parse(text, at=7.0, content_type=content_type)


def test_a11_a_router_is_told_and_its_placeholders_are_dropped() -> None:
    read = page(
        'vllm:num_requests_running{server="http://10.0.0.7:8000"} 3',
        'vllm:avg_prefill_length{server="http://10.0.0.7:8000"} -1',
    )
    assert (read.kind, read.engines, read.anomalies) == ("router", {}, ())


def test_a11_an_engine_beside_router_series_is_read_without_them() -> None:
    read = page(
        'vllm:num_requests_running{server="http://10.0.0.7:8000"} 3',
        'vllm:num_requests_running{model_name="m",engine="0"} 1',
    )
    assert read.kind == "engine"
    assert {id_: snapshot.gauges for id_, snapshot in read.engines.items()} == {("m", "0"): {"running": 1}}


@pytest.mark.parametrize("old", [True, False])
def test_a13_creation_times_never_become_values(old: bool) -> None:
    name = "gpu_prefix_cache_queries" if old else "prefix_cache_queries"
    read = page(
        f'vllm:{name}_created{{engine="0",model_name="m"}} 1.7537953e+09',
        f'vllm:{name}_total{{engine="0",model_name="m"}} 32',
    )
    assert everything(only(read)) == {"prefix_queries": 32}


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.prom*")), ids=lambda path: path.name)
def test_a13_no_number_but_the_restart_hints_is_a_unix_time(path: Path) -> None:
    for snapshot in parse(read_page(path), at=7.0).engines.values():
        numbers = {**snapshot.gauges, **snapshot.counters}
        assert {name for name, value in numbers.items() if value > 1e9} <= {"created", "start_time"}


@pytest.mark.parametrize("rest", [0.0, 0.3])
def test_b03_a_gauge_split_by_process_joins_by_max(rest: float) -> None:
    values = [rest, rest, 0.653, rest, rest, rest, rest, rest]
    read = page(
        *(
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{pid}"}} {value}'
            for pid, value in enumerate(values, 271)
        )
    )
    assert list(read.engines) == [("m", "0")]
    assert only(read).gauges == {"kv_usage": 0.653}


def test_b03_counters_and_histograms_split_by_process_are_added() -> None:
    read = page(
        'vllm:prompt_tokens_total{engine="0",model_name="m",pid="1"} 30',
        'vllm:prompt_tokens_total{engine="0",model_name="m",pid="2"} 12',
        *ttft('engine="0",model_name="m",pid="1"', 1, 2, 3),
        *ttft('engine="0",model_name="m",pid="2"', 0, 5, 5),
    )
    assert only(read).counters == {"prompt_tokens": 42}
    histogram = only(read).histograms["ttft"]
    assert (histogram.counts, histogram.total) == ((1, 7, 8), 8.0)


def test_b05_engines_of_one_page_are_told_apart() -> None:
    read = page(
        "process_start_time_seconds 100.0",
        "process_open_fds 30",
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 9',
        *(
            f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}'
            for engine, numbers in enumerate(((12, 3, 0.40), (30, 9, 0.97)))
            for name, value in zip(
                ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"), numbers, strict=True
            )
        ),
    )
    # What is true of the server as a whole belongs to neither engine, but both began with it.
    assert {id_: snapshot.gauges for id_, snapshot in read.engines.items()} == {
        ("m", "0"): {"running": 12, "waiting": 3, "kv_usage": 0.40, "start_time": 100},
        ("m", "1"): {"running": 30, "waiting": 9, "kv_usage": 0.97, "start_time": 100},
    }
    assert read.http == {
        "start_time": 100, "open_fds": 30, "http_finishes": 9, "http_2xx": 9, "http_5xx": 0
    }  # fmt: skip


def test_b05_a_real_page_of_two_engines() -> None:
    read = parse(fixture_page("real-0.32.0-two-engines.prom.gz"), at=7.0)
    assert list(read.engines) == [("demo-llama", "0"), ("demo-llama", "1")]
    # num_gpu_blocks says 1024, both engines together; 512 blocks of 128 tokens are the 65,536 of each.
    for snapshot in read.engines.values():
        assert snapshot.gauges["kv_blocks"] * snapshot.gauges["block_size"] == snapshot.gauges["kv_capacity_tokens"]
        assert "http_finishes" not in snapshot.counters


def test_b11_bounds_are_read_from_the_page_and_kept() -> None:
    def lengths(*les: str) -> Page:
        name = 'vllm:request_prompt_tokens_bucket{engine="0",model_name="m"'
        return page(*(f'{name},le="{le}"}} {count}' for count, le in enumerate(les)))

    short, long = lengths("2000.0", "5000.0", "+Inf"), lengths("5000", "10000", "20000", "+Inf")
    assert only(short).histograms["prompt_length"].bounds == (2000, 5000, math.inf)
    assert only(long).histograms["prompt_length"].bounds == (5000, 10000, 20000, math.inf)


def test_p8_edges_compare_as_numbers_and_buckets_may_stand_in_any_order() -> None:
    labels = 'engine="0",model_name="m"'
    name = "vllm:time_to_first_token_seconds"

    def with_edges(*les: str) -> list[str]:
        buckets = [f'{name}_bucket{{{labels},le="{le}"}} {count}' for count, le in enumerate(les, 1)]
        return [f"{name}_sum{{{labels}}} 9", *reversed(buckets)]

    assert page(*with_edges("2", "10", "+Inf")).engines == page(*with_edges("2.0", "1e1", "+Inf")).engines
    assert only(page(*with_edges("2", "10", "+Inf"))).histograms["ttft"].counts == (1, 2, 3)


def test_d11_bad_lines_cost_only_themselves_and_are_named() -> None:
    read = page(
        'x{name="MacBook 14" rw",id="2"} -7',
        "y{code=200,method=get} 20",
        'vllm:num_requests_running{engine="0",model_name="m"} 3',
        'vllm:num_requests_waiting{engine="0",model_name="m} 3',
        'vllm:num_requests_waiting{engine="0",model_name="m"} two',
        "just words",
        'z{a="1"} 1 2 3',
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5',
    )
    assert only(read).gauges == {"running": 3, "kv_usage": 0.5}
    (unreadable,) = read.anomalies
    assert (unreadable.kind, unreadable.count) == ("unreadable_line", 6)
    assert unreadable.last == "line 7 cannot be read: 'z{a=\"1\"} 1 2 3'"


def test_d11_many_bad_lines_are_counted_not_listed() -> None:
    read = page(*["nonsense\x1b[2J {"] * 500, 'vllm:num_requests_running{engine="0",model_name="m"} 3')
    assert [(one.kind, one.count) for one in read.anomalies] == [("unreadable_line", 500)]
    assert "\x1b" not in read.anomalies[0].last
    assert only(read).gauges == {"running": 3}


# --- the page as a whole ------------------------------------------------------------------------------------------

GOOD = 'vllm:num_requests_running{engine="0",model_name="m"} 3'


@pytest.mark.parametrize(
    ("text", "content_type", "reason"),
    [
        ("<!DOCTYPE html>\n<html>\nbuild 7\n</html>\n", "text/html", "HTML"),
        ("<html><title>502</title></html>", "text/plain", "HTML"),
        ('{"detail":"Not Found"}', "application/json", "JSON"),
        ('{\n  "running": 3\n}\n', "text/plain", "JSON"),
        ("Not Found\n", "text/plain", "no line of metrics"),
        ("# a comment\n", "text/plain", "no line of metrics"),
        (GOOD, "text/plain", "truncated"),
        (GOOD + "\n" + GOOD[:-20], "text/plain", "truncated"),
        (GOOD + "\n", OPENMETRICS, "truncated"),
        (GOOD + "\n# EO", "text/plain", "truncated"),
    ],
)
def test_a_page_that_cannot_be_trusted_is_refused_in_one_line(text: str, content_type: str, reason: str) -> None:
    with pytest.raises(ExpositionError, match=reason) as error:
        parse(text, at=7.0, content_type=content_type)
    assert "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_page_cut_anywhere_but_at_a_line_end_is_refused(data: st.DataObject) -> None:
    text = fixture_page("vllm-0.33.0.prom")
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    if cut.endswith("\n"):
        parse(cut, at=7.0)
    else:
        with pytest.raises(ExpositionError):
            parse(cut, at=7.0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_openmetrics_cut_anywhere_is_refused(data: st.DataObject) -> None:
    text = fixture_page("vllm-0.33.0-rust.prom")
    cut = text[: data.draw(st.integers(0, len(text) - 3))]
    with pytest.raises(ExpositionError):
        parse(cut, at=7.0, content_type=OPENMETRICS)


@settings(deadline=None)
@given(st.text(alphabet='ab{}"\\\n #=,+1.eNa\t\r_:') | st.text())
def test_whatever_the_bytes_are_the_answer_is_a_page_or_one_clear_line(text: str) -> None:
    try:
        reason = str(parse(text + "\n", at=7.0).kind)
    except ExpositionError as error:
        reason = str(error)
    assert len(reason.splitlines()) == 1


@pytest.mark.parametrize("name", ["vllm-0.33.0.prom", "vllm-0.33.0-rust.prom"])
@pytest.mark.parametrize("content_type", ["text/plain; version=0.0.4", "text/plain; version=1.0.0", ""])
def test_p7_openmetrics_is_read_even_when_the_content_type_says_plain_text(name: str, content_type: str) -> None:
    honest = OPENMETRICS if "rust" in name else "text/plain"
    read = parse(fixture_page(name), at=7.0, content_type=content_type)
    assert replace(read, anomalies=()) == parse(fixture_page(name), at=7.0, content_type=honest)


@pytest.mark.parametrize("content_type", ["", "text/html; charset=utf-8", "application/json"])
def test_a_page_that_is_not_sent_as_metrics_is_read_and_said(content_type: str) -> None:
    read = parse(f"{GOOD}\n", at=7.0, content_type=content_type)
    assert only(read).gauges == {"running": 3}
    assert [one.kind for one in read.anomalies] == ["content_type"]
    assert parse(f"{GOOD}\n", at=7.0, content_type="Text/Plain;version=0.0.4").anomalies == ()


def test_p7_exemplars_timestamps_units_and_creation_times_of_openmetrics_are_understood() -> None:
    labels = 'engine="0",model_name="m"'
    text = "\n".join(
        [
            "# TYPE vllm:time_to_first_token_seconds histogram",
            "# UNIT vllm:time_to_first_token_seconds seconds",
            "# HELP vllm:time_to_first_token_seconds Time to first token.",
            f'vllm:time_to_first_token_seconds_bucket{{{labels},le="0.1"}} 2 # {{id="a # }} b"}} 0.05 1520879607.7',
            f'vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} 3 1520879607.7 # {{}} 5.2',
            f"vllm:time_to_first_token_seconds_count{{{labels}}} 3 1520879607.7",
            f"vllm:time_to_first_token_seconds_sum{{{labels}}} 5.3",
            f"vllm:time_to_first_token_seconds_created{{{labels}}} 1520430000.123",
            "# TYPE vllm:generation_tokens counter",
            f"vllm:generation_tokens_total{{{labels}}} 17.0 1520879607.789",
            f"vllm:generation_tokens_created{{{labels}}} 1520430000.123",
            "# EOF",
        ]
    )
    for end in ("", "\n", "\r\n"):
        read = parse(text + end, at=7.0, content_type=OPENMETRICS)
        assert read.anomalies == ()
        assert only(read).counters == {"generation_tokens": 17}
        assert only(read).gauges == {"created": 1520430000.123}
        assert only(read).histograms["ttft"].counts == (2, 3)
        assert only(read).histograms["ttft"].total == 5.3


# --- lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{model_name="m",engine="0"} 3',
        'vllm:num_requests_running{model_name="m",engine="0",} 3.0',
        '  vllm:num_requests_running\t{ engine = "0" , model_name = "m" }\t+3e0  \r',
        'vllm:num_requests_running{engine="0",model_name="m"}3 1395066363000',
        '{"vllm:num_requests_running",engine="0",model_name="m"} 3',
        '{"vllm:num_requests_running",engine="0","model_name"="m","odd.label"="}"} 3',
        'vllm:num_requests_running{engine="0",model_name="m",note="# { \\" }"} 3',
    ],
)
def test_a_sample_reads_the_same_however_it_is_written(line: str) -> None:
    read = page(line)
    assert read.anomalies == ()
    assert {id_: snapshot.gauges for id_, snapshot in read.engines.items()} == {("m", "0"): {"running": 3}}


@settings(deadline=None)
@given(st.text(), st.text(), st.integers(0, 10**6), st.booleans())
def test_any_model_name_survives_the_trip_through_a_page(model: str, pid: str, value: int, openmetrics: bool) -> None:
    """Written by the library vLLM uses; its OpenMetrics names begin with vllm_, not vllm:."""
    registry = CollectorRegistry()
    names = ("model_name", "engine", "pid")
    Gauge("vllm:num_requests_running", 'A "help"\\ text\nin two lines.', names, registry=registry).labels(
        model, "3", pid
    ).set(value)
    Counter("vllm:prompt_tokens", "Help.", names, registry=registry).labels(model, "3", pid).inc(value)
    text = (generate_openmetrics if openmetrics else generate_latest)(registry).decode()
    read = parse(text, at=7.0, content_type=OPENMETRICS if openmetrics else "text/plain")
    assert read.anomalies == ()
    assert list(read.engines) == [(model, "3")]
    assert only(read).gauges == {"running": value}
    assert only(read).counters == {"prompt_tokens": value}


def test_label_values_may_hold_what_other_readers_take_for_line_ends() -> None:
    read = page('vllm:num_requests_running{engine="0",model_name="a\u2028b\x85c\x0cd"} 3')
    assert list(read.engines) == [("a\u2028b\x85c\x0cd", "0")]


def test_a_counter_is_recognised_with_and_without_total_and_counted_once() -> None:
    labels = '{engine="0",model_name="m"}'
    for lines in (
        [f"vllm:num_preemptions{labels} 5"],
        [f"vllm:num_preemptions_total{labels} 5"],
        [f"vllm:num_preemptions{labels} 5", f"vllm:num_preemptions_total{labels} 5"],
    ):
        assert only(page(*lines)).counters == {"preemptions": 5}


def test_a_repeated_series_is_not_added_to_itself() -> None:
    line = 'vllm:prompt_tokens_total{engine="0",model_name="m"} '
    read = page(line + "5", line + "6")
    assert only(read).counters == {"prompt_tokens": 6}
    assert read.anomalies[0].last.startswith("line 2 repeats")


@pytest.mark.parametrize("value", ["-1", "+Inf", "-Inf"])
def test_a_count_that_cannot_be_is_absent_and_reported(value: str) -> None:
    read = page(GOOD, f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {value}')
    assert only(read).gauges == {"running": 3}
    assert read.anomalies[0].last.startswith("line 2 has a value that cannot be")


def test_nan_is_absent() -> None:
    labels = '{engine="0",model_name="m"}'
    read = page(GOOD, f"vllm:kv_cache_usage_perc{labels} NaN", f"vllm:prompt_tokens_total{labels} nan")
    assert everything(only(read)) == {"running": 3}
    assert read.anomalies == ()


SCALARS = [row for row in CATALOG if row.kind in ("gauge", "counter")]


@pytest.mark.parametrize("row", SCALARS, ids=lambda row: row.name)
@pytest.mark.parametrize("value", ["-1", "1e300", "+Inf"])
def test_t07_a_number_outside_its_kind_costs_its_line_and_is_reported(row: Signal, value: str) -> None:
    chosen = "".join(f',{label}="{values[0]}"' for label, values in row.where.items())
    name = f"vllm:{row.names[0]}" if row.prefixed else row.names[0]
    read = page(GOOD, f'{name}{{engine="0",model_name="m"{chosen}}} {value}')
    assert everything(only(read)) == {"running": 3}
    assert read.http == {}
    assert read.anomalies[0].last.startswith(f"line 2 has a value that cannot be ({float(value):g})")


@pytest.mark.parametrize(("value", "usage"), [("1e6", None), ("1.001", None), ("1.0000001", 1.0), ("1", 1.0)])
def test_t07_kv_usage_is_a_ratio(value: str, usage: float | None) -> None:
    read = page(GOOD, f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {value}')
    assert only(read).gauges.get("kv_usage") == usage
    assert bool(read.anomalies) == (usage is None)


def test_what_configuration_says_as_text_is_read_without_who_says_it() -> None:
    info = 'vllm:cache_config_info{engine="0",pid="7",block_size="16",cache_dtype="auto",swap_space="None"} 1'
    read = page(GOOD, info)
    assert only(read).labels == {"block_size": "16", "cache_dtype": "auto", "swap_space": "None"}
    assert only(page(GOOD)).labels == {}


def test_adapters_are_all_that_were_ever_seen_and_those_that_wait_of_the_latest_series() -> None:
    def lora(running: str, waiting: str, at: float) -> str:
        labels = f'max_lora="2",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
        return f"vllm:lora_requests_info{{{labels}}} {at}"

    old, new = lora("b,a", "", 1.7e9), lora("a", "c, d", 1.7e9 + 5)
    for lines in ((old, new), (new, old)):
        snapshot = only(page(GOOD, *lines))
        assert snapshot.labels == {"adapters": "a, b, c, d"}
        assert {name: snapshot.gauges[name] for name in ("waiting_adapters", "adapter_slots")} == {
            "waiting_adapters": 2, "adapter_slots": 2
        }  # fmt: skip
    reader = PageReader()
    for first, at in ((1.7e9 + 9, 0.0), (1.7e9, 2.0)):
        text = "\n".join((GOOD, lora("b", "", first), new)) + "\n"
        snapshot = only(reader.read(text, at=at))
        assert snapshot == only(parse(text, at=at))
    assert snapshot.gauges["waiting_adapters"] == 2


@pytest.mark.parametrize("label", ["num_gpu_blocks", "block_size", "kv_cache_size_tokens"])
@pytest.mark.parametrize("value", ["-1", "0", "inf", "1e300"])
def test_t07_a_capacity_that_cannot_be_is_absent_and_reported(label: str, value: str) -> None:
    read = page(GOOD, f'vllm:cache_config_info{{engine="0",{label}="{value}"}} 1')
    assert everything(only(read)) == {"running": 3}
    assert [one.last for one in read.anomalies] == [
        f"cache_config_info has a {label} that cannot be ({float(value):g})"
    ]


# --- histograms ---------------------------------------------------------------------------------------------------

LABELS = 'engine="0",model_name="m"'
TTFT = "vllm:time_to_first_token_seconds"


def without(lines: list[str], part: str) -> list[str]:
    return [line for line in lines if part not in line]


@pytest.mark.parametrize("part", ["+Inf", "_count"])
def test_the_count_is_known_from_the_infinite_bucket_or_the_count(part: str) -> None:
    assert only(page(*without(ttft(LABELS, 1, 2, 3), part))).histograms["ttft"].counts == (1, 2, 3)


def test_a_missing_or_undefined_sum_is_unknown() -> None:
    lines = without(ttft(LABELS, 1, 2, 3), "_sum")
    assert only(page(*lines)).histograms["ttft"].total is None
    assert only(page(*lines, f"{TTFT}_sum{{{LABELS}}} NaN")).histograms["ttft"].total is None
    assert only(page(*lines, f"{TTFT}_sum{{{LABELS}}} -3")).histograms["ttft"].total == -3


@pytest.mark.parametrize("counts", [(5, 4, 6), (5, 6, 4), (-1, 0, 1), (math.nan, 1, 2), (0, 1, math.nan)])
def test_buckets_that_are_not_cumulative_are_left_out_with_a_reason(counts: tuple[float, ...]) -> None:
    read = page(GOOD, *ttft(LABELS, *counts))
    assert only(read).histograms == {}
    assert [one.last for one in read.anomalies] == [
        f"{TTFT} of engine '0' of model 'm' is left out: its buckets are not cumulative"
    ]


def test_t01_a_histogram_of_more_than_can_be_counted_is_left_out_with_a_reason() -> None:
    for count in (1e300, math.inf):
        read = page(GOOD, *ttft(LABELS, 0, 1, count))
        assert only(read).histograms == {}
        assert [one.last for one in read.anomalies] == [
            f"{TTFT} of engine '0' of model 'm' is left out: its count cannot be ({count:g})"
        ]


@pytest.mark.parametrize("value", ["1e300", "-1e300", "+Inf", "-Inf", "NaN"])
def test_t01_a_sum_that_cannot_be_is_unknown_and_reported(value: str) -> None:
    read = page(*without(ttft(LABELS, 1, 2, 3), "_sum"), f"{TTFT}_sum{{{LABELS}}} {value}")
    assert only(read).histograms["ttft"].total is None
    assert read.anomalies[0].last.startswith(f"{TTFT}_sum of engine '0' of model 'm' has a value that cannot be (")


@pytest.mark.parametrize("first", ["-0.1", "-Inf", "0.0999999999999", "1e-12"])
def test_t07_a_histogram_with_edges_that_nothing_takes_is_left_out_with_a_reason(first: str) -> None:
    read = page(GOOD, f'{TTFT}_bucket{{{LABELS},le="{first}"}} 0', *ttft(LABELS, 1, 2, 3))
    assert only(read).histograms == {}
    assert "is left out: its edge" in read.anomalies[0].last


def test_a_histogram_without_buckets_or_without_an_end_is_left_out_with_a_reason() -> None:
    lines = ttft(LABELS, 1, 2, 3)
    for part, reason in (("_bucket", "no buckets"), ("3", "neither a +Inf bucket nor a count")):
        read = page(GOOD, *without(lines, part))
        assert only(read).histograms == {}
        assert read.anomalies[0].last.endswith(reason)


def test_a_bucket_without_a_readable_edge_is_reported() -> None:
    read = page(*ttft(LABELS, 1, 2, 3), f'{TTFT}_bucket{{{LABELS},le="wide"}} 2', f"{TTFT}_bucket{{{LABELS}}} 2")
    assert only(read).histograms["ttft"].counts == (1, 2, 3)
    (impossible,) = read.anomalies
    assert (impossible.kind, impossible.count) == ("impossible_value", 2)
    assert impossible.last.startswith("line 7 has no readable le")


def test_a_histogram_that_is_only_declared_is_absent() -> None:
    assert only(page(GOOD, f"# HELP {TTFT} Help.", f"# TYPE {TTFT} histogram")).histograms == {}


# --- families with rules of their own -----------------------------------------------------------------------------


def test_a_web_server_family_without_a_matching_child_counts_zero_once_it_is_declared() -> None:
    assert "http_finishes" not in page(GOOD).http
    for line in ("# TYPE http_requests_total counter", "# HELP http_requests Requests."):
        assert page(GOOD, line).http["http_finishes"] == 0
    read = page(GOOD, 'http_requests_total{handler="/v1/models",method="GET",status="5xx"} 9')
    assert {name: read.http[name] for name in ("http_finishes", "http_2xx", "http_5xx")} == dict.fromkeys(
        ("http_finishes", "http_2xx", "http_5xx"), 0
    )


def test_a_finish_reason_not_made_yet_counts_zero_but_an_error_is_unknown() -> None:
    read = page('vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 4')
    assert only(read).counters == {"finished": 4, "finished_length": 0, "finished_abort": 0}


def test_rejections_stand_on_the_page_and_in_its_only_engine() -> None:
    rejections = [
        f'vllm:admission_rejections_total{{model_name="m",reason="{reason}"}} {value}'
        for reason, value in (("max_num_queued_reqs", 2), ("max_num_queued_tokens", 3))
    ]
    assert page(GOOD, *rejections).http == {"rejections": 5}
    assert only(page(GOOD, *rejections)).counters == {"rejections": 5}


@pytest.mark.parametrize("awake", [0, 1])
def test_a_sleeping_engine_says_so(awake: int) -> None:
    name = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state'
    assert only(page(f'{name}="awake"}} {awake}', f'{name}="discard_all"}} {1 - awake}')).gauges == {"awake": awake}


def test_cache_settings_without_an_engine_label_hold_for_all_engines_else_for_theirs() -> None:
    engines = [f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} 1' for engine in (0, 1)]
    info = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="None"'
    read = page(*engines, info + "} 1.0")
    for snapshot in read.engines.values():
        assert snapshot.gauges == {"running": 1, "block_size": 16, "prefix_caching": 0}
    read = page(*engines, info + ',engine="1"} 1.0')
    assert [snapshot.gauges.get("block_size") for snapshot in read.engines.values()] == [None, 16]


def test_cache_settings_alone_are_no_engine() -> None:
    read = page("# TYPE vllm:cache_config_info gauge", 'vllm:cache_config_info{block_size="16",engine="0"} 1.0')
    assert (read.kind, read.engines) == ("declared", {})


def test_a_page_stripped_to_five_families_keeps_these_and_nothing_else() -> None:
    for name in ("vllm-0.8.5.prom", "vllm-0.10.2.prom", "vllm-0.33.0.prom", "ray-vllm-0.12.0.prom"):
        stripped = parse(strip_page(fixture_page(name), FIVE_FAMILIES), at=7.0)
        whole = everything(only(parse(fixture_page(name), at=7.0)))
        assert everything(only(stripped)) == {signal: whole[signal] for signal in CORE_SIGNALS}
        assert stripped.http == {}


# --- real pages, against the reference reader ---------------------------------------------------------------------

REAL = sorted(PAGES.glob("real-*"))


Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]


def reference(text: str) -> Samples:
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    return samples


def by_reference(row: Signal, samples: Samples, labels: Mapping[str, str]) -> object:
    """What a real 0.32 page says of a signal: newest names only, one process, so nothing but sums is needed."""

    def values(suffix: str) -> list[tuple[Mapping[str, str], float]]:
        return [
            (found, value)
            for found, value in samples.get(("vllm:" if row.prefixed else "") + row.names[0] + suffix, ())
            if labels.items() <= found.items()
            and all(found.get(label) in allowed for label, allowed in row.where.items())
        ]

    if row.kind == "histogram":
        edges = sorted((float(found["le"]), value) for found, value in values("_bucket"))
        total = [value for _, value in values("_sum")]
        return Histogram(tuple(le for le, _ in edges), tuple(n for _, n in edges), total[0]) if edges else None
    return sum(value for _, value in values("")) if values("") else None


def differences(text: str) -> Iterator[str]:
    """Every signal as the reference reader's samples give it, against what parse made of the page."""
    samples, read = reference(text), parse(text, at=7.0)
    zero_once_declared = {"http_finishes", "http_2xx", "http_5xx"} if "# TYPE http_requests_total" in text else set()
    for row in (row for row in CATALOG if row.kind != "info"):
        if row.scope == "page":
            pairs = [(read.http.get(row.name), by_reference(row, samples, {}))]
        else:
            pairs = [
                (
                    everything(snapshot).get(row.name),
                    by_reference(row, samples, {"model_name": id_[0], "engine": id_[1]}),
                )
                for id_, snapshot in read.engines.items()
            ]
        for got, expected in pairs:
            if got != (0 if expected is None and row.name in zero_once_declared else expected):
                yield f"{row.name}: {got} is not {expected}"


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_a_real_page_agrees_with_the_reference_reader(path: Path) -> None:
    text = read_page(path)
    assert list(differences(text)) == []
    assert parse(text, at=7.0).anomalies == ()
    assert all(snapshot.histograms["ttft"].count for snapshot in parse(text, at=7.0).engines.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_first_middle_and_last_page_of_a_recording_agree_with_the_reference_reader(name: str) -> None:
    pages = list(real_pages(name).items())
    wrong = {seconds: list(differences(text)) for seconds, text in (pages[0], pages[len(pages) // 2], pages[-1])}
    assert {seconds: found for seconds, found in wrong.items() if found} == {}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_recorded_page_is_an_engine_page_without_a_problem(name: str) -> None:
    for seconds, text in real_pages(name).items():
        read = parse(text, at=7.0)
        assert (read.kind, read.anomalies) == ("engine", ()), seconds
        if "http_finishes" in read.http:
            assert read.http["http_2xx"] <= read.http["http_finishes"]
