"""`python -m tools.alerts [FOLDER]`: writes one file of rules for each of rows.FILES."""

import sys
from collections.abc import Iterator
from pathlib import Path

from tools.alerts.pieces import runbook
from tools.alerts.rows import FILES, PREFIX, Alert, Record, RuleFile

FOLDER = Path(__file__).resolve().parents[2] / "config" / "prometheus" / "rules"


def text(name: str, file: RuleFile) -> str:
    """The YAML of one file, written so that people can read and change it."""
    return "\n".join(_lines(name, file)) + "\n"


def _lines(name: str, file: RuleFile) -> Iterator[str]:
    yield from (f"# {line}" if line else "" for line in file.opening.split("\n"))
    yield from ("", "groups:", f"  - name: phasewatch-{name}", "    rules:")
    for number, rule in enumerate(file.rules):
        if number:
            yield ""
        yield from _alert(rule) if isinstance(rule, Alert) else _record(rule)


def _record(rule: Record) -> Iterator[str]:
    yield f"      - record: {rule.name}"
    yield from _expression(rule.expr)


def _alert(rule: Alert) -> Iterator[str]:
    name = f"{PREFIX}{rule.name}"
    yield f"      - alert: {name}"
    yield from _expression(rule.expr, block=True)
    yield from (f"        for: {rule.lasts}",) if rule.lasts else ()
    yield from (f"        keep_firing_for: {rule.keeps}",) if rule.keeps else ()
    yield f"        labels: {{severity: {rule.severity}, kind: {rule.kind}, area: {rule.area}}}"
    yield "        annotations:"
    yield f"          summary: {_quoted(rule.summary)}"
    yield "          description: |-"
    yield from (f"            {line}" for line in rule.description)
    yield f"          runbook_url: {_quoted(runbook(name))}"


def _expression(expr: str, *, block: bool = False) -> Iterator[str]:
    lines = expr.split("\n")
    if len(lines) == 1 and not block:
        yield f"        expr: {lines[0]}"
        return
    yield "        expr: |"
    yield from (f"          {line}" for line in lines)


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def main(folder: Path = FOLDER) -> None:
    for name, file in FILES.items():
        (folder / f"{name}.yml").write_text(text(name, file))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
