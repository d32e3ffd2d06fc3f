"""Rule of evidence 10: peers include the idle, the starting and the missing."""

from collections.abc import Callable, Sequence

import pytest

from agreeing import table
from case_pages import advice, advisory, kinds, said
from phasewatch.commands.diagnose import exit_code
from phasewatch.core.model import Fleet, ModelReport
from vllm_pages import Scene, Server, answer


def everything(fleet: Fleet) -> str:
    """All that is said of engines and models."""
    models = (
        f"{cause.summary} {remedy.change} {remedy.why}"
        for model in fleet.models
        for cause in model.causes
        for remedy in cause.remedies
    )
    return " / ".join((*map(said, fleet.engines), *models))


def drowns(server: Server, *, cached: int = 0) -> None:
    """24 run, more than that are asked for."""
    server.engine.set(running=24, waiting=server.engine.gauges["waiting"] + 6, kv=0.4)
    server.engine.serves(10, queue=6.0, prompt=1000, cached=cached, output=200, batch=24)


def calm(server: Server) -> None:
    server.engine.set(running=2, kv=0.2).serves(10, batch=2)


def sleeps(server: Server) -> None:
    server.engine.set(running=0, waiting=0, kv=0.0)


def fleet_of(*kinds: Callable[[Server], object], seconds: float = 90, fails: Sequence[str] = ()) -> Fleet:
    servers = [Server(name=f"s{n}") for n in range(len(kinds))]
    scene = Scene(*servers)

    def traffic() -> None:
        for server, kind in zip(servers, kinds, strict=True):
            kind(server)

    scene.rounds(40, lambda: [calm(server) for server in servers])
    return scene.rounds(seconds, traffic, fails=fails)[-1]


# --- C38 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", [2, 3, 4, 9])
@pytest.mark.parametrize("interval", [2.0, 5.0, 15.0])
def test_c38_affinity_that_sends_everything_to_one_rank_is_an_imbalance(engines: int, interval: float) -> None:
    servers = [Server(name=f"s{n}") for n in range(engines)]
    scene = Scene(*servers, interval=interval)

    def traffic() -> None:
        hot = servers[0].engine
        hot.set(running=24, waiting=30, kv=0.4)
        hot.serves(max(1, round(interval)), queue=20.0, prompt=1000, cached=970, output=200, batch=24)

    fleet = scene.rounds(90, traffic)[-1]
    (model,) = fleet.models
    assert model.verdict == "load_imbalance"
    assert model.outliers == ("s0/0",)
    cause = model.causes[0]
    assert cause.evidence["prefix_hit_ratio"] == pytest.approx(0.97)
    assert cause.evidence["idle_engines"] == engines - 1
    assert "affinity" in cause.summary
    assert ("The pair differs" in cause.summary) == (engines == 2)
    assert cause.remedies[0].change.startswith("loosen session or prefix affinity")
    assert "add a replica" not in everything(fleet)


def test_c38_without_hits_on_the_loaded_engine_nothing_is_said_of_affinity() -> None:
    fleet = fleet_of(drowns, sleeps, sleeps)
    (model,) = fleet.models
    assert model.verdict == "load_imbalance"
    assert "prefix_hit_ratio" not in model.causes[0].evidence
    assert model.causes[0].remedies[0].change.startswith("route by load")
    assert any(remedy.change.startswith("send each idle replica") for remedy in model.causes[0].remedies)


def test_hits_that_all_engines_have_point_to_no_affinity() -> None:
    def shares(server: Server) -> None:
        server.engine.set(running=2, kv=0.2).serves(4, prompt=1000, cached=900, batch=2)

    fleet = fleet_of(lambda server: drowns(server, cached=970), shares, shares)
    assert fleet.models[0].verdict == "load_imbalance"
    assert "prefix_hit_ratio" not in fleet.models[0].causes[0].evidence


def test_engines_that_all_queue_need_a_replica_and_no_other_routing() -> None:
    fleet = fleet_of(drowns, drowns, drowns)
    assert fleet.models[0].verdict == "queue_batch_limit"
    assert all("add a replica" in advice(one) for one in fleet.engines)


