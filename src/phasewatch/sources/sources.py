"""What a SOURCE may be: one row a kind, the first that knows the text opens it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.sources.packed import is_packed, open_packed
from phasewatch.sources.recording import Recording, RecordingError, open_recording
from phasewatch.sources.replaying import replay, span
from phasewatch.sources.target import Target, TargetError, parse_target


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

    recording: what it opens is made of, where it is a recording. Raises TargetError or RecordingError: what is wrong,
    what to write.
    """

    what: str
    knows: Callable[[str], bool]
    open: Callable[[str], Target | History]
    recording: Callable[[str], Recording] | None = None


_REPLAY_STEP = 10.0


def _is_there(text: str) -> bool:
    return Path(text).exists()


def _recorded(what: str, knows: Callable[[str], bool], read: Callable[[str], Recording]) -> Source:
    def history(text: str) -> History:
        recording = read(text)
        return History(*span(recording), partial(_at, recording))

    return Source(what, knows, history, read)


def _at(recording: Recording, settings: Settings, until: float) -> Fleet:
    *_, fleet = replay(recording, settings, _REPLAY_STEP, until, last=True)
    return fleet


def _is_address(text: str) -> bool:
    """A URL, or host:port; anything else is more likely the path of a recording that is not there."""
    host = text.rpartition("@")[2].partition("/")[0]
    return "://" in text or (":" in host and not text.startswith((".", "/", "~")))


SOURCES: tuple[Source, ...] = (
    _recorded("recordings in one file (NAME.tar.xz)", is_packed, open_packed),
    _recorded("recordings", _is_there, open_recording),
    Source("URLs of servers", _is_address, parse_target),
)


def open_source(text: str) -> Target | History:
    """Raises TargetError or RecordingError."""
    if not text.strip():
        raise TargetError("a source is empty; give a URL or a recording")
    for source in SOURCES:
        if source.knows(text):
            return source.open(text)
    raise RecordingError(f"{text}: no such recording; for a server write its URL, such as http://localhost:8000")


def recording_at(text: str) -> Recording:
    """The recording that a command reads page by page. Raises RecordingError."""
    read = next((one.recording for one in SOURCES if one.recording and one.knows(text)), None) or open_recording
    recording = read(text)
    span(recording)
    return recording
