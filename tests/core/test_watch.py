"""What an engine is said to be doing, page by page: states, and when a verdict changes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewatch.core.model import Fleet, Page
from phasewatch.core.pages.exposition import parse
from support_pages import FIVE_FAMILIES
from vllm_pages import Scene, Server, answer


def fine(server: Server) -> None:
    for engine in server.engines:
        engine.set(running=2, waiting=0, kv=0.2).serves(6, batch=2)


def surely_slow(server: Server) -> None:
    for engine in server.engines:
        engine.set(running=2, kv=0.2).serves(6, prefill=6.0, prompt=40000, output=10)


def perhaps_slow(server: Server) -> None:
    """A limit of 2 s lies inside the bucket (1, 2.5] that holds the slow ones."""
    for engine in server.engines:
        engine.set(running=2, kv=0.2).serves(30, prefill=2.3, prompt=20000, output=10)


# --- states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "pages"), [(10.0, 3), (2.0, 6), (1.0, 11), (60.0, 3)])
def test_an_engine_warms_up_for_three_pages_and_ten_seconds(interval: float, pages: int) -> None:
    server = Server()
    scene = Scene(server, interval=interval)
    states = [scene.round(lambda: fine(server)).engines[0] for _ in range(pages)]
    if interval == 60:  # two pages never lie in a window of 60 s at this interval's jitter; here they just do
        assert [report.state for report in states] == ["warming_up", "warming_up", "serving"]
    else:
        assert {report.state for report in states[:-1]} == {"warming_up"}
        assert {report.verdict for report in states[:-1]} == {None}
        assert answer(states[-1]) == "healthy"


def test_a_sleeping_engine_sleeps_and_is_no_stall() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: fine(server))
    server.engine.set(awake=0, running=0)
    report = scene.after(120)
    assert (answer(report), report.summary) == ("asleep", "The engine is in sleep mode.")


def test_one_failed_scrape_is_stale_three_are_down_and_both_end_with_a_good_page() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: fine(server))
    seen = [scene.round(fails={"s"}) for _ in range(4)]
    assert [fleet.engines[0].state for fleet in seen] == ["stale", "stale", "down", "down"]
    assert [fleet.targets[0].state for fleet in seen] == ["stale", "stale", "down", "down"]
    assert [fleet.engines[0].verdict for fleet in seen] == [None] * 4
    assert seen[-1].targets[0].last_error == "timeout"
    assert seen[-1].targets[0].last_success_age_seconds == 40
    assert not seen[-1].engines[0].windows
    assert answer(scene.round(lambda: fine(server)).engines[0]) == "healthy"


def test_a_target_that_never_answered_is_starting_without_an_engine() -> None:
    fleet = Scene(Server()).rounds(30, fails={"s"})[-1]
    assert (fleet.engines, fleet.models, fleet.targets[0].state) == ((), (), "starting")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("declared", "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\nx 1\n"),
        ("none", "up 1\n"),
        ("router", 'vllm:num_requests_running{server="http://a"} 3\n'),
    ],
)
def test_a_page_without_engine_samples_is_no_engine_metrics_with_a_hint(kind: str, text: str) -> None:
    scene = Scene()
    scene.watcher.page("s", parse(text, at=1.0))
    fleet = scene.watcher.evaluate(1.0)
    assert (fleet.engines, fleet.targets[0].state) == ((), "no_engine_metrics")
    assert fleet.targets[0].last_error


@pytest.mark.parametrize(
    ("whose", "text"),
    [
        ("SGLang's", 'sglang:num_running_reqs{model_name="m"} 3\n'),
        ("SGLang's", 'dynamo_component_uptime_seconds 4\nsglang:token_usage{model_name="m"} 0.3\n'),
        ("TensorRT-LLM's", 'trtllm_request_success_total{model_name="m"} 3\n'),
        ("Triton's", 'nv_inference_request_success{model="m",version="1"} 1\n'),
        ("Text Generation Inference's", "tgi_queue_size 5\n"),
        ("llama.cpp's", "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 1\n"),
        ("vLLM-Omni's", "# TYPE vllm:omni_num_requests_running gauge\nprocess_open_fds 3\n"),
        ("vLLM-Omni's", "vllm_omni:num_requests_running 3\n"),
        ("Dynamo's", 'dynamo_frontend_requests_total{model="m"} 3\n'),
        ("LiteLLM's", "litellm_proxy_total_requests_metric_total 3\n"),
        ("the DCGM exporter's", 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 97\n'),
        ("the node exporter's", 'node_cpu_seconds_total{cpu="0",mode="idle"} 3\ngo_goroutines 8\n'),
        ("Ray's", 'ray_serve_num_http_requests_total{route="/"} 3\n'),
        ("an Ollama exporter's", 'ollama_requests_total{model="m"} 3\n'),
        ("phasewatch's own", 'phasewatch_target_up{target="t"} 1\n'),
        ("Prometheus'", "prometheus_tsdb_head_series 3\n"),
    ],
)
def test_p27_somebody_elses_page_is_named_and_no_logger_is_asked_for(whose: str, text: str) -> None:
    scene = Scene()
    scene.watcher.page("s", parse(text, at=1.0))
    (target,) = scene.watcher.evaluate(1.0).targets
    assert (target.state, target.last_error is None) == ("no_engine_metrics", False)
    assert str(target.last_error).startswith(f"this is {whose} /metrics; phasewatch reads ")
    assert "logger" not in str(target.last_error)
    vllm = parse(text + "vllm:num_requests_running 1\n", at=2.0)
    assert (vllm.kind, vllm.foreign) == ("engine", None)


@pytest.mark.parametrize("text", ["up 1\n", "python_info 1\nhttp_requests_total 3\n", 'x{y="sglang:z"} 1\n'])
def test_p27_a_page_that_nothing_tells_of_keeps_the_hint_for_vllm(text: str) -> None:
    scene = Scene()
    scene.watcher.page("s", parse(text, at=1.0))
    assert "stat logger" in str(scene.watcher.evaluate(1.0).targets[0].last_error)


def odd(fleet: Fleet) -> dict[str, tuple[int, bool]]:
    return {one.kind: (one.count, one.present) for one in fleet.targets[0].anomalies}


def test_what_is_odd_about_a_target_is_counted_by_kind_until_it_ends() -> None:
    scene = Scene()
    good = 'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
    for second, text in enumerate(("", "no sample\nnor this one\n", "no sample\n", ""), 1):
        scene.watcher.page("s", parse(good + text, at=float(second)))
        fleet = scene.watcher.evaluate(float(second))
        assert odd(fleet) == [
            {}, {"unreadable_line": (2, True)}, {"unreadable_line": (3, True)}, {"unreadable_line": (3, False)},
        ][second - 1]  # fmt: skip
    assert fleet.targets[0].anomalies[0].last == "line 2 cannot be read: 'no sample'"


def test_a_scrape_that_is_not_later_than_the_last_one_is_odd_and_changes_nothing() -> None:
    server = Server()
    scene = Scene(server)
    before = scene.after(60, lambda: fine(server))
    scene.watcher.page("s", server.page(scene.now - 10.0))
    fleet = scene.watcher.evaluate(scene.now)
    assert odd(fleet) == {"page_order": (1, True)}
    assert fleet.engines == (before,)


def test_requests_that_finish_while_first_tokens_and_tokens_stand_still_are_no_engine_metrics_a07() -> None:
    server = Server()
    report = Scene(server).after(60, lambda: server.answers(50))
    assert (answer(report), report.verdict) == ("no_engine_metrics", None)


def test_an_engine_gone_from_a_good_page_ends_and_comes_back_with_a_baseline() -> None:
    both, one = Server(2), Server(1)
    scene = Scene(both)
    scene.after(60, lambda: (fine(both), fine(one)))
    scene.servers = (one,)
    fleet = scene.rounds(20, lambda: (fine(both), fine(one)))[-1]
    assert [report.key.engine for report in fleet.engines] == ["0"]
    scene.servers = (both,)
    fleet = scene.round(lambda: (fine(both), fine(one)))
    assert [report.state for report in fleet.engines] == ["serving", "warming_up"]
    assert fleet.models[0].windows[60.0].ttft_seconds.count == fleet.engines[0].windows[60.0].ttft_seconds.count


def test_another_model_on_the_same_port_begins_anew_b31() -> None:
    a, b = Server(model_name="a"), Server(model_name="b")
    b.engine.serves(50_000)
    scene = Scene(a)
    scene.after(60, lambda: fine(a))
    scene.servers = (b,)
    fleet = scene.round(lambda: fine(b))
    assert [report.key.model_name for report in fleet.engines] == ["b"]
    assert fleet.engines[0].state == "warming_up"
    assert fleet.engines[0].windows == {}


# --- holding a verdict --------------------------------------------------------------------------------------------


def test_a_new_verdict_is_taken_when_two_evaluations_agree_and_since_is_the_first_of_them() -> None:
    server = Server()
    scene = Scene(server, objectives=("ttft_p99=2s",))
    scene.after(60, lambda: fine(server))
    first, second = (scene.round(lambda: perhaps_slow(server)).engines[0] for _ in range(2))
    assert (first.verdict, second.verdict) == ("healthy", "prefill_long_prompts")
    assert (second.since, second.previous_verdict) == (70, "healthy")
    assert first.summary.startswith("Not for long enough for a verdict yet: TTFT p99")
    assert first.confidence == "medium"


def test_a_surely_missed_objective_ends_healthy_at_once() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: fine(server))
    report = scene.round(lambda: surely_slow(server)).engines[0]
    assert (report.verdict, report.since, report.previous_verdict) == ("prefill_long_prompts", 70, "healthy")


def test_trouble_ends_when_two_evaluations_agree_that_it_did() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: surely_slow(server))
    answers = [report.engines[0] for report in scene.rounds(90, lambda: fine(server))]
    verdicts = [report.verdict for report in answers]
    good = verdicts.index("healthy")
    assert verdicts[:good] == ["prefill_long_prompts"] * good
    assert not answers[good - 1].symptoms
    assert answers[good - 1].causes[0].verdict == "prefill_long_prompts"
    assert answers[good].since == 60 + 10 * good  # the evaluation before


def test_a_standstill_is_taken_at_once_and_ends_when_two_evaluations_agree() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: fine(server))
    verdicts = [fleet.engines[0].verdict for fleet in scene.rounds(30)]
    assert verdicts == ["healthy", "healthy", "engine_stalled"]
    back = [fleet.engines[0].verdict for fleet in scene.rounds(30, lambda: fine(server))]
    assert back[0] == "engine_stalled"
    assert back[-1] == "healthy"


@pytest.mark.parametrize("failures", [1, 2])
def test_failed_scrapes_neither_confirm_nor_end_a_verdict(failures: int) -> None:
    server = Server()
    scene = Scene(server, objectives=("ttft_p99=2s",))
    scene.after(60, lambda: fine(server))
    challenged = scene.round(lambda: perhaps_slow(server)).engines[0]
    gap = scene.rounds(10 * failures, lambda: perhaps_slow(server), fails={"s"})[-1].engines[0]
    assert (challenged.verdict, answer(gap)) == ("healthy", "stale")
    agreed = scene.round(lambda: perhaps_slow(server)).engines[0]
    assert (agreed.verdict, agreed.since, agreed.previous_verdict) == ("prefill_long_prompts", 70, "healthy")
    scene.round(lambda: perhaps_slow(server), fails={"s"})
    kept = scene.round(lambda: perhaps_slow(server)).engines[0]
    assert (kept.verdict, kept.since) == ("prefill_long_prompts", 70)


def test_after_an_outage_the_first_verdict_is_taken_at_once() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: fine(server))
    scene.rounds(30, fails={"s"})
    report = scene.round(lambda: surely_slow(server)).engines[0]
    assert (report.verdict, report.since, report.previous_verdict) == ("prefill_long_prompts", scene.now, "healthy")


def test_a_restart_is_warmed_up_again_and_what_was_before_it_does_not_come_back() -> None:
    server = Server()
    scene = Scene(server, interval=5)
    scene.after(60, lambda: surely_slow(server))
    scene.rounds(60, fails={"s"})
    server.restart(scene.now)
    states = [answer(fleet.engines[0]) for fleet in scene.rounds(40, lambda: fine(server))]
    assert states[:2] == ["warming_up"] * 2
    assert set(states[2:]) == {"healthy"}


def test_a_standstill_stays_as_easing_cause_of_the_slow_requests_it_held_up() -> None:
    server = Server()
    scene = Scene(server, interval=2)
    scene.after(60, lambda: fine(server))
    assert answer(scene.after(30)) == "engine_stalled"

    def released() -> None:
        server.engine.set(running=2).serves(4, prefill=30.0)

    scene.round(released)
    report = scene.after(20, lambda: fine(server))
    assert (answer(report), report.state) == ("engine_stalled", "serving")
    assert report.causes[0].easing
    assert report.causes[0].symptom.startswith("ttft")
    assert answer(scene.after(60, lambda: fine(server))) == "healthy"


# --- whatever comes -----------------------------------------------------------------------------------------------


def numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from numbers_in(getattr(value, one.name))
    elif isinstance(value, dict):
        for one in (*value.keys(), *value.values()):
            yield from numbers_in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from numbers_in(one)


def sane(fleet: Fleet) -> None:
    assert all(math.isfinite(number) for number in numbers_in(fleet))
    for report in fleet.engines:
        for figures in report.windows.values():
            for latency in (figures.ttft_seconds, figures.itl_seconds, figures.tpot_seconds, figures.e2e_seconds):
                assert latency.count >= 0
                for estimate in (latency.p50, latency.p90, latency.p99):
                    assert estimate is None or estimate.low <= estimate.value
                    assert estimate is None or estimate.high is None or estimate.value <= estimate.high
            shares = [getattr(figures.phases, one.name).share for one in fields(figures.phases)]
            assert sum(share for share in shares if share is not None) <= 1 + 1e-9
            assert figures.prefill_time_ratio is None or 0 <= figures.prefill_time_ratio <= 1
        assert (report.verdict is None) or report.confidence is not None
        assert all(0 <= cause.score <= 1 for cause in report.causes)


@pytest.mark.parametrize("later", [0.0, 40.0], ids=["same start time", "own start times"])
@pytest.mark.parametrize("ahead", [9000, 30])
def test_pages_of_two_processes_by_turns_make_no_rates_and_say_so(later: float, ahead: int) -> None:
    one, other = Server(), Server()
    other.started += later
    other.engine.set(running=1).serves(ahead)
    scene = Scene(one)
    reports = []
    for turn in range(20):
        for server in (one, other):
            fine(server)
        scene.servers = ((one, other)[turn % 2],)
        reports.append(scene.round().engines[0])
    for report in reports[3:]:
        assert (report.verdict, report.numbers, report.restarts) == (None, None, 0)
        assert "several processes" in report.summary
        assert "port of its own" in report.summary
        assert [one.kind for one in report.advisories] == ["several_processes"]
    scene.servers = (one,)
    for _ in range(10):
        report = scene.round(lambda: fine(one)).engines[0]
    assert (answer(report), report.advisories) == ("healthy", ())


def restart(server: Server) -> None:
    server.restart(server.started % 1e6 + 60)


def forget_http(server: Server) -> None:
    server.http = not server.http


def forget_process(server: Server) -> None:
    server.process = not server.process


def forget_names(server: Server) -> None:
    server.old = not server.old


def only_five(server: Server) -> None:
    server._only = None if server._only else FIVE_FAMILIES


def evict(server: Server) -> None:
    server.engine.counters["num_preemptions_total"] += 3
    server.engine.tokens(4.0, 3)


def hang_up(server: Server) -> None:
    server.answers(7)


def fail_requests(server: Server) -> None:
    server.answers(3, "5xx")


def pile_up(server: Server) -> None:
    server.fds += 4


def queue_up(server: Server) -> None:
    server.engine.set(running=4, waiting=server.engine.gauges["waiting"] + 9, kv=0.99).tokens(0.05, 40)


def go_idle(server: Server) -> None:
    server.engine.set(running=0, waiting=0, kv=0)


def nothing(server: Server) -> None:
    pass


EVENTS: tuple[Callable[[Server], object], ...] = (
    fine, surely_slow, perhaps_slow, restart, forget_http, forget_process, forget_names, only_five, evict, hang_up,
    fail_requests, pile_up, queue_up, go_idle, nothing, nothing,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(
    events=st.lists(
        st.tuples(st.sampled_from(EVENTS), st.sampled_from(("page", "page", "failure", "page twice"))), max_size=25
    ),
    engines=st.integers(1, 2),
    interval=st.sampled_from((0.5, 2.0, 10.0, 45.0, 100.0)),
)
def test_no_order_of_restarts_gaps_and_absent_signals_raises_or_makes_nonsense(
    events: list[tuple[Callable[[Server], object], str]], engines: int, interval: float
) -> None:
    server = Server(engines)
    scene = Scene(server, interval=interval, estimator="sums")
    for event, scrape in events:
        sane(scene.round(lambda event=event: event(server), fails={"s"} if scrape == "failure" else ()))  # type: ignore[misc]
        if scrape == "page twice":  # a page of the same moment changes nothing
            page: Page = server.page(scene.now)
            scene.watcher.page("s", page)
            sane(scene.watcher.evaluate(scene.now))
    sane(scene.watcher.evaluate(scene.now + 1000))


@pytest.mark.parametrize(("slow", "missed"), [(3, ()), (7, ("ttft_p95",)), (12, ("ttft_p90", "ttft_p95"))])
def test_a_p95_allows_five_of_a_hundred_over_the_limit(slow: int, missed: tuple[str, ...]) -> None:
    server = Server(name="a")
    names = ("ttft_p90", "ttft_p95")
    scene = Scene(server, objectives=[f"{name}=1s" for name in names])

    def traffic() -> None:
        server.engine.serves(100 - slow, prefill=0.1)
        for _ in range(slow):
            server.engine.first_tokens(2.0)

    (report,) = scene.rounds(60, traffic)[-1].engines
    assert tuple(sorted(symptom.objective for symptom in report.symptoms if symptom.objective in names)) == missed
