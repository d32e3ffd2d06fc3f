"""What CONTRIBUTING.md quotes is there: lines of diffs in their files, tests by their names, targets of make."""

import re

import pytest

from support import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def quoted() -> list[tuple[str, str]]:
    """(file, line) of every line that a diff adds."""
    found = []
    for diff in re.findall(r"^```diff\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        file = ""
        for line in diff.splitlines():
            if line.startswith("+++ "):
                file = line.removeprefix("+++ ")
            elif line.startswith("+"):
                found.append((file, line.removeprefix("+")))
    return found


@pytest.mark.parametrize("file", sorted({file for file, _ in quoted()}))
def test_the_lines_that_a_diff_adds_are_in_the_file_it_names(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    assert [line for name, line in quoted() if name == file and line not in lines] == []


def test_there_is_a_diff_for_each_of_the_seven_things_that_are_added_most() -> None:
    assert len(re.findall(r"^```diff", TEXT, re.MULTILINE)) == len(re.findall(r"^### ", TEXT, re.MULTILINE)) == 7


def test_every_test_that_it_quotes_is_there() -> None:
    named = re.findall(r"^FAILED (tests/\S+?\.py)::(test_\w+)", TEXT, re.MULTILINE)
    assert len(named) >= 7
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []


def test_every_make_target_and_file_that_it_names_exists() -> None:
    targets = {word for words in re.findall(r"make ((?:[a-z-]+ ?)+)[`#\n]", TEXT) for word in words.split()}
    makefile = (ROOT / "Makefile").read_text()
    assert {target for target in targets if f"\n{target}:" not in makefile and target != "target"} == set()
    paths = re.findall(r"`((?:src|tools|tests|config|docs|grafana)/[\w./-]+\w)`", TEXT)
    assert [path for path in paths if not (ROOT / path).exists()] == []
