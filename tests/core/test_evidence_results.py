"""Results of objectives over spans that widen, and confidence by count (rules of evidence 1 and 15): each as its whole
kind."""

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exported import values
from phasewatch.core.model import EngineReport, Fleet, Histogram, ObjectiveResult, Page, Snapshot
from phasewatch.core.report.document import document
from phasewatch.core.settings import Estimator, Limit, Objectives, Settings
from phasewatch.core.watch import Watcher
from vllm_pages import Scene, Server, answer

INTERVALS = (2.0, 5.0, 10.0, 15.0)


def result(report: EngineReport, objective: str) -> ObjectiveResult:
    return next(one for one in report.objectives if one.objective == objective)


# --- E02: one slow request pages somebody -------------------------------------------------------------------------


def slow_now_and_then(scene: Scene, server: Server, *, every: float, ttft: float, seconds: float) -> list[Fleet]:
    """One request every so often, each of which waits long for its first token while it runs."""
    engine, fleets = server.engine, []

    def traffic() -> None:
        engine.set(running=1, kv=0.02)
        if scene.now % every < scene.interval:
            engine.first_tokens(ttft, 1)
            engine.tokens(0.02, 20)
            engine.finishes(1, prefill=0.1, queue=0.0, outside=ttft - 0.1, decode=0.4, output=21)

    while scene.now < seconds:
        fleets.append(scene.round(traffic))
    return fleets


