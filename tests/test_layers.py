"""Arrows run one way: what a module may import is decided by its place."""

import ast

import pytest

from tools.imports import LAYERS, arrows, in_circles, layer, modules

MODULES = modules()
IMPORTS = arrows(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_own_layer_and_those_beneath(module: str) -> None:
    assert {name for name in IMPORTS[module] if layer(name) > layer(module)} == set()


def test_every_layer_has_a_module() -> None:
    assert {layer(module) for module in MODULES} == set(range(len(LAYERS)))


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert in_circles(IMPORTS) == set()


def test_what_is_shipped_never_needs_what_only_developers_have() -> None:
    named = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.split(".")[0] in ("tools", "benchmarks", "tests")
    }
    assert named == set()
