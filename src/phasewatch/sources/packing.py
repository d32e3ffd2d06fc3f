"""A recorded folder -> NAME.tar.xz, the same bytes for the same pages, whole or not at all."""

import io
import lzma
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from phasewatch.sources.packed import MAX_BYTES, MAX_FILES
from phasewatch.sources.pages import PageError, gunzip
from phasewatch.sources.recording import SCRAPES, Recording, RecordingError, open_recording
from phasewatch.sources.target import folder_name

# Pages of one server hardly differ, so the page before is all that a dictionary must hold: 1 MiB is at least two
# pages of 400 kB. pb=0: text has no alignment. In the first filter long matches are taken greedily.
_FILTER = {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20, "pb": 0, "nice_len": 273}
_QUICK = {**_FILTER, "preset": 3}  # 50 MB/s: an hour of ten targets is packed in seconds
_STRONG = {**_FILTER, "preset": 9 | lzma.PRESET_EXTREME}  # 3 MB/s, three quarters of the size
# GNU tar warns of files older than its epoch.
_EARLIEST = 315_532_800


def pack(folder: str | Path, out: str | Path, *, strongly: bool = False, beside: Iterable[Path] = ()) -> int:
    """Write the recording in this folder to a file and return its size in bytes. The folder stays as it is.

    Pages are packed unzipped and in the order of time, each target's after another's. beside: files to lay next to
    the targets. What else lies in the folder is left out. Raises RecordingError: no recording, more than a reader
    takes, or a file that cannot be written.
    """
    out = Path(out)
    recording = open_recording(folder)
    unfinished = out.with_name(f".{out.name}.tmp")
    try:
        try:
            with open(unfinished, "wb") as file:
                _write(file, out, recording, beside, _STRONG if strongly else _QUICK)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, out)
        finally:
            unfinished.unlink(missing_ok=True)
        return out.stat().st_size
    except OSError as error:
        raise RecordingError(
            f"{out}: cannot be packed from {folder} ({error.strerror}); the folder can be used as it is"
        ) from None


def _write(file: Any, out: Path, recording: Recording, beside: Iterable[Path], filters: dict[str, Any]) -> None:
    whole = 0
    with (
        lzma.open(file, "wb", check=lzma.CHECK_CRC64, filters=[filters]) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        for number, (name, data, seconds) in enumerate(_members(recording, beside), 1):
            whole += len(data)
            if whole > MAX_BYTES or number > MAX_FILES:
                raise RecordingError(
                    f"{out}: {recording.path} is too large for one file (at most {MAX_BYTES >> 20} MiB of pages and"
                    f" {MAX_FILES} files can be read from one); use the folder"
                )
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), max(int(seconds), _EARLIEST)
            archive.addfile(member, io.BytesIO(data))


def _members(recording: Recording, beside: Iterable[Path]) -> Iterator[tuple[str, bytes, float]]:
    """Name, content and time of each file."""
    for target in sorted(recording.targets, key=lambda one: one.name):
        folder = folder_name(target.name)
        paths = [Path(str(entry.path)) for entry in target.entries]
        for entry, path in zip(target.entries, paths, strict=True):
            name, data = _unzipped(path)
            yield f"{folder}/{name}", data, entry.seconds
        about = paths[0].with_name(SCRAPES)
        if about.is_file():
            yield f"{folder}/{SCRAPES}", about.read_bytes(), target.entries[-1].seconds
    for path in beside:
        yield *_unzipped(path), 0.0


def _unzipped(path: Path) -> tuple[str, bytes]:
    """Name and content; as they are where the content is no whole gzip stream."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            return path.stem, gunzip(data)
        except PageError:
            pass
    return path.name, data
