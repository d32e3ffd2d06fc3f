"""What the named cases need besides vllm_pages: families of special deployments, steps that streams and prompts
share, and all that a report says to a human."""

from collections import Counter

from phasewatch.core.model import EngineReport
from vllm_pages import Engine, Server


class Richer(Server):
    """A server whose page also has families that only some deployments have.

    more: value by sample as written (`vllm:spec_decode_num_drafts_total{model_name="m",engine="0"}`); set or add.
    """

    more: Counter[str]

    def text(self) -> str:
        lines: list[str] = []
        for sample, value in getattr(self, "more", {}).items():
            name = sample.partition("{")[0]
            kind = "counter" if name.endswith("_total") else "gauge"
            declared = f"# TYPE {name} {kind}"
            lines += (*((declared,) if declared not in lines else ()), f"{sample} {value}")
        return super().text() + "".join(f"{line}\n" for line in lines)

    def adds(self, family: str, amount: float, **labels: str) -> None:
        """To a counter of the first engine, or a labelled one of it."""
        if not hasattr(self, "more"):
            self.more = Counter()
        self.more[f"vllm:{family}{self.engine.labels(**labels)}"] += amount  # type: ignore[assignment]

    def restart(self, at: float) -> None:
        super().restart(at)
        self.more = Counter()


def shares_steps(
    engine: Engine, requests: int, *, carrying: int, batch: float, itl: float, prompt: int, output: int, prefill: float,
    queue: float = 0.0, outside: float = 0.005, late: float = 0.0,
) -> None:  # fmt: skip
    """Requests of a busy engine: `carrying` of its steps compute prompts (several at a time) and serve `batch` streams
    as well; the others only serve streams. late: seconds by which their last chunks reach the client late."""
    engine.observe("time_to_first_token_seconds", queue + prefill + outside, requests)
    gaps = requests * (output - 1)
    engine.observe("inter_token_latency_seconds", itl, gaps)
    engine.observe("iteration_tokens_total", batch, round(gaps / batch) - carrying)
    engine.observe("iteration_tokens_total", batch + requests * prompt / carrying, carrying)
    for name in ("prompt_tokens_total", "computed", "prefix_cache_queries_total"):
        engine.counters[name] += requests * prompt
    engine.counters["generation_tokens_total"] += requests * output
    engine.finishes(
        requests, queue=queue, prefill=prefill, decode=itl * (output - 1), outside=outside, prompt=prompt,
        output=output, late=late,
    )  # fmt: skip


def blamed(report: EngineReport) -> set[str]:
    return {cause.verdict for cause in report.causes}


def kinds(report: EngineReport) -> set[str]:
    """Of its advisories."""
    return {one.kind for one in report.advisories}


def advisory(report: EngineReport, kind: str) -> str:
    """What the one of this kind says."""
    (found,) = (one for one in report.advisories if one.kind == kind)
    return f"{found.summary} {found.remedy}"


def advice(report: EngineReport) -> str:
    """What the leading cause says to change."""
    return " / ".join(f"{one.change}: {one.why}" for one in report.causes[0].remedies) if report.causes else ""


def said(report: EngineReport) -> str:
    """Everything that is said to a human."""
    causes = [f"{one.summary} {one.refuted_by}" for one in report.causes]
    notes = [f"{one.summary} {one.remedy}" for one in report.advisories]
    return " / ".join((report.summary, *causes, advice(report), *notes))
