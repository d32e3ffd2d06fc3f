"""What every document keeps, whatever happens: over simulated histories of several kinds, healthy ones too, with pages
every 2 s and every 10 s; and observers of the same pages agree, however often they ask."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

from phasewatch.core.model import Fleet, Page
from phasewatch.core.pages.exposition import parse
from phasewatch.core.report.document import document
from phasewatch.core.settings import Limit, Objectives, Settings
from phasewatch.core.watch import Watcher
from tools.simulator import recording, scenarios, simulation

KINDS = (
    "queue_kv_cache", "decode_preemption", "prefill_cache_misses", "kv_transfer", "client_aborts", "load_imbalance",
    "seldom", "bursty", "one_slow", "wake_up", "rolling_restart",
)  # fmt: skip
INTERVALS = (2.0, 10.0)
STEP = 10.0
Seen = tuple[float, str, Page | None]
ROUNDING = 1e-9


@lru_cache(maxsize=1)
def simulated(kind: str) -> tuple[Settings, tuple[Seen, ...]]:
    """One simulated history with a page every 2 s; None: the scrape failed."""
    made = scenarios.scenario(kind, 1)
    fleet = simulation.Fleet(made.config, 1)
    limits = {name: Limit(seconds, 2 * seconds) for name, seconds in made.objectives.items()}
    seen = recording.pages(fleet, made.duration, min(INTERVALS))
    pages = tuple((at, name, parse(page, at=at) if isinstance(page, str) else None) for at, name, page in seen)
    return Settings(objectives=Objectives(limits)), pages


class Observer:
    """Sees pages as they come, and asks every so many seconds."""

    def __init__(self, settings: Settings, every: float) -> None:
        self.watcher, self.every = Watcher(settings), every
        self.fleets: dict[float, Fleet] = {}

    def asks(self, at: float) -> None:
        if at % self.every == 0:
            self.fleets[at] = self.watcher.evaluate(at)

    def sees(self, at: float, target: str, page: Page | None) -> None:
        if page is None:
            self.watcher.failure(target, at, "connect")
        else:
            self.watcher.page(target, page)


def watched(kind: str, interval: float, *every: float) -> list[dict[float, Fleet]]:
    """By the moments at which each of them asked, what was said. 0: once, after the last page."""
    settings, pages = simulated(kind)
    end = pages[-1][0]
    observers = [Observer(settings, seconds or end) for seconds in every]
    moment = 0.0
    for at, target, page in pages:
        if at % interval:
            continue
        while moment < at:
            for one in observers:
                one.asks(moment)
            moment += min(INTERVALS)
        for one in observers:
            one.sees(at, target, page)
    for one in observers:
        one.fleets[end] = one.watcher.evaluate(end)
    return [one.fleets for one in observers]


# --- rules of a document ------------------------------------------------------------------------------------------


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a document, with its place."""
    yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk(item, f"{path}.{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from walk(item, f"{path}[{at}]")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ratios_outside(told: Mapping[str, Any]) -> Iterator[str]:
    """Ratios, shares and scores are from 0 to 1, or unknown."""
    for path, value in walk(told):
        name = path.rpartition(".")[2]
        ratio = name in ("ratio", "share", "score") or name.endswith(("_ratio", "_share")) or "_share_of_" in name
        if ratio and value is not None and not 0 <= value <= 1 + ROUNDING:
            yield f"{path} is {value}"


def shares_of_more_than_the_whole(told: Mapping[str, Any]) -> Iterator[str]:
    """Where all phases are known they add up to the whole; else to no more."""
    for row in (*told["engines"], *told["models"]):
        known = [one["share"] for one in row["phases"].values() if one["share"] is not None]
        whole, parts = sum(known), len(row["phases"])
        if whole > 1 + ROUNDING or (len(known) == parts and whole < 1 - ROUNDING):
            yield f"{len(known)} of {parts} phases have {whole} of the whole"


def percentiles_outside_their_bounds(told: Mapping[str, Any]) -> Iterator[str]:
    """Each value lies between its bounds, and no percentile below a lower one."""
    for path, value in walk(told):
        if not isinstance(value, Mapping):
            continue
        if "low" in value and not value["low"] <= value["value"] <= (value["high"] or value["value"]):
            yield f"{path}: {value}"
        known = [value[name] for name in ("p50", "p90", "p95", "p99") if value.get(name) is not None]
        for lower, higher in pairwise(known):
            if lower["value"] > higher["value"] * (1 + ROUNDING):
                yield f"{path}: {lower['value']} before {higher['value']}"


def leaders_without_proof(told: Mapping[str, Any]) -> Iterator[str]:
    """What leads accounts for half of the excess at least, and is what the row says."""
    for row in (*told["engines"], *told["models"]):
        verdict, causes = row["verdict"], row["causes"]
        if verdict in (None, "healthy", "unknown"):
            continue
        if not causes or causes[0]["verdict"] != verdict:
            yield f"{verdict} leads without a cause of its own"
        elif causes[0]["score"] < 0.5:
            yield f"{verdict} leads with a score of {causes[0]['score']}"


def numbers_below_nothing(told: Mapping[str, Any]) -> Iterator[str]:
    """Only what can fall has a sign: a growth."""
    for path, value in walk(told):
        if is_number(value) and value < 0 and "growth" not in path.rpartition(".")[2]:
            yield f"{path} is {value}"


def remedies_that_say_nothing_new(told: Mapping[str, Any]) -> Iterator[str]:
    for row in (*told["engines"], *told["models"]):
        for cause in row["causes"]:
            changes = [one["change"] for one in cause["remedies"]]
            if not all(change.strip() for change in changes) or len(set(changes)) < len(changes):
                yield f"{cause['verdict']}: {changes}"


Rule = Callable[[Mapping[str, Any]], Iterable[str]]
RULES: tuple[Rule, ...] = (
    ratios_outside, shares_of_more_than_the_whole, percentiles_outside_their_bounds, leaders_without_proof,
    numbers_below_nothing, remedies_that_say_nothing_new,
)  # fmt: skip


@pytest.mark.parametrize(("kind", "interval"), [(kind, interval) for kind in KINDS for interval in INTERVALS])
def test_every_document_of_a_history_keeps_every_rule(kind: str, interval: float) -> None:
    (fleets,) = watched(kind, interval, STEP)
    assert len(fleets) > 10
    for at, fleet in fleets.items():
        told = document(fleet)
        broken = [fault for rule in RULES for fault in rule(told)]
        assert not broken, (kind, at, broken)
    assert any(one.verdict for fleet in fleets.values() for one in fleet.engines), "a history of which nothing was said"


ESTIMATE = {"value": 1.0, "low": 0.5, "high": 2.0, "censored": None}
GOOD: dict[str, Any] = {
    "phases": {"queue": {"share": 0.25}, "prefill": {"share": 0.75}},
    "verdict": "frontend",
    "causes": [{"verdict": "frontend", "score": 0.5, "remedies": [{"change": "a"}, {"change": "b"}]}],
    "ttft_seconds": {"count": 3, "p50": ESTIMATE, "p90": ESTIMATE, "p99": None},
    "queue": {"growth_per_second": -1.0},
}
LATE = {"value": 3.0, "low": 3.0, "high": None, "censored": "above_last_edge"}
BROKEN: tuple[tuple[Rule, dict[str, Any]], ...] = (
    (ratios_outside, {"prefill_time_ratio": 1.01}),
    (ratios_outside, {"phases": {"queue": {"share": -0.1}}}),
    (ratios_outside, {"evidence": {"prefill_share_of_ttft": 1.2}}),
    (shares_of_more_than_the_whole, {"phases": {"queue": {"share": 0.5}, "prefill": {"share": 0.6}}}),
    (shares_of_more_than_the_whole, {"phases": {"queue": {"share": 0.5}, "prefill": {"share": 0.4}}}),
    (shares_of_more_than_the_whole, {"phases": {"queue": {"share": 1.1}, "prefill": {"share": None}}}),
    (percentiles_outside_their_bounds, {"ttft_seconds": {"p50": ESTIMATE | {"value": 0.4}}}),
    (percentiles_outside_their_bounds, {"ttft_seconds": {"p50": ESTIMATE | {"value": 2.1}}}),
    (percentiles_outside_their_bounds, {"ttft_seconds": {"p50": LATE, "p90": None, "p99": ESTIMATE}}),
    (leaders_without_proof, {"causes": []}),
    (leaders_without_proof, {"verdict": "decode_slow"}),
    (leaders_without_proof, {"causes": [{"verdict": "frontend", "score": 0.49, "remedies": []}]}),
    (numbers_below_nothing, {"queue": {"waiting": -1}}),
    (remedies_that_say_nothing_new, {"causes": [{"verdict": "x", "remedies": [{"change": " "}]}]}),
    (remedies_that_say_nothing_new, {"causes": [{"verdict": "x", "remedies": [{"change": "a"}, {"change": "a"}]}]}),
)


@pytest.mark.parametrize(("rule", "part"), BROKEN)
def test_a_rule_finds_what_breaks_it(rule: Rule, part: dict[str, Any]) -> None:
    assert not [*rule({"engines": [GOOD], "models": []})]
    assert [*rule({"engines": [], "models": [GOOD | part]})]


# --- observers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "interval"), [(kind, interval) for kind in KINDS[::2] for interval in INTERVALS])
def test_observers_agree_who_ask_often_seldom_and_once(kind: str, interval: float) -> None:
    often, seldom, once = watched(kind, interval, 2.0, 10.0, 0.0)
    assert len(often) > len(seldom) > len(once) == 1 + (0.0 in once)
    for one in (seldom, once):
        for at, fleet in one.items():
            assert fleet == often[at], at
