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


# What a change does to the cause: takes it away, takes a part of it away or moves it elsewhere, or may help.
Effect = Literal["cures", "eases", "helps"]
_EFFECTS: tuple[Effect, ...] = ("cures", "eases", "helps")
_COSTS = ("now", "restart", "capacity")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the evidence makes of a remedy: words in place of its row's (empty: the row's), and its effect here."""

    change: str = ""
    why: str = ""
    side_effect: str = ""
    effect: Effect | None = None


AS_WRITTEN = Proposal()


def always(_: WindowView) -> bool:
    """Of an advice that needs no condition."""
    return True


def as_written(_: Case) -> Proposal | None:
    """Of an advice without a number."""
    return AS_WRITTEN


@dataclass(frozen=True, slots=True)
class Advice(Remedy):
    """A remedy as the table has it. where: the condition in words, for the runbook, which knows no evidence.

    fits: whether it can help, by what was measured. proposes: with which value; None where none helps.
    """

    effect: Effect = "helps"
    where: str = ""
    fits: Callable[[WindowView], bool] = always
    proposes: Callable[[Case], Proposal | None] = as_written

    @property
    def remedy(self) -> Remedy:
        """As the document shows it."""
        return self.proposed(AS_WRITTEN)

    def proposed(self, one: Proposal) -> Remedy:
        return Remedy(
            one.change or self.change, one.why or self.why, self.when, one.side_effect or self.side_effect, self.since
        )


def fitting(remedies: Sequence[Advice], case: Case) -> tuple[Remedy, ...]:
    """Those that hold here, by effect, at equal effect by cost: now, with a restart, with more capacity."""
    held = [(one, one.proposes(case)) for one in remedies if one.fits(case.view)]
    kept = [(one, proposal) for one, proposal in held if proposal is not None]
    kept.sort(key=lambda pair: (_EFFECTS.index(pair[1].effect or pair[0].effect), _COSTS.index(pair[0].when)))
    return tuple(one.proposed(proposal) for one, proposal in kept)


NOTHING_NOW = "nothing to do now"


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
    as serving. demand: more is asked than is served now, so it leads whatever else is proven. watch: what would show
    that it comes back once it eases.
    """

    remedies: tuple[Advice, ...]
    rule: Callable[[Case], Finding | None] | None = None
    families: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()
    liveness: bool = False
    demand: bool = False
    watch: str = ""

    def cause(
        self, symptom: str, finding: Finding, confidence: Confidence, *, case: Case | None, missing: Sequence[str]
    ) -> Cause:
        """The finding as a cause of this row. case: decides which remedies fit; None leaves all. Nothing is to be done
        about what is over."""
        if finding.easing:
            remedies: tuple[Remedy, ...] = (Remedy(NOTHING_NOW, f"it eases; watch {self.watch}", "now", "none"),)
        elif case is None:
            remedies = tuple(one.remedy for one in self.remedies)
        else:
            remedies = fitting(self.remedies, case)
        return Cause(
            verdict=self.verdict,
            symptom=symptom,
            score=finding.score,
            confidence=confidence,
            evidence=finding.evidence,
            summary=finding.summary,
            remedies=remedies,
            refuted_by=finding.refuted_by,
            easing=finding.easing,
            missing=tuple(missing),
        )


TTFT = ("ttft",)
PACE = ("itl", "tpot")
QUEUE_SIGNALS = ("running", "waiting", "kv_usage", "ttft")
PREFILL_TIME_SIGNALS = ("prefill", "iteration_tokens", "prompt_tokens", "start_time")
