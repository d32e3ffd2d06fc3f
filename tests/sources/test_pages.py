import gzip

import pytest

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
