"""P25 and its kind: in a closed loop, and in a batch that is drained, arrivals follow the service."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import Run
from tools.simulator.config import Config, Flags, Flow, Length, Machine
from tools.simulator.config import Server as Simulated
from tools.simulator.recording import pages
from tools.simulator.simulation import Fleet
from vllm_pages import Server

Found = dict[str, Any]


def found_in(run: Run, before: Path, after: Path) -> Found:
    code, out, err = run("compare", before, after, "--format", "json")
    assert err == ""
    (model,) = json.loads(out)["models"]
    assert code == (model["conclusion"] == "not comparable")
    return dict(model)


# --- P25 ----------------------------------------------------------------------------------------------------------


def drained(folder: Path, seconds_each: float, *, queued: bool, blocks: int = 40_000, interval: int = 2) -> Path:
    """640 requests, 64 of which run at a time. queued: all were sent at once and wait in the server."""
    server, left, at = Server(), 640, 0
    server.engine.blocks = blocks
    (folder / "s").mkdir(parents=True)
    while at < 300:
        if at >= 14 and left:
            done = min(left, round(64 / seconds_each * interval))
            left -= done
            wait = (640 - left) / 64 * seconds_each if queued else 0.0
            running = min(64, left)
            server.engine.set(running=running, waiting=max(0, left - running) if queued else 0, kv=0.5 if left else 0.0)
            server.engine.serves(done, queue=wait, itl=seconds_each / 100, output=100, batch=64)
        else:
            server.engine.set(running=0, waiting=0, kv=0.0)
        (folder / "s" / f"{at}.prom").write_text(server.text())
        at += interval
    return folder


@pytest.mark.parametrize("queued", [True, False])
def test_p25_a_batch_that_takes_twice_as_long_to_drain_is_worse(run: Run, tmp_path: Path, queued: bool) -> None:
    before = drained(tmp_path / "before", 8.0, queued=queued)
    after = drained(tmp_path / "after", 16.0, queued=queued)
    there, back = found_in(run, before, after), found_in(run, after, before)
    assert (there["conclusion"], back["conclusion"]) == ("worse", "better")
    assert there["sentence"].startswith("Worse at the same concurrency (")
    assert "requests take twice as long" in there["sentence"]
    assert "requests take half as long" in back["sentence"]
    load = {row["name"]: row["alike"] for row in there["load"]}
    assert (load["arrivals"], load["in_flight"]) == (False, True)


def test_p25_what_else_moved_is_said_beside_the_verdict(run: Run, tmp_path: Path) -> None:
    before = drained(tmp_path / "before", 8.0, queued=False, blocks=40_000)
    found = found_in(run, before, drained(tmp_path / "after", 16.0, queued=False, blocks=20_000))
    assert "Worse because KV cache capacity halved (640,000 tokens, then 320,000 tokens)" in found["sentence"]
    assert "Configuration changed: num_gpu_blocks 40000 -> 20000." in found["sentence"]
    assert found["changed"] == [{"name": "num_gpu_blocks", "before": "40000", "after": "20000"}]
    out = run("compare", before, tmp_path / "after")[1]
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in out.splitlines()}
    assert lines["KV capacity"] == "KV capacity 640,000 tokens 320,000 tokens -50 %"
    assert lines["in flight"].endswith("alike")


# --- simulated: closed loops, open loops, and both at once ----------------------------------------------------------

QUICK = Machine(step_seconds=0.02, prefill_token_seconds=1 / 5000)
SLOW = Machine(step_seconds=0.04, prefill_token_seconds=1 / 2500)
ROOMY = Flags()


def asks(mean: float) -> Length:
    return Length(mean, 0.3, 8, round(3 * mean))


def clients(count: int, *, prompt: float = 300, output: float = 120, think: float = 0.0) -> Flow:
    return Flow(asks(prompt), asks(output), clients=count, think=think, ramp=2.0, name=f"c{prompt:.0f}")


def arrivals(rate: float, *, prompt: float = 300, output: float = 120) -> Flow:
    return Flow(asks(prompt), asks(output), rate=rate, name=f"o{prompt:.0f}")


def recorded(
    folder: Path, *flows: Flow, machine: Machine = QUICK, flags: Flags = ROOMY, seed: int = 1, interval: float = 5.0
) -> Path:
    fleet = Fleet(Config((Simulated(machine, flags),), flows), seed)
    for at, name, page in pages(fleet, 110.0, interval):
        path = folder / name / f"{at:g}.prom"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(page))
    return folder


@pytest.mark.parametrize("think", [0.0, 4.0])
@pytest.mark.parametrize("count", [4, 24])
def test_arrivals_of_a_closed_loop_that_double_with_the_service_are_no_other_load(
    run: Run, tmp_path: Path, think: float, count: int
) -> None:
    flow = clients(count, think=think)
    slow = recorded(tmp_path / "slow", flow, machine=SLOW)
    quick = recorded(tmp_path / "quick", flow, seed=2)
    assert found_in(run, slow, quick)["conclusion"] == "better"
    back = found_in(run, quick, slow)
    assert back["conclusion"] == "worse"
    assert "arrivals follow the service" in back["sentence"] or think


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((arrivals(1.5),), (arrivals(3.0),)),
        ((arrivals(3.0),), (arrivals(1.5),)),
        ((arrivals(2.0),), (arrivals(2.0, prompt=600),)),
        ((clients(8),), (clients(16),)),
        ((clients(16),), (clients(8),)),
        ((clients(8),), (clients(8, output=200),)),
        ((clients(8), clients(8, prompt=1600)), (clients(14), clients(2, prompt=1600))),
    ],
)
def test_a_load_that_really_differs_is_not_comparable(
    run: Run, tmp_path: Path, before: tuple[Flow, ...], after: tuple[Flow, ...]
) -> None:
    found = found_in(run, recorded(tmp_path / "a", *before), recorded(tmp_path / "b", *after, seed=2))
    assert found["conclusion"] == "not comparable"
    assert "the load differs by more than 20 %" in found["sentence"]


@pytest.mark.parametrize("seed", [1, 2])
def test_answers_that_grow_because_streams_are_served_more_often_are_no_other_load(
    run: Run, tmp_path: Path, seed: int
) -> None:
    flows = (clients(4, prompt=60, output=300), arrivals(0.5, prompt=2500, output=10))
    slow = recorded(tmp_path / "slow", *flows, machine=SLOW, seed=seed)
    found = found_in(run, slow, recorded(tmp_path / "quick", *flows, seed=seed + 10))
    load = {row["name"]: row for row in found["load"]}
    assert load["output_length"]["after"] > 1.2 * load["output_length"]["before"]
    assert found["conclusion"] == "better"
    assert "the mix follows the service" in found["sentence"]


def test_a_smaller_batch_in_a_closed_loop_is_mixed_and_says_which_phase_pays(run: Run, tmp_path: Path) -> None:
    heavy = replace(QUICK, per_request_seconds=0.002)
    before = recorded(tmp_path / "before", clients(32), machine=heavy)
    after = recorded(tmp_path / "after", clients(32), machine=heavy, flags=replace(ROOMY, max_num_seqs=8), seed=2)
    found = found_in(run, before, after)
    assert found["conclusion"] == "mixed"
    assert found["sentence"].startswith("Mixed (ITL better, TTFT and e2e worse) at the same concurrency (")
    assert any(reason.startswith("waiting rose") for reason in found["why"])
    assert any(reason.startswith("running fell") for reason in found["why"])


def test_the_same_closed_loop_twice_is_no_change(run: Run, tmp_path: Path) -> None:
    found = found_in(run, recorded(tmp_path / "a", clients(12)), recorded(tmp_path / "b", clients(12), seed=2))
    assert found["conclusion"] == "same"
    assert found["why"] == []
