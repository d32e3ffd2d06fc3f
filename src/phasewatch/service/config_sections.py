"""What config/phasewatch.yml may hold: one class a section, one field a key, strict and frozen."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from phasewatch.core import settings as core
from phasewatch.core.durations import format_duration, parse_duration
from phasewatch.core.report.families import RESERVED_LABELS
from phasewatch.service.yamlfile import Loc, ProblemsError, kind, nearest
from phasewatch.sources.pages import MAX_PAGE_BYTES
from phasewatch.sources.target import Target, TargetError, parse_target, told_apart

_LEAST_SCRAPES = 3  # fewer good pages in a window are no basis for a verdict
# Whoever asks once a day wants no verdicts; a longer history is Prometheus' work, and ours is kept in memory.
_LONGEST_INTERVAL = _LONGEST_WINDOW = 86400.0
_SHORTEST_INTERVAL = 0.1  # a page takes the server up to half of that to write


def _duration(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; use {value:g}s or 250ms")
    raise ValueError(f"must be a duration, not {kind(value)}; use 250ms or 1m30s")


def _limits(value: object) -> object:
    # YAML reads a bare off as false.
    if value is False or value == "off":
        return {"warning": core.OFF.warning, "critical": core.OFF.critical}
    return {"warning": value, "critical": value} if isinstance(value, (str, int, float)) else value


def _limit_duration(value: object) -> object:
    return value if value == core.OFF.warning else _duration(value)


def _beside_file(path: Path, info: ValidationInfo) -> Path:
    folder = (info.context or {}).get("folder")
    return path if folder is None else folder / path


def _between(least: float, most: float) -> AfterValidator:
    def checked(seconds: float) -> float:
        if not least <= seconds <= most:
            raise ValueError(
                f"{format_duration(seconds)} is out of range; use {format_duration(least)} to {format_duration(most)}"
            )
        return seconds

    return AfterValidator(checked)


Duration = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
Timeout = Annotated[Duration, _between(0.001, _LONGEST_INTERVAL)]
WindowLength = Annotated[Duration, _between(0.001, _LONGEST_WINDOW)]
FilePath = Annotated[Path, AfterValidator(_beside_file)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _an_empty_key_says_nothing(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class Tls(_Section):
    """ca_file: certificates to trust instead of the usual ones."""

    ca_file: FilePath | None = None


def _label_names(labels: dict[str, str]) -> dict[str, str]:
    problems: list[tuple[Loc, str]] = []
    for name in labels:
        if not name.isascii() or not name.isidentifier() or name.startswith("__"):
            problems.append(((name,), "invalid label name; use letters, digits and _, beginning with a letter"))
        elif name in RESERVED_LABELS:
            problems.append(((name,), "is a label that phasewatch or Prometheus sets itself; choose another name"))
    if problems:
        raise ProblemsError(problems)
    return labels


class TargetSection(_Section):
    url: str = Field(repr=False)  # may hold credentials
    name: str | None = None
    labels: Annotated[dict[str, str], AfterValidator(_label_names)] = Field(default={})
    role: Literal["prefill", "decode"] | None = None
    bearer_token_file: FilePath | None = None
    tls: Tls = Tls()

    @model_validator(mode="after")
    def _can_be_read(self) -> "TargetSection":
        try:
            self.target()
        except TargetError as error:
            raise ProblemsError([(("url",), str(error))]) from None
        return self

    def target(self) -> Target:
        """Raises TargetError."""
        return parse_target(self.url, self.name, labels=self.labels, role=self.role)


def _short_form(value: object) -> object:
    if isinstance(value, str):
        return {"url": value}
    if isinstance(value, dict):
        return value
    raise ValueError(f"must be a URL or a mapping with url, not {kind(value)}; write it like http://vllm-0:8000")


def _distinct(targets: tuple[TargetSection, ...]) -> tuple[TargetSection, ...]:
    problems: list[tuple[Loc, str]] = []
    by_name: dict[str, int] = {}
    by_url: dict[str, int] = {}
    try:
        named = told_apart([section.target() for section in targets])
    except TargetError as error:
        raise ProblemsError([((), str(error))]) from None
    for index, target in enumerate(named):
        if (first := by_url.setdefault(target.url, index)) != index:
            problems.append(((index,), f"duplicate target {target.url} (first is targets[{first}]); remove one"))
        elif (first := by_name.setdefault(target.name, index)) != index:
            problems.append(((index,), f"duplicate name {target.name!r} (targets[{first}] has it); choose another"))
    if problems:
        raise ProblemsError(problems)
    return tuple(
        section.model_copy(update={"name": target.name}) for section, target in zip(targets, named, strict=True)
    )


class FileSdSection(_Section):
    """Files in the format of Prometheus' file_sd_configs; the last part of a path may hold *."""

    files: Annotated[tuple[FilePath, ...], Field(min_length=1)]


