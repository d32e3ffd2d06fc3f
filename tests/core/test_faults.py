"""What must not break an evaluation: absent signals (T2), nothing observed (T6), and our own mistakes."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from phasewatch.core.model import EngineReport, Fleet, Histogram, Page, Snapshot
from phasewatch.core.report.document import document
from phasewatch.core.settings import Limit, Objectives, Settings
from phasewatch.core.watch import Watcher
from vllm_pages import Scene, Server, answer

WAITING = "vllm:num_requests_waiting"


class Patchy(Server):
    """A server whose page can lose lines, or have them say NaN. lost: how they begin."""

    lost: tuple[str, ...] = ()
    with_nan: bool = False

    def text(self) -> str:
        kept = [line for line in super().text().splitlines() if not line.startswith(self.lost or ("\n",))]
        nan = [line.rpartition(" ")[0] + " NaN" for line in super().text().splitlines() if line.startswith(self.lost)]
        return "".join(f"{line}\n" for line in (*kept, *(nan if self.with_nan and self.lost else ())))


def queueing(server: Server) -> None:
    server.engine.set(running=4, waiting=12, kv=0.2).serves(4, queue=12.0, batch=4)


@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("lost", [WAITING, "vllm:num_requests_running", "vllm:kv_cache_usage_perc"])
def test_t2_a_page_that_lacks_a_gauge_after_a_real_queue_is_judged_without_it(lost: str, *, with_nan: bool) -> None:
    server = Patchy()
    server.with_nan = with_nan
    scene = Scene(server)
    assert answer(scene.after(90, lambda: queueing(server))) == "queue_batch_limit"
    server.lost = (lost,)
    (report,) = scene.round(lambda: queueing(server)).engines
    assert report.state == "serving"
    assert report.windows[60.0].queue.waiting == (None if lost == WAITING else 12)
    assert any(name in report.missing for name in ("waiting", "running", "kv_usage"))
    server.lost = ()
    assert answer(scene.after(20, lambda: queueing(server))) == "queue_batch_limit"


def test_t6_a_request_that_runs_without_a_token_is_nothing_to_judge_yet() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(30)
    server.engine.set(running=1)
    (report,) = scene.round().engines
    assert (report.state, report.verdict, report.confidence) == ("serving", None, None)
    assert report.summary == "Nothing to judge yet: no observation of TTFT or ITL in this window."


def test_t6_tokens_that_flow_while_every_histogram_stands_still_are_not_healthy() -> None:
    server = Server()
    scene = Scene(server)

    def only_counted() -> None:
        server.engine.set(running=1)
        server.engine.counters["generation_tokens_total"] += 50

    report = scene.after(90, only_counted)
    assert (report.state, report.verdict) == ("serving", None)
    assert "met" not in report.summary


def test_t6_a_model_without_objectives_has_nothing_to_judge() -> None:
    server = Server()
    scene = Scene(server)
    scene.watcher = Watcher(Settings(objectives=Objectives({})))
    report = scene.after(90, lambda: server.engine.set(running=2).serves(6))
    assert (report.state, report.verdict) == ("serving", None)
    assert report.summary == "Nothing to judge: this model has no objective."


# --- our own mistakes: what the parser should never have let through --------------------------------------------------


def fine(server: Server) -> None:
    server.engine.set(running=2, waiting=0, kv=0.2).serves(6, batch=2)


def spoilt(page: Page, change: Callable[[Snapshot], Snapshot]) -> Page:
    return replace(page, engines={key: change(snapshot) for key, snapshot in page.engines.items()})


def no_number(snapshot: Snapshot) -> Snapshot:
    """Cannot be taken in."""
    return replace(snapshot, counters={**snapshot.counters, "prompt_tokens": "many"})  # type: ignore[dict-item]


def unheard_of(snapshot: Snapshot) -> Snapshot:
    """Of one engine it is nothing to stumble over; engines cannot be merged with it."""
    return replace(snapshot, gauges={**snapshot.gauges, "unheard_of": 1.0})


class Beside:
    """A target whose pages are spoilt, beside two good ones; and the two alone."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.good = [Server(name="good-1"), Server(name="good-2")]
        self.bad = Server(name="bad", model_name="other")
        self.scene, self.alone = Scene(*self.good, estimator="sums"), Scene(*self.good, estimator="sums")
        if settings is not None:
            self.scene.watcher, self.alone.watcher = Watcher(settings), Watcher(settings)

    def rounds(self, times: int, change: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot) -> list[Fleet]:
        """All are judged together, and what is said of the good ones is held against what is said of them alone."""
        fleets = []
        for _ in range(times):
            fine(self.bad)
            self.scene.watcher.page("bad", spoilt(self.bad.page(self.scene.now + 10), change))
            fleets.append(self.scene.round(lambda: [fine(server) for server in self.good]))
            assert others(fleets[-1]) == others(self.alone.round())
        return fleets


