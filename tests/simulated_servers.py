"""Small simulated servers for the tests here, and a reader for their pages that knows nothing of phasewatch's own."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from tools.simulator.config import Config, Faults, Flags, Flow, FrontEnd, Length, Machine, Server
from tools.simulator.simulation import Fleet

MACHINE = Machine(step_seconds=0.02, prefill_token_seconds=1e-4, per_request_seconds=1e-4, noise=0.0)
FLAGS = Flags(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=4096, block_size=16, kv_blocks=2001)
# No queue of its own and no distance: what is measured is the engine.
INSTANT = FrontEnd(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def steady(rate: float = 2.0, prompt: float = 200, output: float = 50) -> Flow:
    return Flow(Length(prompt, 0.4, 4, 2000), Length(output, 0.4, 2, 400), rate=rate)


def fleet(
    *flows: Flow,
    flags: Flags = FLAGS,
    faults: Faults | None = None,
    machine: Machine = MACHINE,
    frontend: FrontEnd = INSTANT,
    seed: int = 1,
    **config: object,
) -> Fleet:
    """One server, "demo", that nobody has warmed up."""
    server = Server(machine, flags, frontend, faults or Faults())
    made = replace(Config((server,), flows, warm=False), **config)  # type: ignore[arg-type]
    return Fleet(made, seed)


def series(text: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(page: str | Series, name: str, **labels: str) -> float:
    """Sum of the family's series (vllm: is put in front) that have these labels."""
    found = series(page) if isinstance(page, str) else page
    wanted = set(labels.items())
    return sum(v for (n, have), v in found.items() if n == f"vllm:{name}" and wanted <= set(have))
