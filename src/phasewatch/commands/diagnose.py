"""`phasewatch diagnose`: servers and recordings -> one verdict, as a table or the document."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from rich.console import Console

from phasewatch.commands import EXIT_NOTHING_READ, EXIT_UNHEALTHY, CommandError
from phasewatch.commands.common import console, interruptible, note, settings_of, source_of, unique
from phasewatch.commands.watching import Watching, clock
from phasewatch.core.model import Fleet
from phasewatch.core.report.document import document
from phasewatch.core.settings import Estimator, Settings
from phasewatch.outputs import lines as show
from phasewatch.outputs import terminal as show_fleet
from phasewatch.sources.recording import Recording
from phasewatch.sources.replaying import replay, span
from phasewatch.sources.target import Target

_LONGEST_WINDOW = 60.0
_REPLAY_STEP = 10.0
_UNIX = 1e8  # recordings that begin later than this second are in Unix time


def run(
    sources: Sequence[str],
    *,
    duration: float,
    interval: float,
    window: float | None,
    objectives: Sequence[str],
    at: float | None,
    as_json: bool,
    estimator: Estimator,
) -> int:
    """Prints the diagnosis and returns the exit code."""
    live = settings_of((window or min(duration, _LONGEST_WINDOW),), objectives, estimator)
    recorded = settings_of((window or _LONGEST_WINDOW,), objectives, estimator)
    named = [(text, source_of(text)) for text in sources]
    recordings = [(text, source) for text, source in named if isinstance(source, Recording)]
    targets = unique([source for _, source in named if isinstance(source, Target)])
    if at is not None and not recordings:
        raise CommandError("--at picks a moment of a recording; there is none among the sources")
    fleets = [_recorded(text, recording, recorded, at, len(recordings) > 1) for text, recording in recordings]
    if targets:
        fleets.append(_watched(targets, live, duration, interval, alone=not recordings))
    fleet = _joined(fleets)
    if as_json:
        print(json.dumps(document(fleet), allow_nan=False))
    else:
        console(sys.stdout).print(show_fleet.fleet(fleet))
    return exit_code(fleet)


def exit_code(fleet: Fleet) -> int:
    """0 all well, 1 anything that wants a look, 3 too little read for a verdict."""
    states = {t.state for t in fleet.targets} | {e.state for e in fleet.engines}
    verdicts = {e.verdict for e in fleet.engines}
    if verdicts - {None, "healthy"} or states & {"stale", "down", "no_engine_metrics"}:
        return EXIT_UNHEALTHY
    undecided = "warming_up" in states or any(e.state == "serving" and e.verdict is None for e in fleet.engines)
    return EXIT_NOTHING_READ if undecided or not states else 0


def _recorded(text: str, recording: Recording, settings: Settings, at: float | None, several: bool) -> Fleet:
    first, end = span(recording)
    until = end if at is None else at
    # Nobody types Unix time: on a recording that has it, small numbers count from its start.
    if until < first and first >= _UNIX:
        until += first
    if until < first:
        raise CommandError(f"{text}: no page up to second {until:g}; it begins at {first:g}", code=EXIT_NOTHING_READ)
    *_, fleet = replay(recording, settings, _REPLAY_STEP, until, last=True)
    return _renamed(fleet, f"{text.rstrip('/')}/") if several else fleet


def _renamed(fleet: Fleet, prefix: str) -> Fleet:
    """Recordings of different incidents may hold targets of the same name."""
    return replace(
        fleet,
        engines=tuple(replace(e, key=e.key._replace(target=prefix + e.key.target)) for e in fleet.engines),
        targets=tuple(replace(t, target=prefix + t.target) for t in fleet.targets),
    )


def _joined(fleets: Sequence[Fleet]) -> Fleet:
    """One document; its clock is that of the last source, a live one if there is any."""
    return replace(
        fleets[-1],
        engines=tuple(e for f in fleets for e in f.engines),
        models=tuple(m for f in fleets for m in f.models),
        targets=tuple(t for f in fleets for t in f.targets),
    )


def _watched(targets: Sequence[Target], settings: Settings, duration: float, interval: float, alone: bool) -> Fleet:
    begin = clock()
    shown = console(sys.stderr)
    names = ", ".join(t.name for t in targets) if len(targets) <= 3 else f"{len(targets)} servers"
    with closing(Watching(targets, settings, interval)) as watching, _progress(shown) as progress:
        progress(f"watching {names} for {duration:g} s (Ctrl-C judges what was seen until then)")
        watching.first_answers()
        if alone and not watching.ever_read:
            raise CommandError(*watching.errors.values(), code=EXIT_NOTHING_READ)
        for error in watching.errors.values():
            note(error)
        with interruptible():
            while (now := clock()) < begin + duration:
                watching.until(min(now + interval, begin + duration))
                progress(f"{clock() - begin:.0f} of {duration:g} s: {_so_far(watching.fleet())}")
        return watching.fleet()


def _so_far(fleet: Fleet) -> str:
    return "; ".join(f"{show.name(e)} {e.verdict or e.state}" for e in fleet.engines) or "no engine yet"


@contextmanager
def _progress(shown: Console) -> Iterator[Callable[[str], None]]:
    """A line that changes in place on a terminal; elsewhere the first line only, since a log is no place for ticks."""
    if shown.is_terminal:
        with shown.status("") as status:
            yield status.update
        return
    said: list[str] = []

    def once(text: str) -> None:
        if not said:
            said.append(text)
            note(text)

    yield once
