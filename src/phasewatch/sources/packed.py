"""A recording in one file, NAME.tar.xz: read into memory as a folder would be, and never written to disk.

The file may come from anywhere, so nothing in it is trusted: not names (`..`), not links, not sizes (a few kB of xz can
unpack to terabytes), not that it is whole.
"""

import io
import lzma
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from phasewatch.sources.recording import Recording, RecordingError, contents, recording_in

SUFFIX = ".tar.xz"
MAX_BYTES = 1024 * 1024 * 1024  # unpacked; a day of one target at 10 s is 170 MB of compressed pages
MAX_FILES = 250_000
_MAX_XZ_MEMORY = 256 * 1024 * 1024  # xz -9 needs 65 MiB to unpack
_PIECE = 1024 * 1024


def is_packed(text: str) -> bool:
    return text.endswith(SUFFIX) and Path(text).is_file()


def open_packed(text: str, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Recording:
    """The recording in this file. Raises RecordingError: the same as for a folder, or why it cannot be unpacked."""
    try:
        with open(text, "rb") as file:
            root = _unpacked(text, file, max_bytes, max_files)
    except OSError as error:
        raise RecordingError(f"{text}: cannot be read ({error.strerror})") from None
    return recording_in(_without_wrapping(root), Path(text).name.removesuffix(SUFFIX))


# --- what is unpacked, laid out as a folder ----------------------------------------------------------------------


@dataclass
class Packed:
    """A file or folder in the archive. path: as messages show it. content: None of a folder, or of nothing there."""

    path: str
    content: bytes | None = None
    children: dict[str, "Packed"] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def is_file(self) -> bool:
        return self.content is not None

    def is_dir(self) -> bool:
        return self.content is None

    def iterdir(self) -> Iterator["Packed"]:
        return iter(self.children.values())

    def joinpath(self, *names: str | os.PathLike[str]) -> "Packed":
        place = self
        for name in (os.fspath(one) for one in names):
            place = place.children.get(name) or Packed(f"{place.path}/{name}")
        return place

    def __truediv__(self, name: str | os.PathLike[str]) -> "Packed":
        return self.joinpath(name)

    def read_bytes(self) -> bytes:
        if self.content is None:
            raise FileNotFoundError(2, "no such file in the archive", self.path)
        return self.content

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        raw = io.BytesIO(self.read_bytes())
        return raw if "b" in mode else io.TextIOWrapper(raw, *args, **kwargs)


def _without_wrapping(root: Traversable) -> Traversable:
    """Below the one folder that `tar -cJf incident.tar.xz incident` puts around the targets."""
    scrapes, folders = contents(root)
    if scrapes or len(folders) != 1:
        return root
    scrapes, below = contents(folders[0])
    return root if scrapes or not below else folders[0]


# --- unpacking ---------------------------------------------------------------------------------------------------


class _Unxz:
    """A file to read from, of what an xz stream holds; at most `left` bytes. Raises RecordingError."""

    def __init__(self, name: str, file: BinaryIO, most: int) -> None:
        self._name, self._file, self._most, self._left = name, file, most, most
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY)

    def read(self, size: int) -> bytes:
        while not self._decoder.eof:
            given = self._file.read(_PIECE) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not given:
                raise RecordingError(f"{self._name}: is cut off; copy it again")
            try:
                piece = self._decoder.decompress(given, size)
            except lzma.LZMAError as error:
                raise RecordingError(f"{self._name}: invalid xz data ({error}); copy it again") from None
            self._left -= len(piece)
            if self._left < 0:
                raise RecordingError(
                    f"{self._name}: holds more than {self._most / 2**20:.0f} MiB; unpack it and give the folder"
                )
            if piece:
                return piece
        return b""


def _unpacked(name: str, file: BinaryIO, max_bytes: int, max_files: int) -> Packed:
    stream = _Unxz(name, file, max_bytes)
    root = Packed(name)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for number, member in enumerate(archive, 1):
                if number > max_files:
                    raise RecordingError(f"{name}: holds more than {max_files} files; unpack it and give the folder")
                _keep(root, member, archive)
        while stream.read(_PIECE):  # the checksums of the rest
            pass
    except tarfile.TarError as error:
        raise RecordingError(f"{name}: invalid tar archive ({error}); make it with: tar -cJf {name} FOLDER") from None
    return root


def _keep(root: Packed, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    what = f"{root.path}: {member.name!r}"
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise RecordingError(f"{what} leads out of the archive; pack the recording's folder itself")
    if member.isdir():
        return
    if not member.isreg() or member.issparse():
        raise RecordingError(f"{what} is no plain file (a link or a device); pack the files themselves")
    content = archive.extractfile(member)
    place = root
    for part in path.parts[:-1]:
        place = place.children.setdefault(part, Packed(f"{place.path}/{part}"))
        if place.is_file():
            raise RecordingError(f"{what} lies below a file; pack the recording's folder itself")
    if not path.parts or path.name in place.children:
        raise RecordingError(f"{what} is in the archive twice; pack the recording again")
    assert content is not None
    place.children[path.name] = Packed(f"{place.path}/{path.name}", content.read())
