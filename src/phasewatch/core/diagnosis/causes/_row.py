"""What one file says of its verdict: a row, from which the closed set and all that is shown of it derive."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.model import Cause, Confidence, Remedy

# Where the time goes, or what else is the matter: dashboards colour a verdict by it.
Phase = Literal[
    "none", "unknown", "progress", "failures", "queue", "prefill", "frontend", "decode", "answers", "replicas"
]
Evidence = Mapping[str, float | str]


def known(**values: float | str | None) -> dict[str, float | str]:
    """Evidence without what could not be measured."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found. score: share of the excess, 0 to 1. eliminated: proven only by ruling the others out.
    at_most: the confidence that this evidence can bear."""

    score: float
    evidence: Evidence
    summary: str
    refuted_by: str
    easing: bool = False
    eliminated: bool = False
    at_most: Confidence = "high"


def always(_: WindowView) -> bool:
    """Of an advice that needs no condition."""
    return True


@dataclass(frozen=True, slots=True)
class Advice(Remedy):
    """A remedy as the table has it. fits: whether it can help, by what was measured."""

    fits: Callable[[WindowView], bool] = always

    @property
    def remedy(self) -> Remedy:
        """As the document shows it."""
        return Remedy(self.change, self.why, self.when, self.side_effect, self.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """look: the panels of the triage dashboard that show it, each in bold, or what else to look at."""

    verdict: str
    phase: Phase
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow(VerdictRow):
    """A verdict that explains something.

    remedies: first what can be done now. rule: explains symptoms of `families`; None where progress or peers prove it.
    needs: signals without which the rule abstains. uses: signals without which confidence drops one step and `missing`
    names them. feature: signals that only deployments with the feature have, so that their absence is no loss; the
    rule abstains. liveness: judged before everything else, taken at once, true even when the engine no longer counts
    as serving. demand: more is asked than is served now, so it leads whatever else is proven.
    """

    remedies: tuple[Advice, ...]
    rule: Callable[[Case], Finding | None] | None = None
    families: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()
    liveness: bool = False
    demand: bool = False

    def cause(
        self, symptom: str, finding: Finding, confidence: Confidence, *, view: WindowView | None, missing: Sequence[str]
    ) -> Cause:
        """The finding as a cause of this row. view: decides which remedies fit; None leaves all."""
        return Cause(
            verdict=self.verdict,
            symptom=symptom,
            score=finding.score,
            confidence=confidence,
            evidence=finding.evidence,
            summary=finding.summary,
            remedies=tuple(one.remedy for one in self.remedies if view is None or one.fits(view)),
            refuted_by=finding.refuted_by,
            easing=finding.easing,
            missing=tuple(missing),
        )


TTFT = ("ttft",)
PACE = ("itl", "tpot")
QUEUE_SIGNALS = ("running", "waiting", "kv_usage", "ttft")
PREFILL_TIME_SIGNALS = ("prefill", "iteration_tokens", "prompt_tokens", "start_time")
