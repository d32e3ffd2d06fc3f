"""What a scrape costs inside phasewatch: milliseconds of CPU in one process, without HTTP and scheduling.

    python -m benchmarks.evaluation [--targets 40] [--rounds 20] [--mixes incidents,healthy] [--profile]

The targets are those of benchmarks.fleet_server, scraped every 5 s. `parse` is what reading a page costs, `page` what
taking it in and judging it costs, `evaluate` a target's part of the Fleet, `metrics` its part of the rendered /metrics.
`unit` is a piece of Python that is always the same, run in between: the machine is shared, so that only the ratio of
`all` to it compares between runs. What the engines said is counted behind. --profile shows where the time goes.
"""

import cProfile
import gc
import pstats
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from benchmarks.fleet_server import Pages, mixes_in
from phasewatch.core.pages.exposition import PageReader
from phasewatch.core.settings import Settings
from phasewatch.core.watch import Watcher
from phasewatch.service.round import Round

INTERVAL = 5.0
WARM_ROUNDS = 14  # then the window that verdicts use is full
PARTS = ("parse", "page", "evaluate", "metrics")
UNIT = "unit"
MOST_LINES = 50


class Clock:
    """CPU seconds by what they were spent on, from `begin` on."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.spent = dict.fromkeys((*PARTS, UNIT), 0.0)
        self._profile, self._begun = profile, False

    def begin(self) -> None:
        self.spent = dict.fromkeys(self.spent, 0.0)
        self._begun = True

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        profile = self._profile if self._begun and what != UNIT else None
        began = time.process_time()
        if profile is not None:
            profile.enable()
        yield
        if profile is not None:
            profile.disable()
        self.spent[what] += time.process_time() - began


def unit() -> None:
    """Dictionaries, tuples, floats, sorting, text: some twenty milliseconds of a quiet machine."""
    collects = gc.isenabled()
    gc.disable()
    for _ in range(12):
        made = {str(at): (at, at * 1.5) for at in range(3000)}
        " ".join(f"{name}{value!r}" for name, (_, value) in sorted(made.items(), key=lambda pair: pair[1][1]))
    if collects:
        gc.enable()


def measured(mix: str, targets: int, rounds: int, profile: cProfile.Profile | None) -> tuple[Clock, Counter[str]]:
    """What `rounds` rounds cost, and how often engines said what."""
    pages, settings = Pages((WARM_ROUNDS + rounds) * INTERVAL, mix), Settings()
    clock, said = Clock(profile), Counter[str]()
    watcher, readers = Watcher(settings), [PageReader() for _ in range(targets)]
    for number in range(WARM_ROUNDS + rounds):
        if number == WARM_ROUNDS:
            clock.begin()
            said.clear()
        for target, reader in enumerate(readers):
            at = (number + target / targets) * INTERVAL
            text = pages.answer(target, pages.started + at).partition(b"\r\n\r\n")[2].decode()
            with clock.on("parse"):
                page = reader.read(text, at=at, content_type="text/plain; version=0.0.4; charset=utf-8")
            with clock.on("page"):
                watcher.page(f"target-{target}", page)
        with clock.on(UNIT):
            unit()
        with clock.on("evaluate"):
            fleet = watcher.evaluate((number + 1) * INTERVAL)
        with clock.on("metrics"):
            Round(fleet, settings, "1", 1e9).metrics("text/plain; version=0.0.4")
        said.update(one.verdict or one.state for one in fleet.engines)
    return clock, said


def main(
    targets: Annotated[int, typer.Option(min=1, help="Size of the fleet.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured.")] = 20,
    mixes: Annotated[str, typer.Option(help="What the fleet plays: incidents, healthy.")] = "incidents,healthy",
    profile: Annotated[bool, typer.Option(help="Show where the time goes; it then takes twice as long.")] = False,
) -> None:
    """What a scrape costs inside phasewatch, without HTTP."""
    print(f"milliseconds of CPU a scrape, {targets} targets, {rounds} rounds\n")
    print("mix      ", *(f"{part:>9}" for part in (*PARTS, "all", "unit", "all/unit")), " said")
    for mix in mixes_in(mixes):
        taken = cProfile.Profile() if profile else None
        clock, said = measured(mix, targets, rounds, taken)
        each = [clock.spent[part] * 1000 / rounds / targets for part in PARTS]
        one = clock.spent[UNIT] * 1000 / rounds
        told = ", ".join(f"{what} {count / said.total():.0%}" for what, count in said.most_common())
        figures = (*each, sum(each), one, sum(each) / one)
        print(f"{mix:9}", *(f"{value:9.2f}" for value in figures), f" {told}", flush=True)
        if taken is not None:
            pstats.Stats(taken).strip_dirs().sort_stats("cumtime").print_stats(MOST_LINES)


if __name__ == "__main__":
    typer.run(main)
