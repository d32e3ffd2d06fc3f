"""First tokens are slow because a prompt token takes longer to compute than it did: the machine, not the prompts."""

from phasewatch.core.diagnosis.causes._prefill import of_excess, prefill_leads
from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, percent, seconds


def _prefill_slow(case: Case) -> Finding | None:
    share, pace, times = prefill_leads(case), case.past.prefill_pace, case.prefill_times_slower
    if share is None or pace is None or times is None:
        return None
    view = case.view
    took = case.ttft.by_phase["prefill"]
    return Finding(
        of_excess(case, share * (1 - 1 / times)),
        known(
            prefill_seconds=took,
            prefill_share_of_ttft=share,
            tokens_per_second=1 / pace,
            tokens_per_second_before=times / pace,
            computed_prompt_tokens_mean=view.numbers.tokens.computed_prompt_mean,
            running_max=view.running_max,
            prefill_time_ratio=view.numbers.prefill_time_ratio,
        ),
        f"Prefill accounts for {seconds(took)} of TTFT ({percent(share)}), and this engine computes"
        f" {number(1 / pace)} prompt tokens/s where it computed {number(times / pace)} before, at such lengths and"
        f" loads: the length of prompts is not why.{_PAUSES if view.mostly_alone else ''}",
        "prompt tokens computed as fast as before.",
        at_most="low" if view.mostly_alone else "high",
    )


_PAUSES = " One request at a time comes after pauses: clocks and power states that fall meanwhile may be all of it."


# fmt: off
CAUSE = CauseRow(
    verdict="prefill_slow",
    phase="prefill",
    look="Prefill the largest of the **Phases** while **Prompt length** has not changed.",
    rule=_prefill_slow,
    families=TTFT,
    needs=("ttft", "prefill", "prompt_tokens"),
    uses=("queue", "computed_prompt_length"),
    remedies=(
        Advice("wait until the LoRA adapters are loaded, and keep those in use resident (--max-cpu-loras)",
            "requests of an adapter compute only after its weights are there", "now", "ITL does not change",
            where="adapters are being loaded", fits=lambda view: view.adapters_loading),
        Advice("check the host: GPU clocks and power limit (nvidia-smi -q -d CLOCK,POWER), temperature, CPU load",
            "prefill is bound by compute, so lower clocks show here first", "now", "ITL improves as well"),
        Advice("look for other work on the card (nvidia-smi: processes, memory, utilisation)",
            "a second process takes its part of the compute", "now", "ITL improves as well"),
        Advice("restart the engine as a test, with its traffic elsewhere",
            "what got slower within the process is then as fast as before", "restart",
            "requests in flight and cached prefixes are lost"),
    ),
)
# fmt: on
