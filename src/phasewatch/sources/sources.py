"""What a SOURCE may be: one row a kind, the first that knows the text opens it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.sources.recording import Recording, RecordingError, open_recording
from phasewatch.sources.replaying import replay, span
from phasewatch.sources.target import Target, parse_target


@dataclass(frozen=True, slots=True)
class History:
    """What is over. first, end: seconds, on its own clock.

    fleet: the settings and a moment -> what phasewatch would have said then.
    """

    first: float
    end: float
    fleet: Callable[[Settings, float], Fleet]


@dataclass(frozen=True, slots=True)
class Source:
    """what: as help says it. knows: whether a text names one. open: a server to scrape, or what is over.

    Raises TargetError or RecordingError: what is wrong, what to write.
    """

    what: str
    knows: Callable[[str], bool]
    open: Callable[[str], Target | History]


_REPLAY_STEP = 10.0


def _is_there(text: str) -> bool:
    return Path(text).exists()


def _recorded(text: str) -> History:
    recording = open_recording(text)
    return History(*span(recording), partial(_at, recording))


def _at(recording: Recording, settings: Settings, until: float) -> Fleet:
    *_, fleet = replay(recording, settings, _REPLAY_STEP, until, last=True)
    return fleet


def _is_address(text: str) -> bool:
    """A URL, or host:port; anything else is more likely the path of a recording that is not there."""
    host = text.rpartition("@")[2].partition("/")[0]
    return "://" in text or (":" in host and not text.startswith((".", "/", "~")))


SOURCES: tuple[Source, ...] = (
    Source("recordings", _is_there, _recorded),
    Source("URLs of servers", _is_address, parse_target),
)


def open_source(text: str) -> Target | History:
    """Raises TargetError or RecordingError."""
    for source in SOURCES:
        if source.knows(text):
            return source.open(text)
    raise RecordingError(f"{text}: no such recording; for a server write its URL, such as http://localhost:8000")
