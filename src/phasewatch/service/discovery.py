"""Where targets come from: one row a way. All that are found are checked and named alike (config_sections)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


# After those below `targets` in the configuration file.
DISCOVERY: tuple[Way, ...] = (Way("environment", _in_environment, fallback=True),)


def discovered(given: Given) -> list[Found]:
    """Raises FileError."""
    found: list[Found] = []
    for way in DISCOVERY:
        if not way.fallback or not (found or given.data.get("targets")):
            found += way.find(given)
    return found
