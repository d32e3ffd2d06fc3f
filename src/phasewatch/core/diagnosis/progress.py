"""What an engine is doing, whatever its latencies: progress between pages, hangs, and the verdict that is held."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from phasewatch.core.model import Snapshot, Step
from phasewatch.core.settings import Thresholds

# Any of these growing means that the engine made a step.
_STEPPING_COUNTERS = ("generation_tokens", "prompt_tokens", "preemptions", "finished")
_STEPPING_HISTOGRAMS = ("ttft", "itl", "iteration_tokens", "e2e")
# Scheduler gauges are set at the end of a step: a change is one too (a long chunked prefill moves only these).
_STEPPING_GAUGES = ("running", "waiting", "kv_usage")
# A histogram's edges are coarse: clients that all left at once may be over-counted by an early finish or two.
_ABOUT_ALL = 0.8
_SEVERAL = 2  # answers: one may be a straggler
_IN_TIME = 0.95  # a scrape that comes a little early is no reason to wait for the one after it


@dataclass(frozen=True, slots=True)
class Progress:
    """What one engine has shown since its start, updated page by page. Times are the pages' clock in seconds."""

    last_at: float
    moved_at: float
    quiet_scrapes: int = 0
    longest_step: float = 0.0
    has_finished: bool = False
    work: float = 0.0  # running + waiting now
    seen_moving: bool = False
    http_known: bool = False
    http_quiet_scrapes: int = 0
    left: tuple[float, ...] = ()  # HTTP finishes without an engine finish around the last move: two intervals, and one
    answered_without_step: float = 0.0  # 2xx HTTP finishes since then
    fds_at_move: float | None = None
    fds: float | None = None
    piled_scrapes: int = 0  # in a row with connections piled up and none of them gone
    piled_at: float = 0.0
    admitted_at: float = 0.0
    waiting_scrapes: int = 0
    running_at_finish: float | None = None  # running after the last finish that nobody's admission followed
    finished_at: float = 0.0
    finish_scrapes: int = 0
    longest_request: float = 0.0
    longest_when_admitted: float = 0.0  # what is slow since then does not say how long requests take
    tokens_flow: bool = False


def begin(page: Snapshot) -> Progress:
    """The memory of an engine at its first page, or at the first page after a restart."""
    fresh = _with_page(Progress(page.at, page.at, admitted_at=page.at, fds_at_move=page.gauges.get("open_fds")), page)
    return replace(fresh, longest_when_admitted=fresh.longest_request)


def stepped(step: Step) -> bool:
    """Whether the engine made at least one step in the interval."""
    return (
        step.restarted
        or any(step.increases.get(name, 0.0) > 0 for name in _STEPPING_COUNTERS)
        or any(step.histograms[name].count > 0 for name in _STEPPING_HISTOGRAMS if name in step.histograms)
        or any(step.before.get(name) != step.after.get(name) for name in _STEPPING_GAUGES if name not in _piling(step))
    )


def _piling(step: Step) -> tuple[str, ...]:
    """The gauge whose change is no step: of an engine that runs nobody, requests that join others who wait for room."""
    before, after = step.before, step.after
    alone = before.get("running") == after.get("running") == 0 and not after.get("waiting_deferred")
    return ("waiting",) if alone and 0 < before.get("waiting", 0.0) < after.get("waiting", 0.0) else ()


def work_in_hand(gauges: Mapping[str, float]) -> float:
    """running + waiting of one page's gauges."""
    return gauges.get("running", 0.0) + gauges.get("waiting", 0.0)


def advance(progress: Progress, step: Step, page: Snapshot, thresholds: Thresholds) -> Progress:
    """The memory after one more page. A proven stall does not count as the longest step it ends in."""
    if step.restarted:
        return begin(page)
    http = step.increases.get("http_finishes", 0.0)
    left = max(0.0, http - step.increases.get("finished", 0.0))
    first_quiet = progress.quiet_scrapes == 0
    now = _with_page(progress, page)
    now = replace(
        now,
        http_known="http_finishes" in step.increases,
        http_quiet_scrapes=0 if http > 0 else progress.http_quiet_scrapes + 1,
        **_piled(progress, page, thresholds),
        tokens_flow=step.increases.get("generation_tokens", 0.0) > 0,
    )
    now = _admission(now, step, page)
    if not stepped(step):
        return replace(
            now,
            quiet_scrapes=progress.quiet_scrapes + 1,
            left=(*progress.left, left) if first_quiet else progress.left,
            answered_without_step=progress.answered_without_step
            + (0.0 if first_quiet else step.increases.get("http_2xx", 0.0)),
        )
    quiet = step.start - progress.moved_at
    stalled = engine_stall(progress, thresholds) is not None
    return replace(
        now,
        moved_at=page.at,
        quiet_scrapes=0,
        seen_moving=True,
        left=(*progress.left[-1:], left),
        answered_without_step=0.0,
        longest_step=progress.longest_step if stalled or progress.work == 0 else max(progress.longest_step, quiet),
        fds_at_move=page.gauges.get("open_fds"),
        piled_scrapes=0,
    )


