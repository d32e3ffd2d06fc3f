"""Clients: when they ask, for how much, and when they leave."""

import math
from collections.abc import Callable
from random import Random
from typing import Protocol

from tools.simulator.config import Arrival, Flow, Length

_RETRY_SECONDS = 1.0  # a closed-loop client asks again that long after a failed request, at least

At = Callable[[float, Callable[[float], None]], None]


class Send(Protocol):
    def __call__(
        self, arrival: Arrival, now: float, *, leave_after: int | None, after: Callable[[float, bool], None] | None
    ) -> None: ...


class Source:
    """Clients of one flow."""

    def __init__(self, flow: Flow, at: At, send: Send, random: Random, name: str) -> None:
        self._flow, self._at, self._send, self._random, self._name = flow, at, send, random, name
        self._prompts: dict[int, int] = {}

    def begin(self) -> None:
        flow, at = self._flow, self._at
        for _ in range(flow.burst):
            at(flow.start + self._random.uniform(0, 0.1), lambda now: self._ask(now, None))
        for client in range(flow.clients):
            at(flow.start + self._random.uniform(0, flow.ramp), lambda now, c=client: self._ask(now, c))  # type: ignore[misc]
        if flow.rate or flow.every:
            at(flow.start + (self._gap() if flow.rate else 0.0), self._tick)

    def _gap(self) -> float:
        return self._flow.every or self._random.expovariate(self._flow.rate)

    def _tick(self, now: float) -> None:
        if now < self._flow.end:
            self._ask(now, None)
            self._at(now + self._gap(), self._tick)

    def _ask(self, now: float, client: int | None) -> None:
        flow, random = self._flow, self._random
        if now >= flow.end:
            return
        prompt = self._length(flow.prompt)
        head = (f"{self._name}/{random.randrange(flow.heads)}", flow.head) if flow.head else None
        if flow.repeat and client is not None:
            prompt = self._prompts.setdefault(client, prompt)
            head = (f"{self._name}/client{client}", prompt)
        output = self._length(flow.output)
        stops = random.random() < flow.stop
        leaves = random.randint(1, max(1, output - 1)) if random.random() < flow.leave else None

        def after(time: float, done: bool) -> None:
            pause = random.expovariate(1 / flow.think) if flow.think else 0.0
            self._at(time + (pause if done else max(pause, _RETRY_SECONDS)), lambda then: self._ask(then, client))

        self._send(
            Arrival(now, prompt, output, 2 * output if stops else output, head, flow.timeout, self._name, flow.target),
            now, leave_after=leaves, after=after if client is not None else None,
        )  # fmt: skip

    def _length(self, length: Length) -> int:
        value = length.mean
        if length.spread:
            value = self._random.lognormvariate(math.log(length.mean) - length.spread**2 / 2, length.spread)
        return round(min(max(value, length.low), length.high))
