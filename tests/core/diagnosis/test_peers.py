"""Engines side by side: which of them are compared, and what chance may do to lengths."""

from dataclasses import replace

import pytest

from phasewatch.core.diagnosis.causes.load_imbalance import Tokens, Uneven
from phasewatch.core.diagnosis.peers import Compared, Peer, compare
from phasewatch.core.measures.past import Moment
from phasewatch.core.model import EngineKey
from phasewatch.core.settings import Thresholds

THRESHOLDS = Thresholds()


def one(name: str, **given: object) -> Peer:
    """A healthy engine with a request a second, unless given otherwise."""
    made = Peer(
        key=EngineKey(name, "m", "0"),
        state="serving",
        now=Moment(0.0, 2.0, 4.0, 500.0, 100.0, 0.03, 0.03, False, 0.001),
        ttft_mean=0.2,
        seconds=60.0,
        first_tokens=60.0,
        prompt_mean=400.0,
        output_mean=100.0,
        hits=None,
        running_mean=2.0,
        waiting_mean=0.0,
        waiting_max=0.0,
        queued=False,
        open_connections=40.0,
        verdict="healthy",
        felt=False,
    )
    return replace(made, **given)  # type: ignore[arg-type]


def idle(name: str, **given: object) -> Peer:
    nothing = {"ttft_mean": None, "first_tokens": 0.0, "prompt_mean": None, "output_mean": None, "running_mean": 0.0}
    now = Moment(0.0, 0.0, 0.0, None, None, None, None, False, None)
    return one(name, state="idle", now=now, verdict=None, **nothing, **given)


def queueing(name: str, **given: object) -> Peer:
    return one(name, verdict="queue_batch_limit", queued=True, waiting_mean=30.0, waiting_max=40.0, felt=True, **given)


def verdict(*peers: Peer) -> str | None:
    apart = compare(peers, THRESHOLDS).apart
    return None if apart is None else apart.verdict


def test_an_engine_alone_is_compared_with_nobody() -> None:
    assert compare([queueing("a")], THRESHOLDS) == Compared(None, {})


def test_an_idle_engine_has_room_and_one_that_queues_itself_has_none() -> None:
    assert verdict(queueing("a"), idle("b")) == "load_imbalance"
    assert verdict(queueing("a"), queueing("b")) is None
    assert verdict(queueing("a"), idle("b", waiting_max=3.0)) is None


def test_idle_engines_leave_a_pair_a_pair() -> None:
    slow = one("b", now=Moment(0.0, 2.0, 4.0, 500.0, 100.0, 0.09, 0.09, False, 0.001))
    assert verdict(one("a"), slow) == "replica_outlier"
    assert verdict(one("a"), slow, idle("c"), idle("d")) == "replica_outlier"


@pytest.mark.parametrize(
    ("requests", "times", "named"),
    [
        (60.0, 3.0, True),
        (60.0, 1.4, False),
        (6.0, 3.0, False),
        (6.0, 20.0, True),
        (2000.0, 1.6, True),
        (4.0, 50.0, False),
    ],
)
@pytest.mark.parametrize("field", ["prompt_mean", "output_mean"])
def test_tokens_are_unequal_beyond_what_chance_does_to_so_few(
    field: str, requests: float, times: float, named: bool
) -> None:
    usual = {"prompt_mean": 400.0, "output_mean": 100.0}[field]
    heavy = one("a", first_tokens=requests, **{field: times * usual})
    notes = compare([heavy, one("b", first_tokens=requests)], THRESHOLDS).notes
    assert [note.kind for note in notes.values()] == (["tokens_unequal"] if named else [])


def test_unequal_tokens_are_an_imbalance_only_where_the_loaded_one_suffers_and_others_do_not() -> None:
    heavy = one("a", prompt_mean=5000.0)
    suffering = replace(heavy, felt=True, verdict="prefill_long_prompts")
    assert verdict(heavy, one("b")) is None
    assert verdict(suffering, one("b")) == "load_imbalance"
    assert verdict(suffering, one("b", felt=True, verdict="prefill_long_prompts")) is None


@pytest.mark.parametrize(
    ("mine", "others", "named"), [(330.0, 40.0, True), (42.0, 40.0, False), (70.0, 60.0, False), (8.0, 4.0, True)]
)
def test_connections_count_against_the_sibling_that_has_most(mine: float, others: float, named: bool) -> None:
    peers = [idle("a", open_connections=mine), idle("b", open_connections=others), idle("c", open_connections=3.0)]
    assert (peers[0].key in compare(peers, THRESHOLDS).notes) == named


def test_engines_of_one_page_share_their_connections_and_prove_nothing_by_them() -> None:
    page = [replace(idle("a", open_connections=330.0), key=EngineKey("a", "m", str(n))) for n in range(2)]
    assert compare(page, THRESHOLDS).notes == {}


@pytest.mark.parametrize(
    ("open_now", "pooled"), [((55, 52, 58), True), ((55, 52, 19), False), ((5, 3, 4), True), ((55, None, 58), False)]
)
def test_as_many_connections_on_each_of_idle_siblings_are_a_pool(
    open_now: tuple[float | None, ...], pooled: bool
) -> None:
    peers = [idle(name, open_connections=known) for name, known in zip("abc", open_now, strict=True)]
    assert compare(peers, THRESHOLDS).pooled == pooled
    assert not compare([*peers, one("d", open_connections=55.0)], THRESHOLDS).pooled


def test_a_silence_is_no_chance_from_five_requests_that_were_due_on() -> None:
    def due(count: float) -> Compared:
        return compare([idle("a"), one("b", first_tokens=count)], THRESHOLDS)

    assert not due(4.0).notes
    assert due(5.0).notes


def uneven(**given: object) -> Uneven:
    made = Uneven(("a/0",), 24.0, 30.0, free=3, idle=(), engines=4, hits=None, tokens=None)
    return replace(made, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, "route by load"),
        ({"hits": 0.97}, "loosen session or prefix affinity"),
        ({"tokens": Tokens("prompt", 20_000.0, 1500.0)}, "balance by tokens"),
    ],
)
def test_the_remedy_that_the_evidence_points_to_comes_first(given: dict[str, object], first: str) -> None:
    remedies = [remedy.change for remedy in uneven(**given).remedies]
    assert remedies[0].startswith(first)
    assert len(remedies) == len(set(remedies))
    assert not any(change.startswith("send each idle") for change in remedies)
    assert any(r.change.startswith("send each idle") for r in uneven(idle=("b/0",), **given).remedies)


def test_a_summary_counts_the_engines_with_room_and_the_idle_ones() -> None:
    assert "3 of 4 engines have free capacity and no queue:" in uneven().summary
    assert "(2 idle)" in uneven(idle=("b/0", "c/0")).summary
    assert "have free capacity and no queue and no request at all:" in uneven(idle=("b/0", "c/0", "d/0")).summary
    assert uneven(engines=2, free=1).summary.startswith("The pair differs: ")
