import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewatch.sources.http import Scrape
from phasewatch.sources.packed import SUFFIX
from phasewatch.sources.recording import RecordingError, RecordingWriter, open_recording, timeline
from support import EXPECTED, RECORDINGS, real_recording

PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes files by relative path (text as it is, .gz compressed, bytes untouched); returns the folder."""

    def lay(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            file = tmp_path / "rec" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            file.write_bytes(gzip.compress(data) if name.endswith(".gz") and isinstance(content, str) else data)
        (tmp_path / "rec").mkdir(exist_ok=True)
        return tmp_path / "rec"

    return lay


def scrape(text: str = PAGE, seconds: float = 0.25) -> Scrape:
    return Scrape(text, "text/plain; version=0.0.4", 200, seconds)


def error_of(path: Path) -> str:
    with pytest.raises(RecordingError) as caught:
        open_recording(path)
    message = str(caught.value)
    assert message.isprintable()
    assert str(path) in message
    return message


def test_a_folder_of_targets_is_read_in_the_order_of_time(folder: Callable[..., Path]) -> None:
    path = folder(
        {
            "a%3A8000/10.prom": PAGE,
            "a%3A8000/9.5.prom.gz": PAGE,
            "a%3A8000/0100.00.fail": "URLError\nmore\n",
            "b/10.prom": PAGE,
            "b/notes.txt": "x",
            "b/x.prom": "x",
            "truth.json.gz": "{}",
            "README.md": "x",
            "empty/readme": "x",
        }
    )
    recording = open_recording(path)
    assert [(target.name, [entry.seconds for entry in target.entries]) for target in recording.targets] == [
        ("a:8000", [9.5, 10.0, 100.0]),
        ("b", [10.0]),
    ]
    assert [(seconds, name, entry.kind) for seconds, name, entry in timeline(recording)] == [
        (9.5, "a:8000", "page"),
        (10.0, "a:8000", "page"),
        (10.0, "b", "page"),
        (100.0, "a:8000", "failure"),
    ]
    first, *_, last = recording.targets[0].entries
    assert (first.read(), first.reason, first.content_type) == (PAGE, None, "text/plain")
    assert last.reason == "URLError"
    with pytest.raises(RecordingError, match="URLError"):
        last.read()


def test_a_folder_of_pages_is_a_recording_of_one_target_named_after_it(
    folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder({"host%3A8000/1.prom": PAGE, "host%3A8000/old/readme": ""}) / "host%3A8000"
    assert [target.name for target in open_recording(path).targets] == ["host:8000"]
    monkeypatch.chdir(path)
    assert [target.name for target in open_recording(".").targets] == ["host:8000"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("2.prom.gz", gzip.compress(PAGE.encode(), mtime=0)[:-9], "truncated"),
        ("2.prom.gz", b"no gzip", "encoding"),
        ("2.prom", b"\xff\xfe", "encoding"),
        ("2.prom", "", "empty"),
        ("2.prom.gz", "<html></html>", "not_metrics"),
        ("2.prom.gz", b"", "truncated"),
    ],
)
def test_a_bad_page_among_good_ones_is_a_failed_scrape(
    folder: Callable[..., Path], name: str, content: str | bytes, reason: str
) -> None:
    path = folder({"a/1.prom": PAGE, f"a/{name}": content, "a/3.prom": PAGE})
    entries = open_recording(path).targets[0].entries
    assert [entry.kind for entry in entries] == ["page", "failure", "page"]
    assert (entries[1].reason or "").startswith(f"{reason}: ")
    assert name in (entries[1].reason or "")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no scrapes"),
        ({"a/readme": "x"}, "no scrapes"),
        ({"a/1.prom": "<html>", "a/2.prom": ""}, "none of its 2 scrapes can be read"),
        ({"a/12.prom": PAGE, "a/12.prom.gz": PAGE}, "12.prom and 12.prom.gz"),
        ({"a/12.00.prom": PAGE, "a/12.fail": "x"}, "for one moment"),
        ({"1.prom": PAGE, "a/1.prom": PAGE}, "both scrapes and target folders"),
        ({"a%3A1/1.prom": PAGE, "a:1/1.prom": PAGE}, "two folders"),
        ({"run1/a/1.prom": PAGE, "run2/a/1.prom": PAGE}, "run1"),
    ],
)
def test_what_is_no_recording_is_one_line(folder: Callable[..., Path], files: dict[str, str], says: str) -> None:
    assert says in error_of(folder(files))


def test_a_missing_folder_and_a_file_are_told_apart(folder: Callable[..., Path]) -> None:
    path = folder({"a/1.prom": PAGE})
    assert "no such folder" in error_of(path / "b")
    assert "is a file" in error_of(path / "a" / "1.prom")


def test_failures_alone_are_the_recording_of_a_server_that_was_down(folder: Callable[..., Path]) -> None:
    entries = open_recording(folder({"a/1.fail": "refused", "a/2.fail": ""})).targets[0].entries
    assert [entry.reason for entry in entries] == ["refused", "failed, the reason was not recorded"]


def test_scrapes_jsonl_tells_what_a_page_cannot_and_may_be_torn(folder: Callable[..., Path]) -> None:
    openmetrics = "application/openmetrics-text; version=1.0.0"
    row = {"seconds": 1.0, "duration": 0.5, "status": 200, "content_type": openmetrics}
    odd = '[]\n{"seconds": "x"}\n{"seconds": 2.0, "duration": "long", "status": null, "content_type": 7}\n'
    path = folder(
        {"a/1.prom": PAGE + "# EOF\n", "a/2.prom": PAGE, "a/scrapes.jsonl": json.dumps(row) + "\n" + odd + '{"secon'}
    )
    one, two = open_recording(path).targets[0].entries
    assert (one.content_type, one.duration, one.status) == (openmetrics, 0.5, 200)
    assert (two.content_type, two.duration, two.status) == ("text/plain", None, None)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rec"
    writer = RecordingWriter(out)
    writer.page("[::1]:8000", 1700000000.1234, scrape())
    writer.failure("[::1]:8000", 1700000005.0, "timeout: no\nanswer", 9.0)
    writer.failure("down", 1700000005.0, "connect: refused")
    up, down = open_recording(out).targets
    assert (up.name, down.name) == ("[::1]:8000", "down")
    page, failure = up.entries
    assert (page.seconds, page.read()) == (1700000000.123, PAGE)
    assert (page.content_type, page.duration, page.status) == ("text/plain; version=0.0.4", 0.25, 200)
    assert (failure.reason, failure.duration) == ("timeout: no answer", 9.0)
    assert {file.name for file in (out / "%5B%3A%3A1%5D%3A8000").iterdir()} == {
        "1700000000.123.prom.gz",
        "1700000005.000.fail",
        "scrapes.jsonl",
    }


def test_going_on_with_a_recording_adds_and_never_overwrites(tmp_path: Path) -> None:
    RecordingWriter(tmp_path).page("a", 1700000000.0, scrape())
    (tmp_path / "README").write_text("mine")
    with (tmp_path / "a" / "scrapes.jsonl").open("a") as file:
        file.write('{"torn')
    writer = RecordingWriter(tmp_path)
    writer.page("a", 1700000000.0, scrape(PAGE + "x 1\n"))
    writer.page("a", 1699999999.0, scrape(PAGE + "x 2\n"))
    entries = open_recording(tmp_path).targets[0].entries
    assert [entry.seconds for entry in entries] == [1700000000.0, 1700000000.001, 1700000000.002]
    assert [entry.read() for entry in entries] == [PAGE, PAGE + "x 1\n", PAGE + "x 2\n"]
    assert [entry.duration for entry in entries] == [0.25] * 3


def test_clock_time_does_not_follow_relative_time(folder: Callable[..., Path]) -> None:
    path = folder({"a/1.prom": PAGE})
    with pytest.raises(RecordingError, match="new folder"):
        RecordingWriter(path).page("a", 1700000000.0, scrape())


def test_a_folder_with_something_else_is_not_written_to(folder: Callable[..., Path], tmp_path: Path) -> None:
    path = folder({"work/thesis.txt": "x"})
    for wrong, says in ((path, "nor a recording"), (path / "work" / "thesis.txt", "folder")):
        with pytest.raises(RecordingError, match=says):
            RecordingWriter(wrong)
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "1.prom").write_text(PAGE)
    with pytest.raises(RecordingError, match="one target"):
        RecordingWriter(pages)


def test_a_write_that_fails_keeps_what_was_there_and_leaves_no_half_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordingWriter(tmp_path)
    writer.page("a", 1700000000.0, scrape())

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RecordingError, match="No space left"):
        writer.page("a", 1700000005.0, scrape())
    assert [entry.read() for entry in open_recording(tmp_path).targets[0].entries] == [PAGE]
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["1700000000.000.prom.gz", "scrapes.jsonl"]


def test_t10_pages_of_another_clock_are_refused_even_of_another_target(tmp_path: Path) -> None:
    RecordingWriter(tmp_path).page("a", 5.0, scrape())
    with pytest.raises(RecordingError, match="counts seconds from its own start"):
        RecordingWriter(tmp_path, begins=1_700_000_000.0)
    writer = RecordingWriter(tmp_path)
    with pytest.raises(RecordingError, match="counts seconds from its own start"):
        writer.page("b", 1_700_000_000.0, scrape())
    assert [target.name for target in open_recording(tmp_path).targets] == ["a"]


def test_every_recording_of_a_real_server_opens_and_reads() -> None:
    names = sorted(path.name.removesuffix(SUFFIX) for path in RECORDINGS.glob(f"*{SUFFIX}"))
    assert len(names) >= 48
    assert set(EXPECTED) <= set(names)
    for name in names:
        entries = [entry for _, _, entry in timeline(real_recording(name))]
        assert len(entries) >= 30
        assert [entry.seconds for entry in entries] == sorted(entry.seconds for entry in entries)
        failures = [entry for entry in entries if entry.kind == "failure"]
        assert bool(failures) == (name == "restart")
        assert all("vllm:" in entry.read() for entry in entries if entry.kind == "page")
