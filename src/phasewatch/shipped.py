"""Dashboards, rules and runbooks: package data in a wheel, the repository's own files in a checkout."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import phasewatch

DASHBOARDS = "grafana/dashboards"
RULES = "config/prometheus/rules"
RUNBOOKS = "config/runbooks"


def shipped(folder: str) -> Iterator[tuple[str, str]]:
    """(path, text) of every file under a folder of the repository, such as grafana/dashboards, sorted by path."""
    yield from _walk(folder_of(folder), folder)


def folder_of(path: str) -> Traversable:
    """A folder of the repository."""
    top = files("phasewatch") / "shipped"
    root: Traversable = top if top.is_dir() else Path(phasewatch.__file__).parents[2]
    return root.joinpath(*path.split("/"))


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{path}/{entry.name}")
        else:
            yield f"{path}/{entry.name}", entry.read_text(encoding="utf-8")
