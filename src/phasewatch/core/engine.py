"""What is remembered of one engine, and what it says of it at any moment.

Memory and opinion move with pages (and when the scrapes have failed for long): asking changes nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from math import inf

from phasewatch.core.diagnosis.advisories import advisories
from phasewatch.core.diagnosis.diagnose import missing_signals
from phasewatch.core.diagnosis.measures_view import Background, Sight, WindowView
from phasewatch.core.diagnosis.objectives import Judged, expected_wait_over, judge, wait_limit
from phasewatch.core.diagnosis.opinion import Opinion, judge_engine, not_agreed_yet, stalled_opinion
from phasewatch.core.diagnosis.progress import (
    Held,
    Progress,
    Stall,
    admission_stall,
    advance,
    begin,
    clients_left,
    engine_stall,
    hold,
    work_in_hand,
)
from phasewatch.core.diagnosis.silence import connections_open, unseen_text
from phasewatch.core.diagnosis.verdicts import LIVENESS
from phasewatch.core.formatting import seconds as in_words
from phasewatch.core.measures.ages import InFlight
from phasewatch.core.measures.events import events, first_events
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.history import History, of_this_process, reach
from phasewatch.core.measures.hits import HitRatios
from phasewatch.core.measures.numbers import family_numbers, numbers
from phasewatch.core.measures.past import Past
from phasewatch.core.measures.phases import count_of
from phasewatch.core.measures.processes import Processes
from phasewatch.core.measures.sanity import Contradiction, consistent
from phasewatch.core.measures.window import BIRTH_TOLERANCE_SECONDS, since, step, window
from phasewatch.core.measures.window_arrays import Recent, Rows
from phasewatch.core.model import (
    COLD_AFTER,
    Advisory,
    Cause,
    EngineKey,
    EngineReport,
    Event,
    EventKind,
    Latency,
    Numbers,
    Snapshot,
    State,
    Step,
    Window,
)
from phasewatch.core.settings import Limits, Settings

_ACTIVITY_COUNTERS = ("generation_tokens", "prompt_tokens", "finished", "http_finishes")
_SEVERAL_PROCESSES = Contradiction(
    (),
    "Counters step back and forth without a restart: several processes answer on this address by turns, each with"
    " counts of its own. Nothing is judged, and no rate is shown.",
    "Scrape each of them on a port of its own; or, for API servers of one vLLM, let them share their metrics"
    " (PROMETHEUS_MULTIPROC_DIR, as --api-server-count sets it).",
    "several_processes",
)
_SEVERAL_TEXT = (
    "On this address several processes answer by turns, each with counts of its own: nothing can be judged. Scrape each"
    " on a port of its own, or let them share their metrics (PROMETHEUS_MULTIPROC_DIR)."
)
_PARTIAL = "The last scrape lacks the engine's metrics; the numbers are from the one before it."
_SEVERAL_ANSWERS = 2  # one may be of a request that ended just before
_ACTIVITY_HISTOGRAMS = ("ttft", "itl", "e2e")
_MOST_EVENTS = 20  # the last ones


@dataclass(slots=True)
class Engine:
    """Feed it snapshots in time order, each to `page`, `measure` and then `judge`.

    stall: the last standstill proven, and until when it lasted. state to view: of the last page, over the window that
    verdicts use. longer: the other windows with their figures, made when first asked for.
    """

    key: EngineKey
    settings: Settings
    last: Snapshot
    progress: Progress
    born_at: float
    past: Past
    in_flight: InFlight
    processes: Processes
    families: tuple[str, ...]
    role: str | None = None
    steps: deque[Step] = field(default_factory=deque)
    older: History = field(default_factory=History)
    recent: dict[str, Recent] = field(default_factory=dict)
    pages: int = 1
    restarts: int = 0
    held: Held = field(default_factory=Held)
    agreed: Opinion = field(default_factory=lambda: Opinion.of_state("warming_up"))  # the held verdict's own
    wait_over: bool = False
    stall: Stall | None = None
    stall_until: float = 0.0
    counts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    first_request_at: float | None = None  # since it started or woke up; None where that was not seen
    fresh: bool = False  # it started or woke up, and has made no token since
    hits: HitRatios = field(default_factory=HitRatios)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    state: State = "warming_up"
    opinion: Opinion = field(default_factory=lambda: Opinion.of_state("warming_up"))
    causes: tuple[Cause, ...] = ()
    judged: Window | None = None
    figures: Numbers | None = None
    view: WindowView | None = None
    results: tuple[Judged, ...] = ()
    sights: dict[float, Sight] = field(default_factory=dict)  # of the last page, by where they begin
    glances: dict[str, tuple[Window, Numbers]] = field(default_factory=dict)  # of the last page, by family
    contradictions: tuple[Contradiction, ...] = ()
    longer: dict[float, tuple[Window, Numbers]] | None = None
    doubted_until: float = -inf  # pages may be of several processes
    unseen_answers: float = 0.0  # HTTP answers of its server since any of its engines moved
    fewest_files: float | None = None  # that were open since its last step
    replaced: str | None = None  # the model that this target served before

    @classmethod
    def at_first_sight(
        cls,
        key: EngineKey,
        settings: Settings,
        snapshot: Snapshot,
        *,
        role: str | None = None,
        replaced: str | None = None,
    ) -> "Engine":
        """replaced: the model that this target served before."""
        families = dict.fromkeys(name.partition("_")[0] for name in settings.objectives.of(key.model_name))
        past, in_flight = Past(settings.thresholds, settings.windows[0]), InFlight.beginning(snapshot)
        made = cls(
            key, settings, snapshot, begin(snapshot), snapshot.at, past, in_flight, Processes(), tuple(families), role,
            replaced=replaced,
        )  # fmt: skip
        made._live(first_events(snapshot, replaced, key.model_name))
        return made

    @property
    def limits(self) -> Limits:
        return self.settings.objectives.of(self.key.model_name)

    def page(self, snapshot: Snapshot) -> int:
        """One more page is taken in. How many restarts it adds: less than none where some turn out to be none."""
        change, taken_back = step(self.last, snapshot), 0
        if self.processes.alternate(self.last, snapshot, self.settings.windows[0], anew=change.restarted):
            self.doubted_until = snapshot.at + self.settings.windows[0]
            taken_back = self._take_back(snapshot)
        if snapshot.at < self.doubted_until:
            self._first_of_its_process(snapshot)
            return -taken_back
        stall = engine_stall(self.progress, self.settings.thresholds)
        if stall is not None:
            self.stall, self.stall_until = stall, snapshot.at
        self.progress = advance(self.progress, change, snapshot, self.settings.thresholds)
        change_from, self.last = self.last, snapshot
        self._files()
        self.steps.append(change)
        if change.restarted:
            self.restarts, self.born_at, self.pages = self.restarts + 1, snapshot.at, 0
            self.older = History()
            self.stall = None
            self.in_flight = InFlight()
        self.in_flight.page(snapshot)
        self.pages += 1
        self._shift(snapshot)
        self._live(events(change_from, snapshot, restarted=change.restarted))
        if self.fresh and (first := change.histograms.get("ttft")) is not None and first.count > 0:
            self.first_request_at, self.fresh = change.start, False
        self.past.remember_step(change)
        alone = window((change,))
        if alone is not None:
            _count(self.counts, consistent(alone, self.settings.thresholds)[0], self.limits)
        return int(change.restarted)

    def _take_back(self, snapshot: Snapshot) -> int:
        """Of several processes the first turn looked like a restart, and a start time or settings that differ like a
        change. How many restarts were none, now that the one from before answers again."""
        born, recent = snapshot.gauges.get("start_time"), snapshot.at - self.settings.windows[0]
        since = min((one.at for one in self.events if _ended(one, born, recent)), default=inf)
        false = [one for one in self.events if one.at >= since]
        for one in false:
            self.events.remove(one)
        restarts = sum(one.kind == "restart" for one in false)
        if any(one.kind in COLD_AFTER for one in false):
            self.fresh, self.first_request_at = False, None
        self.restarts = max(0, self.restarts - restarts)
        return restarts

    def _live(self, happened: Iterable[Event]) -> None:
        for event in happened:
            self.events.append(event)
            if event.kind in COLD_AFTER:
                self.fresh, self.first_request_at = True, None

    def _shift(self, snapshot: Snapshot) -> None:
        """What is too old for the longest window leaves it."""
        thresholds, oldest, left = self.settings.thresholds, snapshot.at - max(self.settings.windows), []
        while self.steps and self.steps[0].start < oldest:
            left.append(self.steps.popleft())
        if not left or left[-1].end < self.born_at:  # of an earlier process
            return
        self.older.take(
            left, self.steps, snapshot, self.families, enough=thresholds.enough_observations,
            oldest=snapshot.at - thresholds.longest_span_seconds,
        )  # fmt: skip

    def _first_of_its_process(self, snapshot: Snapshot) -> None:
        """Nothing follows from what this page and those before it differ by, for they may be of two processes."""
        self.progress, self.last, self.in_flight = begin(snapshot), snapshot, InFlight.beginning(snapshot)
        self.born_at, self.pages, self.stall = snapshot.at, 1, None
        self.steps.clear()
        self.recent.clear()
        self.older = History()

    def _files(self) -> None:
        files, stepped = self.last.gauges.get("open_fds"), self.progress.quiet_scrapes == 0
        if files is not None:
            self.fewest_files = files if stepped or self.fewest_files is None else min(files, self.fewest_files)

    def measure(self) -> None:
        """The window that verdicts use, as of the page just taken in."""
        self.longer = None
        self.sights.clear()
        self.glances.clear()
        one = self.window(self.last.at - self.settings.windows[0])
        self.judged, self.contradictions = (None, ()) if one is None else consistent(one, self.settings.thresholds)
        if self.last.at < self.doubted_until:
            self.contradictions = (*self.contradictions, _SEVERAL_PROCESSES)
        self.figures = None if self.judged is None else self._figures(self.judged)
        self.state = self._state(self.judged)
        self.view = None
        if self.judged is not None and self.figures is not None:
            thresholds = self.settings.thresholds
            self.view = WindowView(self.judged, self.figures, self.limits, thresholds, self.role, self.events)

    def judge(self) -> None:
        """Forms the opinion of the page that was measured, and moves the verdict that is held."""
        self.results = self._results()
        self.opinion = self._opinion(self.state, self.view)
        at_once = self.opinion.verdict in LIVENESS or (self.held.verdict == "healthy" and self.opinion.surely)
        self._hold(self.opinion.verdict, self.last.at, at_once=at_once, proven=self._proven(self.opinion))
        self.causes = self._causes(self.opinion) if self.held.verdict else ()

    def lost(self, at: float) -> None:
        """Too many scrapes in a row have failed, or the page could not be judged: no verdict is held any more."""
        self._hold(None, at)

    def state_at(self, at: float, failures: int, partial: int = 0) -> State:
        """failures: scrapes of its target that failed in a row; partial: those in a row that lacked the engine."""
        if failures >= self.settings.thresholds.down_failures:
            return "down"
        if partial >= self.settings.thresholds.down_failures:
            return "no_engine_metrics"
        return "stale" if failures or partial or self._expired(at) else self.state

    def windows(self) -> dict[float, tuple[Window, Numbers]]:
        """By window length, as of the last page; lengths of which no two pages are there yet are left out."""
        if self.longer is None:
            self.longer = {}
            for seconds in self.settings.windows[1:]:
                one = self.window(self.last.at - seconds)
                if one is not None:
                    checked, _ = consistent(one, self.settings.thresholds)
                    self.longer[seconds] = checked, self._figures(checked)
        first = self.settings.windows[0]
        known = {} if self.judged is None or self.figures is None else {first: (self.judged, self.figures)}
        return known | self.longer

    def report(self, at: float, *, failures: int = 0, partial: int = 0, role: str | None = None) -> EngineReport:
        """What is to be said at `at`, a moment not before the last page."""
        state = self.state_at(at, failures, partial)
        # One failed scrape neither confirms nor ends a verdict.
        opinion = self.opinion if state == self.state else Opinion.of_state(state)
        if state == "stale" and partial and not failures:
            opinion = replace(opinion, text=_PARTIAL)
        elif state == "stale" and not failures:
            opinion = replace(
                opinion, text=f"No scrape for {in_words(at - self.last.at)}; the numbers are from before."
            )
        gone = state == "down" or partial >= self.settings.thresholds.down_failures
        verdict = None if gone or state == "stale" else self.held.verdict
        causes = self.causes if verdict else ()
        leading = causes[0] if causes else None
        shown = self.agreed if verdict else opinion
        if verdict == "healthy" and opinion.verdict != "healthy" and opinion.symptoms:
            # What is missed now is not agreed on yet: nothing may say that it is met.
            shown = replace(shown, text=not_agreed_yet([one.result for one in self.results if one.missed]))
        return EngineReport(
            key=self.key,
            role=role,
            state=state,
            gauges_stale=clients_left(self.progress) and self.progress.quiet_scrapes > 0,
            verdict=verdict,
            confidence=None if verdict is None else leading.confidence if leading else shown.confidence,
            score=leading.score if leading else None,
            summary=leading.summary if leading else shown.summary,
            since=self.held.since if verdict else None,
            previous_verdict=self.held.previous,
            causes=causes,
            symptoms=opinion.symptoms,
            advisories=self._advisories(state, at),
            missing=() if self.judged is None else missing_signals(self.judged),
            windows={} if gone else {seconds: figures for seconds, (_, figures) in self.windows().items()},
            restarts=self.restarts,
            events=tuple(self.events),
            objective_counts=dict(self.counts),
            objectives=tuple(one.result for one in self.results) if state == self.state else (),
        )

    def _hold(self, verdict: str | None, at: float, *, at_once: bool = False, proven: Iterable[str] = ()) -> None:
        seconds = self.settings.thresholds.agree_seconds
        self.held = hold(self.held, verdict, at, at_once=at_once, seconds=seconds, proven=proven)

    def _expired(self, at: float) -> bool:
        """Whether no page came for a whole window, failed scrape or not: what it says is of another time."""
        return at - self.last.at > self.settings.windows[0]

    def window(self, start: float) -> Window | None:
        """From `start` to the last page."""
        if older := since(self.older.steps, start):
            return window((*older, *self.steps))

        def rows(name: str) -> Rows | None:
            recent = self.recent.setdefault(name, Recent())
            recent.take(self.steps, name)
            return recent.window(start)

        return window(since(self.steps, start), cache(rows))

    def _judged_over(self, family: str) -> Sight:
        """The window that verdicts use, or one that goes as far back as it takes to have enough observations."""
        return self._sight(self._start_of(family))

    def _start_of(self, family: str) -> float:
        """Where that window begins."""
        assert self.view is not None
        one, thresholds = self.view.window, self.settings.thresholds
        start, observed = one.steps[0].start, one.histograms.get(family)
        wanted = 0.0 if observed is None else thresholds.enough_observations - observed.count
        if wanted > 0:
            oldest = self.last.at - thresholds.longest_span_seconds
            start = reach(self.newest_first(), family, start, wanted=wanted, oldest=oldest)
        return start

    def _glance(self, family: str) -> tuple[Window, Numbers]:
        """The same window with what the family is judged by: all else of it is worked out where something is missed."""
        assert self.view is not None
        if family not in self.glances:
            start = self.view.window.steps[0].start if self.state == "idle" else self._start_of(family)
            if start == self.view.window.steps[0].start:
                self.glances[family] = self.view.measured
            else:
                one = self._window_from(start)
                estimator, stall_seconds = self.settings.estimator, self.settings.stall_seconds(self.key.model_name)
                self.glances[family] = (
                    one,
                    family_numbers(one, family, stall_seconds=stall_seconds, estimator=estimator),
                )
        return self.glances[family]

    def asked(self) -> tuple[Latency, ...]:
        """Those whose percentiles judging may ask for, fitted with other engines' at once."""
        own = () if self.figures is None else self.figures.latencies
        return (*own, *(one for _, figures in map(self._glance, self._judged_families) for one in figures.latencies))

    @property
    def _judged_families(self) -> Iterable[str]:
        """Of the objectives, where figures are of now. Without traffic there is nothing to look further back for."""
        if self.view is None or self.state not in ("serving", "idle") or self.last.at < self.doubted_until:
            return ()
        return self.families

    def newest_first(self) -> Iterator[Step]:
        """All that is remembered of this process."""
        return of_this_process(chain(reversed(self.steps), reversed(self.older.steps)))

    def _sight(self, start: float) -> Sight:
        """From `start` to the last page."""
        if start not in self.sights:
            assert self.view is not None
            view = self.view if start == self.view.window.steps[0].start else self._view(start)
            # A span that reaches further back is no reason to have less of a past: a pace or a ratio of the time before
            # the present window is the best known, whether an objective is judged over some of that time or not.
            before = self.view.window.steps
            past = self.past.view(view.now, before)
            woke_up, hits = self._born == "wake_up", self.hits.best(before[0].start)
            background = Background(past, self.first_request_at, self.in_flight.ages, woke_up, hits)
            self.sights[start] = Sight(view, background)
        return self.sights[start]

    def _view(self, start: float) -> WindowView:
        assert self.view is not None
        judged = {f"{family}_seconds": seen for family, seen in self.glances.items() if seen[0].steps[0].start == start}
        checked = next((one for one, _ in judged.values()), None) or self._window_from(start)
        # What its objective was judged by is fitted already, with other engines'.
        known = {name: getattr(figures, name) for name, (_, figures) in judged.items()}
        return replace(self.view, window=checked, numbers=replace(self._figures(checked), **known))

    def _window_from(self, start: float) -> Window:
        one = self.window(start)
        assert one is not None  # it holds the window that verdicts use
        return consistent(one, self.settings.thresholds)[0]

    def _results(self) -> tuple[Judged, ...]:
        if self.view is None or not self._judged_families:
            return ()
        return judge(self.view.measured, self._glance, self.limits, self.settings.thresholds)

    def _figures(self, one: Window) -> Numbers:
        return numbers(
            one,
            self.settings.thresholds,
            stall_seconds=self.settings.stall_seconds(self.key.model_name),
            estimator=self.settings.estimator,
            seconds_per_prompt_token=self.past.seconds_per_prompt_token(one.steps[0].start),
            step_seconds=self.past.step_seconds(),
            ages=self.in_flight.ages,
        )

    def _state(self, judged: Window | None) -> State:
        """Of the last page."""
        thresholds = self.settings.thresholds
        if self.last.gauges.get("awake") == 0:
            return "asleep"
        young = self.pages < thresholds.warm_pages or self.last.at - self.born_at < thresholds.warm_seconds
        if self.last.at < self.doubted_until:
            return "no_engine_metrics"
        if judged is None or young:
            return "warming_up"
        if clients_left(self.progress) and self.progress.quiet_scrapes >= thresholds.stall_scrapes:
            return "idle"
        if _finishes_without_tokens(judged) and not self.last.counters.get("generation_tokens"):
            return "no_engine_metrics"
        if self.unseen_answers >= _SEVERAL_ANSWERS and work_in_hand(self.last.gauges) == 0:
            return "no_engine_metrics"
        return "serving" if _busy(judged) else "idle"

    def _opinion(self, state: State, view: WindowView | None) -> Opinion:
        thresholds = self.settings.thresholds
        wait_over_before, self.wait_over = self.wait_over, False
        if self.last.at < self.doubted_until:
            return replace(Opinion.of_state(state), text=_SEVERAL_TEXT)
        if state == "no_engine_metrics":
            if self.unseen_answers < _SEVERAL_ANSWERS:
                return Opinion.of_state(state)
            has_worked = bool(self.last.counters.get("generation_tokens"))
            return replace(Opinion.of_state(state), text=unseen_text(self.unseen_answers, has_worked=has_worked))
        if state == "asleep":
            return Opinion.of_state(state)
        stall = engine_stall(self.progress, thresholds)
        if stall is None and view is not None:
            stall = admission_stall(self.progress, thresholds, kv_short=view.kv_short_now)
        if stall is not None:
            return stalled_opinion(stall, self.progress, self.last)
        if state != "serving" or view is None:
            return Opinion.of_state(state)
        self.past.remember(view.now, view.window)
        if count_of(view.window, "ttft") >= thresholds.few_finishes:
            self.hits.remember(self.last.at, view.numbers.tokens.prefix_hit_ratio)
        self.wait_over = expected_wait_over(view.numbers, self.limits)
        return judge_engine(
            self._sight(view.window.steps[0].start),
            self._judged_over,
            self.results,
            figures_of=self._figures,
            wait_over_before=wait_over_before,
            past_stall=self.stall,
            past_stall_until=self.stall_until,
        )

    def _advisories(self, state: State, at: float) -> tuple[Advisory, ...]:
        own = [Advisory(one.kind, {}, one.summary, one.remedy) for one in self.contradictions]
        if self.replaced is not None and at - self.born_at <= self.settings.windows[0]:
            own.append(
                Advisory(
                    "model_changed",
                    {"before": self.replaced},
                    f"This target served {self.replaced} before: its history ends here, a new one begins.",
                    "Check that no two servers share the port.",
                )
            )
        waiting = connections_open(self.judged, self.fewest_files, self.settings.thresholds)
        if state == "idle" and waiting is not None:
            own.append(waiting)
        if self._warming_up_shows():
            own.append(self._warm_up())
        if self.view is None or state not in ("serving", "idle", "asleep"):
            return tuple(own)
        return (*own, *advisories(self.view, traffic=state == "serving"))

    def _warming_up_shows(self) -> bool:
        """Whether the window has first tokens over the limit of the first minute after the first request."""
        first, limit = self.first_request_at, wait_limit(self.limits)
        if first is None or limit is None or self.judged is None or self.judged.steps[0].start > first + self._cold:
            return False
        early = (one.histograms.get("ttft") for one in self.judged.steps if one.start <= first + self._cold)
        return any(one is not None and count_above(one, limit.warning).possible > 0 for one in early)

    @property
    def _born(self) -> EventKind | None:
        """How it last came to be cold."""
        return next((one.kind for one in reversed(self.events) if one.kind in COLD_AFTER), None)

    @property
    def _cold(self) -> float:
        return self.settings.thresholds.cold_seconds

    def _warm_up(self) -> Advisory:
        assert self.first_request_at is not None
        since = self.last.at - self.first_request_at
        born = self._born or "start"
        return Advisory(
            "warm_up",
            {"seconds_since_first_request": since, "after": born},
            f"Warm-up: the first request after the {born.replace('_', '-')} came {in_words(since)} ago, and slow first"
            " tokens of its first minute are in this window. Kernels, caches and memory pools were not ready.",
            "Send a warm-up request before the replica is put into rotation.",
        )

    def _causes(self, opinion: Opinion) -> tuple[Cause, ...]:
        """The held verdict's cause first; while a challenger is not agreed on, as it was remembered, unless it is among
        the causes of now."""
        if self.held.verdict == opinion.verdict:
            self.agreed = opinion
            return opinion.causes
        if self.held.verdict == "healthy":
            return ()
        same = next((cause for cause in opinion.causes if cause.verdict == self.held.verdict), None)
        if same is None and opinion.verdict == "healthy":
            return tuple(map(_over, self.agreed.causes[:1]))
        if same is None:
            return (*self.agreed.causes[:1], *opinion.causes)
        causes = (same, *(cause for cause in opinion.causes if cause is not same))
        self.agreed = replace(opinion, causes=causes)
        return causes

    def _proven(self, opinion: Opinion) -> list[str]:
        """The verdicts that it proves, the one that leads first."""
        enough = self.settings.thresholds.proven_score
        return [cause.verdict for cause in opinion.causes if cause.score >= enough]


