import gzip
from random import Random

import pytest

from phasewatch.core.pages.exposition import parse
from phasewatch.sources.pages import Gunzip, PageError, gunzip, page_text

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
ZIPPED = gzip.compress(PAGE, mtime=0)  # the same bytes in every process that collects these tests


@pytest.mark.parametrize(
    ("body", "content_type", "reason", "says"),
    [
        (b"", "", "empty", "empty"),
        (b" \n\n", "", "empty", "empty"),
        (b"<!DOCTYPE html><html></html>", "", "not_metrics", "got HTML"),
        (b"<html><style>\nwidth 100px\n</style>", "", "not_metrics", "got HTML"),
        (b"<?xml version='1.0'?><a/>", "", "not_metrics", "got XML"),
        (b'{"error": "no"}', "", "not_metrics", "JSON"),
        (b"port: 8000\n", "", "not_metrics", "other text"),
        (b"OK", "", "not_metrics", "other text"),
        (b"\xff\xfe\x00", "", "encoding", "byte 0"),
        (PAGE.decode().encode("utf-16"), "", "encoding", "byte 0"),
        (Random(1).randbytes(100_000) + b"\nx 1\n", "", "encoding", "invalid UTF-8 at byte"),
        (b"\xff" + PAGE.replace(b"\n", b"\xff"), "", "encoding", "invalid UTF-8 at byte 0"),
        (ZIPPED, "", "encoding", "twice"),
        (PAGE, "application/openmetrics-text; version=1.0.0", "truncated", "# EOF"),
    ],
)
def test_what_is_no_whole_metrics_page_has_a_reason(body: bytes, content_type: str, reason: str, says: str) -> None:
    with pytest.raises(PageError, match=says) as caught:
        page_text(body, content_type)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "body",
    [
        PAGE,
        b"\xef\xbb\xbf" + PAGE,
        b"x 1",
        b'{"a.b"} 1\n',
        b'x{a="}"} -Inf\n',
        b"# EOF\n",
        b"# HELP x y\n",
        b"x NaN 123\n",
    ],
)
def test_any_page_with_a_metrics_line_is_taken(body: bytes) -> None:
    assert page_text(body) == body.decode("utf-8-sig")


@pytest.mark.parametrize("spoilt", [b"\xff", b"\xc3", b"\xed\xb0\x80", b"\xff\xfe" * 50])
@pytest.mark.parametrize("line", [b'http_requests_total{handler="%stest"} 1\n', b"# HELP x %s\n", b"%s\n", b"x %s1\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_d10_an_invalid_byte_costs_its_line_only(line: bytes, spoilt: bytes, bom: bytes) -> None:
    text = page_text(bom + PAGE + line % spoilt + b"vllm:num_requests_waiting 2\n")
    page = parse(text, at=0.0)
    (snapshot,) = page.engines.values()
    assert (snapshot.gauges["running"], snapshot.gauges["waiting"]) == (3, 2)
    (odd,) = page.anomalies
    assert (odd.kind, odd.count) == ("unreadable_line", 1)
    assert odd.last.startswith("line 3 cannot be read")
    assert text.encode().decode() == text
    assert page_text(text.encode()) == text  # what is recorded is read the same


def test_d10_a_sample_with_an_invalid_byte_is_not_taken_under_another_name() -> None:
    (snapshot,) = parse(page_text(PAGE + b'vllm:num_requests_running{model_name="\xff"} 9\n'), at=0.0).engines.values()
    assert snapshot.gauges["running"] == 3


def test_gzip_is_read_piece_by_piece_and_over_several_members() -> None:
    data = ZIPPED + ZIPPED
    decoder = Gunzip()
    assert b"".join(decoder.feed(data[i : i + 1]) for i in range(len(data))) == PAGE * 2
    decoder.finish()


@pytest.mark.parametrize("length", range(1, len(ZIPPED)))
def test_gzip_that_ends_early_is_truncated_wherever_it_is_cut(length: int) -> None:
    with pytest.raises(PageError) as caught:
        gunzip(ZIPPED[:length])
    assert caught.value.reason == "truncated"


def test_a_gzip_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(b"\n" * 50_000_000)
    assert len(bomb) < 60_000
    with pytest.raises(PageError) as caught:
        gunzip(bomb, limit=1000)
    assert caught.value.reason == "too_large"
    assert gunzip(gzip.compress(b"x" * 1000), limit=1000) == b"x" * 1000
