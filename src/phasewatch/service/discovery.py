"""Where targets come from: one row a way. All that are found are checked and named alike (config_sections).

Read once, at the start.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import has_magic
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from phasewatch.service.config_sections import TargetsFromSection
from phasewatch.service.yamlfile import FileError, YamlFile, complaints, read_any

# Read where nothing else names a target.
TARGETS_VARIABLE = "VLLM_TARGETS"


@dataclass(frozen=True, slots=True)
class Given:
    """What a way may look at. data: the configuration file's keys; folder: where it lies, None without a file."""

    data: Mapping[Any, Any] = field(default_factory=dict)
    folder: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """target: as an entry of `targets` in the configuration file. where: what errors about it begin with."""

    target: Any
    where: str


@dataclass(frozen=True, slots=True)
class Way:
    """find: may raise FileError. fallback: asked only while no target is known."""

    name: str
    find: Callable[[Given], Iterable[Found]]
    fallback: bool = False


def _in_environment(given: Given) -> Iterable[Found]:
    urls = (url.strip() for url in given.env.get(TARGETS_VARIABLE, "").split(","))
    return (Found(url, TARGETS_VARIABLE) for url in urls if url)


# --- Prometheus' file_sd ---------------------------------------------------------------------------------------------


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    targets: list[str]
    labels: dict[str, str] = {}


class _Groups(BaseModel):
    groups: list[_Group]


def _in_files(given: Given) -> Iterator[Found]:
    try:
        sections = TypeAdapter(tuple[TargetsFromSection, ...]).validate_python(
            given.data.get("targets_from") or (), context={"folder": given.folder}
        )
    except ValidationError:  # told with all else that is wrong with the configuration
        return
    for section in sections:
        for pattern in () if section.file_sd is None else section.file_sd.files:
            for path in _matching(pattern):
                yield from _in_file(_read(path))


def _matching(pattern: Path) -> list[Path]:
    if not has_magic(pattern.name):
        return [pattern]
    paths = sorted(pattern.parent.glob(pattern.name))
    if not paths:
        raise FileError(f"{pattern}: matches no file; check targets_from, or write the file first")
    return paths


def _read(path: Path) -> YamlFile:
    """JSON is YAML but for tabs; YAML's reader comes first because it remembers lines."""
    try:
        return read_any(path)
    except FileError:
        try:
            return YamlFile(str(path), json.loads(path.read_bytes()), None)
        except (OSError, ValueError, RecursionError):
            pass
        raise


def _in_file(file: YamlFile) -> Iterator[Found]:
    try:
        groups = _Groups.model_validate({"groups": [] if file.data is None else file.data}).groups
    except ValidationError as error:
        told = [row for one in error.errors(include_url=False) for row in complaints(one, _Groups)]
        raise FileError(*(file.told(place[1:], message) for place, message in told)) from None
    for number, group in enumerate(groups):
        scheme, page = group.labels.get("__scheme__", "http"), group.labels.get("__metrics_path__", "/metrics")
        # Prometheus sets job and instance; what begins with __ is for its relabelling.
        labels = {
            name: value
            for name, value in group.labels.items()
            if not name.startswith("__") and name not in ("job", "instance")
        }
        for index, address in enumerate(group.targets):
            target = {"url": f"{scheme}://{address}{page}", "labels": labels}
            yield Found(target, file.told((number, "targets", index), address))


# --- the ways --------------------------------------------------------------------------------------------------------

# After those below `targets` in the configuration file.
DISCOVERY: tuple[Way, ...] = (
    Way("file_sd", _in_files),
    Way("environment", _in_environment, fallback=True),
)


def discovered(given: Given) -> list[Found]:
    """Raises FileError."""
    found: list[Found] = []
    for way in DISCOVERY:
        if not way.fallback or not (found or given.data.get("targets")):
            found += way.find(given)
    return found
