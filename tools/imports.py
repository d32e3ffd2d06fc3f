"""The package's imports as a table: `python -m tools.imports [CHECKOUT]`. Every arrow, and whether it runs one way.

LAYERS says where a module may look: into its own layer and those beneath. A test holds the package to it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# From the ground up. The longest name that a module's begins with decides its layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("phasewatch", "phasewatch.shipped"),
    ("phasewatch.core", "phasewatch.core.durations", "phasewatch.core.formatting"),
    ("phasewatch.core.settings", "phasewatch.core.model"),
    ("phasewatch.core.pages",),
    ("phasewatch.core.measures",),
    ("phasewatch.core.diagnosis",),
    ("phasewatch.core.report",),
    ("phasewatch.core.engine", "phasewatch.core.fleet", "phasewatch.core.watch"),
    ("phasewatch.sources",),
    ("phasewatch.service",),
    ("phasewatch.rulecheck",),
    ("phasewatch.outputs",),
    ("phasewatch.commands",),
    ("phasewatch.cli", "phasewatch.__main__"),
)


def modules(root: Path = ROOT) -> Mapping[str, Path]:
    """Dotted name -> file, of every module under root/src/phasewatch."""
    source = root / "src"
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((source / "phasewatch").rglob("*.py"))
    }


def layer(module: str) -> int:
    """Its number from the ground up."""
    found = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    return max(found)[1]


def arrows(known: Mapping[str, Path]) -> Mapping[str, frozenset[str]]:
    """Module -> the modules of the package that it imports, inside functions too."""
    return {module: frozenset(_imported(path, known)) for module, path in known.items()}


def _imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in known:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in inner if name in known)
            if any(name not in known for name in inner):
                yield node.module


def in_circles(imports: Mapping[str, frozenset[str]]) -> set[str]:
    """Modules that import each other in a circle, and those that import such ones."""
    left = {module: set(names) for module, names in imports.items()}
    while free := [module for module, names in left.items() if not names & left.keys()]:
        for module in free:
            del left[module]
    return set(left)


def _place(module: str) -> str:
    """The folder that a row of the table is about: three names deep inside core, two elsewhere."""
    parts = module.split(".")
    depth = 3 if parts[1:2] == ["core"] else 2
    return ".".join(parts[:depth])


def main(root: Path) -> None:
    known = modules(root)
    imports = arrows(known)
    lines = {module: len(path.read_text().splitlines()) for module, path in known.items()}
    files = Counter(_place(module) for module in known)
    print(f"{'place':34} {'files':>5} {'lines':>6}  imports (arrows)")
    for place in sorted(files, key=lambda name: (layer(name), name)):
        members = [module for module in known if _place(module) == place]
        to = Counter(_place(name) for module in members for name in imports[module] if _place(name) != place)
        shown = ", ".join(f"{name.removeprefix('phasewatch.')} {count}" for name, count in sorted(to.items()))
        print(f"{place:34} {files[place]:5} {sum(lines[m] for m in members):6}  {shown}")
    up = sorted((a, b) for a, names in imports.items() for b in names if layer(b) > layer(a))
    print(
        f"\n{len(known)} files, {sum(lines.values())} lines, {sum(map(len, imports.values()))} arrows;"
        f" {len(up)} run up, {len(in_circles(imports))} files hang on a circle"
    )
    for a, b in up:
        print(f"up: {a} -> {b}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
