"""A service and its web side as one process: listens, serves, and ends cleanly when told to."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import structlog
import uvicorn

from phasewatch.outputs.web.app import create_app
from phasewatch.service.service import Service

# Answers under way may finish for this long; with the service's own stop it stays well below five seconds.
_GRACE_SECONDS = 2
log = structlog.get_logger("phasewatch")


class ListenError(Exception):
    """The address cannot be listened on: one line that says why and what to do."""


class _Calm(uvicorn.Server):
    """Looks once a second whether to end, and what to write into the Date header. uvicorn looks ten times a second,
    which with few targets costs more than watching them."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(1.0)


class Server:
    """Listens from its making on, so that a port that is taken shows before anything starts.

    host "" is every interface. port 0 takes a free one. Raises ListenError.
    """

    def __init__(self, service: Service, host: str, port: int) -> None:
        self._service = service
        self._socket = _listen(host, port)
        shown, number = self._socket.getsockname()[:2]
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}"
        # One worker: the windows live in this process.
        self._server = _Calm(
            uvicorn.Config(
                create_app(service),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

    def run(self) -> None:
        """Serves until stop() is called or, in the main thread, SIGTERM or SIGINT comes."""
        with _signals(self.stop):
            try:
                self._service.start()
                log.info("serving", url=self.url, targets=len(self._service.config.targets))
                self._server.run(sockets=[self._socket])
            finally:
                self._service.stop()
                self._socket.close()
        log.info("stopped")

    def stop(self) -> None:
        """Ends run() soon; may be called from any thread."""
        self._server.should_exit = True


def run_server(service: Service, host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT, then returns. Raises ListenError."""
    Server(service, host, port).run()


def _listen(host: str, port: int) -> socket.socket:
    shown = f"{f'[{host}]' if ':' in host else host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"{shown}: {error.strerror}; choose another --web.listen-address") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not host:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        reason = (error.strerror or str(error)).lower()
        raise ListenError(f"{shown}: {reason}; stop what listens there, or set --web.listen-address") from None
    return listening


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """uvicorn raises a signal again once it has stopped; with these handlers that is no sudden death but nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
