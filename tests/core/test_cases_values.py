"""Cases of cases.md about figures that mislead (B19 to B33, E17, P11, P15), each named after its case: from
pages to what must be said of them, and must not. P9 stands in test_cases, B31's baseline in test_watch."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest

from case_pages import Richer, advisory, blamed, kinds, said
from phasewatch.core.model import EngineReport, Fleet, Numbers
from phasewatch.core.pages.exposition import parse
from vllm_pages import Scene, Server, answer

DECODE = {"decode_slow", "decode_batch", "decode_bandwidth", "decode_context"}


def figures(report: EngineReport) -> Numbers:
    assert report.numbers is not None
    return report.numbers


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


# --- B19: work without finished requests --------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [5, 60])
@pytest.mark.parametrize("http", [True, False], ids=["with", "without HTTP counters"])
def test_b19_tokens_without_finished_requests_are_clients_that_leave_and_not_zero_aborts(
    clients: int, http: bool
) -> None:
    server = Server(http=http)
    scene = Scene(server)
    scene.rounds(60)

    def abandoned() -> None:
        server.engine.set(running=0, kv=0).first_tokens(0.1, clients, prompt=602)
        server.engine.tokens(0.03, 20 * clients)
        server.answers(clients)

    report = scene.round(abandoned).engines[0]
    assert f"{clients} of {clients} were left" in advisory(report, "clients_leave")
    queue = figures(report).queue
    assert queue.gave_up_ratio == (1.0 if http else None)
    assert figures(report).tokens.prompt_per_second == pytest.approx(602 * clients / 60)
    assert (figures(report).e2e_seconds.count, figures(report).e2e_seconds.mean) == (0, None)
    assert "0 %" not in said(report).replace("100 %", "")
    assert "cancel" in said(report) or "stop button" in said(report)


def test_b19_while_requests_still_run_nothing_is_said_of_those_that_left() -> None:
    server = Server(http=False)
    scene = Scene(server)
    report = scene.after(60, lambda: server.engine.set(running=5, kv=0.1).first_tokens(0.1, 2))
    assert "clients_leave" not in kinds(report)


# --- B21, B23: figures that cannot be true ------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [20, 3])
def test_b21_first_tokens_within_a_millisecond_are_implausible_and_no_objective_is_met_by_them(requests: int) -> None:
    server = Server()

    def zeros() -> None:
        engine = server.engine.set(running=3, kv=0.2)
        engine.first_tokens(0.0, requests, prompt=3000)
        engine.tokens(0.03, 100 * requests)
        engine.finishes(requests, prefill=0.5, decode=8.5, prompt=3000, output=300)

    fleet = Scene(server).rounds(90, zeros)[-1]
    report = fleet.engines[0]
    assert "implausible" in advisory(report, "contradiction")
    assert [(one.kind, one.present) for one in fleet.targets[0].anomalies] == [("contradiction", True)]
    assert (figures(report).ttft_seconds.count, figures(report).ttft_seconds.p99) == (0, None)
    assert "ttft" in report.missing
    assert (answer(report), report.confidence) == ("healthy", "medium")  # of what is left: ITL
    assert "Not judged, signal missing: ttft." in report.summary
    assert {objective for _, objective, _ in report.objective_counts} == {"itl_p99", "itl_stall"}
    assert not blamed(report) & {"network", "frontend"}


def test_b21_true_first_tokens_are_counted_towards_their_objective() -> None:
    server = Server()
    report = Scene(server).after(90, lambda: server.engine.set(running=1).serves(3))
    assert report.objective_counts["observations", "ttft_p99", ""] == 24  # the first page is a baseline
    assert (report.verdict, report.confidence) == ("healthy", "medium")


@pytest.mark.parametrize("objective", ["ttft_p99=150ms", "ttft_p99=1s"])
@pytest.mark.parametrize("output", [300, 60])
def test_b23_swapped_phases_are_a_contradiction_and_prefill_is_not_blamed(objective: str, output: int) -> None:
    server = Server()
    decode = 0.02 * (output - 1)

    def swapped() -> None:
        engine = server.engine.set(running=10, kv=0.2)
        engine.first_tokens(0.20, 17, prompt=800)
        engine.tokens(0.02, 17 * (output - 1), batch=10)
        engine.finishes(17, prefill=decode, decode=0.15, outside=0.05, prompt=800, output=output)

    report = Scene(server, objectives=(objective,)).after(90, swapped)
    assert "contradict each other" in advisory(report, "contradiction")
    for phase in (figures(report).phases.queue, figures(report).phases.prefill, figures(report).phases.decode):
        assert (phase.mean_seconds, phase.share) == (None, None)
    assert figures(report).e2e_seconds.mean == pytest.approx(decode + 0.2)
    assert answer(report) == ("healthy" if objective == "ttft_p99=1s" else "unknown")
    assert not {one for one in blamed(report) if one.startswith("prefill_") or one == "frontend"}


# --- B26: zero hits that are correct, zero hits that are not


def _reads_prompts(
    cached: int = 0, size: int = 784, prompt: int = 300, requests: int = 30, **made: bool
) -> EngineReport:
    server = Server(max_model_len=32768, **made)
    server.engine.block_size = size
    scene = Scene(server)

    def traffic() -> None:
        server.engine.set(running=2, kv=0.2).serves(requests, prompt=prompt, cached=cached, batch=2)

    return scene.after(90, traffic)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("size", "prompt", "requests"), [(784, 300, 30), (16, 4000, 3), (1056, 240, 60)])
def test_b26_no_hit_at_all_is_told_with_both_readings_and_never_a_verdict(
    size: int, prompt: int, requests: int, old: bool
) -> None:
    report = _reads_prompts(size=size, prompt=prompt, requests=requests, old=old)
    text = advisory(report, "prefix_hits_none")
    assert f"cache block of {size:,} tokens" in text
    assert "0 is right" in text
    assert "does not count its hits" in text
    assert "compare TTFT" in text
    assert not blamed(report)


@pytest.mark.parametrize(
    "quiet",
    [{"cached": 16}, {"requests": 1}, {"prompt": 20}, {"cached": 200}],
    ids=["few hits", "few prompts", "short prompts", "many hits"],
)
def test_b26_where_hits_are_counted_or_little_is_asked_nothing_is_said(quiet: dict[str, int]) -> None:
    assert "prefix_hits_none" not in kinds(_reads_prompts(**quiet))


def test_b26_a_cache_that_is_off_or_fed_from_elsewhere_needs_no_such_note() -> None:
    off, fed = Server(), Richer()
    off.engine.prefix_caching = False

    def traffic(server: Server) -> None:
        server.engine.set(running=2, kv=0.2).serves(30, prompt=1000, batch=2)

    def from_elsewhere() -> None:
        traffic(fed)
        fed.adds("external_prefix_cache_hits_total", 600)

    assert "prefix_hits_none" not in kinds(Scene(off).after(90, lambda: traffic(off)))
    assert "prefix_hits_none" not in kinds(Scene(fed).after(90, from_elsewhere))


# --- B25, B27: prompt tokens and caches ---------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [1000, 400], ids=["queries counted for the whole prompt", "as they should be"])
def test_b25_reuse_of_two_caches_is_the_share_of_the_prompt_and_never_halved(asked: int) -> None:
    server = Richer()

    def traffic() -> None:
        server.engine.set(running=2, kv=0.2).serves(3, prompt=1000, cached=600)
        server.adds("external_prefix_cache_queries_total", 3 * asked)
        server.adds("external_prefix_cache_hits_total", 3 * 200)

    assert figures(Scene(server).after(90, traffic)).tokens.prefix_hit_ratio == pytest.approx(0.8)


@pytest.mark.parametrize("old", [False, True], ids=["by source", "from hits alone"])
@pytest.mark.parametrize(("prompt", "cached"), [(11263, 7840), (4000, 3900)])
def test_b27_prefill_work_is_what_was_computed_and_not_what_came_from_the_cache(
    prompt: int, cached: int, old: bool
) -> None:
    server = Server(old=old, max_model_len=32768)

    def traffic() -> None:
        server.engine.set(running=1, kv=0.2).serves(1, prompt=prompt, cached=cached, prefill=0.5, output=200)

    report = Scene(server).after(90, traffic)
    tokens = figures(report).tokens
    assert tokens.computed_prompt_mean == pytest.approx(prompt - cached)
    assert tokens.computed_prompt_per_second == pytest.approx((prompt - cached) / 10)
    assert tokens.prompt_per_second == pytest.approx(prompt / 10)


def test_b27_a_long_prompt_that_is_nearly_all_cached_is_no_long_prompt() -> None:
    """11,263 tokens counted, 100 of them computed, and answers of 300: decode has more tokens to work on."""
    server = Server(max_model_len=32768)

    def traffic() -> None:
        server.engine.set(running=1, kv=0.2).serves(
            1, prompt=11263, cached=11163, prefill=0.3, outside=0.05, output=300
        )

    report = Scene(server, objectives=("ttft_p99=200ms",)).after(90, traffic)
    assert "ttft_p99" in {one.objective for one in report.symptoms}
    assert "prefill_long_prompts" not in blamed(report)


# --- B29, B31: names and labels -----------------------------------------------------------------------------------

LORA = (
    ('running_lora_adapters="",waiting_lora_adapters=""', "1.73955756e+09"),
    ('running_lora_adapters="a",waiting_lora_adapters=""', "1.73955757e+09"),
    ('running_lora_adapters="a,b",waiting_lora_adapters="a"', "1.739557571e+09"),
)


@pytest.mark.parametrize("lines", [1, 3])
def test_b29_adapter_lists_that_hold_a_timestamp_make_no_engine_no_queue_and_no_number(lines: int) -> None:
    class WithAdapters(Server):
        def text(self) -> str:
            samples = (f'vllm:lora_requests_info{{max_lora="4",{labels}}} {at}\n' for labels, at in LORA[:lines])
            return super().text() + "# TYPE vllm:lora_requests_info gauge\n" + "".join(samples)

    plain, adapters = Server(), WithAdapters()
    scenes = [Scene(server) for server in (plain, adapters)]
    fleets: list[Fleet] = []
    for scene in scenes:
        (server,) = scene.servers
        fleets.append(scene.rounds(90, lambda server=server: server.engine.set(running=2).serves(3))[-1])  # type: ignore[misc]
    assert fleets[0] == fleets[1]
    assert figures(fleets[1].engines[0]).queue.waiting == 0
    assert all(number < 1e9 for number in numbers_in(fleets[1]))
    assert parse(adapters.text(), at=1.0).anomalies == ()


@pytest.mark.parametrize("engines", [1, 2])
def test_b31_another_model_on_the_port_is_an_event_and_no_burst(engines: int) -> None:
    a, b = Server(engines, model_name="a"), Server(engines, model_name="b")
    for engine in a.engines:
        engine.counters["generation_tokens_total"] += 900_000
    for engine in b.engines:
        engine.counters["generation_tokens_total"] += 950_000
    scene = Scene(a, interval=15)

    def two_each(server: Server) -> None:
        for engine in server.engines:
            engine.set(running=1).serves(2)

    scene.after(60, lambda: two_each(a))
    scene.servers = (b,)
    fleets = scene.rounds(60, lambda: two_each(b))
    for fleet in fleets:
        assert {report.key.model_name for report in fleet.engines} == {"b"}
        assert [report.restarts for report in fleet.engines] == [0] * engines
    for fleet in fleets[:3]:
        assert all("a before" in advisory(report, "model_changed") for report in fleet.engines)
    for fleet in fleets[1:]:
        for report in fleet.engines:
            assert figures(report).tokens.generation_per_second == pytest.approx(2 * 20 / 15)


# --- B33, E17, P15: is it slow? -----------------------------------------------------------------------------------


def long_prompts_among_streams(server: Server) -> None:
    """Mean ITL about 91 ms, though a token takes 34 ms: five of 245 gaps held a prompt of 2.6 s."""
    engine = server.engine.set(running=1, kv=0.2)
    engine.tokens(0.034, 200)
    engine.tokens(0.035, 40, batch=2)
    engine.tokens(2.6, 5)
    engine.first_tokens(2.7, 1, prompt=4000)
    engine.finishes(1, prefill=2.65, decode=8, prompt=4000, output=245)


@pytest.mark.parametrize("objective", ["itl_p50=50ms", "itl_p99=100ms"])
def test_b33_a_mean_that_long_prompts_spoil_is_no_slow_decode(objective: str) -> None:
    server = Server()
    fleets = Scene(server, objectives=(objective, "ttft_p99=10s")).rounds(
        600, lambda: long_prompts_among_streams(server)
    )
    report = fleets[-1].engines[0]
    itl = figures(report).itl_seconds
    assert itl.p50 is not None
    assert (itl.p50.low, itl.p50.high) == (0.025, 0.05)
    assert itl.mean == pytest.approx(0.087, abs=0.01)
    assert not {answer(fleet.engines[0]) for fleet in fleets} & DECODE
    if objective == "itl_p50=50ms":
        assert (answer(report), report.symptoms) == ("healthy", ())


@pytest.mark.parametrize("others", [1, 2, 4])
def test_b33_the_replica_that_gets_the_long_prompts_is_no_outlier(others: int) -> None:
    mixed, plain = Server(name="mixed"), [Server(name=f"plain{n}") for n in range(others)]
    scene = Scene(mixed, *plain, objectives=("itl_p50=50ms", "ttft_p99=10s"))

    def traffic() -> None:
        long_prompts_among_streams(mixed)
        for server in plain:
            server.engine.set(running=1, kv=0.1).serves(1, prompt=300, prefill=0.2, itl=0.034, output=245)

    fleets = scene.rounds(300, traffic)
    assert {model.verdict for fleet in fleets for model in fleet.models} <= {None, "healthy"}
    assert fleets[-1].models[0].outliers == ()


def stream(server: Server, itl: float, context: int) -> None:
    """Two streams whose prompt is nearly all cached: only the context and the pace matter."""
    server.engine.set(running=2, kv=0.3).serves(
        1, prompt=context, cached=context - 200, prefill=0.1, itl=itl, output=300, batch=2
    )


def paced(before: float, now: float, *, context: int, later: int) -> EngineReport:
    server = Server(max_model_len=131072)
    scene = Scene(server, objectives=("ttft_p99=1m",))
    scene.after(180, lambda: stream(server, before, context))
    return scene.after(120, lambda: stream(server, now, later))


@pytest.mark.parametrize("pace", [0.0588, 0.0629, 0.120])
def test_e17_a_pace_latched_at_twice_its_own_past_is_decode_slow_even_within_the_objective(pace: float) -> None:
    report = paced(0.0322, pace, context=32_000, later=32_000)
    assert answer(report) == "decode_slow"
    assert report.causes[0].evidence["times_slower"] == pytest.approx(pace / 0.0322, rel=0.05)


@pytest.mark.parametrize(("pace", "later"), [(0.0312, 32_000), (0.0395, 32_000), (0.055, 100_000), (0.060, 100_000)])
def test_e17_the_healthy_band_and_longer_contexts_do_not_fire(pace: float, later: int) -> None:
    report = paced(0.0322, pace, context=32_000, later=later)
    assert (answer(report), report.symptoms) == ("healthy", ())


@pytest.mark.parametrize(("last", "verdict"), [(0.057, "healthy"), (0.115, "replica_outlier")])
def test_e17_at_the_same_long_context_only_the_replica_that_is_slower_than_its_peers_fires(
    last: float, verdict: str
) -> None:
    servers = [Server(name=f"s{n}", max_model_len=131072) for n in range(4)]
    scene = Scene(*servers, objectives=("ttft_p99=1m", "itl_p50=200ms"))

    def traffic() -> None:
        for server, itl in zip(servers, (0.055, 0.057, 0.060, last), strict=True):
            stream(server, itl, 100_000)

    model = scene.rounds(180, traffic)[-1].models[0]
    assert model.verdict == verdict
    assert model.outliers == (() if verdict == "healthy" else ("s3/0",))


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_p15_replicas_that_all_slow_down_together_are_slower_than_their_own_past(replicas: int) -> None:
    servers = [Server(name=f"s{n}") for n in range(replicas)]
    scene = Scene(*servers)

    def traffic(itl: float) -> None:
        for server in servers:
            server.engine.set(running=8, kv=0.3).serves(8, itl=itl, prompt=500, output=300, batch=8)

    scene.rounds(180, lambda: traffic(0.03))
    fleet = scene.rounds(120, lambda: traffic(0.06))[-1]
    assert {answer(report) for report in fleet.engines} == {"decode_slow"}
    assert (fleet.models[0].verdict, fleet.models[0].outliers) == ("decode_slow", ())


# --- P11: iterations counted more than once -----------------------------------------------------------------------


@pytest.mark.parametrize("servers", [2, 8])
def test_p11_iterations_that_several_api_servers_count_tell_no_share_of_time_but_still_prove_life(servers: int) -> None:
    server = Server(process=False)
    scene = Scene(server)

    def traffic() -> None:
        engine = server.engine.set(running=6, kv=0.3)
        engine.serves(4, prompt=2000, prefill=0.5, itl=0.05, output=60, batch=6)
        for _ in range(servers - 1):
            engine.observe("iteration_tokens_total", 6, 40)
            engine.observe("iteration_tokens_total", 2000, 4)

    report = scene.after(90, traffic)
    assert figures(report).prefill_time_ratio is None
    assert "start_time" in report.missing
    assert answer(report) == "healthy"
    beats = scene.rounds(120, lambda: server.engine.observe("iteration_tokens_total", 6, 4 * servers))
    assert "engine_stalled" not in {answer(fleet.engines[0]) for fleet in beats}
    assert answer(scene.after(60)) == "engine_stalled"


def test_p11_one_api_server_counts_them_once_and_the_share_is_known() -> None:
    server = Server()
    report = Scene(server).after(
        90, lambda: server.engine.set(running=6, kv=0.3).serves(4, prompt=2000, prefill=0.5, output=60, batch=6)
    )
    assert figures(report).prefill_time_ratio == pytest.approx(0.2)
