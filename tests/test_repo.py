"""Habits of the repository that no single test would notice being broken."""

import ast
import ipaddress
import re
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest

import phasewatch
from support import ROOT

CORE = ROOT / "src" / "phasewatch" / "core"
# core/ computes; it has no clock, files, sockets, threads or logging. A name here is a promise that it brings none.
PURE_MODULES = {
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numpy",  # arrays as values; its own files and threads are not used
    "operator",
    "re",
    "statistics",
    "types",
    "typing",
    "weakref",
}
# Plain values of a library, exactly these modules: what /metrics is made of.
PURE_VALUES = {"prometheus_client.metrics_core", "prometheus_client.samples", "prometheus_client.utils"}
# What users read, and words there that did not tell them what is meant; each has a better one since.
READ_BY_USERS = ("README.md", "CHANGELOG.md", "docker-compose.yml", "config", "docs", "grafana", "src", "tools")
WORDS_GONE = (
    "run at a time and no more",
    "flag only moves the wait",
    "no cause is proven",
    "signals that would decide",
    "symptom_value",
    "half of the excess",
    "a token would come every",
    "other phase:",
    "phases ease",
    "is surely over",
    "page about",
    "first token's way",
    "stood in it",
    "hand-over",
    "that is physics",
    "two physics",
    "prompt heads",
    "waits in vain",
    "stands twice",
    "way of alerts",
    "must miss it",
    "well again",
    "as it was lived",
    "worst off",
    "二つの物理",
)
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ".json", ".html", ".css", ".js", ""}
# Taken apart, so that this file does not name them either.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
    )
]


def _files(*patterns: str) -> list[Path]:
    """Files of the repository, new ones too, but nothing that git ignores."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *patterns,
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def _texts() -> list[tuple[str, str]]:
    return [(str(path.relative_to(ROOT)), path.read_text(errors="replace")) for path in _files() if path.suffix in TEXT]


def _imports(tree: ast.AST) -> list[str]:
    """Absolute names of what is imported, also inside functions; relative imports start with a dot."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [f"{module}.{alias.name}" for alias in node.names] if module == "phasewatch" else [module]
    return found


def _pure(name: str) -> bool:
    return name in PURE_VALUES or name.split(".")[0] in PURE_MODULES or f"{name}.".startswith("phasewatch.core.")


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: path.name)
def test_core_imports_only_core_and_a_few_pure_modules(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert [name for name in _imports(tree) if not _pure(name)] == []
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called & {"open", "print", "input", "exec", "eval", "__import__"} == set()


def test_the_walk_over_imports_sees_every_form() -> None:
    code = (
        "import time, math\ndef f():\n    from os import path\nfrom phasewatch import web, core\nfrom .. import cli\n"
    )
    impure = [name for name in _imports(ast.parse(code)) if not _pure(name)]
    assert impure == ["time", "phasewatch.web", "..", "os"]


def test_no_file_names_a_package_registry() -> None:
    found = [(name, host) for name, text in _texts() for host in REGISTRIES if host in text]
    assert found == []


def test_what_is_shipped_has_no_address_but_loopback() -> None:
    def foreign(text: str) -> list[str]:
        addresses = re.findall(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", text)
        return [address for address in addresses if not _harmless(address)]

    assert foreign("http://10.1.2.3:8000 127.0.0.1 0.0.0.0 8.8.8.8 1.2.3") == ["10.1.2.3", "8.8.8.8"]
    shipped = [
        (name, text) for name, text in _texts() if name.startswith(("src/", "config/")) and "fixtures" not in name
    ]
    assert shipped, "the walk found nothing"
    assert {name: found for name, text in shipped if (found := foreign(text))} == {}


def test_words_that_users_could_not_understand_do_not_come_back() -> None:
    def gone(text: str) -> list[str]:
        # As it is read: a literal may go on in the next one, and lines are broken anywhere.
        said = " ".join(re.sub(r"""["']\s*\n\s*f?["']""", "", text).split()).lower()
        return [words for words in WORDS_GONE if words in said] + re.findall(r"\brho\b", said)

    assert gone('x = (\n    "No cause is"\n    f" proven at {rho}"\n)') == ["no cause is proven", "rho"]
    found = {str(path.relative_to(ROOT)): gone(path.read_text(errors="replace")) for path in _files(*READ_BY_USERS)}
    assert len(found) > 100, "the walk found nothing"
    assert {name: words for name, words in found.items() if words} == {}


def test_a_test_that_reaches_beyond_loopback_fails() -> None:
    with socket.socket() as client, pytest.raises(pytest.fail.Exception, match="beyond loopback"):
        client.connect(("192.0.2.1", 9))


def _harmless(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # a version number with four parts
        return True
    # 192.0.2.0/24 and its like are kept for documentation: nobody has them.
    documentation = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")]
    return parsed.is_loopback or parsed.is_unspecified or any(parsed in net for net in documentation)


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == phasewatch.__version__


def test_every_make_target_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(_code_of((ROOT / "README.md").read_text()))))
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named, "the two commands that a reader starts with"
    assert named <= targets


def _code_of(markdown: str) -> list[str]:
    """Fenced blocks, indented blocks and `spans`."""
    return re.findall(r"```.*?```|`[^`\n]+`|^(?: {4}|\t).*$", markdown, re.DOTALL | re.MULTILINE)


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands[-1] == "exec make test"
    assert all(re.match(r"set -|cd ", command) for command in commands[:-1])


def _pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))


def _names(requirements: list[object]) -> set[str]:
    return {re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in requirements if isinstance(text, str)}


def test_the_lock_files_hold_what_pyproject_asks_for_and_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime, build, dev = _pins("runtime"), _pins("build"), _pins("dev")
    assert _names(project["project"]["dependencies"]) - set(runtime) == set(), "make lock"
    for extra in project["project"]["optional-dependencies"].values():
        assert _names(extra) & set(runtime) == set(), "an extra is not what everybody needs"
        assert _names(extra) - set(dev) == set(), "make lock"
    assert _names(project["dependency-groups"]["build"]) - set(build) == set(), "make lock"
    assert _names(project["dependency-groups"]["dev"]) - set(dev) == set(), "make lock"
    assert runtime | build | dev == dev | runtime | build == dev, "one version of each everywhere: make lock"


@pytest.mark.parametrize("name", ["runtime", "build", "dev"])
def test_every_pin_has_hashes_and_none_has_an_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    pins = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(pins) == len(_pins(name)) > 0
    assert [pin.split()[0] for pin in pins if "--hash=sha256:" not in pin] == []
    assert "://" not in text
