"""A simulated incident as a recording: the pages that a scraper would have got, without waiting for them."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.simulator.scenarios import Scenario
from tools.simulator.simulation import DownError, Fleet


def pages(fleet: Fleet, duration: float, interval: float = 2.0) -> Iterator[tuple[float, str, str | DownError]]:
    """(seconds, target, page or why there was none), each target every `interval` seconds from 0 to `duration`."""
    for number in range(int(duration / interval + 1e-9) + 1):
        fleet.advance(number * interval)
        for name in fleet.targets:
            try:
                yield number * interval, name, fleet.page(name)
            except DownError as down:
                yield number * interval, name, down


def truth(scenario: Scenario, fleet: Fleet) -> dict[str, Any]:
    """What was done, what is right, and what clients saw: keys of a recording's truth.json, and the scenario's own."""
    return {
        "scenario": scenario.kind, "cause": scenario.kind, "story": scenario.story, "server_args": [],
        "t0_unix": fleet.config.started_unix, "seed": scenario.seed, "onset": scenario.onset, "felt": scenario.felt,
        "objectives": scenario.objectives, "misses": scenario.misses,
        "judge": [asdict(each) for each in scenario.judge], "requests": fleet.truth(),
    }  # fmt: skip


def write(scenario: Scenario, folder: Path, interval: float = 2.0) -> Fleet:
    """Write TARGET/SECONDS.prom.gz (or .fail) and truth.json.gz; the same bytes for the same scenario.

    Raises FileExistsError if the folder holds anything: two runs in one folder would be one recording.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder}: not empty; give a new folder")
    fleet = Fleet(scenario.config, scenario.seed)
    for seconds, target, page in pages(fleet, scenario.duration, interval):
        path = folder / quote(target, safe="") / f"{seconds:07.2f}"
        path.parent.mkdir(exist_ok=True)
        if isinstance(page, DownError):
            path.with_name(path.name + ".fail").write_text(f"{page}\n", encoding="utf-8")
        else:
            path.with_name(path.name + ".prom.gz").write_bytes(gzip.compress(page.encode(), 6, mtime=0))
    text = json.dumps(truth(scenario, fleet))
    (folder / "truth.json.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))
    return fleet