def _with_page(progress: Progress, page: Snapshot) -> Progress:
    e2e = page.histograms.get("e2e")
    longest = progress.longest_request
    if e2e is not None and e2e.count > 0:
        finite = e2e.bounds[:-1]
        # The bucket of the slowest request ends at the first edge that has them all.
        longest = next(
            (edge for edge, count in zip(finite, e2e.counts, strict=False) if count == e2e.count),
            finite[-1] if finite else 0.0,
        )
    return replace(
        progress,
        last_at=page.at,
        work=work_in_hand(page.gauges),
        has_finished=_has_finished(page),
        fds=page.gauges.get("open_fds"),
        longest_request=longest,
    )


def _has_finished(page: Snapshot) -> bool:
    """Whether a request has come to an end: where no family counts those, more got a first token than still run."""
    e2e, ttft = page.histograms.get("e2e"), page.histograms.get("ttft")
    if e2e is not None or "finished" in page.counters:
        return (e2e is not None and e2e.count > 0) or page.counters.get("finished", 0.0) > 0
    return ttft is not None and ttft.count > page.gauges.get("running", inf)


def _piled(progress: Progress, page: Snapshot, thresholds: Thresholds) -> dict[str, Any]:
    """Since when, and for how many scrapes, more connections have been open than when the last step ran."""
    fds = page.gauges.get("open_fds")
    if fds is None or progress.fds is None or progress.fds_at_move is None or fds < progress.fds:
        return {"piled_scrapes": 0}
    if fds - progress.fds_at_move < thresholds.connections_above_rest:
        return {"piled_scrapes": 0}
    return {
        "piled_scrapes": progress.piled_scrapes + 1,
        "piled_at": progress.piled_at if progress.piled_scrapes else page.at,
    }


def _admission(now: Progress, step: Step, page: Snapshot) -> Progress:
    """When somebody was last admitted, or nobody waited, whatever for; and whether running only fell since a finish
    while somebody waited for room."""
    waiting = page.gauges.get("waiting", 0.0)
    for_room = page.gauges.get("waiting_capacity", waiting)
    running = page.gauges.get("running", 0.0)
    first_tokens = "ttft" in step.histograms and step.histograms["ttft"].count > 0
    finished = step.increases.get("finished", 0.0) > 0
    if waiting <= 0 or first_tokens:
        return replace(
            now,
            admitted_at=page.at,
            longest_when_admitted=now.longest_request,
            waiting_scrapes=0,
            running_at_finish=None,
            finish_scrapes=0,
        )
    now = replace(now, waiting_scrapes=now.waiting_scrapes + 1)
    if for_room <= 0:
        return replace(now, running_at_finish=None, finish_scrapes=0)
    if finished and running < step.before.get("running", 0.0):
        return replace(now, running_at_finish=running, finished_at=page.at, finish_scrapes=0)
    if now.running_at_finish is not None and running <= now.running_at_finish:
        return replace(now, finish_scrapes=now.finish_scrapes + 1)
    return replace(now, running_at_finish=None, finish_scrapes=0)


@dataclass(frozen=True, slots=True)
class Stall:
    """A proven standstill. since: the last page that showed movement. why: which of the two readings proved it."""

    kind: str  # engine_stalled or admission_stalled
    since: float
    seconds: float
    certain: bool
    why: str


def clients_left(progress: Progress) -> bool:
    """Whether the gauges stand still because all clients hung up: as the engine stopped, HTTP finishes rose by about
    the work in hand. Later ones do not count: a live engine steps for whoever has not left. Nor does it hold when
    requests go on ending without a step: then it hangs."""
    all_left = sum(progress.left) >= max(1.0, _ABOUT_ALL * progress.work)
    return progress.http_known and progress.work > 0 and all_left and progress.answered_without_step < _SEVERAL