class TargetsFromSection(_Section):
    """One key a way (service/discovery.py); exactly one of them in an entry."""

    file_sd: FileSdSection | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "TargetsFromSection":
        ways = tuple(type(self).model_fields)
        if sum(getattr(self, way) is not None for way in ways) != 1:
            raise ValueError(f"must name one way to find targets; use {' or '.join(ways)}")
        return self


class ScrapeSection(_Section):
    """Times in seconds. timeout: the whole of one scrape, over before the next begins."""

    interval: Annotated[Duration, _between(_SHORTEST_INTERVAL, _LONGEST_INTERVAL)] = 10.0
    connect_timeout: Timeout = 2.0
    read_timeout: Timeout = 5.0
    timeout: Timeout | None = None
    max_bytes: Annotated[int, Field(ge=1024)] = MAX_PAGE_BYTES

    @property
    def total_timeout(self) -> float:
        return self.timeout if self.timeout is not None else min(9.0, self.longest_timeout)

    @property
    def longest_timeout(self) -> float:
        return 0.9 * self.interval


class LimitSection(_Section):
    warning: Annotated[float, BeforeValidator(_limit_duration), Field(gt=0)]
    critical: Annotated[float, BeforeValidator(_limit_duration), Field(gt=0)]

    @model_validator(mode="after")
    def _in_order(self) -> "LimitSection":
        if self.critical < self.warning:
            raise ValueError("critical is below warning; swap them")
        return self


_OptionalLimit = Annotated[LimitSection | None, BeforeValidator(_limits)]
Profile = Literal["interactive", "standard", "large", "batch"]


class LimitsSection(_Section):
    """One optional key for each of core.settings.OBJECTIVE_NAMES (a test holds them equal)."""

    ttft_mean: _OptionalLimit = None
    ttft_p50: _OptionalLimit = None
    ttft_p90: _OptionalLimit = None
    ttft_p95: _OptionalLimit = None
    ttft_p99: _OptionalLimit = None
    itl_mean: _OptionalLimit = None
    itl_p50: _OptionalLimit = None
    itl_p90: _OptionalLimit = None
    itl_p95: _OptionalLimit = None
    itl_p99: _OptionalLimit = None
    tpot_mean: _OptionalLimit = None
    tpot_p50: _OptionalLimit = None
    tpot_p90: _OptionalLimit = None
    tpot_p95: _OptionalLimit = None
    tpot_p99: _OptionalLimit = None
    e2e_mean: _OptionalLimit = None
    e2e_p50: _OptionalLimit = None
    e2e_p90: _OptionalLimit = None
    e2e_p95: _OptionalLimit = None
    e2e_p99: _OptionalLimit = None
    itl_stall: _OptionalLimit = None

    def limits(self) -> dict[str, core.Limit]:
        given = {name: getattr(self, name) for name in core.OBJECTIVE_NAMES}
        return {name: core.Limit(part.warning, part.critical) for name, part in given.items() if part is not None}


def _over(base: core.Limits, changes: core.Limits) -> dict[str, core.Limit]:
    """`changes` over `base`; one that is off goes alone, without the rest of its family."""
    written = {name: limit for name, limit in changes.items() if limit != core.OFF}
    return {name: limit for name, limit in core.override(base, written).items() if changes.get(name) != core.OFF}


