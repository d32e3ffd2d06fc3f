"""Servers, router and clients on one clock: `advance` it, look at the pages, read what the clients saw."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from tools.simulator.clients import Source
from tools.simulator.config import Arrival, Config, Server
from tools.simulator.engine import Engine
from tools.simulator.frontend import FrontEnd
from tools.simulator.messages import Request, StepResult
from tools.simulator.metrics import Page
from tools.simulator.speed import Speed

_WARM_UP = (-20.0, -15.0)  # seconds at which each server gets a small request before the story begins
_LOADING_SECONDS = 60.0  # from process start to its first metric: the model is loaded


class DownError(Exception):
    """The target does not answer; the text is the reason as a scraper would record it."""


class _Process:
    """One life of a server: counters begin at zero."""

    def __init__(self, server: Server, fleet: "Fleet", random: Random, now: float) -> None:
        created = fleet.config.started_unix + now
        self.page = Page(server.flags, server.model_name, created, created - _LOADING_SECONDS)
        self.began = now
        self._turn = 0
        self.engines = [
            Engine(server.machine, server.flags, server.faults, random, fleet.at, self._emitter(index))
            for index in range(server.flags.data_parallel)
        ]
        self.frontend_speed = Speed(server.faults.frontend_speed)
        self.frontends = [
            FrontEnd(
                server.frontend, self.frontend_speed, self.page, self.engines, fleet.at, fleet.delivered, fleet.ended
            )
            for _ in range(server.flags.api_servers)
        ]
        self._owner: dict[int, tuple[FrontEnd, Engine]] = {}

    def _emitter(self, index: int) -> Callable[[StepResult], None]:
        def emit(result: StepResult) -> None:
            """Each output to the front end that asked; scheduler statistics to one of them only."""
            book = self.page.engines[index]
            if len(self.frontends) == 1:
                self.frontends[0].outputs(result, book, True)
                return
            for number, frontend in enumerate(self.frontends):
                mine = [each for each in result.outputs if self._owner[each.request.number][0] is frontend]
                if number == 0:
                    rest, result.outputs = result.outputs, mine
                    frontend.outputs(result, book, True)
                    result.outputs = rest
                elif mine:
                    frontend.outputs(StepResult(at=result.at, outputs=mine), book, False)

        return emit

    def place(self, request: Request) -> tuple[FrontEnd, Engine]:
        """A front end in turn, the engine with the least to do."""
        self._turn += 1
        frontend = self.frontends[self._turn % len(self.frontends)]
        engine = min(self.engines, key=lambda each: each.load)
        self._owner[request.number] = (frontend, engine)
        return frontend, engine

    def owner(self, request: Request) -> tuple[FrontEnd, Engine]:
        return self._owner[request.number]

    def kill(self) -> None:
        for engine in self.engines:
            engine.alive = False
        for frontend in self.frontends:
            frontend.alive = False

    def render(self, server: Server, now: float) -> str:
        idle = (now - self.began) * server.frontend.idle_cpu
        self.page.cpu_seconds += server.frontend.scrape_cpu_seconds
        return self.page.render(9.0 + idle + self.page.cpu_seconds)


class Target:
    """One server with its name; `process` is None while it is down."""

    def __init__(self, server: Server, fleet: "Fleet", seed: str) -> None:
        self.server, self._fleet = server, fleet
        self.random = Random(seed)
        self.process: _Process | None = _Process(server, fleet, self.random, fleet.now)
        self.open: dict[int, Request] = {}
        if server.faults.restart:
            killed, seconds = server.faults.restart
            fleet.at(killed, self._kill)
            fleet.at(killed + seconds, self._start)

    def _kill(self, now: float) -> None:
        assert self.process is not None
        self.process.kill()
        self.process = None
        for request in list(self.open.values()):
            request.closed = True
            self._fleet.ended(request, now, None, "ClientOSError")

    def _start(self, now: float) -> None:
        self.process = _Process(self.server, self._fleet, self.random, now)


class Fleet:
    """Targets of one Config under its traffic. `requests` holds every request sent, in order (warm-up apart)."""

    def __init__(self, config: Config, seed: int) -> None:
        self.config, self.seed = config, seed
        self.now = -30.0 if config.warm else 0.0
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._numbers = 0
        self._turn = 0
        self.requests: list[Request] = []
        self._router = Random(f"{seed}/router")
        self._after: dict[int, Callable[[float, bool], None]] = {}
        self.targets = {
            server.name: Target(server, self, f"{seed}/server/{index}") for index, server in enumerate(config.servers)
        }
        if len(self.targets) != len(config.servers):
            raise ValueError("servers: each needs a name of its own")
        if config.routing == "weighted" and len(config.weights) != len(config.servers):
            raise ValueError("weights: one number for each server")
        self._begin()

    # --- the clock -------------------------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[[float], None]) -> None:
        self._count += 1
        heappush(self._events, (time, self._count, call))

    def advance(self, until: float) -> None:
        """Let everything happen up to and including second `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heappop(self._events)
            call(self.now)
        self.now = max(self.now, until)

    def page(self, name: str) -> str:
        """The page of a target at this second. Raises DownError where nothing listens."""
        target = self.targets[name]
        if target.process is None:
            raise DownError("ConnectionRefusedError")
        return target.process.render(target.server, self.now)

    def standing(self, name: str) -> bool:
        """Whether the target listens but its front end stands still, so that a page would have to be waited for."""
        process = self.targets[name].process
        return process is not None and process.frontend_speed.at(self.now) <= 0.0

    # --- clients ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.config.warm:
            for name in self.targets:
                for when in _WARM_UP:
                    self.at(when, lambda now, name=name: self.send(Arrival(now, 64, 8), now, name))  # type: ignore[misc]
        for arrival in self.config.arrivals:
            self.at(arrival.send, lambda now, arrival=arrival: self.send(arrival, now))  # type: ignore[misc]
        for index, flow in enumerate(self.config.flows):
            Source(flow, self.at, self.send, Random(f"{self.seed}/flow/{index}"), flow.name or f"flow{index}").begin()

    def send(
        self,
        arrival: Arrival,
        now: float,
        target: str | None = None,
        leave_after: int | None = None,
        after: Callable[[float, bool], None] | None = None,
    ) -> None:
        """after(now, done) is called when the client has its answer, or an error, or has left."""
        self._numbers += 1
        head = arrival.head and (arrival.head[0], min(arrival.head[1], arrival.prompt))
        name = target or arrival.target or self._route()
        place = self.targets[name]
        request = Request(
            self._numbers, now, arrival.prompt, arrival.output, arrival.max_tokens or arrival.output, head,
            arrival.flow, leave_after, target=name,
        )  # fmt: skip
        if target is None:
            self.requests.append(request)
        if after:
            self._after[request.number] = after
        if place.process is None:
            request.closed = True
            self.ended(request, now, None, "ClientConnectorError")
            return
        place.open[request.number] = request
        faults = place.server.faults
        request.fail = faults.fail_error is not None and self._happens(faults.fail_error, place.random, now)
        fail_5xx = faults.fail_5xx is not None and self._happens(faults.fail_5xx, place.random, now)
        process = place.process
        frontend, engine = process.place(request)

        def arrive(time: float) -> None:
            if frontend.alive and not request.closed:
                frontend.accept(request, engine, time, fail_5xx)

        self.at(now + place.server.frontend.network_seconds, arrive)
        if arrival.timeout is not None:
            self.at(now + arrival.timeout, lambda time: self._leave(request, time))

    @staticmethod
    def _happens(fault: tuple[float, float], random: Random, now: float) -> bool:
        return now >= fault[0] and random.random() < fault[1]

    def _route(self) -> str:
        names = list(self.targets)
        if self.config.routing == "least_loaded":
            return min(names, key=lambda name: (self.targets[name].process is None, len(self.targets[name].open)))
        if self.config.routing == "weighted":
            return self._router.choices(names, self.config.weights)[0]
        self._turn += 1
        return names[self._turn % len(names)]

    def _leave(self, request: Request, now: float) -> None:
        """The client gives up: it sees nothing more; the server notices a moment later."""
        if request.ended is not None:
            return
        process = self.targets[request.target].process
        self._client_end(request, now, request.status, "TimeoutError")
        if process is not None:
            frontend, engine = process.owner(request)
            network = self.targets[request.target].server.frontend.network_seconds

            def notice(time: float) -> None:
                if frontend.alive:
                    frontend.leave(request, engine, time)

            self.at(now + network, notice)

    def delivered(self, request: Request, now: float) -> None:
        """A chunk leaves the server."""
        if request.ended is not None:
            return
        time = now + self.targets[request.target].server.frontend.network_seconds
        request.status = 200
        request.chunks.append(time - request.sent)
        if request.leave_after is not None and len(request.chunks) >= request.leave_after:
            self.at(time, lambda when: self._leave(request, when))

    def ended(self, request: Request, now: float, status: int | None, error: str | None) -> None:
        """The server has closed the connection (or it broke, or nothing listened)."""
        self.targets[request.target].open.pop(request.number, None)
        if request.ended is None:
            network = self.targets[request.target].server.frontend.network_seconds
            self._client_end(request, now + network, status, error)

    def _client_end(self, request: Request, now: float, status: int | None, error: str | None) -> None:
        request.ended = now - request.sent
        request.status, request.error, request.done = status, error, error is None
        after = self._after.pop(request.number, None)
        if after:
            self.at(now, lambda time: after(time, request.done))

    def truth(self) -> list[dict[str, Any]]:
        """What each client did and saw, as in the recordings' truth.json, plus its target."""
        return [
            {
                "flow": each.flow, "prompt": each.prompt, "max_tokens": each.max_tokens, "send": round(each.sent, 4),
                "chunks": [round(chunk, 4) for chunk in each.chunks], "target": each.target,
            } | ({"status": each.status} if each.status else {})
            | ({"done": True} if each.done else {}) | ({"error": each.error} if each.error else {})
            for each in self.requests
        ]  # fmt: skip


class Simulator:
    """One server alone: `advance(seconds)`, then `page()`."""

    def __init__(self, config: Config, seed: int) -> None:
        if len(config.servers) != 1:
            raise ValueError("Simulator: one server; take Fleet for several")
        self.fleet = Fleet(config, seed)
        self._name = config.servers[0].name

    def advance(self, until: float) -> None:
        self.fleet.advance(until)

    def page(self) -> str:
        """Raises DownError where nothing listens."""
        return self.fleet.page(self._name)