def _over(cause: Cause) -> Cause:
    """Of a verdict that is held although every objective is met again."""
    return replace(
        cause, easing=True, remedies=(),
        summary=f"Easing: all objectives are met again, nothing to do now. Before: {cause.summary}",
    )  # fmt: skip


def _ended(event: Event, born: float | None, recent: float) -> bool:
    """Whether a restart ended the process that began at `born`; where pages do not tell, one later than `recent` did:
    two falls of the counts in so short a time are no two restarts."""
    if event.kind != "restart":
        return False
    if born is None or not isinstance(event.before, float):
        return event.at >= recent
    return abs(event.before - born) <= BIRTH_TOLERANCE_SECONDS


def _busy(one: Window) -> bool:
    """Whether any request was there: idle means that nothing happened in the whole window."""
    return (
        any(one.increases.get(name, 0.0) > 0 for name in _ACTIVITY_COUNTERS)
        or any(one.histograms[name].count > 0 for name in _ACTIVITY_HISTOGRAMS if name in one.histograms)
        or any(one.gauges[name].max > 0 for name in ("running", "waiting") if name in one.gauges)
    )


def _finishes_without_tokens(one: Window) -> bool:
    """Generating handlers answer, yet the engine families stand still with nobody in hand: they are not attached."""
    return (
        one.increases.get("http_2xx", 0.0) >= 2
        and one.increases.get("generation_tokens", 0.0) == 0
        and not any(name in one.histograms and one.histograms[name].count > 0 for name in _ACTIVITY_HISTOGRAMS)
        and max(work_in_hand(gauges) for gauges in (one.steps[0].before, *(s.after for s in one.steps))) == 0
    )


def _count(counts: dict[tuple[str, str, str], float], change: Window, limits: Limits) -> None:
    """Observations, and those over each limit, since the process began: what burn rates are made of."""
    for objective, limit in limits.items():
        family, _, statistic = objective.partition("_")
        histogram = change.histograms.get(family)
        if histogram is None or statistic == "mean":
            continue
        _add(counts, ("observations", objective, ""), histogram.count)
        for severity, seconds in (("warning", limit.warning), ("critical", limit.critical)):
            above = count_above(histogram, seconds)
            _add(counts, ("over", objective, severity), above.interpolated)
            _add(counts, ("over_surely", objective, severity), above.sure)


def _add(counts: dict[tuple[str, str, str], float], key: tuple[str, str, str], amount: float) -> None:
    counts[key] = counts.get(key, 0.0) + amount
