"""docs/reading.md and its Japanese twin: the commands they print still say what is quoted, and the text keeps to it."""

import contextlib
import difflib
import io
import os
import re
import shlex
from functools import cache

import pytest

from phasewatch import cli
from support import ROOT

DOCS = ("reading.md", "reading.ja.md")
# 39 %, 2.14 s, 50-75 ms: figures with a unit. What has none (2 cores, p99) is no measurement.
FIGURE = re.compile(r"(?<![\w.,-])(?:\d[\d.,]*-)?(\d[\d.,]*) ?(ms|s|%|tok/s)(?![\w/])")
CONSOLE = re.compile(r"```console\n\$ (phasewatch [^\n]+)\n(.*?)```", re.DOTALL)


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def quoted(name: str) -> list[tuple[str, list[str]]]:
    """Each printed command with the lines of output under it; `...` stands for lines left out."""
    return [
        (command, [line for line in lines.splitlines() if line.strip() not in ("", "...")])
        for command, lines in CONSOLE.findall(text_of(name))
    ]


def words(line: str) -> str:
    return " ".join(line.split())


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[str]]:
    """What each printed command says now, on a terminal of 80 columns."""
    return {command: said(command) for command, _ in quoted(DOCS[0])}


@cache
def said(command: str) -> list[str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out):
        patched.setenv("COLUMNS", "80")
        patched.chdir(ROOT)
        assert cli.run(shlex.split(command)[1:]) in (0, 1)
    return [words(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("name", DOCS)
def test_every_quoted_line_is_still_what_the_command_says(name: str, outputs: dict[str, list[str]]) -> None:
    """PHASEWATCH_REWRITE_GOLDEN=1 puts the nearest new line in place of an old one; the text is then yours to mend."""
    if os.environ.get("PHASEWATCH_REWRITE_GOLDEN"):
        rewrite(name, outputs)
    for command, lines in quoted(name):
        left = list(outputs[command])
        for line in lines:
            assert words(line) in left, f"docs/{name}: `{command}` no longer says: {line.strip()}"
            left = left[left.index(words(line)) + 1 :]


def rewrite(name: str, outputs: dict[str, list[str]]) -> None:
    text = text_of(name)
    for command, lines in quoted(name):
        for line in lines:
            if words(line) not in outputs[command]:
                (near, *_) = difflib.get_close_matches(words(line), outputs[command], n=1, cutoff=0.0)
                indent = line[: len(line) - len(line.lstrip())]
                text = text.replace(f"{line}\n", f"{indent}{near}\n")
    (ROOT / "docs" / name).write_text(text)


@pytest.mark.parametrize("name", DOCS)
def test_every_figure_in_the_text_of_the_incident_stands_in_the_output_beside_it(
    name: str, outputs: dict[str, list[str]]
) -> None:
    incident = next(part for part in text_of(name).split("\n## ") if CONSOLE.search(part))
    prose = CONSOLE.sub("", incident)
    everything = "\n".join(line for lines in outputs.values() for line in lines) + "\n".join(outputs)
    figures = {match.group(0) for match in FIGURE.finditer(prose)}
    assert len(figures) >= 10, "the walk found the figures"
    assert {figure for figure in figures if not stands(figure, everything)} == set()


def stands(figure: str, output: str) -> bool:
    """As such, or as a bound of a bucket: 50-75 ms stands as `55.8 ms (50-75)`, 2.5 s as `(2.5-5)`."""
    number, unit = figure.rsplit(" ", 1) if " " in figure else re.fullmatch(r"([\d.,-]+)(\D+)", figure).groups()  # type: ignore[union-attr]
    bounds = rf"{re.escape(number)}" if "-" in number else rf"{re.escape(number)}-[\d.]+|[\d.]+-{re.escape(number)}"
    return bool(
        re.search(rf"(?<![\d.,]){re.escape(number)} {unit}(?![\w/])", output)
        or re.search(rf" {unit} \(({bounds})\)", output)
        or re.search(rf"={re.escape(number)}{unit}\b", output)
    )


def test_a_figure_that_no_output_has_is_found() -> None:
    output = "ITL 55.8 ms (50-75) 2.62 s (2.5-5)"
    assert [stands(one, output) for one in ("55.8 ms", "50-75 ms", "2.5 s", "55.9 ms", "8 ms", "2.5 ms")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_both_languages_print_the_same_commands_and_the_same_output() -> None:
    assert quoted(DOCS[0]) == quoted(DOCS[1])
    assert len(quoted(DOCS[0])) == 2


def test_both_languages_have_the_same_parts() -> None:
    shapes = [re.findall(r"^(#+ |- |\d\. |\||```)", text_of(name), re.MULTILINE) for name in DOCS]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", DOCS)
@pytest.mark.parametrize("term", ["TTFT", "ITL", "TPOT", "prefill", "decode", "KV cache", "preemption"])
def test_every_term_is_explained_once_and_used_by_its_english_name(name: str, term: str) -> None:
    text = text_of(name)
    assert len(re.findall(rf"\*\*{term}\*\*", text, re.IGNORECASE)) == 1
    assert text.lower().count(term.lower()) > 1


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere_and_lines_fit_two_pages(name: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", text_of(name))
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert len(text_of(name).splitlines()) <= 150
