"""Fleets built by hand, one for each state that the document and the exported page must show."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from phasewatch.core.model import (
    Advisory,
    Cause,
    EngineKey,
    EngineReport,
    Estimate,
    Event,
    Fault,
    Fleet,
    KvCache,
    Latency,
    ModelReport,
    Numbers,
    ObjectiveResult,
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

MODEL = "Qwen/Qwen3-0.6B"
WALL_OFFSET = 1.79e9

TTFT = Latency(
    412, 3.4, Estimate(2.9, 2.5, 5.0), Estimate(6.2, 5.0, 7.5), Estimate(7.4, 5.0, 7.5), Estimate(9.7, 7.5, 10.0)
)  # far over the standard limit
ITL = Latency(
    50_211,
    0.031,
    Estimate(0.004, 0.0, 0.01, "below_first_edge"),
    Estimate(0.07, 0.05, 0.075),
    Estimate(0.09, 0.075, 0.1),
    Estimate(0.19, 0.15, 0.2),
)
TPOT = Latency(
    398,
    0.033,
    Estimate(0.02, 0.01, 0.025),
    Estimate(0.06, 0.05, 0.075),
    Estimate(0.07, 0.05, 0.075),
    Estimate(0.09, 0.075, 0.1),
)
E2E = Latency(
    398,
    9.1,
    Estimate(8.0, 5.0, 10.0),
    Estimate(14.0, 10.0, 15.0),
    Estimate(16.0, 15.0, 20.0),
    Estimate(19.0, 15.0, 20.0),
)
ABOVE = replace(E2E, p99=Estimate(7680.0, 7680.0, None, "above_last_edge"))

FULL = Numbers(
    window_seconds=60.0,
    ttft_seconds=TTFT,
    itl_seconds=ITL,
    tpot_seconds=TPOT,
    e2e_seconds=E2E,
    itl_stalled_ratio=0.002,
    phases=Phases(Phase(2.8, 0.31), Phase(0.5, 0.05), Phase(5.6, 0.62), Phase(0.1, 0.02), Phase(0.0, 0.0)),
    queue=Queue(64.0, 31.0, 2.0, 0.4, 7.2, 6.9, 4.5, False, 0.05, 0.01, 0.0, 4.5, 38.0),
    kv_cache=KvCache(0.42, 120_000.0, 0.0, 830.0, 69_600.0),
    tokens=Tokens(3_100.0, 2_400.0, 840.0, 0.23, 450.0, 348.0, 121.0, 510.5, 9_000.0, 30.3),
    prefill_time_ratio=0.06,
    speculation=Speculation(0.61, 2.8),
)
NONE = Latency(0)
QUIET = Numbers(
    window_seconds=60.0,
    ttft_seconds=NONE,
    itl_seconds=NONE,
    tpot_seconds=NONE,
    e2e_seconds=NONE,
    itl_stalled_ratio=None,
    phases=Phases(),
    queue=Queue(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False, 0.0, 0.0, 0.0, 0.0, 0.0),
    kv_cache=KvCache(0.0, 120_000.0, 0.0, None),
    tokens=Tokens(0.0, 0.0, 0.0),
    prefill_time_ratio=0.0,
    speculation=Speculation(),
)
CAUSE = Cause(
    verdict="queue_batch_limit",
    symptom="ttft_p99",
    score=0.82,
    confidence="high",
    evidence={"waiting_mean": 29.5, "batch": "64 of 64"},
    summary="Requests wait 2.8 s for a place in a full batch.",
    remedies=(Remedy("shed load", "demand is above capacity", "now", "none"),),
    refuted_by="room in the batch while requests wait",
    missing=("computed_prompt_tokens",),
)
MISSED = ObjectiveResult("ttft_p99", 2.5, 10.0, "missed", True, TTFT.p99, 412, 320.5, 60.0, "warning")
MET = ObjectiveResult("itl_p99", 0.2, 0.3, "met", True, ITL.p99, 50_211, 0.0, 60.0)
TOO_FEW = ObjectiveResult(
    "e2e_p99", 90.0, 120.0, "too_few", False, Estimate(161.0, 120.0, 240.0), 3, 1.0, 840.0, slowest=161.0
)
NO_DATA = ObjectiveResult("itl_stall", 1.0, 5.0, "no_data", False, None, 0, 0.0, 60.0)
COUNTS: Mapping[tuple[str, str, str], float] = {
    ("observations", "ttft_p99", ""): 9_120.0,
    ("over", "ttft_p99", "warning"): 310.25,
    ("over", "ttft_p99", "critical"): 12.0,
    ("over_surely", "ttft_p99", "warning"): 300.0,
    ("over_surely", "ttft_p99", "critical"): 12.0,
}


def engine(
    target: str = "gpu-1:8000", *, model_name: str = MODEL, state: State = "serving", **changes: object
) -> EngineReport:
    """A serving, healthy engine with every number known, and what `changes` says."""
    healthy = EngineReport(
        key=EngineKey(target, model_name, "0"),
        role=None,
        state=state,
        gauges_stale=False,
        verdict="healthy" if state == "serving" else None,
        confidence="high" if state == "serving" else None,
        score=None,
        summary="Objectives met.",
        since=40.0,
        previous_verdict=None,
        causes=(),
        symptoms=(),
        advisories=(),
        missing=(),
        windows={60.0: FULL, 300.0: replace(FULL, window_seconds=300.0)},
        restarts=0,
        objective_counts=COUNTS,
        objectives=(MET, TOO_FEW) if state == "serving" else (NO_DATA,) if state == "idle" else (),
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def slow_engine(target: str = "gpu-2:8000", **changes: object) -> EngineReport:
    """One that queues: a surely missed objective, a cause, an advisory and a missing signal."""
    return engine(
        target,
        verdict="queue_batch_limit",
        confidence="high",
        score=0.82,
        summary=CAUSE.summary,
        previous_verdict="healthy",
        causes=(CAUSE,),
        symptoms=(Symptom("ttft_p99", 2.5, TTFT.p99, True, "warning"),),
        advisories=(
            Advisory("speculation_not_accepted", {"acceptance_ratio": 0.1}, "Drafts are refused.", "turn it off"),
        ),
        events=(Event(20.0, "restart", 1.7e9, 1.7e9 + 20), Event(20.0, "capacity", 64_000.0, 32_000.0)),
        missing=("kv_transfer",),
        windows={60.0: replace(FULL, e2e_seconds=ABOVE), 300.0: replace(FULL, e2e_seconds=ABOVE)},
        objectives=(MISSED, MET, TOO_FEW),
        **changes,
    )


def model(
    engines: Mapping[str, int], *, model_name: str = MODEL, windows: Mapping[float, Numbers] | None = None
) -> ModelReport:
    return ModelReport(
        model_name=model_name,
        role=None,
        engines=engines,
        verdict="queue_batch_limit",
        confidence="high",
        causes=(CAUSE,),
        symptoms=(Symptom("ttft_p99", 2.5, TTFT.p99, True, "warning"),),
        windows={60.0: FULL, 300.0: FULL} if windows is None else windows,
        kv_usage_max=0.42,
        kv_usage_mean=0.4,
        worst_engine="gpu-2:8000",
        outliers=(),
        objectives=(MISSED, MET),
    )


def target(name: str = "gpu-1:8000", state: State = "serving", **changes: object) -> TargetReport:
    polled = TargetReport(
        target=name,
        url=f"http://{name}/metrics",
        state=state,
        last_error=None,
        last_success_age_seconds=1.5,
        scrape_seconds=0.021,
        scrape_timeout_seconds=9.0,
        missing_signals=3,
        scrape_failures={"refused": 0, "timeout": 2},
        labels={"namespace": "llm", "pod": name.partition(":")[0]},
    )
    return replace(polled, **changes)  # type: ignore[arg-type]


def fleet(
    engines: tuple[EngineReport, ...] = (), models: tuple[ModelReport, ...] = (), targets: tuple[TargetReport, ...] = ()
) -> Fleet:
    return Fleet(120.0, 60.0, engines, models, targets)


SERVING = fleet((slow_engine(), engine()), (model({"serving": 2}),), (target("gpu-2:8000"), target()))
IDLE = fleet(
    (engine(state="idle", windows={60.0: QUIET, 300.0: QUIET}, verdict=None),),
    (replace(model({"idle": 1}, windows={60.0: QUIET}), verdict=None, confidence=None, causes=(), symptoms=()),),
    (target(state="idle"),),
)
# The numbers of its last good page are still there: they must not be shown as of now.
DOWN = fleet(
    (engine(state="down"),),
    (model({"down": 1}),),
    (
        target(
            state="down", last_error="connection refused", last_success_age_seconds=95.0, scrape_failures={"refused": 9}
        ),
    ),
)
RESTARTED = fleet(
    (engine(state="warming_up", restarts=1, windows={60.0: QUIET}),),
    (model({"warming_up": 1}, windows={}),),
    (target(restarts=1),),
)
OWN_FAULT = Fault("judging a scrape", "KeyError: 'waiting'", "measures_view.py:126", "Traceback ...")
INTERNAL_ERROR = fleet(
    (engine(state="internal_error", summary=OWN_FAULT.summary, windows={}, fault=OWN_FAULT), slow_engine()),
    (model({"internal_error": 1, "serving": 1}),),
    (target(state="internal_error", internal_errors=3), target("gpu-2:8000")),
)
NO_ENGINE = fleet(targets=(target(state="no_engine_metrics", missing_signals=40),))
NEVER_SEEN = fleet(targets=(target(state="down", last_success_age_seconds=None, scrape_seconds=None, url=None),))

STATES: Mapping[str, Fleet] = {
    "serving": SERVING,
    "idle": IDLE,
    "down": DOWN,
    "restarted": RESTARTED,
    "no_engine": NO_ENGINE,
    "internal_error": INTERNAL_ERROR,
    "never_seen": NEVER_SEEN,
    "empty": fleet(),
}


def check_golden(name: str, text: str) -> None:
    """Compares with tests/fixtures/golden/NAME; PHASEWATCH_REWRITE_GOLDEN=1 writes it anew: read the diff then."""
    path = Path(__file__).parent / "fixtures" / "golden" / name
    if os.environ.get("PHASEWATCH_REWRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; PHASEWATCH_REWRITE_GOLDEN=1 rewrites it"
