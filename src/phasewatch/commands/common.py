"""What several commands share: where output goes, what a SOURCE is, what an option means."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.core.pages.catalog import EARLIEST_UNIX
from phasewatch.core.settings import Estimator, ObjectiveError, Settings, parse_objectives
from phasewatch.sources.recording import Recording, RecordingError
from phasewatch.sources.sources import History, open_source, recording_at
from phasewatch.sources.target import Target, TargetError, parse_target, told_apart

# No moment so far behind a recording's last page is meant: it is a mistyped one, and each step up to it is judged.
_LONG_AFTER = 3600.0


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
    """By names that tell them apart. Raises CommandError where one is named twice."""
    try:
        targets = told_apart(targets)
    except TargetError as error:
        raise CommandError(str(error)) from None
    for index, target in enumerate(targets):
        if target.name in [t.name for t in targets[:index]]:
            raise CommandError(f"duplicate target {target.name}; remove one")
    return targets


def listen_address(text: str) -> tuple[str, int]:
    # Its module brings pydantic, which only the commands that listen need.
    from phasewatch.service.config_sections import parse_listen_address

    try:
        return parse_listen_address(text)
    except ValueError as error:
        raise CommandError(str(error)) from None


def recording_of(path: str | Path) -> Recording:
    try:
        return recording_at(str(path))
    except RecordingError as error:
        raise CommandError(str(error), code=EXIT_NOTHING_READ) from None


def source_of(text: str) -> Target | History:
    """What a SOURCE names."""
    try:
        return open_source(text)
    except TargetError as error:
        raise CommandError(str(error)) from None
    except RecordingError as error:
        raise CommandError(str(error), code=EXIT_NOTHING_READ) from None


def moment(at: float | None, first: float, end: float) -> float:
    """The moment of a recording that an option names, by default its end.

    Nobody types Unix time: on a recording that has it, small numbers count from its start. Raises CommandError for one
    long after the end, of which the recording says nothing.
    """
    if at is None:
        return end
    until = first + at if at < first and first >= EARLIEST_UNIX else at
    if until > end + _LONG_AFTER:
        raise CommandError(f"second {at:g} is long after the end of the recording; it lasts {end - first:g} s")
    return until


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the block early: what was gathered until then still counts."""
    try:
        yield
    except KeyboardInterrupt:
        note("interrupted")


def wait(event: threading.Event, seconds: float | None = None) -> None:
    """Until the event, that many seconds, or Ctrl-C."""
    try:
        event.wait(seconds)
    except KeyboardInterrupt:
        return
