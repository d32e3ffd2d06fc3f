"""What several commands share: where output goes, what a SOURCE is, what an option means."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.core.settings import Estimator, ObjectiveError, Settings, parse_objectives
from phasewatch.service.config_sections import parse_listen_address
from phasewatch.sources.recording import Recording, RecordingError, open_recording
from phasewatch.sources.replaying import span
from phasewatch.sources.target import Target, TargetError, parse_target


def console(file: TextIO) -> Console:
    """Plain where the output is no terminal or NO_COLOR is set. Never reads markup or emoji out of names and errors."""
    return Console(file=file, highlight=False, markup=False, emoji=False)


def note(message: str) -> None:
    """Progress and remarks: to stderr, so that stdout stays data."""
    print(message, file=sys.stderr, flush=True)


def settings_of(windows: tuple[float, ...], objectives: Sequence[str], estimator: Estimator) -> Settings:
    try:
        return Settings(windows=windows, objectives=parse_objectives(objectives), estimator=estimator)
    except ObjectiveError as error:
        raise CommandError(str(error)) from None


def target_of(text: str) -> Target:
    try:
        return parse_target(text)
    except TargetError as error:
        raise CommandError(str(error)) from None


def unique(targets: Sequence[Target]) -> Sequence[Target]:
    """Raises CommandError where one is named twice."""
    for index, target in enumerate(targets):
        if target.name in [t.name for t in targets[:index]]:
            raise CommandError(f"{target.name} is named twice; leave one out")
    return targets


def listen_address(text: str) -> tuple[str, int]:
    try:
        return parse_listen_address(text)
    except ValueError as error:
        raise CommandError(str(error)) from None


def recording_of(path: str | Path) -> Recording:
    try:
        recording = open_recording(Path(path))
        span(recording)
        return recording
    except RecordingError as error:
        raise CommandError(str(error), code=EXIT_NOTHING_READ) from None


def source_of(text: str) -> Target | Recording:
    """What a SOURCE names: whatever exists as a file or folder is a recording, all else must be a URL."""
    if Path(text).exists():
        return recording_of(text)
    host = text.rpartition("@")[2]
    if "://" not in text and (":" not in host.partition("/")[0] or text.startswith((".", "/", "~"))):
        raise CommandError(
            f"{text}: no such recording; for a server write its URL, such as http://localhost:8000",
            code=EXIT_NOTHING_READ,
        )
    return target_of(text)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the block early: what was gathered until then still counts."""
    try:
        yield
    except KeyboardInterrupt:
        note("interrupted")
