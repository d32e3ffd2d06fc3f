"""The engine: what its steps take and emit, on a clock that somebody else drives."""

from collections import deque
from collections.abc import Callable
from random import Random

from tools.simulator.config import Faults, Flags, Machine
from tools.simulator.messages import Output, Request, StepResult
from tools.simulator.scheduler import Plan, Scheduler
from tools.simulator.speed import Speed

# How often an engine that has work but may schedule none of it looks again (vLLM spins; this only saves events).
_LOOK_AGAIN_SECONDS = 0.05


class Engine:
    """One engine core. `at(time, call)` books a call; `emit(result)` takes a step's message.

    Requests and aborts lie in the inbox until the engine reads it, which it does between two steps only.
    """

    def __init__(
        self,
        machine: Machine,
        flags: Flags,
        faults: Faults,
        random: Random,
        at: Callable[[float, Callable[[float], None]], None],
        emit: Callable[[StepResult], None],
    ) -> None:
        self.flags, self.alive = flags, True
        self.scheduler = Scheduler(flags, random)
        self._machine, self._random = machine, random
        self._speed, self._prefill_speed = Speed(faults.engine_speed), Speed(faults.prefill_speed)
        self._admission_stop = faults.admission_stop or (float("inf"), float("inf"))
        self._kept_from, self._kept_seconds = faults.blocks_kept or (float("inf"), 0.0)
        self._fail_from, self._fail_share = faults.transfers_fail or (float("inf"), 0.0)
        self._inbox: deque[tuple[Request, bool]] = deque()
        self._at, self._emit = at, emit
        self._busy = False
        self._prefill_steps = 0
        self._active_transfers = 0
        self._result = StepResult()

    @property
    def load(self) -> int:
        """Requests that the engine has or will read."""
        scheduler = self.scheduler
        return len(scheduler.running) + len(scheduler.waiting) + len(scheduler.fetching) + len(self._inbox)

    def submit(self, request: Request, now: float) -> None:
        self._inbox.append((request, True))
        self._wake(now)

    def abort(self, request: Request, now: float) -> None:
        self._inbox.append((request, False))
        self._wake(now)

    def _wake(self, now: float) -> None:
        if not self._busy:
            self._busy = True
            self._book(self._speed.finish(now, 0.0), self._begin)

    def _book(self, when: float, call: Callable[[float], None]) -> None:
        if when != float("inf"):
            self._at(when, call)

    def _begin(self, now: float) -> None:
        if not self.alive:
            return
        while self._inbox:
            request, wanted = self._inbox.popleft()
            if wanted:
                self.scheduler.add(request, now)
            else:
                self.scheduler.drop(request)
        admit = not self._admission_stop[0] <= now < self._admission_stop[1]
        plan = self.scheduler.schedule(now, admit, self._result)
        self._start_transfers(now)
        if plan:
            self._book(self._speed.finish(now, self._seconds(plan, now)), lambda end: self._end(plan, end))
            return
        self._report(now)
        if self.scheduler.waiting:
            self._book(self._speed.finish(now, _LOOK_AGAIN_SECONDS), self._begin)
        else:
            self._busy = False

    def _seconds(self, plan: Plan, now: float) -> float:
        """What the step takes at full speed, but for prompt tokens that something slows down. Recomputing after a
        preemption is prompt work again."""
        machine = self._machine
        at_once = 1 + (self.flags.speculation.drafts if self.flags.speculation else 0)
        prompt = decoded = decoding = context = 0
        for request, tokens in plan:
            if request.generated and tokens <= at_once:
                decoded += tokens
                decoding += 1
                context += request.computed
            else:
                prompt += tokens
        seconds = (
            machine.step_seconds
            + decoded * machine.per_request_seconds
            + context * machine.per_context_token_seconds
            + prompt * machine.prefill_token_seconds / self._prefill_speed.at(now)
            + (decoded - decoding) * machine.draft_token_seconds
            + machine.uncaptured(decoding)
        )
        if prompt:
            self._prefill_steps += 1
            if self._prefill_steps <= machine.cold_prefills:
                seconds += machine.cold_seconds
        return seconds * max(0.5, self._random.gauss(1.0, machine.noise))

    def _end(self, plan: Plan, now: float) -> None:
        if not self.alive:
            return
        result = self._result
        finished: list[Request] = []
        for request, scheduled in plan:
            total = request.prompt + request.generated
            request.computed += scheduled
            if request.computed < total:
                continue  # a chunk of a prompt, not its last
            tokens = 1
            proposed = request.computed - total
            if proposed:
                result.drafts += 1
                result.draft_tokens += proposed
                tokens += self._accept(proposed, result)
            request.generated += tokens
            request.computed = total + tokens - 1
            if request.first_token is None:
                request.first_token = now
            finish = None
            if request.fail:
                finish = "error"
            elif request.generated >= request.output:
                finish = "length" if request.output >= request.max_tokens else "stop"
            if finish:
                finished.append(request)
            result.outputs.append(Output(request, tokens, finish))
        if finished:
            self.scheduler.finish(finished, now, self._kept_seconds if now >= self._kept_from else 0.0)
        self._report(now)
        if self.load:
            self._begin(now)
        else:
            self._busy = False

    def _accept(self, proposed: int, result: StepResult) -> int:
        assert self.flags.speculation is not None
        count = 0
        result.accepted = result.accepted or [0] * self.flags.speculation.drafts
        while count < proposed and self._random.random() < self.flags.speculation.acceptance:
            result.accepted[count] += 1
            count += 1
        return count

    def _report(self, now: float) -> None:
        """The scheduler's state after the step: what the gauges will show until the next one."""
        result, scheduler = self._result, self.scheduler
        fetching = len(scheduler.fetching)
        result.at = now
        result.running = len(scheduler.running)
        result.waiting = len(scheduler.waiting) + fetching
        result.deferred = fetching
        result.kv_usage = scheduler.pool.usage
        if self.flags.transfer:
            arrived = sum(request.in_pool for request in scheduler.waiting)
            result.fetches = (max(0, fetching - self._active_transfers), self._active_transfers, arrived)
        self._result = StepResult()
        self._emit(result)

    # --- KV from elsewhere: the link keeps its own time, the engine's speed does not touch it --------------------

    def _start_transfers(self, now: float) -> None:
        transfer = self.flags.transfer
        if transfer is None:
            return
        for request in self.scheduler.fetching:
            if self._active_transfers >= transfer.links:
                return
            if not request.in_pool:
                request.in_pool = True  # on its way; being in `fetching` says that it has not arrived
                self._active_transfers += 1
                seconds = request.external * transfer.token_seconds * max(0.5, self._random.gauss(1.0, 0.1))
                self._at(now + seconds, self._arrival_of(request, seconds))

    def _arrival_of(self, request: Request, seconds: float) -> Callable[[float], None]:
        transfer_bytes = self.flags.transfer.token_bytes if self.flags.transfer else 0

        def arrived(now: float) -> None:
            if not self.alive:
                return
            self._active_transfers -= 1
            if now >= self._fail_from and self._random.random() < self._fail_share:
                # The blocks are there and empty: the prompt is computed here after all.
                self._result.failed_transfers += 1
                request.computed -= request.external
                request.cached -= request.external
                request.external = 0
            else:
                self._result.transfers.append((seconds, request.external * transfer_bytes))
            if request in self.scheduler.fetching:
                self.scheduler.fetching.remove(request)
                self.scheduler.waiting.appendleft(request)
            self._start_transfers(now)
            self._wake(now)

        return arrived
