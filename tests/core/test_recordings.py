"""Recordings of a real vLLM under known faults: every one gets the answer that its folder's expected.json names.

The answers are judged in the stretches named there, as documents of `replay` and as rounds of `serve`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from phasewatch.core.model import EngineReport, Fleet
from phasewatch.core.pages.exposition import PageReader
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.core.watch import Watcher
from phasewatch.sources.recording import Entry, Recording
from phasewatch.sources.replaying import replay
from support import EXPECTED, real_recording
from support_pages import FIVE_FAMILIES, strip_page
from vllm_pages import answer

# Of the documents of a judged stretch: with a page and a document every 2 s, and where one is every 10 s.
ENOUGH, ENOUGH_SELDOM = 0.95, 0.9
GOOD = {"healthy", "idle"}
# Not a judgement: too few pages yet, or one scrape missed.
NO_JUDGEMENT = {"warming_up", "stale"}


# What is not right yet: recording -> (the checks it fails, why). Whoever mends a cause takes its line away: a line that
# passes fails the test. Pages every 2 s judged every 2 or 10 s; every 10 s from the first or the third; five families.
SEEN_2, SEEN_10, THIN_FIRST, THIN_THIRD, FIVE = "seen-2", "seen-10", "thin-first", "thin-third", "five"
EVERY_SCRAPE = (SEEN_2, SEEN_10, THIN_FIRST, THIN_THIRD)
NOT_YET: dict[str, tuple[tuple[str, ...], str]] = {
    "cache-before": ((SEEN_10,), "at 30 s few have finished: their prefill is less than half of TTFT, so unknown"),
}


def check(*checks: str) -> pytest.MarkDecorator:
    """Every recording with each of these checks, as `name` and `how`; those not right yet are expected to fail."""
    return pytest.mark.parametrize(
        ("name", "how"),
        [
            pytest.param(name, how, marks=[pytest.mark.xfail(raises=AssertionError, reason=why, strict=True)] * fails)
            for name in EXPECTED
            for how in checks
            for not_right, why in [NOT_YET.get(name, ((), ""))]
            for fails in [how in not_right]
        ],
    )


def settings_of(name: str) -> Settings:
    return Settings(objectives=parse_objectives(EXPECTED[name]["objectives"]))


def rounds(recording: Recording, settings: Settings) -> Iterator[Fleet]:
    """As `serve` lives it: one evaluation right after each scrape."""
    watcher, reader = Watcher(settings), PageReader()
    (target,) = recording.targets
    for entry in target.entries:
        if entry.reason is None:
            watcher.page(target.name, reader.read(entry.read(), at=entry.seconds))
        else:
            watcher.failure(target.name, entry.seconds, entry.reason)
        yield watcher.evaluate(entry.seconds)


def thinned(recording: Recording, every: int, first: int = 0) -> Recording:
    """What a scrape every `every` x 2 s would have seen."""
    return replace(recording, targets=tuple(replace(t, entries=t.entries[first::every]) for t in recording.targets))


@dataclass(frozen=True)
class Stripped(Entry):
    """A page of which only the five families are left."""

    def read(self) -> str:
        return strip_page(super().read(), FIVE_FAMILIES)


def stripped(recording: Recording) -> Recording:
    def bare(entry: Entry) -> Entry:
        return Stripped(entry.seconds, entry.path, entry.content_type)

    return replace(recording, targets=tuple(replace(t, entries=tuple(map(bare, t.entries))) for t in recording.targets))


def reports(fleets: Iterable[Fleet], stretch: dict[str, Any]) -> list[EngineReport]:
    """Those of each engine in the stretch."""
    return [report for fleet in fleets if stretch["from"] <= fleet.at <= stretch["to"] for report in fleet.engines]


def judge(
    fleets: Sequence[Fleet],
    name: str,
    stretches: Sequence[dict[str, Any]] | None = None,
    *,
    skip: Iterable[str] = (),
    enough: float = ENOUGH_SELDOM,
) -> None:
    """Every stretch of a recording: enough right; where all is well nothing is ever held against the fleet."""
    judged = 0
    for stretch in EXPECTED[name]["judge"] if stretches is None else stretches:
        accept = set(stretch["accept"])
        answers = Counter(answer(report) for report in reports(fleets, stretch))
        for state in skip:
            del answers[state]
        if not answers:
            continue
        judged += 1
        right = sum(count for said, count in answers.items() if said in accept)
        assert right >= enough * answers.total(), f"{name} {stretch}: {dict(answers)}"
        if accept <= GOOD:
            assert set(answers) <= accept | NO_JUDGEMENT, f"{name} {stretch}: {dict(answers)}"
    assert judged, f"{name}: no document lies in a judged stretch"


@check(SEEN_10, SEEN_2)
def test_a_recording_gets_the_answer_its_fault_deserves(name: str, how: str) -> None:
    step = {SEEN_10: 10.0, SEEN_2: 2.0}[how]
    fleets = list(replay(real_recording(name), settings_of(name), step))
    judge(fleets, name, enough=ENOUGH if how == SEEN_2 else ENOUGH_SELDOM)
    assert not re.search(r"\bnan\b", repr(fleets[-1]), re.I)
    assert fleets[-1].targets[0].restarts == (name == "restart")
    expected = EXPECTED[name]
    if step == 2 and "within" in expected:
        accept = set(expected["judge"][-1 if name != "burst" else 0]["accept"])
        first = next(fleet.at for fleet in fleets if any(answer(report) in accept for report in fleet.engines))
        assert first <= expected["onset"] + expected["within"]


# A verdict on a standstill takes three scrapes, any other two that agree.
SLOWER = {"engine-hang": 45, "engine-hang-idle": 45}


@check(THIN_FIRST, THIN_THIRD)
def test_a_scrape_every_ten_seconds_is_enough(name: str, how: str) -> None:
    fleets = list(rounds(thinned(real_recording(name), 5, {THIN_FIRST: 0, THIN_THIRD: 2}[how]), settings_of(name)))
    if name in SLOWER:  # the last scrape before the fault ends is the first that can know
        last = [fleet for fleet in fleets if fleet.at <= 35 + SLOWER[name] + 0.5][-1]
        assert answer(last.engines[0]) == "engine_stalled"
        return
    later = [
        {**stretch, "from": stretch["from"] + (0 if set(stretch["accept"]) <= GOOD else 10)}
        for stretch in EXPECTED[name]["judge"]
    ]
    judge(fleets, name, later, skip=NO_JUDGEMENT)


# What the five families are enough for, and until when: without queue times a queue is known while its scrapes are
# in the window, and without the pool's size a pool of twenty blocks is seldom seen full.
FIVE_ARE_ENOUGH = {
    "idle": ("idle", 60),
    "healthy": ("healthy", 110),
    "prefix-on": ("healthy", 110),
    "cold-start": ("healthy", 60),
    "two-engines": ("healthy", 90),
    "two-frontends": ("healthy", 90),
    "engine-hang": ("engine_stalled", 79),
    "max-num-seqs": ("queue_batch_limit", 110),
    "burst": ("queue_batch_limit", 84),
    "interference": ("decode_interference", 120),
    "large-batch": ("decode_batch", 110),
}


@check(FIVE)
def test_the_five_families_are_enough_for_a_first_answer_of_low_confidence(name: str, how: str) -> None:
    fleets = list(replay(stripped(real_recording(name)), settings_of(name), 2.0))
    stretches = EXPECTED[name]["judge"]
    if name in FIVE_ARE_ENOUGH:
        right, until = FIVE_ARE_ENOUGH[name]
        known = [{**stretch, "to": min(stretch["to"], until)} for stretch in stretches if right in stretch["accept"]]
        judge(fleets, name, known)
    for report in (report for stretch in stretches for report in reports(fleets, stretch)):
        if report.state not in ("down", "warming_up"):
            assert {"queue", "prefill", "preemptions", "prompt_tokens"} <= set(report.missing)
        if report.verdict not in (None, "healthy"):
            assert report.confidence == "low", f"{name} {report.verdict} {report.confidence}"
