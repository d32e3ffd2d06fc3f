"""A real Prometheus with what phasewatch would have exported: recorded incidents, a silent fleet, a large one."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import fleets
from histories import (
    CONFIG,
    FLAGS,
    LARGE_MOMENTS,
    OBJECTIVES,
    START,
    STEP,
    Filled,
    alert,
    exported,
    incidents,
    large_page,
    moved,
    raw,
    recorded,
    scraped,
    text_of,
    told,
)
from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.outputs.backfill import Backfill
from phasewatch.sources.recording import Recording
from phasewatch.sources.replaying import replay
from support import Prometheus, Tools, start_prometheus


@pytest.fixture(scope="session")
def incident_fleets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, list[Fleet]]:
    recording = incidents(tmp_path_factory.mktemp("incidents"))
    settings = Settings(windows=(60.0, 300.0), objectives=OBJECTIVES)
    return recording, list(replay(recording, settings, STEP))


@pytest.fixture(scope="session")
def incident_text(incident_fleets: tuple[Recording, list[Fleet]]) -> str:
    """The history as OpenMetrics."""
    recording, lived = incident_fleets
    written = Backfill()
    for fleet in lived:
        page = scraped(exported(told(fleet), START))
        written.add(page, START + fleet.at)
        written.add([alert("burst")], START + fleet.at)
    raw(recording, written)
    return text_of(written)


@pytest.fixture(scope="session")
def made_by_rules() -> dict[str, str]:
    """What the recording rules made of a history: the same on every Prometheus, so asked once."""
    return {}


@pytest.fixture(scope="session")
def filled(
    tools: Tools, tmp_path_factory: pytest.TempPathFactory, made_by_rules: dict[str, str]
) -> Iterator[Callable[..., Filled]]:
    """filled(text, start, end, rules="") starts Prometheus on that history.

    rules: a name for this history; what the recording rules make of it is then part of it.
    """
    started: list[Prometheus] = []

    def run(openmetrics: str) -> Prometheus:
        folder = tmp_path_factory.mktemp("prometheus")
        started.append(start_prometheus(tools, folder, CONFIG, openmetrics=openmetrics, arguments=FLAGS))
        return started[-1]

    def start(text: str, begin: float, end: float, *, rules: str = "") -> Filled:
        if rules and rules not in made_by_rules:
            server = run(text)
            made_by_rules[rules] = text_of(recorded(server, begin, end))
            server.stop()
        whole = text.removesuffix("# EOF\n") + made_by_rules[rules] if rules else text
        return Filled(run(whole), begin, end)

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def lived_through(filled: Callable[..., Filled], incident_text: str) -> Filled:
    """The recorded incidents."""
    return filled(incident_text, START + STEP, START + 110, rules="incidents")


@pytest.fixture(scope="session")
def silent(filled: Callable[..., Filled]) -> Filled:
    """One engine without traffic."""
    written = Backfill()
    for at in range(0, 120, STEP):
        written.add(scraped(exported(replace(fleets.IDLE, at=float(at)), START)), START + at)
    return filled(text_of(written), START, START + 110)


@pytest.fixture(scope="session")
def large_text() -> str:
    return "".join(moved(large_page()))


@pytest.fixture(scope="session")
def large(filled: Callable[..., Filled], large_text: str) -> Filled:
    """200 engines."""
    return filled(large_text, START, START + LARGE_MOMENTS[-1], rules="large")
