"""`phasewatch replay`: a recording as documents, as lines, or live again."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from phasewatch import show
from phasewatch.commands import CommandError
from phasewatch.commands.common import listen_address, note, recording_of, settings_of
from phasewatch.core.document import document, engine_order
from phasewatch.core.settings import Estimator
from phasewatch.sources.replay_server import ReplayError, ReplayServer
from phasewatch.sources.replaying import replay, span


def run(
    path: Path, *, window: float, step: float, objectives: Sequence[str], as_table: bool, estimator: Estimator
) -> None:
    """Prints one document, or one line an engine, for every step."""
    settings = settings_of((window,), objectives, estimator)
    recording = recording_of(path)
    first, end = span(recording)
    if end < first + step:
        note(f"{path}: lasts {end - first:g} s, less than one step of {step:g} s: nothing to say; try --step 2s")
    if as_table:
        print(show.header())
    for fleet in replay(recording, settings, step):
        if not as_table:
            print(json.dumps(document(fleet), allow_nan=False), flush=True)
            continue
        for engine in sorted(fleet.engines, key=engine_order):
            print(show.line(show.row(engine, fleet.at)), flush=True)


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
