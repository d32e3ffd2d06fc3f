"""The closed set of verdicts, all derived from the rows of causes/; two verdicts are no cause."""

from collections.abc import Mapping

from phasewatch.core.diagnosis.causes import CAUSES
from phasewatch.core.diagnosis.causes._row import VerdictRow
from phasewatch.core.model import Remedy
from phasewatch.core.pages.catalog import CORE_SIGNALS

HEALTHY = VerdictRow(
    verdict="healthy",
    phase="none",
    look="Nothing. If users still complain, compare what they measure: network or proxy.",
)
UNKNOWN = VerdictRow(
    verdict="unknown",
    phase="unknown",
    look="Which signals are missing (phasewatch itself), then **Phases** for the largest part.",
)
VERDICT_TABLE: tuple[VerdictRow, ...] = (HEALTHY, UNKNOWN, *CAUSES)
VERDICTS: tuple[str, ...] = tuple(row.verdict for row in VERDICT_TABLE)

# Judged before everything else, taken at once, true even when the engine no longer counts as serving.
LIVENESS: tuple[str, ...] = tuple(row.verdict for row in CAUSES if row.liveness)
# More is asked than is served now.
DEMAND: tuple[str, ...] = tuple(row.verdict for row in CAUSES if row.demand)
REMEDIES: Mapping[str, tuple[Remedy, ...]] = {
    row.verdict: tuple(advice.remedy for advice in row.remedies) for row in CAUSES
}
# What a full diagnosis reads: its absence is worth naming.
EXPECTED: tuple[str, ...] = tuple(
    dict.fromkeys((*CORE_SIGNALS, *(name for row in CAUSES for name in (*row.needs, *row.uses))))
)