@pytest.mark.parametrize(
    ("sibling", "fails", "named", "more"),
    [
        (sleeps, (), "route requests to s1/0", False),
        (lambda server: server.engine.set(running=0, awake=0), (), "wake s1/0", False),
        (calm, ("s1",), "bring s1/0 back", True),
    ],
)
def test_what_a_sibling_could_serve_comes_before_a_new_replica(
    sibling: Callable[[Server], object], fails: Sequence[str], named: str, more: bool
) -> None:
    hot = fleet_of(drowns, sibling, fails=fails).engines[0]
    assert answer(hot) == "queue_batch_limit"
    assert named in advice(hot)
    assert ("add a replica" in advice(hot)) == more


def test_a_sibling_that_has_just_come_up_gets_its_share_before_there_is_another() -> None:
    first, second = Server(name="s0"), Server(name="s1")
    scene = Scene(first)
    scene.rounds(90, lambda: drowns(first))
    scene.servers = (first, second)
    hot = scene.round(lambda: drowns(first)).engines[0]
    assert "give s1/0 its share first" in advice(hot)
    assert "add a replica" not in advice(hot)


def test_siblings_of_another_model_or_role_are_no_capacity() -> None:
    mine, other = Server(name="x", model_name="a"), Server(name="y", model_name="b")
    scene = Scene(mine, other)
    hot = scene.rounds(90, lambda: drowns(mine))[-1].engines[0]
    assert "add a replica" in advice(hot)


# --- P26 ----------------------------------------------------------------------------------------------------------


def ranks(*prompts: int, one_page: bool, prefill: float) -> Fleet:
    """As many requests each, of these many prompt tokens. prefill: seconds that the longest takes."""
    sizes = (len(prompts),) if one_page else (1,) * len(prompts)
    servers = [Server(size, name=f"s{n}", max_model_len=32768) for n, size in enumerate(sizes)]
    engines = [engine for server in servers for engine in server.engines]

    def traffic() -> None:
        for engine, prompt in zip(engines, prompts, strict=True):
            engine.set(running=2, kv=0.3)
            engine.serves(4, prompt=prompt, prefill=prefill * prompt / max(prompts), output=50, batch=2)

    return Scene(*servers).rounds(90, traffic)[-1]


@pytest.mark.parametrize("one_page", [True, False])
@pytest.mark.parametrize("prompts", [(20_000, 1500), (1500, 20_000, 1500, 1400)])
def test_p26_equal_requests_with_unequal_tokens_are_named_as_that(one_page: bool, prompts: tuple[int, ...]) -> None:
    fleet = ranks(*prompts, one_page=one_page, prefill=4.0)
    (model,) = fleet.models
    assert model.verdict == "load_imbalance"
    cause = model.causes[0]
    assert cause.evidence["times_the_tokens"] == pytest.approx(20_000 / 1500, rel=0.01)
    assert cause.remedies[0].change.startswith("balance by tokens")
    assert "13.3 times the prompt tokens" in cause.summary
    heavy = fleet.engines[prompts.index(20_000)]
    assert model.outliers == (f"{heavy.key.target}/{heavy.key.engine}",)


@pytest.mark.parametrize("one_page", [True, False])
def test_p26_unequal_tokens_that_nobody_suffers_from_are_an_advisory(one_page: bool) -> None:
    fleet = ranks(8000, 600, one_page=one_page, prefill=0.5)
    assert fleet.models[0].verdict == "healthy"
    assert "13.3 times the prompt tokens" in advisory(fleet.engines[0], "tokens_unequal")
    assert "tokens_unequal" not in kinds(fleet.engines[1])
    assert exit_code(fleet) == 0


def test_lengths_that_differ_by_chance_are_not_unequal() -> None:
    fleet = ranks(1500, 1000, 1200, one_page=False, prefill=0.5)
    assert not any("tokens_unequal" in kinds(one) for one in fleet.engines)


def test_more_tokens_of_more_requests_are_not_called_unequal() -> None:
    def many(server: Server) -> None:
        server.engine.set(running=8, kv=0.3).serves(60, prompt=500, batch=8)

    fleet = fleet_of(many, calm, calm)
    assert not any("tokens_unequal" in kinds(one) for one in fleet.engines)


# --- C26 ----------------------------------------------------------------------------------------------------------


