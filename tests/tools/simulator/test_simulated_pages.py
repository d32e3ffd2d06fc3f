"""Pages of simulated servers: the same families and edges as a real 0.32's, and numbers that agree with themselves."""

import gzip
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from simulated_servers import FLAGS, INSTANT, fleet, series, steady, value
from tools.simulator.config import Flags, Flow, Length, Speculation, Transfer
from tools.simulator.metrics import Histogram, token_edges

PAGES = Path(__file__).parents[2] / "fixtures" / "pages"
SHAPES = {
    "single": FLAGS,
    "spec-decode": replace(FLAGS, speculation=Speculation(4, 0.3)),
    "two-engines": replace(FLAGS, data_parallel=2),
    "two-frontends": replace(FLAGS, api_servers=2),
}


def shape(page: str) -> tuple[set[str], set[str]]:
    """HELP and TYPE lines; series with their labels, but for those whose label values are a machine's own."""
    lines = page.splitlines()
    named = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    own = ("vllm:cache_config_info", "python_info")
    return {line for line in lines if line.startswith("#")}, {each for each in named if not each.startswith(own)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_simulated_page_has_the_families_labels_and_edges_of_a_real_one(name: str) -> None:
    real = gzip.decompress((PAGES / f"real-0.32.0-{name}.prom.gz").read_bytes()).decode()
    simulated = fleet(steady(), flags=SHAPES[name])
    simulated.advance(10)

    heads, named = shape(simulated.page("demo"))
    real_heads, real_named = shape(real)

    assert heads == real_heads
    assert named == real_named


def test_the_cache_configuration_has_the_labels_of_a_real_one() -> None:
    real = series(gzip.decompress((PAGES / "real-0.32.0-single.prom.gz").read_bytes()).decode())
    simulated = series(fleet(flags=Flags(block_size=128, kv_blocks=512, max_model_len=4096)).page("demo"))
    (want,) = (dict(labels) for name, labels in real if name == "vllm:cache_config_info")
    (have,) = (dict(labels) for name, labels in simulated if name == "vllm:cache_config_info")

    assert have.keys() == want.keys()
    assert {key: have[key] for key in ("block_size", "num_gpu_blocks", "kv_cache_size_tokens")} == {
        key: want[key] for key in ("block_size", "num_gpu_blocks", "kv_cache_size_tokens")
    }


def test_counters_and_buckets_never_fall() -> None:
    simulated = fleet(steady(rate=6.0))
    pages = []
    for second in range(0, 40, 2):
        simulated.advance(second)
        pages.append(series(simulated.page("demo")))

    for before, after in pairwise(pages):
        for key, old in before.items():
            if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                assert after[key] >= old, key


def test_a_histogram_s_buckets_rise_to_its_count_and_its_sum_fits_them() -> None:
    simulated = fleet(steady(rate=5.0))
    simulated.advance(60)
    page = series(simulated.page("demo"))

    families = {name.removesuffix("_count") for name, _ in page if name.endswith("_count") and name.startswith("vllm:")}
    assert len(families) > 10
    for family in families:
        buckets = sorted((float(dict(key[1])["le"]), n) for key, n in page.items() if key[0] == f"{family}_bucket")
        counts = [n for _, n in buckets]
        assert counts == sorted(counts)
        assert counts[-1] == value(page, f"{family.removeprefix('vllm:')}_count")
        low = high = 0.0
        for (edge, here), (below, before) in zip(buckets, [(0.0, 0.0), *buckets], strict=False):
            low += (here - before) * below
            high += (here - before) * edge if here > before else 0.0
        assert low <= value(page, f"{family.removeprefix('vllm:')}_sum") <= high + 1e-9


def test_an_observation_on_an_edge_lies_below_it() -> None:
    histogram = Histogram((0.5, 1.0))
    for seconds in (0.5, 0.500001, 1.0, 1.1):
        histogram.observe(seconds)

    assert histogram.counts == [1, 2, 1]


def test_token_edges_end_at_the_longest_sequence() -> None:
    assert token_edges(4096)[-1] == 2000
    assert token_edges(32768)[-1] == 20000
    assert len(token_edges(131072)) == 16


def test_first_tokens_are_the_finished_the_running_and_those_whose_clients_left() -> None:
    simulated = fleet(replace(steady(rate=4.0), leave=0.3))
    simulated.advance(60.003)
    page = series(simulated.page("demo"))

    left = sum(each.error == "TimeoutError" and bool(each.chunks) for each in simulated.requests)
    first = value(page, "time_to_first_token_seconds_count")
    open_after_first = sum(bool(each.chunks) and each.ended is None for each in simulated.requests)
    assert left > 20
    assert first == value(page, "request_success_total") + left + open_after_first
    # They are finishes of the web server all the same.
    http = sum(n for key, n in page.items() if key[0] == "http_requests_total")
    assert http == value(page, "request_success_total") + left


def test_prompt_tokens_are_computed_or_cached_and_iterations_hold_the_computed_ones() -> None:
    flow = replace(steady(rate=3.0, prompt=600), head=300, prompt=Length(600, 0.1, 400, 900))
    simulated = fleet(flow)
    simulated.advance(60)
    page = series(simulated.page("demo"))

    computed = value(page, "prompt_tokens_by_source_total", source="local_compute")
    cached = value(page, "prompt_tokens_by_source_total", source="local_cache_hit")
    assert computed + cached == value(page, "prompt_tokens_total")
    assert cached == value(page, "prompt_tokens_cached_total") > 0.3 * (computed + cached)
    tokens = value(page, "generation_tokens_total")
    assert value(page, "iteration_tokens_total_sum") == computed + tokens
    # All but the first tokens and the cold head hit in whole blocks: 288 of 300 tokens.
    assert cached % 288 == 0


def test_speculation_books_one_gap_for_several_tokens() -> None:
    flow = Flow(Length(100), Length(120), clients=2)
    simulated = fleet(flow, flags=replace(FLAGS, speculation=Speculation(3, 0.8)))
    simulated.advance(60)
    page = series(simulated.page("demo"))

    drafts, accepted = value(page, "spec_decode_num_drafts_total"), value(page, "spec_decode_num_accepted_tokens_total")
    positions = [
        value(page, "spec_decode_num_accepted_tokens_per_pos_total", position=str(position)) for position in range(3)
    ]
    assert sum(positions) == accepted
    assert positions == sorted(positions, reverse=True)
    gaps = value(page, "inter_token_latency_seconds_count")
    firsts = value(page, "time_to_first_token_seconds_count")
    assert value(page, "generation_tokens_total") == gaps + accepted + firsts
    # 0.8 + 0.8^2 + 0.8^3 = 1.95; a little less where answers end.
    assert 1.75 < accepted / drafts < 2.0


def test_kv_on_its_way_waits_as_deferred_and_is_no_computed_prompt() -> None:
    flags = replace(FLAGS, transfer=Transfer(token_seconds=0.002), kv_blocks=20001, max_num_seqs=64)
    simulated = fleet(Flow(Length(500), Length(20), rate=1.5), flags=flags, frontend=INSTANT)
    simulated.advance(60)
    page = series(simulated.page("demo"))

    deferred = value(page, "num_requests_waiting_by_reason", reason="deferred")
    assert deferred > 3
    stages = {
        stage: value(page, "num_requests_kv_fetch_by_stage", stage=stage)
        for stage in ("waiting_to_start", "in_progress")
    }
    assert stages["in_progress"] == 1
    assert sum(stages.values()) == deferred
    external = value(page, "prompt_tokens_by_source_total", source="external_kv_transfer")
    assert external > 0.9 * value(page, "prompt_tokens_total")
    assert value(page, "nixl_xfer_time_seconds_sum") == pytest.approx(60, rel=0.1)
