"""Work in flight, flows that balance, and signals that are missing or frozen: real reports, each as its whole kind."""

import pytest

from case_pages import advisory, blamed, kinds, said
from phasewatch.core.model import EngineReport, Page, Symptom
from phasewatch.core.pages.exposition import parse
from vllm_pages import Scene, Server, answer

PAGE_INTERVALS = (2.0, 5.0, 10.0, 15.0)


def symptom(report: EngineReport, objective: str) -> Symptom | None:
    return next((one for one in report.symptoms if one.objective == objective), None)


# --- P21: one user, long prefill, silence -------------------------------------------------------------------------


def long_turns(
    scene: Scene, server: Server, *, prefill: float, tokens: int, answer_seconds: float = 8.0, pause: float = 20.0
) -> list[tuple[float, float, EngineReport]]:
    """(since when it computes its prompt, now, report) of each page while it does, over three turns of one user. The
    steps are long and few: every second page shows KV blocks more than before."""
    engine, seen = server.engine, []
    engine.blocks = 16_000
    share = tokens / (engine.blocks * engine.block_size)
    for _ in range(3):
        began = scene.now
        while scene.now + scene.interval < began + prefill:
            done = (scene.now + scene.interval - began) // 7 * 7 / prefill
            [engine_report] = scene.round(lambda done=done: engine.set(running=1, kv=share * done)).engines  # type: ignore[misc]
            seen.append((began, scene.now, engine_report))
        scene.round(
            lambda: (engine.set(running=1, kv=share).first_tokens(prefill, prompt=tokens), engine.tokens(0.05, 10))
        )
        scene.after(answer_seconds, lambda: engine.tokens(0.05, int(20 * scene.interval)))
        scene.round(
            lambda: engine.set(running=0, kv=0).finishes(prefill=prefill, decode=9.0, prompt=tokens, output=200)
        )
        scene.after(pause)
    return seen


@pytest.mark.parametrize(
    ("interval", "old", "prefill", "tokens"),
    [(2.0, False, 60.0, 40_000), (5.0, True, 161.0, 80_000), (10.0, False, 161.0, 80_000), (15.0, True, 161.0, 80_000)],
)
def test_p21_a_first_token_that_is_awaited_for_long_is_missed_before_it_comes(
    interval: float, old: bool, prefill: float, tokens: int
) -> None:
    server = Server(max_model_len=131_072, old=old)
    scene = Scene(server, interval=interval, objectives=["ttft_p99=10s"])
    scene.after(30)
    waited = 0.0
    for began, now, report in long_turns(scene, server, prefill=prefill, tokens=tokens):
        age = now - began
        assert report.numbers is not None
        oldest = report.numbers.queue.oldest_unanswered_seconds
        assert oldest is not None
        assert age - 2 * interval <= oldest <= age
        if oldest <= 10:
            continue
        found = symptom(report, "unanswered")
        assert found is not None
        assert found.value is not None
        assert found.value.value == oldest
        if age > 30:
            assert answer(report) == "prefill_long_prompts"
            assert "has waited at least" in report.summary
            assert report.confidence == "low"
        waited = max(waited, oldest)
    assert waited > prefill - 3 * interval


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_p21_a_request_that_is_answered_in_time_is_no_symptom(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval, objectives=["ttft_p99=10s"])
    for report in (scene.after(interval, lambda: server.engine.set(running=1).serves(2)) for _ in range(30)):
        assert not report.symptoms


# --- C12: a single request that will not stop ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "old", "http"), [(2.0, False, False), (5.0, True, True), (10.0, False, True), (15.0, True, False)]
)
def test_c12_a_long_answer_is_seen_before_it_finishes(interval: float, old: bool, http: bool) -> None:
    server = Server(old=old, http=http)
    engine = server.engine
    scene = Scene(server, interval=interval, objectives=["e2e_p99=60s"])
    scene.after(40)
    scene.round(lambda: (engine.set(running=1, kv=0.033).first_tokens(0.2), engine.tokens(0.0067, 100)))
    began, pages = scene.now, 0
    while scene.now < began + 300:
        speed = 150 - 34 * (scene.now - began) / 600
        report = scene.after(interval, lambda: engine.tokens(1 / speed, int(speed * interval)))  # noqa: B023
        assert "decode_slow" not in blamed(report)
        assert not any(one.objective.startswith("itl") for one in report.symptoms)
        if scene.now - began > 90:
            pages += 1
            assert answer(report) == "output_length"
            assert "has not finished" in report.summary
            assert symptom(report, "still_running") is not None
    assert pages > 10


