"""How long requests that are still in flight have been there at least, from counters and gauges alone.

If fewer requests got their first token since t0 than had none at t0, one of those still waits, whatever the order; so
it is with finishes and those that ran at t0. Who left without either is counted as gone. What is claimed is proven, but
for requests that vLLM's families cannot tell apart: a preempted one that waits again before its preemption is counted,
and clients that leave where nothing counts them (no HTTP counters, or several prompts a call).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from phasewatch.core.model import Snapshot

# Each entry stands for a page at which more were there than ever before: a queue that stood for hours keeps every
# second page, and so knows its age a little less well.
_MOST_ENTRIES = 256
_DOUBTED = 2  # pages on which the books and the tokens disagree
_ROUNDING = 1e-9  # of a quotient of two counts


@dataclass(frozen=True, slots=True)
class Ages:
    """Of one moment, in seconds: lower bounds. None where the page cannot tell; 0 where nobody need be there.

    unanswered, running: (since when, how many of those that were there then still are), the oldest first.
    """

    oldest_unanswered: float | None = None
    oldest_running: float | None = None
    at: float = 0.0
    unanswered: tuple[tuple[float, float], ...] = ()
    running: tuple[tuple[float, float], ...] = ()

    def unanswered_over(self, seconds: float) -> float:
        """Requests that have waited longer than this for their first token, at least."""
        return _over(self.unanswered, self.at - seconds)

    def running_over(self, seconds: float) -> float:
        """Requests that have run longer than this and not finished, at least."""
        return _over(self.running, self.at - seconds)


def _over(known: tuple[tuple[float, float], ...], start: float) -> float:
    return max((count for since, count in known if since < start), default=0.0)


@dataclass(slots=True)
class _Remaining:
    """At which pages how many were there: (when, how many must be gone in all before none of those is left)."""

    entries: deque[tuple[float, float]] = field(default_factory=deque)

    def take(self, at: float, gone: float, there: float, *, nobody: bool) -> None:
        """A page: how many are gone in all, and how many are there. nobody: whoever was there before is not any more,
        or cannot be told from others."""
        entries, threshold = self.entries, gone + there
        if nobody:
            entries.clear()
            return
        while entries and entries[0][1] <= gone:
            entries.popleft()
        # An earlier page at which as many had to go says more.
        if there >= 1 and (not entries or threshold > entries[-1][1]):
            entries.append((at, threshold))
            if len(entries) > _MOST_ENTRIES:
                self.entries = deque([*list(entries)[:-1:2], entries[-1]])

    def still(self, gone: float) -> tuple[tuple[float, float], ...]:
        return tuple((since, threshold - gone) for since, threshold in self.entries)


@dataclass(slots=True)
class InFlight:
    """Feed it every page of one process in time order; one that began anew gets a new one.

    waiting, unanswered, running: those who waited; who were in flight without a first token, by the books; who ran.
    base: first tokens less finishes when nobody was in flight: what both grew by since is of those there now, or of
    clients that left. uncounted: requests that finished although no first token was counted for them (pooling models).
    """

    waiting: _Remaining = field(default_factory=_Remaining)
    unanswered: _Remaining = field(default_factory=_Remaining)
    running: _Remaining = field(default_factory=_Remaining)
    ages: Ages = field(default_factory=Ages)
    last: Snapshot | None = None
    base: float = 0.0
    uncounted: float = 0.0
    left: float = 0.0
    left_before_step: float = 0.0  # before the interval of the last step
    balance: float | None = None  # HTTP answers less finishes, at the first page that has both
    aborted: float | None = None  # at the first page
    empty_books: int = 0  # pages since nobody was in flight
    preemptions: float = 0.0  # when nobody waited last: a preempted request waits again, and for no first token

    @classmethod
    def beginning(cls, snapshot: Snapshot) -> "InFlight":
        made = cls()
        made.page(snapshot)
        return made

    def page(self, snapshot: Snapshot) -> None:
        """One more page. What one that lacks a part would have said follows from the next."""
        at, gauges, counters = snapshot.at, snapshot.gauges, snapshot.counters
        running, waiting, finished = gauges.get("running"), gauges.get("waiting"), counters.get("finished")
        if running is None or waiting is None or finished is None:
            self.ages = Ages()
            return
        aborted = counters.get("finished_abort", 0.0) + counters.get("finished_error", 0.0)
        complete, before = finished - aborted, self.left
        self._leave(counters, complete, aborted)
        if self._stepped(snapshot):
            self.left_before_step = before
        # Gauges are of the end of a step: who left since may still be on them.
        ghosts = self.left - self.left_before_step
        gone = complete + self.left
        self.running.take(at, gone, running - ghosts, nobody=running + waiting <= ghosts)
        ran, unanswered = self.running.still(gone), None
        if "ttft" in snapshot.histograms:
            unanswered = self._without_first_token(snapshot, complete, running, waiting, ghosts)
        self.ages = Ages(None if unanswered is None else _age(unanswered, at), _age(ran, at), at, unanswered or (), ran)
        self.last = snapshot

    def _leave(self, counters: Mapping[str, float], complete: float, aborted: float) -> None:
        """Who is gone without a finish: aborts that the engine counts, and HTTP answers that no finish came with. The
        web server answers after the engine has finished, not before: the most there ever were counts."""
        if self.aborted is None:
            self.aborted = aborted
        self.left = max(self.left, aborted - self.aborted)
        if "http_2xx" in counters:
            balance = counters["http_2xx"] + counters.get("http_5xx", 0.0) - complete
            if self.balance is None:
                self.balance = balance - self.left
            self.left = max(self.left, balance - self.balance)

    def _without_first_token(
        self, snapshot: Snapshot, complete: float, running: float, waiting: float, ghosts: float
    ) -> tuple[tuple[float, float], ...]:
        first, there = snapshot.histograms["ttft"].count + self.uncounted, running + waiting
        if there == 0:
            self.base, self.empty_books = first - complete, 0
        started = first - complete - self.base
        if started < 0:
            self.uncounted -= started
            first, started = first - started, 0.0
        preemptions = snapshot.counters.get("preemptions", 0.0)
        if waiting == 0:
            self.preemptions = preemptions
        gone, at = first + self.left, snapshot.at
        streams, finished = self._streams(snapshot)
        # Tokens flow, yet by the books none of those who run has its first one: once by chance, not again and again.
        self.empty_books += streams > 0 and started == 0 and running > 0
        nobody = not finished and there - ghosts - streams < 1
        without = there - ghosts - max(started, streams) if self.empty_books < _DOUBTED else 0.0
        self.unanswered.take(at, gone, without, nobody=nobody or without < 1)
        self.waiting.take(at, gone, waiting - ghosts, nobody=nobody or preemptions != self.preemptions)
        return tuple(sorted((*self.unanswered.still(gone), *self.waiting.still(gone))))

    def _stepped(self, snapshot: Snapshot) -> bool:
        """Whether gauges or counters tell of a step since the page before."""
        last = self.last
        if last is None or any(last.gauges[name] != snapshot.gauges[name] for name in ("running", "waiting")):
            return True
        if any(last.counters.get(name) != snapshot.counters.get(name) for name in ("finished", "generation_tokens")):
            return True
        return any(_grown(last, snapshot, name) > 0 for name in ("ttft", "itl"))

    def _streams(self, snapshot: Snapshot) -> tuple[float, bool]:
        """Requests that have their first token, on average since the page before: each gets at most one later token in
        a step. And whether any finished since, so that fewer may be left."""
        last = self.last
        if last is None:
            return 0.0, True
        gaps = _grown(last, snapshot, "itl")
        steps = _grown(last, snapshot, "iteration_tokens") or gaps
        finished = last.counters.get("finished") != snapshot.counters.get("finished")
        tokens = snapshot.counters.get("generation_tokens", 0.0) - last.counters.get("generation_tokens", 0.0)
        alone = 1.0 if tokens > _grown(last, snapshot, "ttft") else 0.0  # where ITL does not count them
        return max(alone, ceil(gaps / steps - _ROUNDING) if steps > 0 else 0.0), finished


def _grown(before: Snapshot, after: Snapshot, name: str) -> float:
    was, now = before.histograms.get(name), after.histograms.get(name)
    return 0.0 if was is None or now is None else now.count - was.count


def _age(known: tuple[tuple[float, float], ...], at: float) -> float:
    return at - known[0][0] if known else 0.0
