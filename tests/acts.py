"""Recordings strung together and served live: a server that is well, then in an incident, then well again.

Every page is a recorded one; only what had been counted before is added on, so that nothing looks restarted.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from phasewatch.outputs.replay_server import Track
from phasewatch.sources.sources import recording_at
from support import HttpServer

_COUNTED = re.compile(r"^([^\s#{]+(?:_total|_sum|_count|_bucket)(?:\{.*\})?) (\S+)$", re.MULTILINE)
_BORN = re.compile(r"^((?:\S+_created|process_start_time_seconds)(?:\{.*\})?) (\S+)$", re.MULTILINE)


def _counted(page: str) -> dict[str, float]:
    return {series: float(value) for series, value in _COUNTED.findall(page)}


class Acts:
    """One server. Each act is a recording, looped until the next one is called for."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._before: dict[str, float] = {}
        self._born: dict[str, str] = {}
        self._shown: dict[str, float] = {}

    def begin(self, recording: Path, first: float = 0.0, last: float = float("inf"), at: float | None = None) -> None:
        """From now on (at: on which clock) the pages of `recording` from second `first` to `last`."""
        [target] = recording_at(str(recording)).targets
        kept = [entry for entry in target.entries if first <= entry.seconds <= last]
        track = Track(type(target)(target.name, tuple(kept)), kept[0].seconds, loop=True)
        begun = time.monotonic() if at is None else at
        opening = _counted(track.at(0.0)[1])
        with self._lock:
            self._before = {series: self._shown.get(series, 0.0) - value for series, value in opening.items()}
            self._track, self._begun = track, begun

    def page(self, at: float | None = None) -> str:
        with self._lock:
            text = self._track.at((time.monotonic() if at is None else at) - self._begun)[1]
            text = _COUNTED.sub(lambda m: f"{m[1]} {float(m[2]) + self._before.get(m[1], 0.0)!r}", text)
            self._shown |= _counted(text)
            text = _BORN.sub(lambda m: f"{m[1]} {self._born.setdefault(m[1], m[2])}", text)
            return re.sub(r'model_name="[^"]*"', f'model_name="{self._model}"', text)

    def serve(self) -> HttpServer:
        def answer(request: BaseHTTPRequestHandler) -> None:
            body = self.page().encode()
            request.send_response(200)
            request.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

        return HttpServer({"/metrics": answer})


@dataclass(frozen=True)
class Part:
    """So many seconds of a recording, from its second `first`; begun again at its second `last`."""

    recording: Path
    first: float
    last: float
    seconds: float


def write(folder: Path, model: str, parts: Iterable[Part], step: float = 2.0) -> Iterator[float]:
    """The same as a recording of one target in `folder`. Gives the second at which each part ends."""
    acts, now, end = Acts(model), 0.0, 0.0
    for part in parts:
        acts.begin(part.recording, part.first, part.last, at=now)
        end += part.seconds
        while now < end:
            (folder / f"{now:07.2f}.prom").write_text(acts.page(now))
            now += step
        yield end
