"""How near the simulator is to a real vLLM: each recording's real arrivals, sent through a simulated server.

    python -m benchmarks.simulator [RECORDINGS]

The machine is calibrated by two measured numbers (recordings/README.md: a decode step takes about 40 ms, a 3,200-token
prompt about 2.2 s); everything else is the recording's own server flags, its story, or follows from the model's shape.
Prints simulated/measured phase means, the largest gauges of both, and whether families and bucket edges are the same.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.recorded import RECORDINGS, TRUTH, name_of, opened, recordings_in, truth_of
from phasewatch.sources.recording import RecordingError, timeline
from tools.simulator.config import Arrival, Config, Faults, Flags, FrontEnd, Machine, Server, Speculation
from tools.simulator.simulation import DownError, Fleet
from tools.simulator.speed import stop_and_go

STEP_SECONDS = 0.040
PREFILL_TOKEN_SECONDS = 2.2 / 3200
# From the shape: 16 layers of (2 x 1024^2 + 2 x 1024 x 256 + 3 x 1024 x 11008) weights of 2 bytes are read in one step;
# a context token holds 16 x 2 x 4 x 64 values of 2 bytes. Both go through the same memory.
_WEIGHT_BYTES = 16 * (2 * 1024**2 + 2 * 1024 * 256 + 3 * 1024 * 11008) * 2
CONTEXT_TOKEN_SECONDS = STEP_SECONDS * (16 * 2 * 4 * 64 * 2) / _WEIGHT_BYTES
# On a CPU a decoded token costs as much arithmetic as a prompt token.
MACHINE = Machine(STEP_SECONDS, PREFILL_TOKEN_SECONDS, PREFILL_TOKEN_SECONDS, CONTEXT_TOKEN_SECONDS)
# vllm-metrics.md 6.1: CPU defaults; README: 4,096 positions, 1 GiB of KV in blocks of 128 tokens.
FLAGS = Flags(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096, block_size=128, kv_blocks=512)

PHASES = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "e2e": "e2e_request_latency_seconds",
}
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
# Means shorter than this are equal: it is less than a step.
SHORT_SECONDS = 0.02

# What the stories say beyond flags: (engine or front end) faults, prompts that share heads, clients' patience.
FAULTS = {
    "engine-hang": Faults(engine_speed=((35, 0), (80, 1))),
    "engine-hang-idle": Faults(engine_speed=((35, 0), (80, 1))),
    "slow-engine": Faults(engine_speed=((60, 0.5),)),
    "frontend-slow": Faults(frontend_speed=stop_and_go(5.0, 120.0, 0.5, 2.0)),
    "restart": Faults(restart=(40.0, 67.0)),
    "pauses": Faults(engine_speed=stop_and_go(40.0, 120.0, 1.5, 0.3)),
}
# Two engines share the two cores.
MACHINES = {
    "two-engines": replace(MACHINE, step_seconds=2 * STEP_SECONDS, prefill_token_seconds=2 * PREFILL_TOKEN_SECONDS)
}
TIMEOUTS = {"client-aborts": 6.0, "mass-abort": 30.0}
SERVER_ARGS = {
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--num-gpu-blocks-override": "kv_blocks",
    "--max-model-len": "max_model_len",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--data-parallel-size": "data_parallel",
    "--api-server-count": "api_servers",
}

Series = dict[str, float]


def flags_of(arguments: list[str]) -> Flags:
    flags = FLAGS
    for name, value in zip(arguments, [*arguments[1:], ""], strict=False):
        if name in SERVER_ARGS:
            flags = replace(flags, **{SERVER_ARGS[name]: int(value)})  # type: ignore[arg-type]
        elif name == "--no-enable-prefix-caching":
            flags = replace(flags, prefix_caching=False)
        elif name == "--speculative-config":
            drafts = json.loads(value)["num_speculative_tokens"]
            # Random text: n-gram lookup seldom finds anything, and what it finds is wrong.
            flags = replace(flags, speculation=Speculation(drafts, acceptance=0.01, proposals=0.12))
    return flags


def head_of(name: str, request: dict[str, Any]) -> tuple[str, int] | None:
    if name.startswith("prefix"):
        return ("system", 2500)
    if name == "long-context" and request["prompt"] > 1000:
        return ("context", request["prompt"])
    return None


def config_of(name: str, truth: dict[str, Any]) -> Config:
    arrivals = tuple(
        Arrival(
            each["send"],
            each["prompt"],
            each["max_tokens"],
            head=head_of(name, each),
            timeout=TIMEOUTS.get(name),
        )
        for each in truth["requests"]
    )
    server = Server(MACHINES.get(name, MACHINE), flags_of(truth["server_args"]), FrontEnd(), FAULTS.get(name, Faults()))
    return Config((server,), arrivals=arrivals)


# --- reading pages -------------------------------------------------------------------------------------------------


def series_of(text: str) -> Series:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def shape_of(text: str) -> tuple[set[str], set[str]]:
    """HELP and TYPE lines, and series without values (label values of info series and generations apart)."""
    lines = text.splitlines()
    heads = {line for line in lines if line.startswith("#")}
    series = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    return heads, {each for each in series if not each.startswith(("vllm:cache_config_info", "python_info"))}


def added(pages: list[Series], family: str, part: str) -> float:
    """Growth of a histogram's sum or count over all engines; after a restart what is there is new."""
    total, before = 0.0, None
    for page in pages:
        count = sum(v for n, v in page.items() if n.startswith(f"vllm:{family}_count"))
        value = sum(v for n, v in page.items() if n.startswith(f"vllm:{family}_{part}"))
        if before is not None:
            total += value - before[1] if count >= before[0] else value
        before = (count, value)
    return total