def hushed(*, siblings: int, fds: float, busy: bool = True, interval: float = 10.0) -> Fleet:
    """The first has been silent for half an hour with so many open connections; its siblings have 40."""
    servers = [Server(name=f"s{n}") for n in range(siblings + 1)]
    scene = Scene(*servers, interval=interval)
    servers[0].engine.serves(9000)
    servers[0].fds = fds

    def traffic() -> None:
        for server in servers[1:]:
            if busy:
                server.engine.set(running=3, kv=0.2).serves(round(5 * interval), batch=3)

    return scene.rounds(120, traffic)[-1]


@pytest.mark.parametrize("siblings", [1, 2, 7])
@pytest.mark.parametrize("interval", [2.0, 15.0])
def test_c26_an_engine_without_traffic_beside_busy_siblings_is_to_be_probed(siblings: int, interval: float) -> None:
    fleet = hushed(siblings=siblings, fds=330.0, interval=interval)
    dead = fleet.engines[0]
    assert answer(dead) != "healthy"
    text = advisory(dead, "no_traffic")
    assert "No traffic or not serving" in text
    assert "siblings are busy" in text
    assert "330 connections" in text
    assert "Send it one request" in text
    assert exit_code(fleet) == 1
    assert "Nothing to do" not in table(fleet)
    assert "Send it one request" in " ".join(table(fleet).split())
    assert not any("no_traffic" in kinds(one) for one in fleet.engines[1:])


def test_c26_siblings_without_metrics_of_their_process_still_make_silence_suspicious() -> None:
    servers = [Server(name=f"s{n}", process=False, http=False) for n in range(2)]
    scene = Scene(*servers)
    fleet = scene.rounds(90, lambda: servers[1].engine.set(running=3).serves(10, batch=3))[-1]
    assert "No traffic or not serving" in advisory(fleet.engines[0], "no_traffic")


def test_c26_connections_far_above_those_of_every_sibling_are_enough() -> None:
    fleet = hushed(siblings=2, fds=330.0, busy=False)
    assert "no_traffic" in kinds(fleet.engines[0])
    assert exit_code(fleet) == 1


def test_a_quiet_night_is_idle_and_well() -> None:
    fleet = hushed(siblings=2, fds=42.0, busy=False)
    assert [answer(one) for one in fleet.engines] == ["idle"] * 3
    assert not any(kinds(one) for one in fleet.engines)
    assert exit_code(fleet) == 0
    assert "Nothing to do" in table(fleet)


def test_silence_beside_siblings_with_next_to_no_traffic_is_chance() -> None:
    servers = [Server(name=f"s{n}") for n in range(3)]
    scene = Scene(*servers)
    rounds = iter(range(100))

    def traffic() -> None:
        for server in servers[1:]:
            server.engine.serves(1 if next(rounds) % 4 == 0 else 0)

    fleet = scene.rounds(120, traffic)[-1]
    assert "no_traffic" not in kinds(fleet.engines[0])


def test_an_engine_that_sleeps_is_silent_on_purpose() -> None:
    fleet = fleet_of(lambda server: server.engine.set(running=0, awake=0), calm, calm)
    assert answer(fleet.engines[0]) == "asleep"
    assert "no_traffic" not in kinds(fleet.engines[0])


# --- who is slow --------------------------------------------------------------------------------------------------


def paced(itl: float) -> Callable[[Server], object]:
    return lambda server: server.engine.set(running=2, kv=0.2).serves(6, itl=itl, output=100, batch=2)


def outliers(*kinds: Callable[[Server], object]) -> ModelReport:
    return fleet_of(*kinds, seconds=120).models[0]


def test_idle_engines_are_neither_slow_nor_a_majority_that_hides_who_is() -> None:
    model = outliers(paced(0.03), paced(0.07), sleeps, sleeps)
    assert (model.verdict, model.outliers) == ("replica_outlier", ("s1/0",))
    assert "The pair differs" in model.causes[0].summary


def test_one_engine_alone_with_idle_siblings_and_no_symptom_is_healthy() -> None:
    model = outliers(calm, sleeps, sleeps)
    assert (model.verdict, model.outliers) == ("healthy", ())


def test_a_model_says_which_of_its_engines_are_missing() -> None:
    model = fleet_of(calm, calm, calm, fails=("s1",)).models[0]
    assert model.engines == {"serving": 2, "down": 1}
