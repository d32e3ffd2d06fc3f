"""One server's HTTP connection, kept between requests, that can be ended from outside: a whole scrape has a time limit.

A socket's timeout bounds each wait only; a server that sends a byte a second passes it for ever. urllib3 connects
(addresses, TLS), http.client, on which urllib3's own connection is built, asks and reads: that costs half of what
urllib3 adds on top of it, and an eighth of requests.
"""

import contextlib
import heapq
import http.client
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.connection import is_connection_dropped


class Deadline:
    """Whether the time for one scrape ran out."""

    __slots__ = ("is_over",)

    def __init__(self, is_over: bool = False) -> None:
        self.is_over = is_over


class Watchdog:
    """Calls back at deadlines; one thread for all connections, since nearly every deadline is called off."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        # (monotonic seconds, number, callback); an entry called off stays, without its callback, until its time.
        self._entries: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._is_running = False

    def call_after(self, seconds: float, callback: Callable[[], None]) -> list[Callable[[], None]]:
        """What is returned calls the callback off when it is cleared."""
        entry = (time.monotonic() + seconds, next(self._numbers), [callback])
        with self._changed:
            heapq.heappush(self._entries, entry)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="watchdog", daemon=True).start()
            elif self._entries[0] is entry:
                self._changed.notify()
        return entry[2]

    def _run(self) -> None:
        while True:
            due: list[Callable[[], None]] = []
            with self._changed:
                while self._entries and (not self._entries[0][2] or self._entries[0][0] <= time.monotonic()):
                    due += heapq.heappop(self._entries)[2]
                if not due:
                    self._changed.wait(self._entries[0][0] - time.monotonic() if self._entries else None)
            for callback in due:
                callback()


_WATCHDOG = Watchdog()


class AbortableConnection:
    """A kept connection to one server at a time; one request at a time.

    connect_timeout, read_timeout: seconds for each connection attempt and for each wait for more bytes. ca_file: the
    certificates to trust; read anew for each new connection.
    """

    def __init__(self, connect_timeout: float, read_timeout: float, ca_file: str | None = None) -> None:
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._ca_file = ca_file
        self._server: tuple[str, str, int] | None = None
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._limit = Deadline()
        self._is_aborted = False

    def get(self, server: tuple[str, str, int], path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The answer to GET, its body unread; `release` it. server: scheme, host without brackets, port.

        Raises what urllib3, http.client and the system raise.
        """
        for is_last_try in (False, True):
            connection, is_new = self._connected(server)
            try:
                http.client.HTTPConnection.request(connection, "GET", path, headers=dict(headers))
                return http.client.HTTPConnection.getresponse(connection)
            except (http.client.HTTPException, ConnectionError):
                connection.close()
                # A server may close a kept connection at the moment it is used again: that is no failure yet.
                if is_last_try or is_new or self._limit.is_over:
                    raise
            except BaseException:
                connection.close()
                raise
        raise AssertionError("unreachable")

    def release(self, response: http.client.HTTPResponse) -> None:
        """The connection is kept where the answer was read to its end."""
        is_whole = response.isclosed() if response.length is None else response.length == 0
        response.close()
        if not is_whole:
            self.close()

    def close(self) -> None:
        """Closes the kept connection; only where no request is under way."""
        if self._connection is not None:
            self._connection.close()

    def abort(self) -> None:
        """Ends, from any thread, the request under way, and any later one as soon as it is connected."""
        with self._lock:
            self._is_aborted = True
            self._cut(self._limit)

    @contextlib.contextmanager
    def limited_to(self, seconds: float) -> Iterator[Deadline]:
        """What is asked inside ends, with any error or an early end, when the time is over; the Deadline says so."""
        with self._lock:
            limit = self._limit = Deadline(self._is_aborted)
        callbacks = _WATCHDOG.call_after(seconds, partial(self._end, limit))
        try:
            yield limit
        finally:
            callbacks.clear()
            if self._is_aborted:
                self.close()

    def _end(self, limit: Deadline) -> None:
        with self._lock:
            if self._limit is limit:
                self._cut(limit)

    def _connected(self, server: tuple[str, str, int]) -> tuple[HTTPConnection, bool]:
        """The connection, and whether it is new."""
        if self._connection is None or self._server != server:
            self.close()
            self._server, self._connection = server, self._made(*server)
        connection = self._connection
        if connection.sock is not None:
            # Bytes that nobody asked for are no answer to what is asked next; the end of the connection shows here too.
            if not is_connection_dropped(connection):
                return connection, False
            connection.close()
        self._open(connection)
        return connection, True

    def _open(self, connection: HTTPConnection) -> None:
        try:
            connection.connect()
        except BaseException:
            # Where TLS was refused, the plain socket is there still, and nothing may be sent over it.
            connection.close()
            raise
        with self._lock:
            self._socket = connection.sock
            self._socket.settimeout(self._read_timeout)
            if self._limit.is_over:
                self._cut(self._limit)

    def _made(self, scheme: str, host: str, port: int) -> HTTPConnection:
        if scheme == "http":
            return HTTPConnection(host, port, timeout=self._connect_timeout)
        trusted = self._ca_file or requests.utils.DEFAULT_CA_BUNDLE_PATH
        where: Any = {"ca_cert_dir" if os.path.isdir(trusted) else "ca_certs": trusted}
        return HTTPSConnection(host, port, timeout=self._connect_timeout, cert_reqs="CERT_REQUIRED", **where)

    def _cut(self, limit: Deadline) -> None:
        """Under the lock."""
        limit.is_over = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Of the plain socket, also under TLS: closing TLS politely would wait for the other side.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