def largest(pages: list[Series], gauge: str) -> float:
    values = [v for page in pages for n, v in page.items() if n.startswith(f"vllm:{gauge}{{")]
    return max(values, default=0.0)


@dataclass(frozen=True)
class Comparison:
    """Means in seconds and largest gauges, (simulated, measured)."""

    name: str
    means: dict[str, tuple[float | None, float | None]]
    gauges: dict[str, tuple[float, float]]
    same_families: bool
    same_series: bool


def mean(pages: list[Series], family: str) -> float | None:
    count = added(pages, family, "count")
    return added(pages, family, "sum") / count if count else None


def compare(path: Path) -> Comparison:
    recording = opened(path)
    truth = truth_of(recording)
    if truth is None:
        raise RecordingError(f"{path} has no {TRUTH}: nothing tells what its clients sent")
    fleet = Fleet(config_of(name_of(path), truth), truth["seed"])
    measured: list[Series] = []
    simulated: list[Series] = []
    texts: list[tuple[str, str]] = []
    for seconds, _, entry in timeline(recording):
        if entry.reason is not None:
            continue
        fleet.advance(seconds)
        text = entry.read()
        measured.append(series_of(text))
        try:
            mine = fleet.page("demo")
        except DownError:
            continue
        simulated.append(series_of(mine))
        texts.append((mine, text))
    (mine_heads, mine_series), (heads, series) = shape_of(texts[-1][0]), shape_of(texts[-1][1])
    return Comparison(
        name_of(path),
        {phase: (mean(simulated, family), mean(measured, family)) for phase, family in PHASES.items()},
        {gauge: (largest(simulated, gauge), largest(measured, gauge)) for gauge in GAUGES},
        mine_heads == heads,
        mine_series == series,
    )


def within(pair: tuple[float | None, float | None], factor: float = 2.0) -> bool:
    mine, real = pair
    if mine is None or real is None:
        return mine is real
    if max(mine, real) <= SHORT_SECONDS:
        return True
    return bool(mine) and bool(real) and 1 / factor <= mine / real <= factor


def comparable(pair: tuple[float | None, float | None]) -> bool:
    """Neither side is without observations, and it is not too short to say anything."""
    mine, real = pair
    return (mine is None) != (real is None) or max(mine or 0.0, real or 0.0) > SHORT_SECONDS


def cell(pair: tuple[float | None, float | None]) -> str:
    mine, real = pair
    if mine is None or real is None:
        return "-"
    if max(mine, real) <= SHORT_SECONDS:
        return "short"
    return f"{mine / real:.2f}" if real else "inf"


def main(arguments: list[str]) -> int:
    print(
        f"{'recording':24}"
        + "".join(f"{phase:>9}" for phase in PHASES)
        + "   running   waiting      kv      families series"
    )
    good = total = left_out = 0
    for path in recordings_in(Path(arguments[0]) if arguments else RECORDINGS):
        row = compare(path)
        cells = "".join(f"{cell(pair):>8}{' ' if within(pair) else '!'}" for pair in row.means.values())
        gauges = "".join(f"{mine:6.3g}/{real:<5.3g}" for mine, real in row.gauges.values())
        same = "".join(f"  {'same' if each else 'DIFFER':8}" for each in (row.same_families, row.same_series))
        print(f"{row.name:24}{cells} {gauges}{same}")
        compared = [pair for pair in row.means.values() if comparable(pair)]
        good += sum(map(within, compared))
        total += len(compared)
        left_out += len(row.means) - len(compared)
    print(f"{good} of {total} phase means within 2x (! marks the others); {left_out} short or without observations")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RecordingError as error:
        print(f"simulator: {error}", file=sys.stderr)
        sys.exit(2)