class ModelObjectives(LimitsSection):
    profile: Profile | None = None


class ObjectivesSection(LimitsSection):
    profile: Profile = "standard"
    models: dict[str, ModelObjectives] = Field(default={})

    def objectives(self) -> core.Objectives:
        """A model that names a profile starts from that profile alone, else from the limits for every model."""
        general = _over(core.PROFILES[self.profile], self.limits())
        by_model = {}
        for name, section in self.models.items():
            base = general if section.profile is None else core.PROFILES[section.profile]
            # All that holds for every model is switched off, then what holds for this one is written.
            by_model[name] = dict.fromkeys(general, core.OFF) | _over(base, section.limits())
        return core.Objectives(general, by_model)


def parse_listen_address(text: str) -> tuple[str, int]:
    """(host, port) of `host:port`, `[::1]:port` or `:port` (every interface). Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and not bracketed):
        raise ValueError(f"invalid listen address {text!r}; use 127.0.0.1:9321, [::1]:9321 or :9321")
    return host.strip("[]"), int(port)


def _listen_address(text: str) -> str:
    parse_listen_address(text)
    return text


class Web(_Section):
    listen_address: Annotated[str, AfterValidator(_listen_address)] = "127.0.0.1:9321"

    @property
    def host_and_port(self) -> tuple[str, int]:
        return parse_listen_address(self.listen_address)


class Log(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"


def _thresholds(given: dict[str, Any]) -> dict[str, Any]:
    """Every number a rule compares with has one field in core.settings.Thresholds: those are the keys."""
    known = [field.name for field in fields(core.Thresholds)]
    problems: list[tuple[Loc, str]] = []
    for name, value in given.items():
        problem = core.Thresholds.problem(name, value) if name in known else f"unknown key; {nearest(name, known)}"
        if problem:
            problems.append(((name,), problem))
    if problems:
        raise ProblemsError(problems)
    return given


class Config(_Section):
    targets: Annotated[
        tuple[Annotated[TargetSection, BeforeValidator(_short_form)], ...], AfterValidator(_distinct)
    ] = ()
    targets_from: tuple[TargetsFromSection, ...] = ()
    scrape: ScrapeSection = ScrapeSection()
    windows: Annotated[tuple[WindowLength, ...], Field(min_length=1, max_length=6)] = core.Settings().windows
    estimator: core.Estimator = core.Settings().estimator
    startup_grace: Annotated[Duration, _between(1.0, _LONGEST_WINDOW)] = core.Settings().startup_grace
    objectives: ObjectivesSection = ObjectivesSection()
    thresholds: Annotated[dict[str, Any], AfterValidator(_thresholds)] = Field(default={})
    web: Web = Web()
    log: Log = Log()

    @model_validator(mode="after")
    def _times_fit(self) -> "Config":
        interval = format_duration(self.scrape.interval)
        problems: list[tuple[Loc, str]] = []
        longest = self.scrape.longest_timeout
        if self.scrape.total_timeout > longest:
            message = f"is longer than 90 % of the interval; use at most {format_duration(longest)}"
            problems.append((("scrape", "timeout"), message))
        least = _LEAST_SCRAPES * self.scrape.interval
        for index, window in enumerate(self.windows):
            if window < least:
                problems.append((
                    ("windows", index),
                    f"{format_duration(window)} holds fewer than {_LEAST_SCRAPES} scrapes, one every {interval};"
                    f" write at least {format_duration(least)} or scrape more often",
                ))  # fmt: skip
            if window in self.windows[:index]:
                problems.append((("windows", index), f"duplicate window {format_duration(window)}; remove one"))
        if problems:
            raise ProblemsError(problems)
        return self

    def settings(self) -> core.Settings:
        return core.Settings(
            windows=self.windows,
            objectives=self.objectives.objectives(),
            thresholds=core.Thresholds(**self.thresholds),
            estimator=self.estimator,
            startup_grace=self.startup_grace,
        )
