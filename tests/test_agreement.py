"""The same traffic says the same whichever way it comes in, and in whatever words it goes out."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import agreeing
from exported import series
from fleets import WALL_OFFSET
from phasewatch.core.diagnosis.verdicts import VERDICTS
from phasewatch.core.model import Fleet
from phasewatch.core.pages.exposition import parse
from phasewatch.core.report.document import document
from phasewatch.core.settings import Objectives, Settings, parse_objectives
from phasewatch.core.watch import Watcher
from phasewatch.sources.recording import open_recording
from phasewatch.sources.replaying import replay
from support import EXPECTED, real_recording
from tools.simulator import recording as simulated_recording
from tools.simulator.scenarios import KINDS, Scenario, scenario
from tools.simulator.simulation import DownError
from tools.simulator.simulation import Fleet as SimulatedFleet

INTERVAL = 10.0
SEED = 2
WINDOW = "60s"


def walk(fleets: Iterable[Fleet], objectives: Objectives) -> set[str]:
    """Everything that every evaluation says, in every form; returns the verdicts seen."""
    seen: set[str] = set()
    compared, before = 0, None
    for fleet in fleets:
        told = document(fleet)
        seen |= agreeing.same_words(fleet, told)
        compared += agreeing.same_evidence(told, before)
        before = told
        shown = document(fleet, wall_offset=WALL_OFFSET)  # as exported.series shows it
        compared += agreeing.same_numbers(shown, series(fleet, objectives), WINDOW)
    assert compared > 500
    return seen


def stepped(made: Scenario, settings: Settings) -> Iterator[Fleet]:
    """A simulated incident without files and without wall time."""
    watcher = Watcher(settings)
    simulated = SimulatedFleet(made.config, made.seed)
    moment = INTERVAL
    for seconds, target, page in simulated_recording.pages(simulated, made.duration, INTERVAL):
        while seconds > moment:
            yield watcher.evaluate(moment)
            moment += INTERVAL
        if isinstance(page, DownError):
            watcher.failure(target, seconds, str(page))
        else:
            watcher.page(target, parse(page, at=seconds))
    yield watcher.evaluate(moment)


def settings_of(made: Scenario) -> Settings:
    return Settings(objectives=parse_objectives([f"{name}={limit}s" for name, limit in made.objectives.items()]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_simulated_incident_says_the_same_in_every_form(kind: str) -> None:
    made = scenario(kind, SEED)
    settings = settings_of(made)
    seen = walk(stepped(made, settings), settings.objectives)
    assert seen >= {kind} & set(VERDICTS), f"{kind} was never seen: this walks past it"


# What a queue, a fault of the scrapes, stalls and several targets look like.
@pytest.mark.parametrize("kind", ["queue_prefill_backlog", "restart", "decode_interference", "load_imbalance"])
def test_a_simulated_incident_says_the_same_with_and_without_files(kind: str, tmp_path: Path) -> None:
    made = scenario(kind, SEED)
    simulated_recording.write(made, tmp_path / "recording", INTERVAL)
    recorded = replay(open_recording(tmp_path / "recording"), settings_of(made), INTERVAL)
    said = [
        [json.dumps(document(fleet)) for fleet in fleets] for fleets in (stepped(made, settings_of(made)), recorded)
    ]
    assert said[0] == said[1]
    assert len(said[0]) > 10


@pytest.mark.parametrize("name", ["burst", "engine-hang-idle", "frontend-slow", "mass-abort", "restart", "two-engines"])
def test_a_recording_of_a_real_server_says_the_same_in_every_form(name: str) -> None:
    expected = EXPECTED[name]
    settings = Settings(objectives=parse_objectives(expected["objectives"]))
    walk(replay(real_recording(name), settings, INTERVAL), settings.objectives)


def test_a_verdict_that_a_challenger_has_met_once_is_told_once() -> None:
    objectives = parse_objectives(["ttft_p99=1s", "itl_p99=250ms"])
    challenged = 0
    for fleet in replay(real_recording("interference"), Settings((14.0,), objectives), 2.0, 44.0):
        (engine,) = fleet.engines
        told = [(cause.verdict, cause.symptom) for cause in engine.causes]
        assert len(told) == len(set(told)), f"at {fleet.at:g}: {told}"
        challenged += engine.verdict == "decode_interference" and engine.causes[0].score < engine.causes[1].score
    assert challenged, "prefill_long_prompts never outweighed the held verdict: nothing was tried"