@pytest.mark.parametrize("interval", [5.0, 15.0])
def test_c12_without_an_e2e_limit_ten_minutes_are_worth_a_word_and_no_verdict(interval: float) -> None:
    server = Server()
    engine = server.engine
    scene = Scene(server, interval=interval)
    scene.after(40)
    scene.round(lambda: (engine.set(running=1, kv=0.033).first_tokens(0.2), engine.tokens(0.0067, 100)))
    report = scene.after(500, lambda: engine.tokens(0.008, int(125 * interval)))
    assert "still_running" not in kinds(report)
    report = scene.after(150, lambda: engine.tokens(0.008, int(125 * interval)))
    assert "has not finished" in advisory(report, "still_running")
    assert not report.symptoms
    report = scene.after(60, lambda: engine.set(running=0, kv=0))
    assert "has not finished" not in said(report)


# --- B04: each scrape answered by another worker ------------------------------------------------------------------


def workers(count: int, apart: float, *, process: bool) -> list[Server]:
    """Of one address, started `apart` seconds one after the other, each with a history of its own."""
    made = [Server(process=process) for _ in range(count)]
    for index, worker in enumerate(made):
        worker.started += apart * index
        worker.engine.set(running=2, kv=0.1).serves(1000 - 580 * index if count == 2 else 900 - 130 * index)
    return made


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize(("count", "order"), [(2, (0, 1)), (3, (0, 1, 2)), (3, (0, 0, 2, 1, 0, 1, 1))])
@pytest.mark.parametrize(("process", "apart"), [(True, 4.0), (True, 0.0), (False, 0.0)])
def test_b04_pages_of_several_processes_by_turns_are_named_and_make_no_rate(
    interval: float, count: int, order: tuple[int, ...], process: bool, apart: float
) -> None:
    made = workers(count, apart, process=process)
    scene = Scene(made[0], interval=interval)

    def each_serves() -> None:
        for worker in made:
            worker.engine.serves(round(interval))

    named = 0
    for turn in range(36):
        scene.servers = (made[order[turn % len(order)]],)
        fleet = scene.round(each_serves)
        (report,) = fleet.engines
        # Where no page tells when its process began, the first fall is a restart, and what rises then is its traffic.
        assert report.verdict is None or not (process or named)
        if named or "several_processes" in kinds(report):
            named += 1
            assert report.numbers is None
            assert not fleet.models[0].windows
            assert (report.state, fleet.targets[0].state) == ("no_engine_metrics",) * 2
            assert "several processes" in report.summary
            assert "port of its own" in report.summary
            assert "port of its own" in advisory(report, "several_processes")
            if named > len(order):  # all have answered again
                assert (report.restarts, fleet.targets[0].restarts, report.events) == (0, 0, ())
            assert [(one.kind, one.present) for one in fleet.targets[0].anomalies] == [("several_processes", True)]
        assert report.restarts < count
    assert named >= 30


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("process", [True, False])
def test_b04_turns_take_back_what_looked_like_a_restart_and_nothing_before(interval: float, process: bool) -> None:
    """A second worker, a minute younger, answers more and more often; the first restarted long before, truly."""
    first, second = workers(2, 0.0, process=process)
    scene = Scene(first, interval=interval)
    first.engine.serves(3000)
    scene.after(45, lambda: first.engine.set(running=2).serves(round(interval)))
    first.restart(scene.now)
    restarted = scene.after(150, lambda: first.engine.set(running=2).serves(round(interval)))
    second.started = first.started + interval / 2
    assert (restarted.restarts, [one.kind for one in restarted.events]) == (1, ["restart"])
    for turn in range(8):
        scene.servers = (second if turn % 2 == 0 else first,)
        fleet = scene.round(lambda: first.engine.serves(3))
    assert "several_processes" in kinds(fleet.engines[0])
    assert (fleet.engines[0].restarts, fleet.targets[0].restarts) == (1, 1)
    assert fleet.engines[0].events == restarted.events
    scene.servers = (first,)
    alone = scene.after(150, lambda: first.engine.set(running=2).serves(round(interval)))
    assert (answer(alone), alone.restarts, kinds(alone)) == ("healthy", 1, set())


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("process", [True, False])
def test_b04_a_restart_is_a_restart_and_not_several_processes(interval: float, process: bool) -> None:
    server = Server(process=process)
    scene = Scene(server, interval=interval)
    for _ in range(3):
        report = scene.after(75, lambda: server.engine.set(running=2).serves(round(interval)))
        assert answer(report) == "healthy"
        server.restart(scene.now)
        scene.round(fails=["s"])
    report = scene.after(75, lambda: server.engine.set(running=2).serves(round(interval)))
    assert (answer(report), report.restarts, kinds(report)) == ("healthy", 3, set())


