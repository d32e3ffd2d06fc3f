"""The Markdown of a Fleet, read again by a parser of CommonMark with tables."""

import io
from dataclasses import replace
from html import escape

import pytest
from markdown_it import MarkdownIt

import fleets
from phasewatch.core.model import EngineKey, Fleet
from phasewatch.outputs import markdown
from phasewatch.outputs.terminal import safe

READER = MarkdownIt("commonmark", {"html": True}).enable("table")


def written(fleet: Fleet) -> str:
    out = io.StringIO()
    markdown.print_fleet(fleet, out)
    return out.getvalue()


def html(fleet: Fleet) -> str:
    return str(READER.render(written(fleet)))


@pytest.mark.parametrize("name", fleets.STATES)
def test_every_state_of_a_fleet_is_whole_markdown(name: str) -> None:
    shown = html(fleets.STATES[name])
    assert bool(shown) == (name != "empty")
    assert shown.count("<table>") == shown.count("</table>")
    assert not any(line.startswith("<p>|") for line in shown.splitlines()), "a table that is none"


def test_an_engine_that_needs_a_look_is_shown_with_cause_remedies_and_numbers() -> None:
    shown = html(fleets.SERVING)
    assert "<h3><code>gpu-2:8000</code> <code>Qwen/Qwen3-0.6B</code>: <strong>queue_batch_limit</strong>" in shown
    assert "<li>Requests wait 2.8 s for a place in a full batch.</li>" in shown
    assert "<strong>shed load</strong> (now). Demand is above capacity." in shown
    assert "<li>Doubt it if: room in the batch while requests wait</li>" in shown
    assert "<code>waiting_mean</code> 29.5" in shown
    assert "<td>TTFT</td>" in shown
    assert "<li>Phases: queue 2.8 s (31 %), prefill 500 ms (5 %)" in shown
    assert shown.count("<h3>") == 1, "the healthy one is a line of the table"


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "`x` **b**",
        "<img src=x>",
        "[a](http://192.0.2.1)",
        "@team",
        "a\n# b",
        "``",
        "_b_",
        "$&lt;",
        "a\\",
        "a\\|b",
    ],
)
def test_a_name_from_outside_is_code_and_never_markup(name: str) -> None:
    sick = fleets.slow_engine()
    both = (replace(sick, key=EngineKey("gpu-2:8000", name, "0")), fleets.engine(name))
    shown = html(fleets.fleet(both, targets=(fleets.target("gpu-3:8000", "down", last_error=name),)))
    assert not any(tag in shown for tag in ("<img", "<a ", "<em>", "<h1>"))
    assert shown.count("<h3>") == 1
    assert shown.count(f"<code>{escape(safe(name))}</code>") == 3, "model, target, error"
    assert shown.count("<tr>") == 3 + 4 + 5, "a row an engine, an objective, a latency, and the heads"
    assert all(line.count("<td>") <= 1 for line in shown.splitlines())


def test_what_we_say_is_read_as_it_is_written() -> None:
    said = "Use <b>, `x`, *y*, _z_, a_b, [k](l), 1 | 2, ~~s~~ and &amp; \\ #."
    shown = html(fleets.fleet((replace(fleets.slow_engine(), summary=said),)))
    plain = "Use &lt;b&gt;, `x`, *y*, _z_, a_b, [k](l), 1 | 2, ~~s~~ and &amp;amp; \\ #."
    assert f"<li>{plain}</li>" in shown
