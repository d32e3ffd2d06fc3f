"""Rule 11: remedies with values from the evidence. Of pairs of recordings, what cured the one is what is proposed."""

from functools import cache
from types import SimpleNamespace

import pytest

from phasewatch.core.diagnosis.causes._row import NOTHING_NOW, Advice, Proposal, fitting
from phasewatch.core.diagnosis.peers import adds_replicas
from phasewatch.core.model import EngineReport, Remedy
from phasewatch.core.pages.exposition import PageReader
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.core.watch import Watcher
from support import EXPECTED, real_recording
from vllm_pages import Scene, Server, answer


@cache
def at(name: str, seconds: float) -> EngineReport:
    """What is said of a recording's engine at that second, of a page every 2 s."""
    watcher, reader = Watcher(Settings(objectives=parse_objectives(EXPECTED[name]["objectives"]))), PageReader()
    (target,) = real_recording(name).targets
    for entry in target.entries:
        if entry.seconds <= seconds and entry.reason is None:
            watcher.page(target.name, reader.read(entry.read(), at=entry.seconds))
            watcher.evaluate(entry.seconds)
    return watcher.evaluate(seconds).engines[0]


def changes(report: EngineReport) -> list[str]:
    return [one.change for one in report.causes[0].remedies]


def named(report: EngineReport, start: str) -> Remedy:
    (found,) = (one for one in report.causes[0].remedies if one.change.startswith(start))
    return found


def test_remedies_come_by_effect_and_at_equal_effect_by_what_they_cost() -> None:
    rows = (
        Advice("buy", "w", "capacity", "s", effect="cures"),
        Advice("look", "w", "now", "s"),
        Advice("never", "w", "now", "s", effect="cures", proposes=lambda case: None),
        Advice("restart", "w", "restart", "s", proposes=lambda case: Proposal("restart with 8", effect="cures")),
        Advice("ease", "w", "restart", "s", effect="eases"),
        Advice("shed", "w", "now", "s", effect="cures"),
    )
    case = SimpleNamespace(view=None)
    assert [one.change for one in fitting(rows, case)] == ["shed", "restart with 8", "buy", "ease", "look"]  # type: ignore[arg-type]


def test_a_batch_limit_over_an_empty_pool_is_raised_to_what_cured_it() -> None:
    report = at("max-num-seqs", 30)
    assert answer(report) == "queue_batch_limit"
    raised = named(report, "--max-num-seqs")
    assert raised.change == "--max-num-seqs 2 -> 16"
    assert "KV cache is 0.8 % used" in raised.why
    assert "(limit 250 ms)" in raised.why


def test_arrivals_against_what_one_serves_give_the_rate_to_admit_and_the_replicas() -> None:
    report = at("max-num-seqs", 100)
    assert changes(report)[0].startswith("shed load: admit at most 0.65 requests/s here (1.4 arrive)")
    assert changes(report)[-1] == "add 2 replicas"
    assert adds_replicas(report.causes[0].remedies[-1])


def test_long_prompts_are_cut_to_what_cured_the_stalls() -> None:
    report = at("stalls-before", 80)
    assert answer(report) == "decode_interference"
    assert "--long-prefill-token-threshold 256" in changes(report)
    assert "(limit 500 ms)" in named(report, "--long-prefill-token-threshold").why


def test_a_larger_token_budget_that_hardly_helped_is_not_proposed() -> None:
    report = at("prefill-backlog", 80)
    assert answer(report) == "queue_prefill_backlog"
    assert not any("max-num-batched-tokens" in one for one in changes(report))
    assert any(one.startswith("send shorter prompts: at most about") for one in changes(report))


def test_a_pool_whose_size_is_set_by_a_flag_grows_by_that_flag_alone() -> None:
    report = at("kv-exhausted", 80)
    assert "remove --num-gpu-blocks-override (now 20 blocks)" in changes(report)
    assert not any("fp8" in one or "memory" in one for one in changes(report))


def test_a_burst_that_is_over_leaves_nothing_to_do_and_one_that_returns_does() -> None:
    assert changes(at("burst", 80)) == [NOTHING_NOW]
    assert any(one.startswith("--max-num-seqs 4 -> ") for one in changes(at("queue-tail", 90)))


def crowded(running: int, itl: float, kv: float) -> EngineReport:
    """Alone first, then as many as may run, and more come than that serves."""
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: server.engine.set(running=1, kv=0.01).serves(3, prompt=200, prefill=0.02, output=100))

    def full() -> None:
        server.engine.set(running=running, waiting=server.engine.gauges["waiting"] + 5, kv=kv)
        server.engine.serves(10, queue=9.0, prompt=200, prefill=0.02, output=100, itl=itl, batch=running)

    return scene.after(90, full)


@pytest.mark.parametrize(
    ("itl", "kv", "proposed"), [(0.02, 0.1, True), (0.02, 0.9, False), (0.09, 0.1, False)], ids=["room", "kv", "pace"]
)
def test_more_requests_a_step_only_where_the_pool_and_the_pace_allow(itl: float, kv: float, proposed: bool) -> None:
    report = crowded(8, itl, kv)
    assert answer(report) == "queue_batch_limit"
    assert any(one.startswith("--max-num-seqs 8 -> ") for one in changes(report)) == proposed