@pytest.mark.parametrize("interval", INTERVALS)
def test_e02_one_slow_request_of_a_quiet_server_is_too_few_to_judge_and_not_met(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    report = slow_now_and_then(scene, server, every=1e9, ttft=12.0, seconds=60 + interval)[-1].engines[0]
    # The first page is a baseline.
    assert result(report, "ttft_p99").observations == 0
    server.engine.first_tokens(12.0, 1)
    (report,) = scene.round(lambda: server.engine.tokens(0.02, 20)).engines
    one = result(report, "ttft_p99")
    assert (one.result, one.observations, one.over) == ("too_few", 1, 1)
    assert one.slowest is not None
    assert one.slowest == pytest.approx(12)
    assert not report.symptoms
    assert report.verdict != "healthy"
    assert "too few to judge: 1 of 1 request" in report.summary
    assert "slowest at least 12 s" in report.summary


@pytest.mark.parametrize("interval", INTERVALS)
def test_e02_one_request_a_minute_that_each_waits_200_s_is_missed_and_never_met(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    fleets = slow_now_and_then(scene, server, every=60.0, ttft=200.0, seconds=1200)
    reports = [fleet.engines[0] for fleet in fleets]
    assert "healthy" not in {answer(report) for report in reports if report.state == "serving"}
    last = result(reports[-1], "ttft_p99")
    assert last.result == "missed"
    assert last.surely
    assert 17 <= last.observations <= 20
    assert last.span_seconds > 900, "as far back as it takes, beyond the longest window"
    assert reports[-1].confidence != "high"
    assert len((reports[-1].windows[60.0].ttft_seconds.p99 and [1]) or []) == 1, "exported windows stay what they are"
    assert reports[-1].windows[60.0].ttft_seconds.count <= 2


def test_e02_six_of_477_over_the_critical_limit_wake_nobody() -> None:
    for slow, severity in ((6, "warning"), (9, "warning"), (10, "critical"), (30, "critical")):
        server = Server()
        server.engine.set(running=4)
        scene = Scene(server, objectives=())
        scene.round()

        def traffic(slow: int = slow, server: Server = server) -> None:
            server.engine.serves(477 - slow)
            server.engine.serves(slow, outside=13.6)

        (report,) = scene.round(lambda: None).engines
        scene.round(lambda: None)
        (report,) = scene.round(traffic).engines
        one = result(report, "ttft_p99")
        assert (one.result, one.observations, one.severity) == ("missed", 477, severity)


def test_the_critical_share_of_a_busy_server_is_one_percent() -> None:
    server = Server()
    scene = Scene(server)
    scene.rounds(30, lambda: server.engine.serves(1))
    (report,) = scene.round(lambda: (server.engine.serves(3000), server.engine.serves(29, outside=12.0))).engines
    assert result(report, "ttft_p99").severity is None, "under one percent is no p99"
    (report,) = scene.round(lambda: server.engine.serves(60, outside=12.0)).engines
    assert result(report, "ttft_p99").severity == "critical"


# --- B06: quantile pinned to the last finite bucket ---------------------------------------------------------------

INF = float("inf")
EDGES = (50.0, 60.0, INF)


def e2e_pages(counts: tuple[float, ...], total: float | None, *, interval: float = 10.0) -> Iterator[Page]:
    """Idle pages, then one in whose interval these were observed."""
    for at in range(5):
        now = counts if at == 4 else (0.0, 0.0, 0.0)
        sum_now = None if total is None else total if at == 4 else 0.0
        snapshot = Snapshot(
            at * interval, {"running": 3.0, "waiting": 0.0, "kv_usage": 0.1},
            {"generation_tokens": 10.0 * at, "finished": now[-1]},
            {"e2e": Histogram(EDGES, now, sum_now), "ttft": Histogram((0.1, INF), (now[-1],) * 2, now[-1] / 20)},
        )  # fmt: skip
        yield Page(at * interval, {("m", "0"): snapshot}, "engine", (), {}, None)


def judged(pages: Iterator[Page], objectives: Objectives) -> Fleet:
    watcher, at = Watcher(Settings(objectives=objectives)), 0.0
    for page in pages:
        watcher.page("s", page)
        at = page.at
    return watcher.evaluate(at)


def e2e_p99(limit: float) -> Objectives:
    return Objectives({"ttft_p99": Limit(2.5, 10.0), "e2e_p99": Limit(limit, limit)})


REST = 80 * 30 + 10 * 55  # what the 90 below the last edge add up to


@pytest.mark.parametrize(
    ("limit", "total", "expected"),
    [
        (90.0, REST + 10 * 400.0, "missed"),
        (90.0, None, "cannot_tell"),
        (450.0, REST + 10 * 400.0, "cannot_tell"),
        (1000.0, REST + 10 * 61.0, "met"),
        (45.0, REST + 10 * 400.0, "missed"),
        (45.0, None, "missed"),
    ],
)
def test_b06_a_limit_above_the_last_edge_is_settled_by_the_sum_or_cannot_be_told(
    limit: float, total: float | None, expected: str
) -> None:
    fleet = judged(e2e_pages((80.0, 90.0, 100.0), total), e2e_p99(limit))
    (report,) = fleet.engines
    one = result(report, "e2e_p99")
    assert one.result == expected
    assert one.value is not None
    assert (one.value.low, one.value.high, one.value.censored) == (60.0, None, "above_last_edge")
    row = next(row for row in document(fleet)["engines"][0]["objectives"] if row["objective"] == "e2e_p99")
    assert row["value"] == {"value": 60.0, "low": 60.0, "high": None, "censored": "above_last_edge"}
    assert row["observations"] == 100
    if expected == "cannot_tell":
        assert row["over"] == 10
        assert "e2e p99 over 1 min" not in report.summary
        assert f"cannot tell if over {limit:g} s: 10 of 100 requests" in report.summary
        assert "met" not in report.summary
        assert report.confidence == "low"
        assert values(fleet, "objective_judged", objective="e2e_p99") == [0.0]
        assert not values(fleet, "objective_missed", objective="e2e_p99")
    if expected == "missed":
        assert report.verdict != "healthy"
        assert values(fleet, "objective_missed", objective="e2e_p99", severity="warning") == [1.0]


def test_b06_nothing_but_an_open_bucket_cannot_be_told() -> None:
    def pages() -> Iterator[Page]:
        for page in e2e_pages((0.0, 0.0, 100.0), None):
            snapshot = page.engines["m", "0"]
            open_only = {
                **snapshot.histograms,
                "ttft": Histogram((float("inf"),), (snapshot.counters["finished"],), None),
            }
            yield replace(page, engines={("m", "0"): replace(snapshot, histograms=open_only)})

    (report,) = judged(pages(), e2e_p99(90.0)).engines
    assert {one.result for one in report.objectives} == {"cannot_tell"}
    assert report.verdict is None
    assert report.summary.startswith("Nothing to judge yet")


# --- P21: one user, long prefill, silence -------------------------------------------------------------------------


@pytest.mark.parametrize("interval", INTERVALS)
def test_p21_after_one_slow_first_token_it_is_too_few_to_judge_and_after_two_missed(interval: float) -> None:
    server = Server(max_model_len=131_072)
    engine = server.engine
    scene = Scene(server, interval=interval, objectives=["ttft_p99=10s"])
    scene.after(30)

    def turn() -> EngineReport:
        engine.set(kv=0.0)
        scene.after(161, lambda: engine.set(running=1, kv=engine.gauges["kv"] + 0.001))
        return scene.round(lambda: (engine.first_tokens(161.0, prompt=80_000), engine.tokens(0.05, 100))).engines[0]

    one = result(turn(), "ttft_p99")
    assert (one.result, one.observations) == ("too_few", 1)
    after = scene.after(interval, lambda: engine.finishes(prefill=160.0, decode=8.0, prompt=80_000, output=160))
    assert answer(after) == "serving"
    assert "too few to judge: 1 of 1 request over 10 s, slowest at least 161 s" in after.summary
    assert result(turn(), "ttft_p99").result == "missed"
    after = scene.after(interval, lambda: engine.finishes(prefill=160.0, decode=8.0, prompt=80_000, output=160))
    assert answer(after) == "prefill_long_prompts"
    assert after.confidence == "low", "two requests"


# --- T6: nothing observed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", INTERVALS)
def test_t6_work_in_hand_and_nothing_observed_is_no_verdict(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(30)
    report = scene.after(interval, lambda: server.engine.set(running=1))
    assert (report.state, report.verdict, report.confidence) == ("serving", None, None)
    assert {one.result for one in report.objectives} == {"no_data"}
    assert report.summary.startswith("Nothing to judge yet")


# --- spans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [5.0, 15.0])
def test_a_quiet_server_is_judged_over_its_last_twenty_requests_and_a_busy_one_over_a_minute(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)

    def quiet() -> None:
        server.engine.set(running=1)
        if scene.now % 30 < interval:
            server.engine.serves(1)

    report = scene.after(1500, quiet)
    one = result(report, "ttft_p99")
    assert (one.result, one.observations) == ("met", 20)
    assert one.span_seconds == pytest.approx(600, abs=60)
    assert f"20 requests in {one.span_seconds:g} s" in report.summary
    assert (report.verdict, report.confidence) == ("healthy", "medium")
    (engine,) = (one for one in scene.watcher._targets["s"].engines.values())
    assert len(engine.older.steps) < 12, "no more than it takes"
    report = scene.after(400, lambda: server.engine.set(running=2).serves(30))
    assert result(report, "ttft_p99").span_seconds == pytest.approx(60)
    assert not engine.older.steps, "a busy engine keeps nothing"
    assert report.confidence == "high"


def test_no_span_reaches_back_over_half_an_hour_or_a_restart() -> None:
    server = Server()
    scene = Scene(server, interval=10.0)
    engine = server.engine

    def seldom() -> None:
        engine.set(running=1)
        if scene.now % 300 == 0:
            engine.serves(1)

    one = result(scene.after(4000, seldom), "ttft_p99")
    assert one.observations in (5, 6)
    assert one.span_seconds <= 1800
    server.restart(scene.now)
    report = scene.after(200, lambda: engine.set(running=1).serves(1 if scene.now % 60 == 0 else 0))
    one = result(report, "ttft_p99")
    assert one.observations < 5
    assert one.span_seconds <= 210


@pytest.mark.parametrize("gap", [30.0, 60.0])
def test_an_incident_of_a_quiet_server_clears_with_its_next_twenty_requests(gap: float) -> None:
    server = Server()
    scene = Scene(server, interval=10.0)
    engine = server.engine
    slow = True

    def traffic() -> None:
        engine.set(running=1)
        if scene.now % gap == 0:
            engine.serves(1, prefill=5.0 if slow else 0.05, prompt=30_000 if slow else 100)

    assert answer(scene.after(20 * gap, traffic)) not in ("healthy", "serving")
    slow = False
    reports = [fleet.engines[0] for fleet in scene.rounds(21 * gap, traffic)]
    half = reports[len(reports) // 2]
    assert result(half, "ttft_p99").result == "missed"
    assert half.verdict != "healthy"
    assert (reports[-1].verdict, result(reports[-1], "ttft_p99").result) == ("healthy", "met")


def test_a_minute_of_some_requests_without_a_slow_one_ends_an_incident_before_that() -> None:
    server = Server()
    scene = Scene(server, interval=10.0)
    scene.rounds(60, lambda: server.engine.set(running=2).serves(4, prefill=5.0, prompt=30_000))
    reports = [one.engines[0] for one in scene.rounds(90, lambda: server.engine.set(running=1).serves(1))]
    assert result(reports[3], "ttft_p99").result == "missed"
    assert result(reports[-1], "ttft_p99").result == "met"
    assert reports[-1].verdict == "healthy"


# --- rule 15 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requests", "confidence"), [(3, "medium"), (4, "medium"), (17, "high")])
def test_healthy_is_as_sure_as_its_fewest_observations_bear(requests: int, confidence: str) -> None:
    server = Server()
    report = Scene(server).after(90, lambda: server.engine.set(running=2).serves(requests))
    assert (report.verdict, report.confidence) == ("healthy", confidence)
    one = result(report, "ttft_p99")
    assert f"{one.observations} requests" in report.summary
    assert "limit 2.5 s" in report.summary
    assert "limit 100 ms" in report.summary


def test_healthy_of_a_few_requests_is_of_low_confidence() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(30)
    report = scene.after(20, lambda: server.engine.set(running=1).serves(2))
    assert (report.verdict, report.confidence) == ("healthy", "low")


@pytest.mark.parametrize(("requests", "allowed"), [(1, {"low", "medium"}), (2, {"low", "medium"}), (20, {"high"})])
def test_a_cause_is_as_sure_as_its_finishes_bear(requests: int, allowed: set[str]) -> None:
    server = Server()
    scene = Scene(server)
    report = scene.after(90, lambda: server.engine.set(running=2).serves(requests, prefill=6.0, prompt=40_000))
    assert answer(report) == "prefill_long_prompts"
    assert report.confidence in allowed


# --- where else to look -------------------------------------------------------------------------------------------


def test_healthy_says_where_to_look_when_users_still_complain() -> None:
    server = Server()
    report = Scene(server).after(90, lambda: server.engine.set(running=3, waiting=1).serves(30))
    assert report.verdict == "healthy"
    assert "In flight here (running + waiting): 4; if clients or the gateway count more" in report.summary


# --- models -------------------------------------------------------------------------------------------------------


def test_a_model_is_judged_over_all_of_its_engines_together() -> None:
    servers = [Server(name=f"s{n}") for n in range(4)]
    scene = Scene(*servers)

    def traffic() -> None:
        for at, server in enumerate(servers):
            server.engine.set(running=1).serves(1, prefill=5.0 if at == 0 and scene.now == 100 else 0.05)

    fleet = scene.rounds(110, traffic)[-1]
    (model,) = fleet.models
    (one,) = (one for one in model.objectives if one.objective == "ttft_p99")
    assert (one.observations, one.result, one.span_seconds) == (24, "too_few", 60)
    assert values(fleet, "model_objective_judged", objective="ttft_p99") == [0.0]
    assert values(fleet, "model_objective_judged", objective="itl_p99") == [1.0]
    row = document(fleet)["models"][0]["objectives"][0]
    assert (row["objective"], row["result"], row["over"]) == ("ttft_p99", "too_few", 1.0)


def test_a_model_of_quiet_engines_is_judged_over_a_span_that_all_of_them_share() -> None:
    servers = [Server(name=f"s{n}") for n in range(2)]
    scene = Scene(*servers)

    def traffic() -> None:
        for server in servers:
            server.engine.set(running=1)
            if scene.now % 100 == 0:
                server.engine.serves(1)

    (model,) = scene.rounds(1500, traffic)[-1].models
    (one,) = (one for one in model.objectives if one.objective == "ttft_p99")
    assert one.observations == 20
    assert one.span_seconds == pytest.approx(1000, abs=110)


# --- no document says met beside a value over its limit -----------------------------------------------------------


OBJECTIVES: tuple[tuple[str, ...], ...] = (
    (), ("ttft_p99=1s", "e2e_p99=30s"), ("ttft_mean=1s", "itl_p50=50ms"), ("tpot_p90=60ms",)
)  # fmt: skip
ESTIMATORS: tuple[Estimator, ...] = ("sums", "interpolation")


def history(seed: int) -> Iterator[Fleet]:
    """Traffic of many kinds, one after the other: none, seldom, steady, slow, one slow, very slow, a restart."""
    chance = random.Random(seed)
    server = Server(process=chance.random() < 0.7, old=chance.random() < 0.3)
    objectives = chance.choice(
        [(), ("ttft_p99=1s", "e2e_p99=30s"), ("ttft_mean=1s", "itl_p50=50ms"), ("tpot_p90=60ms",)]
    )
    scene = Scene(
        server,
        interval=chance.choice(INTERVALS),
        objectives=objectives,
        estimator=chance.choice(["sums", "interpolation"]),
    )
    engine = server.engine
    for _ in range(4):
        rate, slow = chance.choice([0, 0.02, 0.1, 1, 8]), chance.choice([0.0, 0.0, 0.02, 0.5, 1.0])
        worst, running = chance.choice([3.0, 12.0, 161.0, 9000.0]), chance.choice([0, 1, 4])
        stalls = chance.random() < 0.3

        def traffic() -> None:
            engine.set(running=running, waiting=chance.choice([0, 0, 3]))  # noqa: B023
            mean = rate * scene.interval  # noqa: B023
            for _ in range(int(mean) + (chance.random() < mean % 1)):
                late = worst * chance.random() if chance.random() < slow else 0.0  # noqa: B023
                engine.serves(1, outside=0.01 + late)
                if stalls and chance.random() < 0.1:  # noqa: B023
                    engine.tokens(chance.choice([0.5, 1.5, 6.0]), 1)

        if chance.random() < 0.1:
            server.restart(scene.now)
        yield from scene.rounds(chance.choice([30, 90, 250]), traffic)


def contradicts(row: dict[str, Any]) -> str | None:
    """What one row of `objectives` says that cannot be said together."""
    value, limit = row["value"], 0.01 if row["objective"] == "itl_stall" else row["limit_seconds"]
    if row["result"] == "met" and (value is None or value["value"] > limit):
        return "met beside a value over its limit, or without one"
    if row["result"] == "missed" and row["over"] < 2:
        return "missed by one observation"
    if row["result"] == "no_data" and (row["observations"] or value):
        return "no data beside data"
    if row["surely"] and row["result"] not in ("met", "missed"):
        return "sure of what is not judged"
    if row["over"] > row["observations"] or row["span_seconds"] > 1830:
        return "more over than there are, or too long ago"
    return None


@pytest.mark.parametrize("seed", range(10))
def test_no_document_says_met_beside_a_value_over_its_limit(seed: int) -> None:
    for fleet in history(seed):
        told = document(fleet)
        for row in (*told["engines"], *told["models"]):
            for one in row["objectives"]:
                assert not contradicts(one), (fleet.at, contradicts(one), one)
        for row in told["engines"]:
            results = {one["result"] for one in row["objectives"]}
            if row["verdict"] == "healthy" and "Objectives are met" in row["summary"]:
                assert not results & {"missed", "too_few", "cannot_tell"}, (fleet.at, row["summary"])
                assert "met" in results
            if "too_few" in results and row["verdict"] in (None, "healthy") and row["state"] == "serving":
                assert "too few to judge" in row["summary"] or "Not for long enough" in row["summary"], row["summary"]
        for report in fleet.engines:
            judged_ones = {one.objective for one in report.objectives if one.judged}
            if report.state == "serving" and report.objectives:
                shown = {
                    o.objective: values(fleet, "objective_judged", objective=o.objective) for o in report.objectives
                }
                assert shown == {name: [float(name in judged_ones)] for name in shown}
            missed = any(one.result == "missed" for one in report.objectives)
            assert not (missed and re.search(r"\bmet\b", report.summary)), report.summary


# --- Rule 11: nothing is to be done about what is over --------------------------------------------------------------


def test_a_held_verdict_whose_objectives_are_met_again_says_that_it_eases() -> None:
    """Until opinions have agreed on healthy for 10 s."""
    server = Server()
    scene = Scene(server, interval=2.0)
    scene.after(60, lambda: server.engine.set(running=3).serves(4))
    scene.after(40, lambda: server.engine.set(running=3).serves(4, queue=20.0))
    easing = 0
    for fleet in scene.rounds(120, lambda: server.engine.set(running=3).serves(4)):
        (report,) = fleet.engines
        if report.verdict not in (None, "healthy") and all(one.result == "met" for one in report.objectives):
            assert report.causes[0].easing
            assert report.summary.startswith("Easing: all objectives are met again")
            assert not report.causes[0].remedies
            easing += 1
    assert easing
    assert report.verdict == "healthy"
