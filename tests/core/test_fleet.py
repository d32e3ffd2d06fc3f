"""A model's engines as one: what is added, what is not, and whose verdict stands for them."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewatch.core.measures.quantile import estimate
from phasewatch.core.model import Histogram, ModelReport
from vllm_pages import Scene, Server

TIMES = st.floats(0.0011, 9000)  # no first token comes within 1 ms: those are left out as implausible


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(TIMES, max_size=20), min_size=1, max_size=4))
def test_a_models_percentiles_are_those_of_all_its_requests_together(engines: list[list[float]]) -> None:
    servers = [Server(name=f"s{n}") for n in range(len(engines))]
    scene = Scene(*servers, estimator="sums")
    scene.rounds(20)

    def traffic() -> None:
        for server, times in zip(servers, engines, strict=True):
            for seconds in times:
                server.engine.first_tokens(seconds)

    (model,) = scene.round(traffic).models
    ttft = model.windows[60.0].ttft_seconds
    pooled = sorted(seconds for times in engines for seconds in times)
    assert ttft.count == len(pooled)
    edges = (*servers[0].engine.edges("time_to_first_token_seconds"), float("inf"))
    together = Histogram(edges, tuple(float(sum(s <= edge for s in pooled)) for edge in edges), None)
    for q, merged in ((0.5, ttft.p50), (0.9, ttft.p90), (0.99, ttft.p99)):
        plain = estimate(together, q)
        bounds = None if plain is None else (plain.low, plain.high)
        assert bounds == (None if merged is None else (merged.low, merged.high))
        if merged is not None:
            true = pooled[-(-round(q * 100) * len(pooled) // 100) - 1]
            assert merged.low <= true
            assert merged.high is None or true <= merged.high
    assert ttft.mean is None if not pooled else ttft.mean == pytest.approx(sum(pooled) / len(pooled))


def healthy(server: Server) -> None:
    server.engine.set(running=2, kv=0.2).serves(10, batch=2)


def slow(server: Server) -> None:
    server.engine.set(running=2, kv=0.2).serves(4, prefill=6.0, prompt=40000, output=10)


def hung(server: Server) -> None:
    server.engine.set(running=3, kv=0.4)


def model_of(*kinds: object, fails: Sequence[str] = ()) -> ModelReport:
    servers = [Server(name=f"s{n}") for n in range(len(kinds))]
    scene = Scene(*servers)
    scene.rounds(60, lambda: [healthy(server) for server in servers])
    return scene.rounds(
        60, lambda: [kind(server) for kind, server in zip(kinds, servers, strict=True)], fails=fails  # type: ignore[operator]
    )[-1].models[0]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        ((healthy, healthy), "healthy"),
        ((healthy, slow), "prefill_long_prompts"),
        ((slow, slow, hung), "engine_stalled"),
        ((hung, healthy), "engine_stalled"),
    ],
)
def test_a_model_is_healthy_only_where_no_engine_is_in_trouble_and_a_standstill_leads(
    kinds: tuple[object, ...], verdict: str
) -> None:
    model = model_of(*kinds)
    assert model.verdict == verdict
    assert (model.verdict == "healthy") == (model.causes == ())
    assert sum(model.engines.values()) == len(kinds)


def test_engines_that_are_down_count_as_such_and_leave_the_numbers() -> None:
    model = model_of(healthy, healthy, healthy, fails=("s0", "s2"))
    assert model.engines == {"serving": 1, "down": 2}
    assert model.verdict == "healthy"
    assert model.windows[60.0].queue.running == 2


def test_a_model_with_every_engine_down_has_no_verdict_and_no_numbers() -> None:
    model = model_of(healthy, healthy, fails=("s0", "s1"))
    assert (model.engines, model.verdict, model.windows) == ({"down": 2}, None, {})
    assert (model.kv_usage_max, model.kv_usage_mean, model.worst_engine) == (None, None, None)


def test_models_of_one_fleet_are_kept_apart() -> None:
    a, b = Server(name="x", model_name="a"), Server(name="y", model_name="b")
    scene = Scene(a, b)
    models = scene.rounds(90, lambda: (healthy(a), slow(b)))[-1].models
    assert [(model.model_name, model.verdict) for model in models] == [("a", "healthy"), ("b", "prefill_long_prompts")]


def test_what_one_engine_does_not_say_is_unknown_of_the_model() -> None:
    full, bare = Server(name="a"), Server(name="b", http=False)
    scene = Scene(full, bare)
    model = scene.rounds(90, lambda: (healthy(full), healthy(bare)))[-1].models[0]
    assert model.windows[60.0].queue.gave_up_ratio is None
    assert model.windows[60.0].queue.arrivals_per_second == pytest.approx(2.0)
