"""What a human is shown, from values made by hand."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from phasewatch.core.model import (
    Advisory,
    Cause,
    EngineKey,
    EngineReport,
    Estimate,
    Fleet,
    KvCache,
    Latency,
    ModelReport,
    Numbers,
    Phase,
    Phases,
    Queue,
    Remedy,
    Speculation,
    State,
    Symptom,
    TargetReport,
    Tokens,
)
from phasewatch.outputs import terminal

SHED = Remedy(
    change="shed load: reject or redirect requests",
    why="arrivals are above what two slots can finish",
    when="now",
    side_effect="decode is not changed",
)
RAISE = Remedy(
    change="raise --max-num-seqs from 2",
    why="93 % of the KV cache is free",
    when="restart",
    side_effect="decode: ITL rises with the batch",
    since="0.8.5",
)
NUMBERS = Numbers(
    window_seconds=58.0,
    ttft_seconds=Latency(
        42,
        4.51,
        Estimate(4.12, 2.5, 5.0),
        Estimate(8.2, 7.5, 10.0),
        Estimate(9.1, 7.5, 10.0),
        Estimate(640.0, 640.0, None, "above_last_edge"),
    ),
    itl_seconds=Latency(
        1830,
        0.0421,
        Estimate(0.0408, 0.025, 0.05),
        Estimate(0.048, 0.025, 0.05),
        Estimate(0.061, 0.05, 0.075),
        Estimate(0.0731, 0.05, 0.075),
    ),
    tpot_seconds=Latency(0),
    e2e_seconds=Latency(
        40, 7.2, Estimate(6.9, 5, 7.5), Estimate(12.1, 10, 15), Estimate(13.2, 10, 15), Estimate(14.2, 10, 15)
    ),
    itl_stalled_ratio=0.0,
    phases=Phases(Phase(4.31, 0.61), Phase(0.081, 0.011), Phase(2.68, 0.379), Phase()),
    queue=Queue(2, 14, 0, 0.21, 1.05, 0.72, 19.4, False, 0.0, 0.0, 0.0),
    kv_cache=KvCache(0.071, 24576.0, 0.0, None),
    tokens=Tokens(prompt_mean=120.4, output_mean=64.0, generation_per_second=46.2, prefix_hit_ratio=0.12),
    prefill_time_ratio=0.06,
    speculation=Speculation(),
)
CAUSE = Cause(
    verdict="queue_batch_limit",
    symptom="ttft_p99",
    score=0.93,
    confidence="high",
    evidence={"waiting_mean": 11.4, "kv_usage_ratio": 0.07, "expected_wait_seconds": 19.4},
    summary="14 requests wait for one of 2 slots while 93 % of the KV cache is free.",
    remedies=(SHED, RAISE),
    refuted_by="running below 2 while requests wait",
)
SICK = EngineReport(
    key=EngineKey("10.0.0.7:8000", "demo-llama", "0"),
    role=None,
    state="serving",
    gauges_stale=False,
    verdict="queue_batch_limit",
    confidence="high",
    score=0.93,
    summary=CAUSE.summary,
    since=30.0,
    previous_verdict="healthy",
    causes=(CAUSE,),
    symptoms=(Symptom("ttft_p99", 1.0, Estimate(8.2, 7.5, 10.0), True, "critical"),),
    advisories=(Advisory("prefix_off", {}, "Prefix caching is off.", "Enable it."),),
    missing=("open_fds",),
    windows={60.0: NUMBERS},
    restarts=0,
)
WELL = replace(
    SICK,
    key=EngineKey("10.0.0.8:8000", "demo-llama", "0"),
    verdict="healthy",
    summary="All objectives are met.",
    causes=(),
    previous_verdict=None,
    symptoms=(),
    advisories=(),
    missing=(),
)

MODEL = ModelReport(
    "demo-llama", None, {"serving": 2}, "queue_batch_limit", "high", (CAUSE,), (), {60.0: NUMBERS}, 0.07, 0.07, None, ()
)


def target(name: str, state: State, error: str | None = None) -> TargetReport:
    return TargetReport(name, f"http://{name}/metrics", state, error, 1.0, 0.05)


def shown(fleet: Fleet, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, markup=False, emoji=False).print(terminal.fleet(fleet))
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (Estimate(4.12, 2.5, 5.0), "4.12 s (2.5-5)"),
        (Estimate(0.64, 0.5, 0.75), "640 ms (500-750)"),
        (Estimate(0.9, 0.75, 1.0), "900 ms (750 ms-1 s)"),
        (Estimate(1.2, 0.75, 2.5), "1.2 s (750 ms-2.5)"),
        (Estimate(0.2, 0.2, 0.2), "200 ms"),
        (Estimate(640.0, 640.0, None, "above_last_edge"), "> 11 min"),
        (Estimate(0.0007, 0.0, 0.001, "below_first_edge"), "<= 1 ms"),
    ],
)
def test_a_percentile_shows_the_bounds_it_lies_in(value: Estimate | None, text: str) -> None:
    assert terminal.estimate(value) == text


def test_one_engine_is_a_block_with_everything_needed_to_act() -> None:
    text = shown(Fleet(60.0, 58.0, (SICK,), targets=(target("10.0.0.7:8000", "serving"),)))
    assert text.startswith("10.0.0.7:8000  model demo-llama  engine 0  serving\n")
    for part in (
        "QUEUE_BATCH_LIMIT  confidence high  for 30 s, since second 30",
        CAUSE.summary,
        "missed:      ttft_p99 8.2 s over 1 s",
        "TTFT  4.12 s (2.5-5)",
        "front end         -  unknown",
        "2 running, 14 waiting",
        "7.1 % in use, 24,576 tokens in all",
        "do first:    shed load: reject or redirect requests (now). Arrivals are above",
        "then:        raise --max-num-seqs from 2 (with a restart, vLLM 0.8.5 on).",
        "Side effect: decode: ITL rises with the batch.",
        "evidence:    waiting_mean 11.4, kv_usage_ratio 7 %, expected_wait_seconds 19.4 s",
        "doubt it if: running below 2",
        "note:        Prefix caching is off. Enable it.",
        "missing:     open_fds",
    ):
        assert part in text
    assert "TPOT" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_cut_off(width: int) -> None:
    text = shown(Fleet(60.0, 58.0, (SICK, WELL), (MODEL,)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_several_engines_get_an_overview_and_a_block_only_where_one_is_needed() -> None:
    text = shown(Fleet(60.0, 58.0, (WELL, SICK), (MODEL,)))
    lines = text.splitlines()
    assert lines[0].split() == ["engine", "verdict", "conf.", "TTFT", "p99", "ITL", "p99", "run", "wait", "KV"]
    assert [line.split()[:2] for line in lines[1:3]] == [
        ["10.0.0.7:8000", "queue_batch_limit"],
        ["10.0.0.8:8000", "healthy"],
    ]
    assert "demo-llama (2 serving): queue_batch_limit, together TTFT p99 > 11 min" in text
    assert text.count("model demo-llama") == 1


def test_the_same_advice_is_not_printed_twice() -> None:
    other = replace(SICK, key=EngineKey("10.0.0.9:8000", "demo-llama", "0"))
    text = shown(Fleet(60.0, 58.0, (SICK, other)))
    assert text.count("raise --max-num-seqs") == 1
    assert "do first: as for 10.0.0.7:8000 above" in text


def test_a_fleet_in_which_all_is_well_says_that_nothing_is_to_be_done() -> None:
    other = replace(WELL, key=EngineKey("10.0.0.9:8000", "demo-llama", "0"))
    assert shown(Fleet(60.0, 58.0, (WELL, other))).endswith("Nothing to do.\n")


def test_a_target_without_engines_and_one_that_is_down_say_why() -> None:
    down = replace(WELL, key=EngineKey("a:1", "m", "0"), state="down", verdict=None, summary="", windows={})
    router = target("b:1", "no_engine_metrics", "a router's page")
    text = shown(Fleet(60.0, 58.0, (down,), targets=(target("a:1", "down", "connection refused"), router)))
    assert "no verdict: down\n  connection refused\n" in text
    assert "b:1  no_engine_metrics  a router's page\n" in text


def test_a_second_cause_of_the_same_verdict_is_named_by_its_symptom_only() -> None:
    second = replace(CAUSE, symptom="expected_wait", confidence="medium")
    third = replace(CAUSE, verdict="decode_batch", symptom="itl_p99", summary="32 streams.", remedies=(RAISE,))
    text = shown(Fleet(60.0, 58.0, (replace(SICK, causes=(CAUSE, second, third)),)), 200)
    assert "explains:    ttft_p99 (confidence high), expected_wait (confidence medium)" in text
    assert "also:        decode_batch (explains itl_p99, confidence high). 32 streams. Do: raise --max-num-seqs" in text


def test_names_from_outside_cannot_steer_the_terminal_or_use_markup() -> None:
    evil = replace(SICK, key=EngineKey("[red]h:1\x1b[2J", "m\nDO FIRST: rm", "0"))
    text = shown(Fleet(60.0, 58.0, (evil,)), 200)
    assert "\x1b" not in text
    assert r"[red]h:1\x1b[2J  model m\nDO FIRST: rm" in text


def test_the_bars_are_ascii_where_the_terminal_is() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=80).print(terminal.fleet(Fleet(60.0, 58.0, (SICK,))))
    file.seek(0)
    assert "61 %  ############" in file.read()


def test_a_line_an_engine_holds_the_same_columns_whatever_is_known() -> None:
    down = replace(WELL, state="down", verdict=None, windows={})
    assert terminal.row(SICK, 60.0) == (
        "60 s", "10.0.0.7:8000", "serving", "queue_batch_limit", "high", "> 11 min", "73.1 ms", "2", "14", "7.1 %",
    )  # fmt: skip
    assert terminal.row(down, 60.0) == ("60 s", "10.0.0.8:8000", "down", *("-",) * 7)
    assert len(terminal.row(SICK, 60.0)) == len(terminal.COLUMNS)
    assert terminal.line(terminal.row(SICK, 60.0)).startswith("60 s     10.0.0.7:8000 serving")
