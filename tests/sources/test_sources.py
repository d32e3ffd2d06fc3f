"""What a SOURCE argument is taken for."""

from pathlib import Path

import pytest

from phasewatch.core.settings import Settings
from phasewatch.sources.recording import RecordingError
from phasewatch.sources.sources import SOURCES, History, open_source
from phasewatch.sources.target import Target, TargetError
from support import real, unpacked


def _first(text: str) -> str | None:
    return next((row.what for row in SOURCES if row.knows(text)), None)


@pytest.mark.parametrize(
    "text", ["http://gpu-1:8000", "gpu-1:8000", "user:secret@gpu-1:8000/metrics", "[2001:db8::1]:8000", "ftp://h"]
)
def test_an_address_is_a_server(text: str) -> None:
    assert _first(text) == "URLs of servers"


@pytest.mark.parametrize("text", ["", " "])
def test_nothing_is_no_source_not_even_this_folder(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(unpacked("idle", tmp_path))
    with pytest.raises(TargetError, match="a source is empty; give a URL or a recording"):
        open_source(text)


@pytest.mark.parametrize("text", ["incident", "./gpu-1:8000", "/var/a:b", "~/gpu-1:8000", "folder/a:b"])
def test_a_path_that_is_not_there_is_a_missing_recording(text: str) -> None:
    assert _first(text) is None
    with pytest.raises(RecordingError, match="no such recording; for a server write its URL"):
        open_source(text)


def test_what_exists_is_a_recording_even_if_it_reads_like_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu-1:8000").mkdir()
    assert _first("gpu-1:8000") == "recordings"


def test_each_kind_opens_to_what_diagnose_can_judge() -> None:
    server = open_source("http://gpu-1")
    assert isinstance(server, Target)
    assert server.url == "http://gpu-1:80/metrics"
    past = open_source(str(real("burst")))
    assert isinstance(past, History)
    fleet = past.fleet(Settings(), past.end)
    assert (fleet.at, len(fleet.engines)) == (past.end, 1)
