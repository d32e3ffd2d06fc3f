"""A recording served as live /metrics endpoints, each target on its own port, at its own pace.

A recorded failure fails again in its kind: an HTTP status is answered, a timeout is never answered, all else (refused,
reset, unreachable) closes the connection at once.
"""

import re
import socket
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from phasewatch.sources.looping import Loop
from phasewatch.sources.recording import Entry, Recording, TargetRecording
from phasewatch.sources.replaying import span
from phasewatch.sources.target import DEFAULT_PATH

_STATUS = re.compile(r"\banswered ([45]\d\d)\b")
_TIMEOUT = re.compile(r"timed?[ -]?out", re.IGNORECASE)
# Longer than any scraper waits.
_NEVER_SECONDS = 120.0


class ReplayError(Exception):
    """The recording cannot be served. The message is one line: what, where, what to do."""


class ReplayServer:
    """Serves a recording from `__enter__` to `__exit__`.

    listen: (host, port) of the first target, the others follow on the next ports; port 0 takes any free ones.
    loop: begin each target again at its end without a restart (see looping); else `done` is set when the recording
    has been over for one interval, and it is up to the caller to leave, since a server that goes on with its last page
    looks like a stalled engine. speed: seconds of the recording a second. clock: seconds, monotonic.
    urls: target -> URL of its page. Raises ReplayError where it cannot listen.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        loop: bool = False,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done = threading.Event()
        self._speed = speed
        self._clock = clock
        self._stopping = threading.Event()
        first, end = span(recording)
        gaps = [b.seconds - a.seconds for target in recording.targets for a, b in pairwise(target.entries)]
        self._over = None if loop else (end - first + (median(gaps) if gaps else 1.0)) / speed
        self._tracks = {target.name: Track(target, first, loop) for target in recording.targets}
        self._servers: dict[str, _Server] = {}
        host, port = listen
        try:
            for index, (name, track) in enumerate(self._tracks.items()):
                address = (host, port + index if port else 0)
                answer = partial(self._now, track)
                self._servers[name] = _Server(address, answer, self._stopping)
        except (OSError, OverflowError) as error:
            self._close()
            raise ReplayError(f"cannot listen on {address[0]}:{address[1]} ({error}); choose another address") from None
        self.urls = {name: server.url for name, server in self._servers.items()}
        self._started = clock()

    def __enter__(self) -> Self:
        self._started = self._clock()
        for server in self._servers.values():
            threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True).start()
        if self._over is not None:
            threading.Thread(target=self._end, args=(self._over,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        for server in self._servers.values():
            server.shutdown()
        self._close()

    def _close(self) -> None:
        for server in self._servers.values():
            server.server_close()

    def _end(self, seconds: float) -> None:
        if not self._stopping.wait(seconds):
            self.done.set()

    def _now(self, track: "Track") -> tuple[Entry, str]:
        return track.at((self._clock() - self._started) * self._speed)


class Track:
    """What one target answers as time goes by."""

    def __init__(self, target: TargetRecording, first: float, loop: bool) -> None:
        """first: when the whole recording begins, in its own seconds; a target is looped over its own length."""
        self._entries = target.entries
        self._times = [entry.seconds - first for entry in target.entries]
        self._period = (self._times[-1] - self._times[0]) or 1.0
        self._loop: Loop | None = None
        if loop:
            pages = [entry for entry in target.entries if entry.kind == "page"]
            self._rank = {entry.seconds: index for index, entry in enumerate(pages)}
            self._loop = Loop((entry.read() for entry in pages), self._period)

    def at(self, seconds: float) -> tuple[Entry, str]:
        """The entry to answer with, and its page's text ("" for a failure). seconds: since the recording's begin.

        Before the target's first entry it answers with that one: scrapes of a round are spread over the interval.
        """
        cycle = 0.0
        if self._loop is not None:
            # The last page is the next round's first one, so no time passes without progress in between.
            cycle, seconds = divmod(max(0.0, seconds - self._times[0]), self._period)
            seconds += self._times[0]
        entry = self._entries[max(0, bisect_right(self._times, seconds) - 1)]
        if entry.kind == "failure":
            return entry, ""
        text = entry.read()
        return entry, self._loop.page(text, self._rank[entry.seconds], int(cycle)) if self._loop else text


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], now: Callable[[], tuple[Entry, str]], stopping: threading.Event
    ) -> None:
        self.now = now
        self.stopping = stopping
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        shown = address[0] or "127.0.0.1"
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{self.server_port}{DEFAULT_PATH}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    # A kept connection that nobody uses is let go.
    timeout = 60.0

    def do_GET(self) -> None:
        if urlsplit(self.path).path.rstrip("/") != DEFAULT_PATH:
            self._send(HTTPStatus.NOT_FOUND, f"only {DEFAULT_PATH} was recorded\n", "text/plain; charset=utf-8")
            return
        entry, text = self.server.now()
        if entry.reason is None:
            self._send(HTTPStatus.OK, text, entry.content_type)
            return
        if status := _STATUS.search(entry.reason):
            self._send(int(status[1]), f"{entry.reason}\n", "text/plain; charset=utf-8")
            return
        if _TIMEOUT.search(entry.reason):
            self.server.stopping.wait(_NEVER_SECONDS)
        self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 (http.server names it)

    def _send(self, status: int, text: str, content_type: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""