# --- P22: statistics off while requests succeed -------------------------------------------------------------------


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("engines", [1, 4])
def test_p22_answers_beside_engine_counters_that_never_move_accuse_nobody(interval: float, engines: int) -> None:
    server = Server(engines)
    scene = Scene(server, interval=interval)
    for fleet in scene.rounds(240, lambda: server.answers(round(2 * interval))):
        for report in fleet.engines:
            assert not report.symptoms
            assert report.verdict is None
            assert "gave up" not in said(report)
            if fleet.at >= 5 * interval + 10:
                assert report.state == "no_engine_metrics"
                assert "statistics are off" in report.summary
    assert fleet.targets[0].state == "no_engine_metrics"
    recovered = scene.after(90, lambda: server.engine.set(running=2).serves(4))
    assert answer(recovered) == "healthy"


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_p22_counters_that_freeze_while_answers_go_on_may_be_a_hang_and_are_not_judged(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(120, lambda: server.engine.set(running=2).serves(4))
    scene.after(90, lambda: server.engine.set(running=0))
    report = scene.after(120, lambda: server.answers(round(2 * interval)))
    assert (report.state, report.verdict, report.symptoms) == ("no_engine_metrics", None, ())
    assert "have stopped, or it hangs" in report.summary


# --- C26: everything reads idle, and connections stay open --------------------------------------------------------


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("many", [330.0, 60.0])
def test_c26_an_idle_engine_with_many_open_connections_wants_a_probe(interval: float, many: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60)
    scene.after(120, lambda: server.engine.set(running=8).serves(8))
    server.engine.set(running=0)
    scene.after(2 * interval)
    server.fds = many
    report = scene.after(180)
    if report.verdict is None:
        assert report.state == "idle"
        assert "open_connections" in kinds(report)
    assert report.wants_a_look
    assert "one request" in said(report)


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("before", [28.0, 70.0])
def test_c26_a_pool_that_stands_since_the_last_step_is_a_quiet_night(interval: float, before: float) -> None:
    """It was there all along, or was opened while requests came."""
    server = Server()
    scene = Scene(server, interval=interval)
    server.fds = before
    scene.after(60)
    server.fds = 70
    scene.after(120, lambda: server.engine.set(running=8).serves(8))
    server.engine.set(running=0)
    report = scene.after(180)
    assert (answer(report), kinds(report), report.wants_a_look) == ("idle", set(), False)


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_c26_an_idle_engine_whose_connections_are_closed_is_just_idle(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(60)
    server.fds = 330
    scene.after(120, lambda: server.engine.set(running=8).serves(8))
    server.engine.set(running=0)
    server.fds = 44
    report = scene.after(180)
    assert (answer(report), kinds(report), report.wants_a_look) == ("idle", set(), False)


# --- D06: slow scrapes, partial pages -----------------------------------------------------------------------------


def only_python(server: Server, at: float) -> Page:
    """Of a process that has no engine families: the others, as far as the page has them."""
    lines = [line for line in server.text().splitlines(keepends=True) if "vllm:" not in line]
    return parse("".join(lines) + "python_gc_objects_collected_total 3\n", at=at)


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("order", ["fp", "ffp", "fpp", "fpt", "ffptpfp"])
def test_d06_a_page_without_the_engine_families_costs_no_history(interval: float, order: str) -> None:
    """f: a full page, p: a partial one, t: a timeout."""
    server = Server()
    scene = Scene(server, interval=interval)
    scene.after(90, lambda: server.engine.set(running=2).serves(4))
    for turn in range(24):
        what = order[turn % len(order)]
        if what == "p":
            scene.now += interval
            server.engine.set(running=2).serves(4)
            scene.watcher.page("s", only_python(server, scene.now))
            fleet = scene.watcher.evaluate(scene.now)
        else:
            fleet = scene.round(lambda: server.engine.set(running=2).serves(4), fails=["s"] if what == "t" else ())
        (report,) = fleet.engines
        assert (report.state, report.restarts) == ("serving" if what == "f" else "stale", 0)
        assert report.verdict == ("healthy" if what == "f" else None)
        assert fleet.targets[0].state == report.state
        if what == "p":
            assert "lacks the engine's metrics" in report.summary
            assert ("partial_page", True) in [(one.kind, one.present) for one in fleet.targets[0].anomalies]


def test_d06_three_partial_pages_in_a_row_are_no_engine_metrics_and_one_full_page_ends_it() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(90, lambda: server.engine.set(running=2).serves(4))
    for turn in range(5):
        scene.now += 10
        scene.watcher.page("s", only_python(server, scene.now))
        fleet = scene.watcher.evaluate(scene.now)
        (report,) = fleet.engines
        state = "stale" if turn < 2 else "no_engine_metrics"
        assert (report.state, fleet.targets[0].state, report.verdict) == (state, state, None)
        assert report.numbers is None or turn < 2
    report = scene.round(lambda: server.engine.set(running=2).serves(20)).engines[0]
    assert (report.state, report.restarts) == ("serving", 0)
    for _ in range(40):
        scene.now += 10
        scene.watcher.page("s", only_python(server, scene.now))
    fleet = scene.watcher.evaluate(scene.now)
    assert (fleet.engines, fleet.targets[0].state) == ((), "no_engine_metrics")


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_t2_a_page_that_lacks_most_signals_is_partial_and_one_that_lacks_one_is_not(interval: float) -> None:
    server, thin = Server(), Server(only=["vllm:num_requests_running", "vllm:kv_cache_usage_perc"])
    scene = Scene(server, interval=interval)
    for turn in range(24):
        scene.servers = (thin if turn in (15, 18) else server,)
        fleet = scene.round(lambda: (server.engine.set(running=2).serves(4), thin.engine.set(running=2)))
        if turn in (15, 18):
            assert fleet.engines[0].state == "stale"
    assert answer(fleet.engines[0]) == "healthy"


# --- D04: loading takes long --------------------------------------------------------------------------------------


def test_d04_a_target_that_has_never_answered_is_starting_for_half_an_hour_and_then_down() -> None:
    server = Server()
    scene = Scene(server, interval=10.0)
    for fleet in scene.rounds(1620, fails=["s"]):
        (target,) = fleet.targets
        assert (target.state, target.starting_seconds) == ("starting", fleet.at - 10)
    (report,) = scene.round().engines
    assert (report.state, report.restarts) == ("warming_up", 0)
    assert scene.watcher.evaluate(scene.now).targets[0].starting_seconds is None
    scene = Scene(server, interval=10.0)
    states = [fleet.targets[0].state for fleet in scene.rounds(1900, fails=["s"])]
    assert states == ["starting"] * 180 + ["down"] * 10


def test_d04_a_target_that_has_answered_is_down_after_three_failures_and_never_starting() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: server.engine.set(running=2).serves(4))
    states = [fleet.targets[0].state for fleet in scene.rounds(60, fails=["s"])]
    assert states == ["stale", "stale", "down", "down", "down", "down"]


# --- C22: nobody is let in, whatever they wait for ----------------------------------------------------------------


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
@pytest.mark.parametrize("old", [False, True])
def test_c22_deferred_requests_that_nobody_lets_in_are_an_admission_stall(*, interval: float, old: bool) -> None:
    """Who finishes meanwhile took so long because of the fault."""
    server = Server(old=old)
    scene = Scene(server, interval=interval)
    engine = server.engine

    def usual() -> None:
        engine.set(running=6, kv=0.4).serves(max(1, round(interval / 2)), itl=0.03, output=200, batch=6)

    scene.after(120, usual)
    began = scene.now

    def collapsed() -> None:
        many = 1 + round((scene.now - began) / 3)
        engine.set(running=4, waiting=many, deferred=many, kv=0.2)
        engine.tokens(2.0, round(2 * interval), batch=4)
        if 60 <= scene.now - began < 60 + interval:
            engine.finishes(decode=200.0, output=100)

    assert "admission_stalled" not in {answer(fleet.engines[0]) for fleet in scene.rounds(50, collapsed)}
    report = scene.after(60, collapsed)
    assert answer(report) == "admission_stalled"
    assert ("deferred" in report.summary) is not old
    assert {answer(fleet.engines[0]) for fleet in scene.rounds(600, collapsed)} == {"admission_stalled"}


@pytest.mark.parametrize("interval", PAGE_INTERVALS)
def test_c22_deferred_requests_are_no_stall_where_others_get_their_first_tokens(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval)

    def fetched() -> None:
        server.engine.set(running=6, waiting=5, deferred=5, kv=0.4).serves(2, itl=0.03, output=200, batch=6)

    assert "admission_stalled" not in {answer(fleet.engines[0]) for fleet in scene.rounds(400, fetched)}
