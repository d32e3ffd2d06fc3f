"""Pages read in turn by one PageReader say what each alone says, whatever happened between them."""

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phasewatch.core.model import Page
from phasewatch.core.pages.exposition import ExpositionError, PageReader, parse
from phasewatch.core.pages.layout import layout_of
from phasewatch.core.pages.lines import labels_of, read_lines
from support import EXPECTED, real_pages
from support_pages import PAGES, fixture_page, read_page
from vllm_pages import Server

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Of each recording as many runs of pages that follow each other, and as long.
RUNS, RUN_PAGES = 3, 6


def said(read: Callable[..., Page], text: str, content_type: str = "text/plain") -> Page | str:
    try:
        return read(text, at=7.0, content_type=content_type)
    except ExpositionError as error:
        return str(error)


def looked_up() -> int:
    """How many label blocks were ever looked at: a page of which only numbers are read adds none."""
    known = labels_of.cache_info()
    return known.hits + known.misses


def only_numbers(reader: PageReader, text: str) -> bool:
    """Whether reading the page takes no look at its labels."""
    before = looked_up()
    reader.read(text, at=7.0)
    return looked_up() == before


# --- real pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", EXPECTED)
def test_each_page_of_a_recording_reads_as_it_does_alone(recording) -> None:
    texts = list(real_pages(recording).values())
    reader, quick, read = PageReader(), 0, 0
    for run in range(RUNS):
        start = run * len(texts) // RUNS
        for text in texts[start : start + RUN_PAGES]:
            before = looked_up()
            page = reader.read(text, at=7.0)
            quick += looked_up() == before
            read += 1
            assert page == parse(text, at=7.0)
    assert quick >= read // 2


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.prom*")), ids=lambda path: path.name)
def test_only_numbers_are_read_of_a_page_that_kept_its_shape(path) -> None:
    text = read_page(path)
    reader = PageReader()
    first = reader.read(text, at=1.0)
    assert first == parse(text, at=1.0)
    later = text.replace("} 0.0\n", "} 0\n").replace("\nprocess_cpu_seconds_total ", "\nprocess_cpu_seconds_total 1")
    assert only_numbers(reader, later)
    assert reader.read(later, at=2.0) == parse(later, at=2.0)


def test_pages_of_one_server_after_another_read_as_they_do_alone() -> None:
    """Of two engines, then one, then other names, then none."""
    texts = [read_page(path) for path in sorted(PAGES.glob("*.prom*"))]
    reader = PageReader()
    for text in [*texts, *reversed(texts)]:
        assert said(reader.read, text) == said(parse, text)


# --- what may change between two pages ----------------------------------------------------------------------------

# Numbers, and what only looks like one; other ends of a sample line; a line that became another.
TAILS = (
    "0", "-0.0", "1", "2.0", "7e3", "1e-300", "1e400", "9007199254740993", "+Inf", "-Inf", "Inf", "NaN", "-nan", "-1",
    "1.0000001", "infinity", "1_0", "0x10", "\u0663", "1\u2003", "\x0b1", "", " ", " 3", "3 ", "3\r", "3\t\r",
    "3 1520879607.7", "3 -1 4", '3 # {id="a # }} b"} 0.05 1520879607.7', "3 1 # {} 5", "3 # {", "abc", "} 3",
    '{a="b"} 3', "+", "1e", "three 3",
)  # fmt: skip
LINES = (
    "", " ", "\r", "# HELP vllm:kv_cache_usage_perc Help.", "# TYPE http_requests_total counter", "# EOF", "#", "5",
    "inf", "just words", "<html>", "{", 'vllm:num_requests_running{server="http://198.51.100.7:8000"} 3',
    'vllm:num_requests_running{engine="1",model_name="m"} 3',
    'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5',
    'vllm:num_requests_running{engine="0",model_name="m"} NaN', "vllm:num_requests_running 4", "unknown_total 1",
    "unknown_total x",
)  # fmt: skip
SWAPS = (
    ('engine="0"', 'engine="1"'), ('le="1.0"', 'le="1"'), ('le="1.0"', 'le="1.5"'), ("le=", "ge="), ('le="', 'le="x'),
    ('"m"', '"n"'), ("vllm:", "vllm_"), ("_total", ""), ("_bucket", "_sum"), ("kv_cache", "gpu_cache"),
    ("time_", "times_"), (" ", "  "), (" ", "\t"), ("{", " {"), (",", ", "), ("HELP", "TYPE"), ("#", ""),
    ("# HELP", "#HELP"), ("16", "32"), ("capacity", "other"),
)  # fmt: skip


