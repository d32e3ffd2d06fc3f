"""What an evaluation costs: milliseconds of CPU for an engine and round, without HTTP, parsing and rendering.

    python -m benchmarks.evaluation [RECORDINGS] [--name NAME ...] [--engines N] [--interval 5s]

Each recording's pages are taken at the interval and repeated, counters going on where they stood, until the longest
window is full; then N targets serve them, each round one page more. `pages` is what taking them in costs, `evaluation`
what the Fleet costs, `percentiles` what reading every percentile of it costs afterwards (as /metrics does).
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.percentiles import pages, thinned
from benchmarks.recorded import RECORDINGS, named, opened
from phasewatch.core.durations import parse_duration
from phasewatch.core.measures.histogram import increase, merge
from phasewatch.core.model import Fleet, Page, Snapshot
from phasewatch.core.settings import FAMILIES, Settings
from phasewatch.core.watch import Watcher
from phasewatch.sources.recording import RecordingError

NAMES = ("healthy", "max-num-seqs", "large-batch", "interference", "kv-exhausted", "two-engines")
MEASURED_ROUNDS = 12


def later(snapshot: Snapshot, first: Snapshot, last: Snapshot, seconds: float, laps: int) -> Snapshot:
    """The snapshot as it would read had what happened between first and last happened `laps` times before it."""
    counters = {
        name: value + laps * max(0.0, last.counters.get(name, 0.0) - first.counters.get(name, 0.0))
        for name, value in snapshot.counters.items()
    }
    histograms = {}
    for name, histogram in snapshot.histograms.items():
        both = name in first.histograms and name in last.histograms
        grown = increase(first.histograms[name], last.histograms[name]) if both else None
        histograms[name] = merge((histogram, *[grown] * laps)) or histogram if grown else histogram
    return replace(snapshot, at=snapshot.at + laps * seconds, counters=counters, histograms=histograms)


def endless(recorded: Sequence[Page], interval: float) -> Iterator[Page]:
    """The pages again and again, as of one process that goes on."""
    first, last = recorded[0], recorded[-1]
    seconds = last.at - first.at + interval
    laps = 0
    while True:
        for page in recorded:
            engines = {
                key: later(one, first.engines[key], last.engines[key], seconds, laps)
                for key, one in page.engines.items()
            }
            yield replace(page, at=page.at + laps * seconds, engines=engines)
        laps += 1


def read(fleet: Fleet) -> int:
    """Reads the value of every percentile there is. How many."""
    values = [
        getattr(getattr(numbers, f"{family}_seconds"), name)
        for windows in chain((one.windows for one in fleet.engines), (one.windows for one in fleet.models))
        for numbers in windows.values()
        for family in FAMILIES
        for name in ("p50", "p90", "p99")
    ]
    return len([one.value for one in values if one is not None])


def measured(path: Path, engines: int, interval: float) -> tuple[float, float, float]:
    """Milliseconds of CPU an engine and round: pages, evaluation, percentiles."""
    settings = Settings()
    recorded = list(thinned(pages(opened(path)), interval))
    if len(recorded) < 2:
        raise RecordingError(f"{path} has fewer than two pages at this interval")
    targets = [f"server-{number}" for number in range(ceil(engines / len(recorded[0].engines)))]
    watcher = Watcher(settings)
    rounds = int(max(settings.windows) / interval) + 2
    spent = [0.0, 0.0, 0.0]
    for number, page in enumerate(endless(recorded, interval)):
        if number >= rounds + MEASURED_ROUNDS:
            break
        times = [time.process_time()]
        for target in targets:
            watcher.page(target, page)
        times.append(time.process_time())
        fleet = watcher.evaluate(page.at)
        times.append(time.process_time())
        if number >= rounds:
            read(fleet)
            times.append(time.process_time())
            spent = [before + b - a for before, (a, b) in zip(spent, pairwise(times), strict=True)]
    per_engine = MEASURED_ROUNDS * len(targets) * len(recorded[0].engines)
    pages_ms, evaluation, percentiles = (seconds / per_engine * 1000 for seconds in spent)
    return pages_ms, evaluation, percentiles


def main(
    recordings: Annotated[Path, typer.Argument(help="Folder of recordings.")] = RECORDINGS,
    name: Annotated[list[str] | None, typer.Option(help="Recordings to take; may be given several times.")] = None,
    engines: Annotated[list[int] | None, typer.Option(help="Sizes of the fleet; may be given several times.")] = None,
    interval: Annotated[str, typer.Option(help="Between two pages of a target.")] = "5s",
) -> None:
    """Measure what an evaluation of recorded pages costs."""
    seconds = parse_duration(interval)
    print(f"milliseconds of CPU for an engine and round, pages every {interval}")
    print(f"{'recording':<16}{'engines':>8}{'pages':>9}{'evaluation':>12}{'percentiles':>13}{'all':>9}")
    for one in name or NAMES:
        for size in engines or (1, 50):
            spent = measured(named(recordings, one), size, seconds)
            print(f"{one:<16}{size:>8}{spent[0]:>9.2f}{spent[1]:>12.2f}{spent[2]:>13.2f}{sum(spent):>9.2f}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (OSError, ValueError) as error:
        print(f"evaluation: {error}", file=sys.stderr)
        sys.exit(2)
