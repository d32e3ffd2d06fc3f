"""A recording in one file: the same as its folder, and no archive does harm."""

import io
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from phasewatch.core.report.document import document
from phasewatch.core.settings import Settings
from phasewatch.sources.packed import is_packed, open_packed
from phasewatch.sources.recording import RecordingError
from phasewatch.sources.sources import History, open_source, recording_at
from support import real, unpacked

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
FILE = tarfile.REGTYPE


def packed(path: Path, members: Iterable[tuple[str, bytes, bytes]]) -> str:
    """members: name, type, content (of a link: where it leads)."""
    with tarfile.open(path, "w:xz") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == FILE:
                member.size = len(content)
            else:
                member.linkname = content.decode()
            archive.addfile(member, io.BytesIO(content))
    return str(path)


def error_of(text: str, **limits: int) -> str:
    with pytest.raises(RecordingError) as caught:
        open_packed(text, **limits)
    message = str(caught.value)
    assert message.startswith(text)
    assert message.isprintable()
    return message


@pytest.mark.parametrize("inside", ["kv-exhausted", "."])
def test_a_packed_recording_is_judged_as_its_folder_is(tmp_path: Path, inside: str) -> None:
    folder, path = tmp_path / "folder", tmp_path / "incident.tar.xz"
    unpacked("kv-exhausted", folder)
    with tarfile.open(path, "w:xz", preset=0) as archive:
        archive.add(folder, inside)
    told = []
    for source in (open_source(str(path)), open_source(str(folder)), open_source(str(real("kv-exhausted")))):
        assert isinstance(source, History)
        told.append(document(source.fleet(Settings(), source.end)))
    assert told[0] == told[1] == told[2]
    assert told[0]["engines"][0]["verdict"] == "queue_kv_cache"


def test_pages_without_a_target_are_of_one_named_after_the_file(tmp_path: Path) -> None:
    text = packed(tmp_path / "gpu-1%3A8000.tar.xz", [("./1.prom", FILE, PAGE), ("./2.fail", FILE, b"timeout: slow\n")])
    (target,) = recording_at(text).targets
    assert target.name == "gpu-1:8000"
    assert [(entry.seconds, entry.reason) for entry in target.entries] == [(1.0, None), (2.0, "timeout: slow")]
    assert target.entries[0].read() == PAGE.decode()


def test_what_is_recorded_beside_a_page_is_read_from_the_archive_too(tmp_path: Path) -> None:
    about = b'{"seconds": 1.0, "duration": 0.25, "status": 200, "content_type": "text/x"}\n'
    text = packed(tmp_path / "a.tar.xz", [("t/1.prom", FILE, PAGE), ("t/scrapes.jsonl", FILE, about)])
    (entry,) = open_packed(text).targets[0].entries
    assert (entry.duration, entry.status, entry.content_type) == (0.25, 200, "text/x")


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ([("../1.prom", FILE, PAGE)], "'../1.prom' leads out of the archive"),
        ([("t/../../1.prom", FILE, PAGE)], "leads out of the archive"),
        ([("/tmp/1.prom", FILE, PAGE)], "'/tmp/1.prom' leads out of the archive"),
        ([("t/1.prom", tarfile.SYMTYPE, b"/etc/passwd")], "'t/1.prom' is no plain file (a link or a device)"),
        ([("t/1.prom", tarfile.LNKTYPE, b"t/2.prom")], "is no plain file"),
        ([("t/1.prom", tarfile.CHRTYPE, b"")], "is no plain file"),
        ([("t/1.prom", FILE, PAGE), ("t/1.prom", FILE, PAGE)], "'t/1.prom' is in the archive twice"),
        ([("t", FILE, PAGE), ("t/1.prom", FILE, PAGE)], "lies below a file"),
        ([("t/notes", FILE, b"x")], "has no scrapes"),
        ([("t/1.prom", FILE, b"x"), ("t/2.prom", FILE, b"y")], "none of its 2 scrapes can be read"),
    ],
)
def test_an_archive_that_is_no_recording_or_leads_elsewhere_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes, bytes]], what: str
) -> None:
    assert what in error_of(packed(tmp_path / "a.tar.xz", members))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.xz"], "nothing is written"


def test_an_archive_cut_anywhere_or_changed_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    # What does not compress, so that cuts lie in the data as well.
    packed(path, [("t/1.prom", FILE, PAGE), ("t/noise", FILE, os.urandom(5000))])
    whole = path.read_bytes()
    for end in (0, 5, 40, len(whole) // 2, len(whole) - 20, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert "is cut off; copy it again" in error_of(str(path)), end
    path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 0xFF]) + whole[2001:])
    assert "invalid xz data" in error_of(str(path))
    path.write_bytes(lzma.compress(b"not a tar archive" * 100))
    assert "invalid tar archive" in error_of(str(path))
    path.write_bytes(b"PK\x03\x04 a zip file by another name")
    assert "invalid xz data" in error_of(str(path))


def test_a_small_file_that_unpacks_to_much_is_stopped_at_the_limit(tmp_path: Path) -> None:
    text = packed(tmp_path / "a.tar.xz", [("t/1.prom", FILE, PAGE), ("t/2.prom", FILE, bytes(20_000_000))])
    assert Path(text).stat().st_size < 10_000
    assert "holds more than 4 MiB; unpack it and give the folder" in error_of(text, max_bytes=4 * 1024 * 1024)
    many = packed(tmp_path / "b.tar.xz", [(f"t/{n}.prom", FILE, PAGE) for n in range(30)])
    assert "holds more than 20 files" in error_of(many, max_files=20)


def test_a_header_or_a_file_that_no_recording_has_is_stopped_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        member = tarfile.TarInfo("t/1.prom")
        member.pax_headers = {"comment": "x" * 3_000_000}
        archive.addfile(member)
    assert "has a header of more than 1 MiB" in error_of(str(path))
    large = packed(path, [("t/1.prom", FILE, PAGE), ("t/2.prom", FILE, bytes(64 * 1024 * 1024 + 1))])
    assert "'t/2.prom' is larger than 64 MiB, which no page is; leave it out" in error_of(large)


def test_what_is_read_takes_the_memory_of_what_pages_compress_to(tmp_path: Path) -> None:
    zeros = packed(
        tmp_path / "a.tar.xz", [("t/1.prom", FILE, PAGE), *((f"t/{n}", FILE, bytes(4 * 10**7)) for n in "ab")]
    )
    tracemalloc.start()
    try:
        open_packed(zeros)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    noise = packed(tmp_path / "b.tar.xz", [("t/1.prom", FILE, PAGE), ("t/noise", FILE, os.urandom(200_000))])
    assert "takes more memory than pages do; unpack it and give the folder" in error_of(noise, max_kept_bytes=100_000)


def test_only_a_file_of_that_name_is_taken_for_one(tmp_path: Path) -> None:
    assert not is_packed(str(tmp_path / "gone.tar.xz"))
    (tmp_path / "folder.tar.xz").mkdir()
    assert not is_packed(str(tmp_path / "folder.tar.xz"))
    with pytest.raises(RecordingError, match="no such recording"):
        open_source(str(tmp_path / "gone.tar.xz"))
