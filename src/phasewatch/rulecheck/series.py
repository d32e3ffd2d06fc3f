"""What is known of a series by its name: phasewatch's own, vLLM's by version, Prometheus' own, and live ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from phasewatch.core.diagnosis.verdicts import VERDICTS
from phasewatch.core.model import CONFIDENCES, SEVERITIES, STATES
from phasewatch.core.pages.catalog import PREFIXES
from phasewatch.core.report.families import ENGINE_TABLES, MODEL_PREFIX, MODEL_TABLES, OTHER_TABLES, PREFIX
from phasewatch.core.report.measure_table import PHASES
from phasewatch.service.yamlfile import nearest

OLDEST, NEWEST = "0.8.5", "0.33.0"
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "gauge": ("",),
    "counter": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
_PROMETHEUS = frozenset({
    "up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling",
    "scrape_series_added", "scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes",
    "ALERTS", "ALERTS_FOR_STATE",
})  # fmt: skip
# Closed sets of label values on phasewatch's series.
_VALUES: Mapping[str, frozenset[str]] = {
    "verdict": frozenset(VERDICTS),
    "state": frozenset(STATES),
    "level": frozenset(CONFIDENCES),
    "severity": frozenset(SEVERITIES),
    "phase": frozenset(phase for phase, _ in PHASES),
}


@dataclass(frozen=True, slots=True)
class Series:
    """problem: why it does not exist, and what to use; "" if it does. other_version: it does in a vLLM not asked for.

    foreign: nothing is known of it. condition: what a server needs to have it. values: closed sets of label values.
    ratio: whether its values lie from 0 to 1.
    """

    problem: str = ""
    other_version: bool = False
    foreign: bool = False
    condition: str = ""
    values: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    ratio: bool = False


@dataclass(frozen=True, slots=True)
class VllmFamily:
    """A row of vllm_names.tsv."""

    name: str
    kind: str
    since: str
    last: str
    condition: str
    instead: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{suffix}" for suffix in _SUFFIXES[self.kind])

    @property
    def created(self) -> str:
        base = self.name.removesuffix("_total") if self.kind == "counter" else self.name
        return "" if self.kind == "gauge" else f"{base}_created"

    def within(self, version: str) -> bool:
        """Whether a version has it; "0.11" is any 0.11.x."""
        asked = _numbers(version)
        return (not self.since or _numbers(self.since)[: len(asked)] <= asked) and (
            not self.last or asked <= _numbers(self.last)[: len(asked)]
        )

    @property
    def span(self) -> str:
        if not self.last:
            return f"exists since vLLM {self.since}"
        return f"ended with vLLM {self.last}" if not self.since else f"exists in vLLM {self.since} to {self.last} only"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@cache
def vllm_families() -> tuple[VllmFamily, ...]:
    text = (files("phasewatch") / "vllm_names.tsv").read_text()
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(
        VllmFamily(name, kind, since, last, condition, instead) for name, kind, since, last, condition, instead in rows
    )


@cache
def phasewatch_series() -> Mapping[str, Series]:
    """Every series phasewatch can export."""
    found: dict[str, Series] = {}
    for prefix, table in ((PREFIX, ENGINE_TABLES), (MODEL_PREFIX, MODEL_TABLES), (PREFIX, OTHER_TABLES)):
        for row in table:
            found[f"{prefix}{row.name}"] = Series(
                values={label: values for label, values in _VALUES.items() if label in row.labels},
                ratio=row.name.endswith("_ratio"),
            )
    return found


class Known:
    """Looks names up. versions: of vLLM, one or more. live: names seen on a running server, empty for none asked."""

    def __init__(self, versions: Iterable[str] = (NEWEST,), live: Iterable[str] = ()) -> None:
        self.versions = tuple(versions)
        self.live = frozenset(live)
        self._families = {family.name: family for family in vllm_families()}
        self._by_name = {name: family for family in vllm_families() for name in (*family.names, family.created) if name}

    def names(self) -> set[str]:
        """All that exist, for a selector by a regular expression of names."""
        vllm = {n for n, f in self._by_name.items() if any(f.within(version) for version in self.versions)}
        return vllm | set(phasewatch_series()) | _PROMETHEUS | self.live

    def of(self, name: str) -> Series:
        if (own := phasewatch_series().get(name)) is not None:
            return own
        plain = next((f"vllm:{name.removeprefix(p)}" for p in PREFIXES if name.startswith(p)), name)
        family = self._by_name.get(plain)
        if family is not None and (name == plain or name.startswith(("ray_", "kserve_"))):
            return self._vllm(name, family)
        if name in self.live or name in _PROMETHEUS:
            return Series()
        if name.startswith(PREFIX):
            return Series(problem=f"phasewatch exports no {name}; {nearest(name, phasewatch_series())}")
        if problem := self._misspelt(name, plain):
            return Series(problem=problem)
        if ":" in name:
            return Series(
                problem=f"{name} is recorded by no rule of these files; check them together with the file that does"
            )
        return Series(foreign=True)

    def _vllm(self, name: str, family: VllmFamily) -> Series:
        known = Series(condition=family.condition, ratio=family.name.endswith(("usage_perc", "hit_rate")))
        lacking = [version for version in self.versions if not family.within(version)]
        if len(lacking) < len(self.versions) or name in self.live:
            return known
        instead = family.instead or "choose another with --vllm, or leave the rule out"
        problem = f"{family.name} {family.span}, and the vLLM asked for is {', '.join(lacking)}; {instead}"
        return replace(known, problem=problem, other_version=True)

    def _misspelt(self, name: str, plain: str) -> str:
        """Why a name that looks like vLLM's is none, or ""."""
        if plain == name and not name.startswith("vllm:"):
            plain = f"vllm:{name}"
            if plain not in self._by_name and plain not in self._families and f"{plain}_total" not in self._families:
                return ""
        family = self._families.get(plain)
        if family is not None and family.kind in ("histogram", "summary"):
            more = " in spite of its name" if plain.endswith("_total") else ""
            return f"{name} is a {family.kind}{more} and has no series of its own; use {_either(family.names)}"
        if plain in self._by_name:
            return f"{name} does not exist; vLLM exposes {plain}"
        for suffix in ("", "_bucket", "_sum", "_count"):
            base = plain.removesuffix(suffix) if suffix else plain
            if f"{base}_total" in self._families:
                kind = self._families[f"{base}_total"].kind
                right = f"{base}_total{suffix if kind == 'histogram' else ''}"
                return f"{name} does not exist: vLLM's {kind} ends in _total; use {right}"
            if suffix and base in self._families:
                return f"{name} does not exist: {base} is a {self._families[base].kind}; use {base} as it is"
        if plain.endswith("_total") and plain.removesuffix("_total") in self._families:
            other = self._families[plain.removesuffix("_total")]
            return f"{name} does not exist: it is a {other.kind}; use {_either(other.names)}"
        there = [n for n, f in self._by_name.items() if any(f.within(version) for version in self.versions)]
        close = nearest(plain, there)
        return f"vLLM never had {name}; {close if close.startswith('did') else 'see the names on its /metrics'}"
