"""What is known of a series by its name: phasewatch's own, vLLM's by version, Prometheus' own, and live ones."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import inf

from phasewatch.core.diagnosis.verdicts import VERDICTS
from phasewatch.core.model import CONFIDENCES, SEVERITIES, STATES
from phasewatch.core.pages.catalog import PREFIXES
from phasewatch.core.report.families import ENGINE_TABLES, MODEL_PREFIX, MODEL_TABLES, OTHER_TABLES, PREFIX
from phasewatch.core.report.measure_table import WINDOW_ROWS
from phasewatch.core.report.status_table import LIMIT_ROWS, TARGET_ROWS
from phasewatch.service.yamlfile import nearest

# Every scrape adds them.
SCRAPED = frozenset({"instance", "job"})
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
})  # fmt: skip
_ALERTS = frozenset({"ALERTS", "ALERTS_FOR_STATE"})
# Closed sets of label values on phasewatch's series.
_VALUES: Mapping[str, frozenset[str]] = {
    "verdict": frozenset(VERDICTS),
    "state": frozenset(STATES),
    "level": frozenset(CONFIDENCES),
    "severity": frozenset(SEVERITIES),
    "phase": frozenset({"queue", "prefill", "decode", "frontend"}),
}
_OWN_LABELS = frozenset({"target", "model_name", "engine", "window", "le"}).union(
    *(row.labels for row in (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES))
)
_FLAGS = re.compile(r"diagnosis(_confidence)?|engine_state|objective_missed\w*|target_up|expected_wait_censored")


@dataclass(frozen=True, slots=True)
class Series:
    """kind: gauge, counter, bucket or "" (not known). problem: why it does not exist, and what to use; "" if it does.

    other_version: it exists in a vLLM that was not asked for. condition: what a server needs to have it.
    sure, never: labels it always and never carries. values: closed sets of label values. low, high: what it can be.
    """

    kind: str = ""
    problem: str = ""
    other_version: bool = False
    condition: str = ""
    foreign: bool = False
    sure: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    values: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    low: float = -inf
    high: float = inf


@dataclass(frozen=True, slots=True)
class Family:
    """A row of vllm_names.tsv."""

    name: str
    kind: str
    since: str
    last: str
    labels: frozenset[str]
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
def vllm_families() -> tuple[Family, ...]:
    text = (files("phasewatch") / "vllm_names.tsv").read_text()
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(
        Family(name, kind, since, last, frozenset(filter(None, labels.split(","))), condition, instead)
        for name, kind, since, last, labels, condition, instead in rows
    )


@cache
def phasewatch_series() -> Mapping[str, Series]:
    """Every series phasewatch can export. Its targets may bring further labels, but not ones that are its own."""
    windowed = {row.name for row in WINDOW_ROWS}
    found: dict[str, Series] = {}
    for prefix, table, own in (
        (PREFIX, ENGINE_TABLES, {"target", "model_name", "engine"}),
        (MODEL_PREFIX, MODEL_TABLES, {"model_name"}),
        (PREFIX, OTHER_TABLES, set()),
    ):
        for row in table:
            of_table = {"target"} if row in TARGET_ROWS else {"model_name"} if row in LIMIT_ROWS else own
            labels = frozenset(of_table) | set(row.labels) | ({"window"} if row.name in windowed else set())
            share = row.name.endswith("_ratio") or _FLAGS.fullmatch(row.name)
            found[f"{prefix}{row.name}"] = Series(
                "counter" if row.name.endswith("_total") else "gauge",
                sure=labels | SCRAPED,
                never=_OWN_LABELS - labels,
                values={label: values for label, values in _VALUES.items() if label in row.labels},
                low=0.0,
                high=1.0 if share else inf,
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
        return vllm | set(phasewatch_series()) | _PROMETHEUS | _ALERTS | self.live

    def of(self, name: str) -> Series:
        if (own := phasewatch_series().get(name)) is not None:
            return own
        plain = next((f"vllm:{name.removeprefix(p)}" for p in PREFIXES if name.startswith(p)), name)
        family = self._by_name.get(plain)
        if family is not None and (name == plain or name.startswith(("ray_", "kserve_"))):
            return self._vllm(name, plain, family)
        if name in self.live or name in _PROMETHEUS:
            return Series(sure=SCRAPED)
        if name in _ALERTS:
            return Series("gauge", sure=frozenset({"alertname"}), low=0.0)
        if name.startswith(PREFIX):
            return Series(problem=f"phasewatch exports no {name}; {nearest(name, phasewatch_series())}")
        if problem := self._misspelt(name, plain):
            return Series(problem=problem)
        if ":" in name:
            return Series(
                problem=f"{name} is recorded by no rule of these files; check them together with the file that does"
            )
        return Series(foreign=True, sure=SCRAPED)

    def _vllm(self, name: str, plain: str, family: Family) -> Series:
        if name in self.live:
            return self._facts(name, plain, family)
        lacking = [version for version in self.versions if not family.within(version)]
        if len(lacking) == len(self.versions):
            return Series(
                problem=f"{family.name} {family.span}, and the vLLM asked for is {', '.join(lacking)}"
                + (f"; {family.instead}" if family.instead else "; choose another with --vllm, or leave the rule out"),
                other_version=True,
            )  # fmt: skip
        return self._facts(name, plain, family)

    def _facts(self, name: str, plain: str, family: Family) -> Series:
        bucket = plain.endswith("_bucket") and family.kind == "histogram"
        cumulative = family.kind != "gauge" and plain != family.created
        labels = family.labels if name == plain else frozenset()
        fraction = plain.endswith("usage_perc")
        return Series(
            "bucket" if bucket else "counter" if cumulative else "gauge",
            condition=family.condition,
            sure=SCRAPED | labels | ({"le"} if bucket else set()),
            never=frozenset() if bucket else frozenset({"le"}),
            low=0.0,
            high=1.0 if fraction else inf,
        )

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
            return f"{name} does not exist; vLLM's page says {plain}"
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
