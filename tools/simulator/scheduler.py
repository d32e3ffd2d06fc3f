"""vLLM's V1 scheduler: who gets how many tokens of the next step, who is preempted, who waits."""

from collections import deque
from heapq import heappop, heappush
from random import Random

from tools.simulator.config import Flags
from tools.simulator.kv import BlockPool, Key
from tools.simulator.messages import Request, StepResult

Plan = list[tuple[Request, int]]


class Scheduler:
    """The queues and the KV pool of one engine. Prefix counts are added to `result`, the message being made."""

    def __init__(self, flags: Flags, random: Random) -> None:
        self.flags, self._random = flags, random
        self.pool = BlockPool(flags.kv_blocks, flags.prefix_caching)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.fetching: deque[Request] = deque()  # wait for KV from elsewhere, blocks held
        self._kept: list[
            tuple[float, int, list[Key], int]
        ] = []  # (until, number, blocks with content, others) of finished

    def add(self, request: Request, now: float) -> None:
        request.queued = now
        self.waiting.append(request)

    def drop(self, request: Request) -> None:
        """Forget a request, wherever it is; one that has finished is nowhere."""
        for queue in (self.waiting, self.running, self.fetching):
            if request in queue:
                queue.remove(request)
                self.release(request)
                return

    def finish(self, requests: list[Request], now: float, kept_seconds: float = 0.0) -> None:
        """kept_seconds: mean time for which their blocks stay taken."""
        for request in requests:
            if kept_seconds:
                until = now + self._random.expovariate(1 / kept_seconds)
                heappush(self._kept, (until, request.number, request.keys, request.blocks - len(request.keys)))
                request.keys, request.blocks, request.computed = [], 0, 0
            self.release(request)
        gone = {id(request) for request in requests}
        self.running = [request for request in self.running if id(request) not in gone]

    def schedule(self, now: float, admit: bool, result: StepResult) -> Plan:
        """Running requests first, in order; then, unless somebody had to go, the waiting ones."""
        while self._kept and self._kept[0][0] <= now:
            _, _, keys, others = heappop(self._kept)
            self.pool.release(keys, others)
        budget = self.flags.max_num_batched_tokens
        plan: Plan = []
        before = len(self.running)
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = self._chunk(request, budget)
            if not self._fit(request, tokens):
                break
            plan.append((request, tokens))
            budget -= tokens
            index += 1
        if len(self.running) == before and admit:
            self._admit(plan, budget, now, result)
        return plan

    def _chunk(self, request: Request, budget: int) -> int:
        tokens = request.prompt + request.generated - request.computed
        if tokens == 1:
            if request.generated and self.flags.speculation:
                speculation = self.flags.speculation
                if speculation.proposals >= 1 or self._random.random() < speculation.proposals:
                    tokens += min(speculation.drafts, max(0, request.output - request.generated - 1))
        elif self.flags.long_prefill_token_threshold:
            tokens = min(tokens, self.flags.long_prefill_token_threshold)
        return min(tokens, budget)

    def _fit(self, request: Request, tokens: int) -> bool:
        """Blocks for `tokens` more of a running request, the last ones in the batch paying. False: it went itself."""
        size = self.flags.block_size
        while (need := -(-(request.computed + tokens) // size) - request.blocks) > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return False
        self._grow(request, tokens, need)
        return True

    def _grow(self, request: Request, tokens: int, need: int) -> None:
        if need > 0:
            self.pool.allocate(need)
            request.blocks += need
        if request.head and request.computed < request.head[1]:
            size = self.flags.block_size
            full = min(request.computed + tokens, request.head[1]) // size
            for index in range(request.computed // size, full):
                key = (request.head[0], index)
                if self.pool.publish(key):
                    request.keys.append(key)

    def _preempt(self, victim: Request) -> None:
        """Recompute later: full blocks stay in the pool as long as nobody needs them."""
        size = self.flags.block_size
        start = victim.head[1] // size if victim.head else 0
        for index in range(start, victim.computed // size):
            key: Key = (victim.number, index)
            if self.pool.publish(key):
                victim.keys.append(key)
        self.release(victim)
        victim.preemptions += 1
        self.waiting.appendleft(victim)

    def release(self, request: Request) -> None:
        self.pool.release(request.keys, request.blocks - len(request.keys))
        request.keys, request.blocks, request.computed = [], 0, 0

    def _keys(self, request: Request) -> list[Key]:
        """Content of the full blocks a request might find: at most all tokens but the last."""
        size = self.flags.block_size
        full = (request.prompt + request.generated - 1) // size
        shared = request.head[1] // size if request.head else 0
        own = full if request.preemptions else 0
        name = request.head[0] if request.head else ""
        return [(name, i) for i in range(min(shared, full))] + [(request.number, i) for i in range(shared, own)]

    def _admit(self, plan: Plan, budget: int, now: float, result: StepResult) -> None:
        size, flags = self.flags.block_size, self.flags
        while self.waiting and budget > 0 and len(self.running) < flags.max_num_seqs:
            request = self.waiting[0]
            total = request.prompt + request.generated
            if request.in_pool:
                tokens = min(total - request.computed, budget)
                need = max(0, -(-total // size) - request.blocks)
                if need > self.pool.free:
                    return
                hits: list[Key] = []
            else:
                keys = self._keys(request)
                hits = keys[: self.pool.hits(keys)]
                if flags.transfer and not request.generated:
                    if not self._fetch(request, hits, result):
                        return
                    continue
                found = len(hits) * size
                tokens = total - found
                if flags.long_prefill_token_threshold:
                    tokens = min(tokens, flags.long_prefill_token_threshold)
                tokens = min(tokens, budget)
                end = total if flags.reserve_full_isl else found + tokens
                free = self.pool.free_after(hits)
                if -(-end // size) - len(hits) > free:
                    return
                need = -(-(found + tokens) // size) - len(hits)
                self.pool.acquire(hits)
                request.keys, request.blocks, request.computed = list(hits), len(hits), found
                # The event rides on the first output after the request was taken in again (captures: preemptions and
                # the gaps they made are always counted in the same interval).
                request.unreported_preemptions += request.preemptions > 0
                if request.scheduled is None:
                    self._count_prefix(request, found, result)
            self.waiting.popleft()
            if request.scheduled is None:
                request.scheduled = now
            self._grow(request, tokens, need)
            self.running.append(request)
            plan.append((request, tokens))
            budget -= tokens
            request.in_pool = False

    def _count_prefix(self, request: Request, found: int, result: StepResult) -> None:
        request.cached = found
        if self.flags.prefix_caching:
            result.prefix_queries += request.prompt
            result.prefix_hits += found

    def _fetch(self, request: Request, hits: list[Key], result: StepResult) -> bool:
        """Take blocks for the whole prompt and begin to fetch what is not here. False: no room."""
        size = self.flags.block_size
        need = -(-request.prompt // size) - len(hits)
        if need > self.pool.free_after(hits):
            return False
        self.waiting.popleft()
        self.pool.acquire(hits)
        self.pool.allocate(need)
        request.keys, request.blocks = list(hits), len(hits) + need
        found = len(hits) * size
        self._count_prefix(request, found, result)
        request.external = request.prompt - 1 - found
        request.cached = request.prompt - 1
        request.computed = request.prompt - 1
        result.external_queries += request.prompt - found
        result.external_hits += request.external
        self.fetching.append(request)
        return True