def others(fleet: Fleet) -> list[object]:
    told = document(fleet)
    return [row for part in ("engines", "models", "targets") for row in told[part] if row.get("target") != "bad"
            and row.get("model_name") != "other"]  # fmt: skip


def of_bad(fleet: Fleet) -> EngineReport:
    return next(report for report in fleet.engines if report.key.target == "bad")


def states(fleets: Iterable[Fleet]) -> list[str]:
    return [answer(of_bad(fleet)) for fleet in fleets]


def test_t1_buckets_that_grow_beyond_all_numbers_cost_that_engine_only() -> None:
    beside = Beside()
    pages = iter(range(10))

    def growing(snapshot: Snapshot) -> Snapshot:
        bounds, size = snapshot.histograms["ttft"].bounds, next(pages) * 1e301 + 1e301
        ttft = Histogram(bounds, tuple(size * (at + 1) for at in range(len(bounds))), size)
        return replace(snapshot, histograms={**snapshot.histograms, "ttft": ttft})

    assert states(beside.rounds(3)) == ["warming_up", "warming_up", "healthy"]
    assert states(beside.rounds(6, growing)) == ["internal_error"] * 6
    assert "healthy" in states(beside.rounds(40))[-5:], "once those pages are in no window any more"


def test_a_fault_is_told_with_what_failed_and_nothing_that_stands_still() -> None:
    beside = Beside()
    beside.rounds(6)
    fleet = beside.rounds(1, no_number)[0]
    report = of_bad(fleet)
    assert (report.state, report.verdict, report.since, report.windows) == ("internal_error", None, None, {})
    assert report.summary.startswith("phasewatch itself failed while taking in a scrape (")
    assert "TypeError" in report.summary
    assert report.summary.endswith("Please report this.")
    assert report.fault is not None
    assert "Traceback" in report.fault.traceback
    assert "Traceback" not in str(document(fleet))
    assert next(target.state for target in fleet.targets if target.target == "bad") == "internal_error"


def test_an_engine_whose_page_could_not_be_taken_in_begins_anew_with_the_next_one() -> None:
    beside = Beside()
    beside.rounds(6)
    assert states(beside.rounds(1, no_number)) == ["internal_error"]
    # The first page after it is a baseline: nothing has been shown to work.
    assert states(beside.rounds(4)) == ["internal_error", "warming_up", "healthy", "healthy"]


def test_a_fault_that_lasts_does_not_flicker() -> None:
    beside = Beside()
    beside.rounds(6)
    assert set(states(beside.rounds(12, no_number))) == {"internal_error"}


def test_a_page_that_cannot_be_judged_costs_its_engine_until_one_can_be() -> None:
    settings = Settings(objectives=Objectives(by_model={"other": {"ttft_p42": Limit(1.0, 1.0)}}))
    beside = Beside(settings)
    fleets = beside.rounds(8)
    assert states(fleets)[2:] == ["internal_error"] * 6
    assert "while judging a scrape" in of_bad(fleets[-1]).summary
    beside.bad.engine.set(running=0)
    for _ in range(8):
        beside.scene.watcher.page("bad", beside.bad.page(beside.scene.now + 10))
        fleet = beside.scene.round(lambda: [fine(server) for server in beside.good])
    assert answer(of_bad(fleet)) == "idle", "without a first token there is nothing to stumble over"


def test_engines_that_cannot_be_merged_cost_their_models_row_only() -> None:
    servers = [Server(name=f"s{n}") for n in range(2)]
    other = Server(name="other", model_name="other")
    scene = Scene(other)
    for _ in range(4):
        for server in servers:
            fine(server)
            scene.watcher.page(server.name, spoilt(server.page(scene.now + 10), unheard_of))
        fleet = scene.round(lambda: fine(other))
    assert [answer(report) for report in fleet.engines] == ["healthy"] * 3
    of = {model.model_name: model for model in fleet.models}
    assert (of["other"].verdict, of["other"].fault) == ("healthy", None)
    assert (of["m"].verdict, of["m"].windows, of["m"].engines) == (None, {}, {"serving": 2})
    assert of["m"].fault is not None
    assert "merging engines" in of["m"].fault.summary


def test_a_target_that_is_down_is_down_whatever_went_wrong_before() -> None:
    beside = Beside()
    beside.rounds(4)
    beside.rounds(1, no_number)
    for at in (1, 2, 3):
        beside.scene.watcher.failure("bad", beside.scene.now + at, "timeout")
    assert answer(of_bad(beside.scene.watcher.evaluate(beside.scene.now + 5))) == "down"


def test_without_pages_for_a_whole_window_an_engine_is_stale_though_no_scrape_failed() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(90, lambda: fine(server))
    soon, late = (scene.watcher.evaluate(scene.now + later).engines[0] for later in (59.0, 61.0))
    assert (answer(soon), answer(late), late.verdict) == ("healthy", "stale", None)
    assert late.summary == "No scrape for 61 s; the numbers are from before."
    assert answer(scene.round(lambda: fine(server)).engines[0]) == "healthy"