def engine_stall(progress: Progress, thresholds: Thresholds) -> Stall | None:
    """Whether the engine stands still with work in hand (or, with none on its gauges, with connections piling up)."""
    quiet = progress.last_at - progress.moved_at
    needed = max(thresholds.stall_seconds, thresholds.stall_longest_steps * progress.longest_step)
    if not progress.has_finished:
        needed = max(needed, thresholds.stall_before_first_finish_seconds)
    if progress.quiet_scrapes < thresholds.stall_scrapes or quiet < needed:
        return None
    if progress.work > 0:
        # HTTP finishes since it stopped are clients that gave up on it: no sign of life.
        if clients_left(progress):
            return None
        few_left = sum(progress.left) <= (1 - _ABOUT_ALL) * progress.work or progress.answered_without_step >= _SEVERAL
        certain = progress.http_known and progress.seen_moving and few_left
        return Stall("engine_stalled", progress.moved_at, quiet, certain, "work")
    piling = (
        progress.piled_scrapes >= thresholds.stall_scrapes
        and progress.last_at - progress.piled_at >= thresholds.stall_seconds
        and progress.http_quiet_scrapes >= thresholds.stall_scrapes
    )
    return Stall("engine_stalled", progress.moved_at, quiet, False, "connections") if piling else None


def admission_stall(progress: Progress, thresholds: Thresholds, *, kv_short: bool) -> Stall | None:
    """Whether requests wait while tokens flow and nobody is let in."""
    waited = progress.last_at - progress.admitted_at
    needed = max(thresholds.admission_seconds, thresholds.stall_longest_steps * progress.longest_when_admitted)
    if progress.longest_when_admitted <= 0:  # none finished, or the page does not say how long they took
        needed = thresholds.admission_before_first_finish_seconds
    if progress.waiting_scrapes >= thresholds.stall_scrapes and waited >= needed and progress.tokens_flow:
        return Stall("admission_stalled", progress.admitted_at, waited, True, "nobody admitted")
    since_finish = progress.last_at - progress.finished_at
    if (
        progress.running_at_finish is not None
        and not kv_short  # the head of the queue may rightly wait for more room than one finish frees
        and progress.finish_scrapes >= thresholds.stall_scrapes
        and since_finish >= thresholds.admission_drop_seconds
    ):
        return Stall("admission_stalled", progress.finished_at, since_finish, True, "room left unused")
    return None


@dataclass(frozen=True, slots=True)
class Held:
    """The verdict shown, since when, what it was before, and what may follow it.

    borne_at: when an opinion last agreed with it or proved it. challenger: the verdict that leads instead, and since
    when it has. proven: verdicts that every opinion has proven, leading or not, and since when.
    """

    verdict: str | None = None
    since: float | None = None
    previous: str | None = None
    borne_at: float = 0.0
    challenger: str | None = None
    challenger_since: float = 0.0
    proven: Mapping[str, float] = field(default_factory=dict)


def hold(
    held: Held, verdict: str | None, at: float, *, at_once: bool, seconds: float, proven: Iterable[str] = ()
) -> Held:
    """The next held verdict, after the opinion of the page at `at`. proven: all that this opinion proves.

    A new one is taken when every opinion over `seconds` agreed, two pages at least, or at once where asked for. None
    (idle, down, warming up) is taken at once, and so is the first verdict after it. Opinions agree on what leads in
    all of them; where nothing bears the verdict shown any longer, also on what leads now and is proven in all.
    """
    lasting = {one: held.proven.get(one, at) for one in proven}
    if verdict == held.verdict:
        return replace(held, borne_at=at, challenger=None, proven=lasting)
    if at_once or verdict is None or held.verdict is None:
        return Held(verdict, None if verdict is None else at, held.verdict or held.previous, at, proven=lasting)
    since = held.challenger_since if verdict == held.challenger else at
    borne_at = at if held.verdict in lasting else held.borne_at
    long_ago = at - _IN_TIME * seconds
    agreed_since = lasting.get(verdict, at) if borne_at <= long_ago else since
    if min(since, agreed_since) <= long_ago:
        return Held(verdict, min(since, agreed_since), held.verdict, at, proven=lasting)
    return replace(held, borne_at=borne_at, challenger=verdict, challenger_since=since, proven=lasting)
