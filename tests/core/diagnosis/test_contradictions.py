"""No remedy contradicts its evidence: a table of what would, held against real recordings and simulated incidents.

Judged every 10 s, which is how often a fleet is usually scraped.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from phasewatch.core.diagnosis.causes._row import NOTHING_NOW
from phasewatch.core.diagnosis.verdicts import REMEDIES
from phasewatch.core.model import Cause, EngineReport, Page, Snapshot
from phasewatch.core.pages.exposition import PageReader
from phasewatch.core.settings import Limit, Objectives, Settings, parse_objectives
from phasewatch.core.watch import Watcher
from support import EXPECTED, real_recording
from tools.simulator import recording
from tools.simulator.scenarios import KINDS, scenario
from tools.simulator.simulation import DownError
from tools.simulator.simulation import Fleet as SimulatedFleet

STEP = 10.0
RECORDINGS = (
    "batch-mixed", "burst", "engine-hang", "frontend-slow", "interference", "kv-exhausted", "large-batch",
    "long-outputs", "max-num-seqs", "preemption", "prefill-backlog", "prefix-off", "queue-tail", "spec-decode-low",
    "stuck-behind",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A remedy in its surroundings. page: of this engine, the last one. value: the number that its change proposes."""

    change: str
    value: float
    cause: Cause
    report: EngineReport
    page: Snapshot
    siblings: tuple[EngineReport, ...]

    @property
    def running(self) -> float:
        return self.page.gauges.get("running", 0.0)

    @property
    def waiting(self) -> float:
        return self.page.gauges.get("waiting_capacity", self.page.gauges.get("waiting", 0.0))

    def proves(self, *verdicts: str) -> bool:
        return any(one.verdict in verdicts and one.score >= 0.5 for one in self.report.causes)

    def told(self, label: str) -> str:
        return self.page.labels.get(label, "None")


def kv_is_short(one: Shown) -> bool:
    return one.page.gauges.get("kv_usage", 0.0) >= 0.95


def streams_are_slow(one: Shown) -> bool:
    return one.proves("decode_batch", "decode_batch_cliff", "decode_preemption")


def nothing_waits(one: Shown) -> bool:
    """Of a cause that is a queue."""
    return one.cause.verdict.startswith("queue_") and one.cause.easing


def pool_is_set(one: Shown) -> bool:
    return one.told("num_gpu_blocks_override") not in ("None", "")


def sibling_is_idle(one: Shown) -> bool:
    return any(other.state == "idle" for other in one.siblings)


def hits(one: Shown) -> float:
    numbers = one.report.numbers
    return (numbers and numbers.tokens.prefix_hit_ratio) or 0.0


def api_server_rests(one: Shown) -> bool:
    cores = one.cause.evidence.get("cpu_cores")
    return isinstance(cores, float) and cores < 0.8


# A remedy's change, which may hold its value, and what makes it wrong.
CONTRADICTIONS: tuple[tuple[str, str, Callable[[Shown], bool]], ...] = (
    (r"--max-num-seqs \d+ -> (\d+)", "the KV cache is short", kv_is_short),
    (r"--max-num-seqs \d+ -> (\d+)", "streams are slow for the batch or evictions", streams_are_slow),
    (r"--max-num-seqs \d+ -> (\d+)", "no more than run already", lambda one: one.value <= one.running),
    (r"--max-num-seqs down to (\d+)", "it is no smaller", lambda one: one.value > one.running + 5),
    (r"--max-num-seqs down", "it only lengthens the queue",
     lambda one: not one.proves("decode_batch", "decode_batch_cliff", "decode_preemption", "queue_kv_cache")),
    (r"--max-num-batched-tokens down to (\d+)", "vLLM does not start with so few", lambda one: one.value < 256),
    (r"--max-num-batched-tokens down", "prompts hold nobody up",
     lambda one: one.cause.verdict not in ("decode_interference", "prefill_blocking")),
    (r"--max-num-batched-tokens up", "streams stall", lambda one: one.proves("decode_interference")),
    (r"--long-prefill-token-threshold (\d+)", "fewer than a block", lambda one: one.value < 16),
    (r"shed load|add (?:a|\d+) replica", "the queue is gone", nothing_waits),
    (r"add (?:a|\d+) replica", "a sibling stands idle", sibling_is_idle),
    (r"--enable-prefix-caching", "it is on", lambda one: one.page.gauges.get("prefix_caching") == 1),
    (r"keep prompt prefixes identical", "they are", lambda one: hits(one) >= 0.8),
    (r"--kv-cache-dtype fp8", "it is so", lambda one: one.told("cache_dtype").startswith("fp8")),
    (r"--kv-cache-dtype fp8|--gpu-memory-util|--kv-cache-memory", "the number of blocks is set", pool_is_set),
    (r"--speculative-config", "drafts are made",
     lambda one: bool(one.report.numbers and one.report.numbers.speculation.acceptance_ratio is not None)),
    (r"--speculative-config", "the batch is large", lambda one: one.proves("decode_batch") or one.running > 64),
    (r"--api-server-count|give the API server", "the API server has CPU to spare", api_server_rests),
    (r"--api-server-count|VLLM_USE_FASTOKENS", "long prompts' steps are what requests wait for",
     lambda one: one.cause.verdict in ("prefill_blocking", "prefill_long_prompts")),
    (r"send shorter prompts: at most about ([\d,]+)", "they are shorter",
     lambda one: one.value > float(re.findall(r"\(([\d,]+) now", one.change)[0].replace(",", ""))),
    (r"send shorter prompts|more compute", "the machine is slow, not the prompts long",
     lambda one: one.cause.verdict == "prefill_slow"),
    (r"kv_load_failure_policy", "no KV blocks come from elsewhere",
     lambda one: one.page.counters.get("external_prompt_tokens", 0.0) == 0 and not one.report.role),
    (r"find and end the longest", "nobody runs", lambda one: one.running == 0),
    (f"^(?!{NOTHING_NOW})", "nothing is to be done about what is over", lambda one: one.cause.easing),
    (NOTHING_NOW, "it goes on", lambda one: not one.cause.easing),
)  # fmt: skip


