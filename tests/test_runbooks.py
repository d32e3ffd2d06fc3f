"""Runbooks against what they tell of: verdicts, remedies, vLLM's flags and families, our own commands."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from phasewatch.cli import app
from phasewatch.core.diagnosis.causes import CAUSES
from phasewatch.core.diagnosis.causes._row import Advice, CauseRow
from phasewatch.core.diagnosis.verdicts import REMEDIES, VERDICTS
from phasewatch.core.measures.histogram import increase, mean
from phasewatch.core.pages.exposition import parse
from phasewatch.rulecheck.series import vllm_families
from support import ROOT, real_pages
from tools.runbooks import BEGIN, END, MissingMarksError, files, listed, with_remedies

RUNBOOKS = ROOT / "config" / "runbooks" / "verdicts"
HEADINGS = ["Meaning", "Impact", "Confirm", "Change", "Worked?"]
# Flags in the shell blocks that are of other programs.
OTHERS_FLAGS = {
    "--pid": "py-spy's",
    "--query-gpu": "nvidia-smi's",
    "--query-compute-apps": "nvidia-smi's",
    "--format": "nvidia-smi's as well as ours",
}
# Flag -> the last vLLM with it; None of one that is still there.
FLAGS = {
    line.split("\t")[0]: line.split("\t")[2] or None
    for line in (ROOT / "tests" / "fixtures" / "vllm-flags.tsv").read_text().splitlines()
    if not line.startswith("#")
}

# A counter with and without _total: vLLM itself names it without.
FAMILIES = {name for one in vllm_families() for name in (one.name, one.name.removesuffix("_total"))}


def text_of(verdict: str) -> str:
    return (RUNBOOKS / f"{verdict}.md").read_text()


def sections(verdict: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", text_of(verdict), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def one_line(text: str) -> str:
    return " ".join(text.split())


def family(name: str) -> str:
    return re.sub(r"_(sum|count|bucket|total)$", "", name)


def blocks(verdict: str) -> list[str]:
    """The shell blocks, to be copied at night."""
    return re.findall(r"```sh\n(.*?)```", text_of(verdict), re.DOTALL)


def test_every_verdict_has_a_runbook_and_no_runbook_is_left_over() -> None:
    assert sorted(path.stem for path in RUNBOOKS.glob("*")) == sorted(VERDICTS)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_runbook_has_the_five_headings_in_order_and_fits_two_screens(verdict: str) -> None:
    text = text_of(verdict)
    assert text.startswith(f"# {verdict}\n")
    assert list(sections(verdict)) == HEADINGS
    assert all(len(one_line(body)) > 80 for body in sections(verdict).values())
    assert 40 <= text.count("\n") <= 82
    assert max(map(len, text.splitlines())) <= 180, "the helper is the longest line"


@pytest.mark.parametrize("row", CAUSES, ids=lambda row: row.verdict)
def test_the_remedies_in_a_runbook_are_those_of_its_row(row: CauseRow) -> None:
    path = RUNBOOKS / f"{row.verdict}.md"
    assert path.read_text() == files()[path], "`make runbooks` writes them anew"
    assert listed(row.remedies) in sections(row.verdict)["Change"]
    for advice in row.remedies:
        shown = one_line(listed([advice]))
        assert shown.startswith(f"1. **{advice.change}** (")
        assert advice.why.lower() in shown.lower()
        assert advice.since is None or f"vLLM {advice.since} on" in shown
        assert advice.side_effect == "none" or f"Side effect: {advice.side_effect}." in shown


def test_only_what_stands_between_the_marks_is_rewritten() -> None:
    before = f"# x\n\n## Change\n\n{BEGIN}\n1. what was there\n{END}\n\n- by hand\n"
    remedy = Advice("--flag up", "it helps", "restart", "costs more", since="0.9.1", where="it is down")
    after = with_remedies(before, [remedy])
    item = "1. **--flag up** (with a restart, vLLM 0.9.1 on). It helps. Side effect: costs more. Only where it is down."
    assert after == before.replace("1. what was there", item)
    assert with_remedies(after, [remedy]) == after


def test_a_runbook_without_a_place_for_its_remedies_is_named(tmp_path: Path) -> None:
    for path in RUNBOOKS.glob("*.md"):
        (tmp_path / path.name).write_text(path.read_text().replace(END, ""))
    with pytest.raises(MissingMarksError, match=r"engine_stalled\.md: no lines"):
        files(tmp_path)


def flags_of(text: str) -> set[str]:
    ours = {option for command in commands().values() for param in command.params for option in param.opts}
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - ours


@cache
def commands() -> Mapping[str, click.Command]:
    group = typer.main.get_command(app)
    return dict(group.commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_flag_exists_in_vllm_and_none_was_removed(verdict: str) -> None:
    named = flags_of(text_of(verdict) + " ".join(remedy.change for remedy in REMEDIES.get(verdict, ())))
    assert {flag for flag in named - set(OTHERS_FLAGS) if FLAGS.get(flag, "unknown") is not None} == set()


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_family_is_one_that_vllm_has(verdict: str) -> None:
    families = {family(name) for name in re.findall(r"(vllm:[a-z0-9_]+)(?!\()", text_of(verdict))}
    # `grep vllm:num_requests` stands for two, and a loop builds its names.
    assert {name for name in families if not any(known.startswith(name) for known in FAMILIES)} == set()


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_name_in_confirm_is_one_that_phasewatch_or_vllm_shows(verdict: str) -> None:
    source = "".join(path.read_text() for path in sorted((ROOT / "src" / "phasewatch").rglob("*.py")))
    prose = re.sub(r"```.*?```", "", sections(verdict)["Confirm"] + sections(verdict)["Worked?"], flags=re.DOTALL)
    spans = " ".join(re.findall(r"`([^`]+)`", prose))
    named = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", spans)) - {"nr_throttled"}  # that one is the kernel's
    assert {name for name in named if name not in source and f"vllm:{family(name)}" not in FAMILIES} == set()


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_phasewatch_command_can_be_typed(verdict: str) -> None:
    spans = [one_line(span) for span in re.findall(r"`(phasewatch [^`]+)`", text_of(verdict))]
    for span in spans:
        _, name, *arguments = shlex.split(span)
        command = commands()[name]
        known = {option for param in command.params for option in param.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= known, span


@pytest.mark.parametrize("verdict", VERDICTS)
def test_links_lead_somewhere(verdict: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", text_of(verdict))
    assert [link for link in links if not (RUNBOOKS / link).is_file()] == []


# --- the shell blocks do what they say


@pytest.fixture(scope="module")
def two_pages() -> tuple[bytes, bytes]:
    first, *_, last = real_pages("healthy", 20, 80).values()
    return first.encode(), last.encode()


def run(block: str, folder: Path, pages: tuple[bytes, bytes]) -> subprocess.CompletedProcess[str]:
    """The block in a POSIX shell, with a curl that serves the two pages and a sleep that does not."""
    tools = folder / "bin"
    tools.mkdir()
    for name, page in zip("12", pages, strict=True):
        (folder / f"page{name}").write_bytes(page)
    curl = 'case "$*" in */metrics) n=$(cat count 2>/dev/null || echo 1); cat page$n; echo 2 > count;; esac'
    for name, body in (("curl", curl), ("sleep", "exit 0"), ("nvidia-smi", "exit 0")):
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    return subprocess.run(
        ["sh", "-u", "-c", block], cwd=folder, env={"PATH": f"{tools}:/usr/bin:/bin"}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_shell_block_can_be_copied_into_a_shell(
    verdict: str, tmp_path: Path, two_pages: tuple[bytes, bytes]
) -> None:
    found = blocks(verdict)
    assert found
    for index, block in enumerate(found):
        if "/metrics > a" in block:
            folder = tmp_path / str(index)
            folder.mkdir()
            done = run(block, folder, two_pages)
            assert done.stderr == "", block
            assert re.search(r"^\S", done.stdout), "it prints something"
        else:
            checked = subprocess.run(["sh", "-n", "-c", block], capture_output=True, text=True, timeout=60)
            assert checked.stderr == ""


def test_the_helper_is_the_same_everywhere_and_agrees_with_our_arithmetic(
    tmp_path: Path, two_pages: tuple[bytes, bytes]
) -> None:
    helpers = {"\n".join(block.splitlines()[:3]) for v in VERDICTS for block in blocks(v) if "/metrics > a" in block}
    assert len(helpers) == 1
    asked = (
        "m vllm:time_to_first_token_seconds; d vllm:generation_tokens_total; d vllm:num_preemptions_total; "
        """d http_requests_total 'status="2xx"'; d http_requests_total 'status="5xx"'; m vllm:no_such_seconds; """
        "d vllm:inter_token_latency_seconds_count; d vllm:inter_token_latency_seconds_bucket 'le=\"1.0\"'"
    )
    said = run(f"{helpers.pop()}\n{asked}", tmp_path, two_pages).stdout.split()
    before, after = (next(iter(parse(page.decode(), at=0).engines.values())) for page in two_pages)
    ttft = increase(before.histograms["ttft"], after.histograms["ttft"])
    gaps = increase(before.histograms["itl"], after.histograms["itl"])
    assert ttft is not None
    assert gaps is not None
    assert float(said[0]) == pytest.approx(mean(ttft), rel=1e-4)
    assert float(said[1]) == after.counters["generation_tokens"] - before.counters["generation_tokens"]
    assert float(said[2]) == 0
    assert float(said[3]) == after.counters["http_2xx"] - before.counters["http_2xx"]
    assert said[4:6] == ["0", "none"]
    assert float(said[6]) == gaps.count
    assert float(said[7]) == gaps.counts[gaps.bounds.index(1.0)]
