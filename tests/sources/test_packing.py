"""A recorded folder as one file: nothing of it is lost, and the same folder gives the same bytes."""

import gzip
from pathlib import Path

import pytest

from phasewatch.sources.http import Scrape
from phasewatch.sources.packed import open_packed
from phasewatch.sources.packing import pack
from phasewatch.sources.recording import Recording, RecordingError, RecordingWriter, open_recording

PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running "


def recorded(folder: Path) -> Path:
    writer = RecordingWriter(folder)
    for second in range(20):
        scrape = Scrape(PAGE + f"{second}\n", seconds=0.25, status=200, content_type="text/plain")
        writer.page("gpu-1:8000", 1_700_000_000 + second, scrape)
    writer.failure("a/b", 1_700_000_000.5, "timeout: no answer in 5 s", 5.0)
    return folder


def said(recording: Recording) -> list[object]:
    return [
        (target.name, entry.seconds, entry.reason or entry.read(), entry.duration, entry.status, entry.content_type)
        for target in recording.targets
        for entry in target.entries
    ]


@pytest.mark.parametrize("strongly", [False, True])
def test_all_that_was_recorded_is_read_back_from_the_one_file(tmp_path: Path, strongly: bool) -> None:
    folder, out = recorded(tmp_path / "incident"), tmp_path / "incident.tar.xz"
    assert pack(folder, out, strongly=strongly) == out.stat().st_size < 2000
    assert said(open_packed(str(out))) == said(open_recording(folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["incident", "incident.tar.xz"]


def test_the_same_pages_give_the_same_bytes_wherever_and_whenever_they_lie(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        folder = recorded(tmp_path / name)
        (folder / "notes.txt").write_text(name)
        pack(folder, tmp_path / f"{name}.tar.xz", beside=[])
        files.append((tmp_path / f"{name}.tar.xz").read_bytes())
    assert files[0] == files[1]


def test_what_is_laid_beside_travels_along_and_a_torn_page_stays_torn(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "incident")
    truth = tmp_path / "truth.json.gz"
    truth.write_bytes(gzip.compress(b"{}"))
    (folder / "gpu-1%3A8000" / "1700000099.000.prom.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    pack(folder, tmp_path / "a.tar.xz", beside=[truth])
    recording = open_packed(str(tmp_path / "a.tar.xz"))
    assert recording.path.joinpath("truth.json").read_text() == "{}"
    (torn,) = [entry for target in recording.targets for entry in target.entries if entry.seconds == 1_700_000_099]
    assert (torn.reason or "").startswith("truncated: ")


def test_no_recording_no_place_and_too_much_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    folder = recorded(tmp_path / "incident")
    monkeypatch.setattr("phasewatch.sources.packing.MAX_FILES", 10)
    for source, out, what in (
        (tmp_path / "empty", tmp_path / "a.tar.xz", "has no scrapes"),
        (folder, tmp_path / "gone" / "a.tar.xz", "No such file or directory"),
        (folder, tmp_path / "a.tar.xz", "too large for one file"),
    ):
        with pytest.raises(RecordingError, match=what):
            pack(source, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "incident"]
