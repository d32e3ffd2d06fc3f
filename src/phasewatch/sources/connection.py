"""A connection that can be ended from outside, so that a whole scrape has a time limit.

requests bounds the connection attempt and each wait for more bytes; a server that sends a byte a second passes both.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from requests.adapters import HTTPAdapter


class Limit:
    """Whether the time for one scrape ran out."""

    is_over = False


class Line:
    """The socket in use. Timeouts of a socket bound each wait only; ending it from outside bounds them all together."""

    def __init__(self) -> None:
        self.opened = 0
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._limit = Limit()
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether the scrape under way has to end: nothing may be sent again."""
        return self._limit.is_over

    def close(self) -> None:
        """Ends the scrape under way, and any later one as soon as it is connected."""
        self._closed = self._limit.is_over = True
        self.cut()

    def use(self, connected: socket.socket) -> None:
        with self._lock:
            self.opened += 1
            self._socket = connected
            is_over = self._limit.is_over
        if is_over:
            self.cut()

    def cut(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                # Of the plain socket, also under TLS: closing TLS politely would wait for the other side.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def limited_to(self, seconds: float) -> Iterator[Limit]:
        limit = self._limit = Limit()
        limit.is_over = self._closed

        def end() -> None:
            limit.is_over = True
            self.cut()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield limit
        finally:
            timer.cancel()


class AbortableAdapter(HTTPAdapter):
    """requests' own, whose connections show their socket to a Line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        super().__init__(pool_connections=2, pool_maxsize=1, max_retries=0)

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        server, tls = super().build_connection_pool_key_attributes(*args, **kwargs)
        # requests hands on an IPv6 zone as the URL writes it (%25eth0); only in brackets urllib3 makes it the system's.
        if "%" in server["host"]:
            server["host"] = f"[{server['host']}]"
        return server, tls

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        if not hasattr(pool, "shown_to"):
            pool.shown_to = self._line
            pool.ConnectionCls = _shown(pool.ConnectionCls, self._line)
        return pool


def _shown(base: Any, line: Line) -> Any:
    class Shown(base):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            line.use(self.sock)

    return Shown
