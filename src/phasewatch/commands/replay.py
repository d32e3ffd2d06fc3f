"""`phasewatch replay`: a recording as documents, as lines, or live again."""

import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from phasewatch import __version__
from phasewatch.commands import CommandError
from phasewatch.commands.common import listen_address, note, recording_of, settings_of
from phasewatch.core.model import Fleet
from phasewatch.core.report.document import document, engine_order
from phasewatch.core.settings import Estimator, Settings
from phasewatch.outputs import lines as show
from phasewatch.outputs.backfill import backfill
from phasewatch.outputs.replay_server import ReplayError, ReplayServer
from phasewatch.sources.recording import EARLIEST_UNIX
from phasewatch.sources.replaying import replay, span


def run(
    path: Path,
    *,
    window: float,
    step: float,
    objectives: Sequence[str],
    form: Literal["jsonl", "table", "openmetrics"],
    unix_start: float | None,
    estimator: Estimator,
) -> None:
    """Prints one document, or one line an engine, for every step; or all of them as series with timestamps."""
    # Series carry their window as a label, so that the service's longer ones find a place beside the first.
    longer = Settings().windows[1:] if form == "openmetrics" else ()
    settings = settings_of((window, *(more for more in longer if more > window)), objectives, estimator)
    recording = recording_of(path)
    first, end = span(recording)
    if end < first + step:
        note(f"{path}: lasts {end - first:g} s, less than one step of {step:g} s: nothing to say; try --step 2s")
    fleets = replay(recording, settings, step)
    if form == "openmetrics":
        offset = _wall_offset(path, first, unix_start)
        print(backfill(fleets, settings.objectives, __version__, offset), end="", flush=True)
    elif form == "table":
        _print_table(fleets)
    else:
        for fleet in fleets:
            print(json.dumps(document(fleet), allow_nan=False), flush=True)


def _print_table(fleets: Iterable[Fleet]) -> None:
    print(show.header())
    for fleet in fleets:
        for engine in sorted(fleet.engines, key=engine_order):
            print(show.line(show.row(engine, fleet.at)), flush=True)


def _wall_offset(path: Path, first: float, unix_start: float | None) -> float:
    if unix_start is not None:
        return unix_start - first
    if first < EARLIEST_UNIX:
        raise CommandError(
            f"{path}: its pages count seconds from its start; say when that was: --unix-start $(date +%s)"
        )
    return 0.0


def serve(path: Path, *, listen: str, loop: bool, speed: float) -> None:
    """Serves until Ctrl-C, or until the recording is over. Prints `TARGET URL` lines first."""
    recording = recording_of(path)
    try:
        server = ReplayServer(recording, listen=listen_address(listen), loop=loop, speed=speed)
    except ReplayError as error:
        raise CommandError(str(error)) from None
    with server:
        for target, url in server.urls.items():
            print(target, url, flush=True)
        first, end = span(recording)
        note(f"serving {(end - first) / speed:.0f} s{' again and again' if loop else ''} (Ctrl-C stops)")
        wait(server.done)
    note("the recording is over" if server.done.is_set() else "stopped")


def wait(event: threading.Event, seconds: float | None = None) -> None:
    """Until the event, that many seconds, or Ctrl-C."""
    try:
        event.wait(seconds)
    except KeyboardInterrupt:
        return
