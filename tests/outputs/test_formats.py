"""Walks the table of formats, and names a function that prints but stands in no row."""

import importlib
import pkgutil
from dataclasses import fields

from phasewatch import outputs
from phasewatch.outputs.formats import FORMATS, Format


def test_every_function_that_prints_stands_in_a_row() -> None:
    rows = [getattr(row, field.name) for row in FORMATS.values() for field in fields(Format)]
    in_rows = {f"{one.__module__}.{one.__name__}" for one in rows if one is not None}
    modules = [
        importlib.import_module(f"{outputs.__name__}.{one.name}") for one in pkgutil.iter_modules(outputs.__path__)
    ]
    printing = {
        f"{module.__name__}.{name}"
        for module in modules
        for name in vars(module)
        if name.startswith("print_") and vars(module)[name].__module__ == module.__name__
    }
    assert printing == in_rows