def changed(text: str, chance: random.Random) -> str:
    """One change somewhere on the page, likely near a number."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    match chance.randrange(14):
        case 0 | 1 | 2 | 3:
            head, space, _ = lines[at].rpartition(" ")
            lines[at] = head + space + chance.choice(TAILS)
        case 4:
            del lines[at]
        case 5:
            lines.insert(at, chance.choice(lines))
        case 6:
            lines.insert(at, chance.choice(LINES))
        case 7:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 8:
            lines[at] = chance.choice(LINES)
        case 9:
            lines[at] = lines[at].replace(*chance.choice(SWAPS))
        case 10:
            whole = "\n".join(lines)
            return whole[: chance.randrange(len(whole) + 1)] if chance.random() < 0.5 else whole.replace("\n", "\r\n")
        case 11:
            return "\n".join(lines).replace(*chance.choice(SWAPS))
        case 12 | 13:
            factor = chance.choice((2, 3, 0.5))
            lines[at:] = [re.sub(r"(?<=[} ])\d+(\.\d+)?$", lambda m: str(float(m[0]) * factor), x) for x in lines[at:]]
    return "\n".join(lines)


def small_page() -> str:
    """Every family once, with two engines, a value each."""
    server = Server(2)
    for engine in server.engines:
        engine.serves(3, prompt=200)
    return server.text()


def bases() -> Sequence[tuple[str, str]]:
    """Pages and their content types."""
    openmetrics = fixture_page("vllm-0.33.0-rust.prom")
    return (
        (small_page(), "text/plain"),
        (fixture_page("real-0.32.0-two-frontends.prom.gz"), "text/plain"),
        (fixture_page("ray-vllm-0.10.2.prom"), "text/plain"),
        (openmetrics, OPENMETRICS),
    )


BASES = bases()


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(range(len(BASES))), st.randoms(use_true_random=False), st.integers(1, 3), st.integers(1, 3))
def test_a_changed_page_reads_as_it_does_alone(base: int, chance: random.Random, pages: int, changes: int) -> None:
    """One after another, each made of the page before it or of the first one, and back to the first."""
    first, content_type = BASES[base]
    reader = PageReader()
    texts = [first]
    for _ in range(pages):
        text = chance.choice((first, texts[-1]))
        for _ in range(chance.randint(1, changes)):
            text = changed(text, chance)
        texts.append(text)
    for text in (*texts, first):
        assert said(reader.read, text, content_type) == said(parse, text, content_type)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(
    "head",
    [
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} ',
        'vllm:prompt_tokens_total{engine="0",model_name="m"} ',
        'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="0.1"} ',
        'vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} ',
        'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} ',
        'vllm:cache_config_info{engine="0",block_size="16"} ',
        'vllm:num_requests_running{server="http://198.51.100.7:8000"} ',
        'vllm:unknown{engine="0",model_name="m"}',
        "process_open_fds ",
        "unknown\t",
        "# HELP unknown ",
    ],
)  # fmt: skip
def test_any_end_of_any_line_reads_as_it_does_alone(head: str, tail: str) -> None:
    labels = '{engine="0",model_name="m"'
    name = "vllm:time_to_first_token_seconds"

    def text(end: str) -> str:
        lines = [
            f"vllm:num_requests_running{labels}}} 3",
            f"vllm:kv_cache_usage_perc{labels}}} 0.5",
            f'{name}_bucket{labels},le="0.1"}} 1',
            f'{name}_bucket{labels},le="+Inf"}} 3',
            f"{name}_sum{labels}}} 1.5",
        ]
        return "\n".join([*(line for line in lines if not line.startswith(head)), head + end]) + "\n"

    reader = PageReader()
    for end in ("1", tail, "1", tail, tail, "2"):
        assert said(reader.read, text(end)) == said(parse, text(end))


@settings(deadline=None)
@given(st.lists(st.text(alphabet='ab{}"\\\n #=,+1.eNa\t\r_:'), min_size=2, max_size=4))
@example(["a 1\nb 2", "b 1\na 2", "a 1\nb_ 2"])
@example(["a 1", "1", "inf", "a inf"])
@example(["# a 1\nb 1", "# a 2\nb 1", "# a\nb 1"])
def test_whatever_follows_whatever_reads_as_it_does_alone(texts: list[str]) -> None:
    reader = PageReader()
    for before, after in pairwise(texts):
        for text in (before, after):
            assert said(reader.read, text + "\n") == said(parse, text + "\n")


# --- what stays ---------------------------------------------------------------------------------------------------


def test_a_histogram_without_new_observations_stays_the_same_object() -> None:
    server = Server()
    reader = PageReader()
    first = reader.read(server.text(), at=1.0).engines["m", "0"]
    server.engine.first_tokens(0.2)
    second = reader.read(server.text(), at=2.0).engines["m", "0"]
    same = {name for name in first.histograms if first.histograms[name] is second.histograms[name]}
    assert first.histograms.keys() - same == {"ttft", "iteration_tokens"}
    assert all(first.histograms[name].bounds is second.histograms[name].bounds for name in first.histograms)


def test_replicas_share_what_their_pages_have_in_common() -> None:
    """And no numbers."""
    servers = Server(), Server()
    readers = PageReader(), PageReader()
    for server, times in zip(servers, (1, 2), strict=True):
        server.engine.serves(times)
    for _ in range(2):
        for server, reader in zip(servers, readers, strict=True):
            assert reader.read(server.text(), at=7.0) == server.page(7.0)
            server.engine.serves()
    first, second = (layout_of(server.text(), read_lines(server.text())) for server in servers)
    assert first is second


def test_a_page_read_before_is_not_touched_by_the_next() -> None:
    server = Server()
    reader = PageReader()
    text = server.text()
    first = reader.read(text, at=1.0)
    server.engine.serves(5)
    reader.read(server.text(), at=2.0)
    assert first == parse(text, at=1.0)


def test_a_refused_page_changes_nothing() -> None:
    server = Server()
    server.engine.serves()
    reader = PageReader()
    reader.read(server.text(), at=1.0)
    server.engine.serves()
    for text in (server.text()[:-3], "", "<html>"):
        with pytest.raises(ExpositionError):
            reader.read(text, at=2.0)
    assert only_numbers(reader, server.text())
    assert reader.read(server.text(), at=3.0) == parse(server.text(), at=3.0)


def test_another_content_type_is_judged_anew() -> None:
    reader = PageReader()
    text = small_page()
    reader.read(text, at=1.0)
    with pytest.raises(ExpositionError, match="without # EOF"):
        reader.read(text, at=2.0, content_type=OPENMETRICS)
