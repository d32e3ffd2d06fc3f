"""Simulated servers, live: each target's /metrics on a loopback port of its own, in real time."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tools.simulator.simulation import DownError, Fleet

_TICK_SECONDS = 0.05
_CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_PLAIN = {"/version": (200, "application/json", '{"version":"0.32.0"}'), "/health": (200, "text/plain", "")}


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], live: "Live", name: str) -> None:
        self.live, self.target = live, name
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        status, kind, text = _PLAIN.get(path, (404, "text/plain", ""))
        if path == "/metrics":
            try:
                status, kind, text = 200, _CONTENT_TYPE, self.server.live.page(self.server.target)
            except DownError:
                self.close_connection = True  # killed while this was being asked
                return
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: stderr belongs to whoever serves."""


class Live:
    """A fleet that runs with the wall clock, `speed` times as fast. A target that is down refuses connections.

    A context manager; `urls` gives each target's address. `listen` is host:port of the first target, the next ones
    take the ports after it; port 0 takes free ones.
    """

    def __init__(self, fleet: Fleet, listen: str = "127.0.0.1:0", speed: float = 1.0) -> None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"listen address {listen!r}: want HOST:PORT, such as 127.0.0.1:8000")
        self._fleet, self._speed = fleet, speed
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._listeners: dict[str, _Listener | None] = {}
        self._addresses: dict[str, tuple[str, int]] = {}
        try:
            for index, name in enumerate(fleet.targets):
                listener = _Listener((host.strip("[]"), int(port) + index if int(port) else 0), self, name)
                self._addresses[name] = (host.strip("[]"), listener.server_address[1])
                self._serve(name, listener)
        except BaseException:
            self.close()
            raise
        self._began = time.monotonic()
        self._ticker = threading.Thread(target=self._tick, name="simulator", daemon=True)
        self._ticker.start()

    @property
    def urls(self) -> dict[str, str]:
        return {name: f"http://{host}:{port}" for name, (host, port) in self._addresses.items()}

    @property
    def seconds(self) -> float:
        """Now, on the simulation's clock."""
        return (time.monotonic() - self._began) * self._speed

    def page(self, name: str) -> str:
        """The page as of now; waits while the front end stands still. Raises DownError."""
        while True:
            with self._lock:
                self._fleet.advance(self.seconds)
                if not self._fleet.standing(name) or self._stop.is_set():
                    return self._fleet.page(name)
            self._stop.wait(_TICK_SECONDS)

    def _serve(self, name: str, listener: _Listener) -> None:
        self._listeners[name] = listener
        threading.Thread(target=listener.serve_forever, args=(_TICK_SECONDS,), name=name, daemon=True).start()

    def _tick(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            with self._lock:
                self._fleet.advance(self.seconds)
                up = {name: target.process is not None for name, target in self._fleet.targets.items()}
            for name, listener in list(self._listeners.items()):
                if listener and not up[name]:
                    self._shut(name, listener)
                elif listener is None and up[name]:
                    self._serve(name, _Listener(self._addresses[name], self, name))

    def _shut(self, name: str, listener: _Listener) -> None:
        listener.shutdown()
        listener.server_close()
        self._listeners[name] = None

    def close(self) -> None:
        self._stop.set()
        if hasattr(self, "_ticker"):
            self._ticker.join()
        for name, listener in list(self._listeners.items()):
            if listener:
                self._shut(name, listener)

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(fleet: Fleet, listen: str = "127.0.0.1:0", speed: float = 1.0) -> Live:
    """Begin to serve a fleet's targets; `close()` what comes back. Raises OSError if the address is taken."""
    return Live(fleet, listen, speed)
