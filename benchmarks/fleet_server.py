"""One fast process that is a whole fleet: N ports, each a vLLM server's /metrics whose numbers move.

    python -m benchmarks.fleet_server TARGETS SECONDS [MIX]

The pages are the demo's recordings of a real vLLM (about 53 kB, no gzip, as vLLM answers), looped so that counters
never fall, of servers of model i // 10. In mix `incidents` target i plays replica i modulo 3: two of three have an
incident all the time. In mix `healthy` nine of ten play the one that is healthy. Each is shifted by a few frames. Pages
are made before the first line is printed, {"ports": [...]}; when stdin ends, {"arrivals": [[seconds, ...] of each
target]} follows, on the monotonic clock, and the process ends.
"""

import asyncio
import json
import sys
import time
from functools import lru_cache, partial

import typer

from phasewatch.commands.demo import demo_recording
from phasewatch.outputs.replay_server import Track

FRAME_SECONDS = 2.0
TARGETS_PER_MODEL = 10
# Targets of one replica are this many frames apart, so that not all show the same traffic at the same time.
SHIFT, SHIFTS = 5, 11
RECORDED_MODEL = b'model_name="demo-llama"'


MIXES = ("incidents", "healthy")
HEALTHY, INCIDENTS = 1, (0, 2)  # of the replicas


def mixes_in(text: str) -> list[str]:
    """Those that an option names."""
    named_ones = text.split(",")
    for one in named_ones:
        if one not in MIXES:
            raise typer.BadParameter(f"{one!r} is no mix; there are {', '.join(MIXES)}", param_hint="--mixes")
    return named_ones


class Pages:
    """The pages of every replica of a mix for the next `seconds` seconds."""

    def __init__(self, seconds: float, mix: str = "incidents") -> None:
        tracks = [Track(target, target.entries[0].seconds, loop=True) for target in demo_recording().targets]
        self._mix = mix
        frames = int(seconds / FRAME_SECONDS) + SHIFT * SHIFTS + 1
        self._frames = [[track.at(n * FRAME_SECONDS)[1].encode() for n in range(frames)] for track in tracks]
        self.started = time.monotonic()
        self._as_model = lru_cache(maxsize=512)(self._render)

    def answer(self, target: int, now: float) -> bytes:
        replica, shift = self._replica(target), target // len(self._frames) % SHIFTS * SHIFT
        frames = self._frames[replica]
        frame = min(int((now - self.started) / FRAME_SECONDS) + shift, len(frames) - 1)
        return self._as_model(replica, frame, target // TARGETS_PER_MODEL)

    def _replica(self, target: int) -> int:
        if self._mix == "incidents":
            return target % len(self._frames)
        model, place = divmod(target, TARGETS_PER_MODEL)
        return HEALTHY if place else INCIDENTS[model % len(INCIDENTS)]

    def _render(self, replica: int, frame: int, model: int) -> bytes:
        body = self._frames[replica][frame].replace(RECORDED_MODEL, b'model_name="model-%d"' % model)
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
        )
        return head % len(body) + body


class Connection(asyncio.Protocol):
    """Answers every GET with the target's page as it is now."""

    def __init__(self, pages: Pages, target: int, arrivals: list[float]) -> None:
        self._pages, self._target, self._arrivals = pages, target, arrivals
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            now = time.monotonic()
            self._arrivals.append(now)
            self._received = self._received.partition(b"\r\n\r\n")[2]
            self._transport.write(self._pages.answer(self._target, now))


async def serve(targets: int, seconds: float, mix: str) -> None:
    loop = asyncio.get_running_loop()
    pages = Pages(seconds, mix)
    arrivals: list[list[float]] = [[] for _ in range(targets)]
    servers = [
        await loop.create_server(partial(Connection, pages, target, arrivals[target]), "127.0.0.1", 0)
        for target in range(targets)
    ]
    print(json.dumps({"ports": [server.sockets[0].getsockname()[1] for server in servers]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps({"arrivals": arrivals}), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), *(sys.argv[3:] or MIXES[:1])))