def contradictions(report: EngineReport, page: Snapshot, siblings: tuple[EngineReport, ...]) -> Iterator[str]:
    for cause in report.causes:
        for remedy in cause.remedies:
            for change, why, wrong in CONTRADICTIONS:
                found = re.search(change, remedy.change)
                if found is None:
                    continue
                value = float(found[1].replace(",", "")) if found.groups() else 0.0
                if wrong(Shown(remedy.change, value, cause, report, page, siblings)):
                    yield f"{cause.verdict} of {cause.symptom}: {remedy.change!r}, though {why}"


def judged(watcher: Watcher, at: float, pages: Mapping[str, Page]) -> tuple[list[str], int]:
    """What contradicts, and how many remedies were held against the table."""
    engines = watcher.evaluate(at).engines
    found, remedies = [], 0
    for report in engines:
        page = pages[report.key.target].engines.get((report.key.model_name, report.key.engine))
        if page is None or report.state in ("stale", "down"):
            continue
        siblings = tuple(one for one in engines if one.key.model_name == report.key.model_name and one is not report)
        found += [f"{at:g} s: {one}" for one in contradictions(report, page, siblings)]
        remedies += sum(len(cause.remedies) for cause in report.causes)
    return found, remedies


def held_against(settings: Settings, entries: Iterator[tuple[float, str, Page | None]]) -> tuple[list[str], int]:
    """entries: seconds, target and its page (None: the scrape failed), in order; judged every 10 s."""
    watcher, pages, found, remedies, due = Watcher(settings), dict[str, Page](), list[str](), 0, STEP
    for at, target, page in entries:
        while due < at:
            if pages:
                more, count = judged(watcher, due, pages)
                found, remedies = found + more, remedies + count
            due += STEP
        if page is None:
            watcher.failure(target, at, "connect")
        else:
            watcher.page(target, page)
            pages[target] = page
    return found, remedies


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_remedy_for_a_real_fault_contradicts_what_was_measured(name: str) -> None:
    def entries() -> Iterator[tuple[float, str, Page | None]]:
        reader = PageReader()
        (target,) = real_recording(name).targets
        for entry in target.entries[::2]:
            yield entry.seconds, target.name, (
                None if entry.reason else reader.read(entry.read(), at=entry.seconds)
            )  # fmt: skip

    settings = Settings(objectives=parse_objectives(EXPECTED[name]["objectives"]))
    found, remedies = held_against(settings, entries())
    assert found == []
    assert remedies > 0


def incident(kind: str, seed: int) -> tuple[list[str], int]:
    made = scenario(kind, seed)
    fleet = SimulatedFleet(made.config, made.seed)
    limits = Objectives({name: Limit(seconds, seconds) for name, seconds in made.objectives.items()})

    def entries() -> Iterator[tuple[float, str, Page | None]]:
        readers: dict[str, PageReader] = {}
        for at, target, page in recording.pages(fleet, made.duration, 5.0):
            reader = readers.setdefault(target, PageReader())
            yield at, target, None if isinstance(page, DownError) else reader.read(page, at=at)

    return held_against(Settings(objectives=limits), entries())


@pytest.mark.parametrize("kind", KINDS)
def test_no_remedy_for_a_simulated_fault_contradicts_what_was_measured(kind: str) -> None:
    found, _ = incident(kind, seed=5)
    assert found == []


def test_every_row_of_the_table_is_of_a_remedy_that_there_is() -> None:
    changes = [remedy.change for remedies in REMEDIES.values() for remedy in remedies] + [NOTHING_NOW]
    for change, _, _ in CONTRADICTIONS:
        literal = re.findall(r"^[\w -]+", change) or [NOTHING_NOW]
        words = literal[0].removesuffix(" to ").strip()
        assert any(words in one for one in changes), change
