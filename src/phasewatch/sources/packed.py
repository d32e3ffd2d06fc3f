"""A recording in one file, NAME.tar.xz: read into memory as a folder would be, and never written to disk.

The file may come from anywhere, so nothing in it is trusted: not names (`..`), not links, not sizes (a few kB of xz can
unpack to terabytes), not that it is whole.
"""

import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from phasewatch.sources.pages import MAX_PAGE_BYTES
from phasewatch.sources.recording import Recording, RecordingError, contents, recording_in

SUFFIX = ".tar.xz"
MAX_BYTES = 4 * 1024 * 1024 * 1024  # unpacked: eight days of one target at 10 s, or five hours of twenty at 5 s
MAX_FILES = 250_000
# Pages are kept deflated, a tenth of their size; only what hardly compresses, and so is no page, comes near this.
MAX_KEPT_BYTES = 1024 * 1024 * 1024
_MAX_XZ_MEMORY = 256 * 1024 * 1024  # xz -9 needs 65 MiB to unpack
_MAX_HEADER = 1024 * 1024  # of one file in the archive: long names and their like
_PIECE = 1024 * 1024


def is_packed(text: str) -> bool:
    return text.endswith(SUFFIX) and Path(text).is_file()


def open_packed(
    text: str, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES, max_kept_bytes: int = MAX_KEPT_BYTES
) -> Recording:
    """The recording in this file. Raises RecordingError: the same as for a folder, or why it cannot be unpacked."""
    try:
        with open(text, "rb") as file:
            root = _unpacked(text, file, max_bytes, max_files, max_kept_bytes)
    except OSError as error:
        raise RecordingError(f"{text}: cannot be read ({error.strerror})") from None
    return recording_in(_without_wrapping(root), Path(text).name.removesuffix(SUFFIX))


# --- what is unpacked, laid out as a folder ----------------------------------------------------------------------


@dataclass(slots=True)
class Packed:
    """A file or folder in the archive. path: as messages show it. deflated: None of a folder, or of nothing there."""

    path: str
    deflated: bytes | None = None
    children: dict[str, "Packed"] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def is_file(self) -> bool:
        return self.deflated is not None

    def is_dir(self) -> bool:
        return self.deflated is None

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
        if self.deflated is None:
            raise FileNotFoundError(2, "no such file in the archive", self.path)
        return zlib.decompress(self.deflated)

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
    """A file to read from, of what an xz stream holds, and never more than was allowed. Raises RecordingError."""

    def __init__(self, name: str, file: BinaryIO, most: int) -> None:
        self._name, self._file, self._most = name, file, most
        self._given = 0
        self._allowed = _MAX_HEADER
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
            self._given += len(piece)
            if self._given > self._most:
                raise RecordingError(
                    f"{self._name}: holds more than {self._most / 2**20:.0f} MiB; unpack it and give the folder"
                )
            if self._given > self._allowed:
                raise RecordingError(f"{self._name}: has a header of more than 1 MiB; pack the recording again")
            if piece:
                return piece
        return b""

    def allow(self, size: int) -> None:
        """What a header announced, and the next header."""
        self._allowed = self._given + size + _MAX_HEADER


def _unpacked(name: str, file: BinaryIO, max_bytes: int, max_files: int, max_kept_bytes: int) -> Packed:
    stream = _Unxz(name, file, max_bytes)
    root = Packed(name)
    kept = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for number, member in enumerate(archive, 1):
                if number > max_files:
                    raise RecordingError(f"{name}: holds more than {max_files} files; unpack it and give the folder")
                stream.allow(member.size)
                kept += _keep(root, member, archive)
                if kept > max_kept_bytes:
                    raise RecordingError(f"{name}: takes more memory than pages do; unpack it and give the folder")
                archive.members.clear()  # tarfile would remember each
        while stream.read(_PIECE):  # the checksums of the rest
            pass
    except tarfile.TarError as error:
        raise RecordingError(f"{name}: invalid tar archive ({error}); make it with: tar -cJf {name} FOLDER") from None
    return root


def _keep(root: Packed, member: tarfile.TarInfo, archive: tarfile.TarFile) -> int:
    """How many bytes that takes."""
    what = f"{root.path}: {member.name!r}"
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise RecordingError(f"{what} leads out of the archive; pack the recording's folder itself")
    if member.isdir():
        return 0
    if not member.isreg() or member.issparse():
        raise RecordingError(f"{what} is no plain file (a link or a device); pack the files themselves")
    if member.size > MAX_PAGE_BYTES:
        raise RecordingError(f"{what} is larger than {MAX_PAGE_BYTES >> 20} MiB, which no page is; leave it out")
    place = root
    for part in path.parts[:-1]:
        place = place.children.setdefault(part, Packed(f"{place.path}/{part}"))
        if place.is_file():
            raise RecordingError(f"{what} lies below a file; pack the recording's folder itself")
    if not path.parts or path.name in place.children:
        raise RecordingError(f"{what} is in the archive twice; pack the recording again")
    content = archive.extractfile(member)
    assert content is not None
    deflate = zlib.compressobj(1)
    deflated = b"".join(deflate.compress(piece) for piece in iter(lambda: content.read(_PIECE), b"")) + deflate.flush()
    place.children[path.name] = Packed(f"{place.path}/{path.name}", deflated)
    return len(deflated)
