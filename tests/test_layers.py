"""Arrows run one way: what a module may import is decided by its place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT

SOURCE = ROOT / "src"
# From the ground up: a module imports from its own layer and those above it in this list, never from those below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("phasewatch", "phasewatch.shipped"),
    ("phasewatch.core", "phasewatch.core.durations", "phasewatch.core.formatting"),
    ("phasewatch.core.settings", "phasewatch.core.model"),
    ("phasewatch.core.pages",),
    ("phasewatch.core.measures",),
    ("phasewatch.core.diagnosis",),
    ("phasewatch.core.engine", "phasewatch.core.fleet", "phasewatch.core.watch"),
    ("phasewatch.core.report",),
    ("phasewatch.sources",),
    ("phasewatch.service",),
    ("phasewatch.rulecheck",),
    ("phasewatch.outputs",),
    ("phasewatch.commands",),
    ("phasewatch.options", "phasewatch.cli_look", "phasewatch.cli_serve"),
    ("phasewatch.cli", "phasewatch.__main__"),
)
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "phasewatch").rglob("*.py"))
}


def _layer(module: str) -> int:
    """The layer with the longest name that the module's begins with."""
    found = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    return max(found)[1]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in inner if name in MODULES)
            if any(name not in MODULES for name in inner):
                yield node.module


IMPORTS = {module: set(_imported(path)) for module, path in MODULES.items()}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_own_layer_and_those_beneath(module: str) -> None:
    assert {name for name in IMPORTS[module] if _layer(name) > _layer(module)} == set()


def test_every_layer_has_a_module() -> None:
    assert [names for names in LAYERS if not any(_layer(module) == LAYERS.index(names) for module in MODULES)] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: set(names) for module, names in IMPORTS.items()}
    while free := [module for module, names in left.items() if not names & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}


def test_the_service_never_needs_what_only_developers_have() -> None:
    trees = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}
    named = {
        module
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.split(".")[0] in ("tools", "benchmarks", "tests")
    }
    assert named == set()
