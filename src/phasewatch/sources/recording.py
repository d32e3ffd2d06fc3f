"""Recordings: a folder TARGET/SECONDS.prom[.gz], one page a file; SECONDS.fail says why a scrape failed.

SECONDS is the scrape time, relative or Unix, fraction allowed. `scrapes.jsonl` beside the pages is optional and holds
what a page cannot say: seconds, duration, status, content_type. All other files are ignored.
"""

import gzip
import heapq
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from phasewatch.core.pages.catalog import EARLIEST_UNIX
from phasewatch.sources.http import Scrape
from phasewatch.sources.pages import MAX_PAGE_BYTES, PageError, gunzip, page_text, too_large
from phasewatch.sources.target import TargetError, folder_name, name_from_folder

SCRAPES = "scrapes.jsonl"
_ENTRY = re.compile(r"(\d+(?:\.\d+)?)\.(prom|prom\.gz|fail)")


class RecordingError(ValueError):
    """A recording that cannot be read or written. The message is one line: what, where, what to do."""


@dataclass(frozen=True)
class Entry:
    """One scrape. content_type: as the server sent it; duration (seconds) and status are None where not recorded.

    A page that cannot be read is a failure like that of a scrape; this is found out when kind or reason is asked for.
    """

    seconds: float
    path: Traversable
    content_type: str = "text/plain"
    duration: float | None = None
    status: int | None = None

    @property
    def kind(self) -> Literal["page", "failure"]:
        return "page" if self.reason is None else "failure"

    @cached_property
    def reason(self) -> str | None:
        """Why there is no page, one line such as `timeout: ...`; None where there is one."""
        try:
            if self.path.name.endswith(".fail"):
                lines = _words(self.path).strip().splitlines()
                return lines[0] if lines else "failed, the reason was not recorded"
            self._text()
        except PageError as error:
            return f"{error.reason}: {self.path}: {error.message}"
        except OSError as error:
            return f"unreadable: {self.path}: {error.strerror}"
        return None

    def read(self) -> str:
        """The page's text. Raises RecordingError for a failure."""
        if self.reason is not None:
            raise RecordingError(self.reason)
        try:
            return self._text()
        except (PageError, OSError) as error:
            raise RecordingError(f"{self.path}: changed while it was read ({error})") from None

    def _text(self) -> str:
        with self.path.open("rb") as file:
            data = file.read(MAX_PAGE_BYTES + 1)
        if len(data) > MAX_PAGE_BYTES:
            raise too_large(MAX_PAGE_BYTES)
        return page_text(gunzip(data) if self.path.name.endswith(".gz") else data, self.content_type)


@dataclass(frozen=True)
class TargetRecording:
    """What was recorded of one target, entries sorted by time, at least one."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Recording:
    path: Traversable
    targets: tuple[TargetRecording, ...]


def open_recording(path: str | Path) -> Recording:
    """The recording in this folder: a folder of targets, or the pages of one target, which is named after the folder.

    Pages are read later, one by one. Raises RecordingError for what is no recording, has two files for one moment, or
    has pages of which none can be read.
    """
    folder = Path(path)
    return recording_in(folder, folder.resolve().name)


def recording_in(folder: Traversable, name: str) -> Recording:
    """The same, of anything laid out as a folder. name: whose pages they are if they lie in it without a target's."""
    names, subfolders = contents(folder)
    if names:
        with_pages = [sub for sub in subfolders if contents(sub)[0]]
        if with_pages:
            raise RecordingError(
                f"{folder} has both scrapes and target folders ({with_pages[0].name}); move one of them away"
            )
        targets = [TargetRecording(name_from_folder(name), _entries(folder, names))]
    else:
        targets = [
            TargetRecording(name_from_folder(sub.name), _entries(sub, found))
            for sub in subfolders
            if (found := contents(sub)[0])
        ]
    if not targets:
        raise RecordingError(_no_recording(folder, subfolders))
    seen: dict[str, int] = {}
    for target in targets:
        seen[target.name] = seen.get(target.name, 0) + 1
        if seen[target.name] > 1:
            raise RecordingError(f"{folder} has two folders for the target {target.name!r}; remove or rename one")
    entries = [entry for target in targets for entry in target.entries]
    # A recording of a server that was down all the time is one; a folder of broken pages is not.
    if not any(entry.path.name.endswith(".fail") or entry.kind == "page" for entry in entries):
        raise RecordingError(
            f"{folder}: none of its {len(entries)} scrapes can be read; the first: {entries[0].reason}"
        )
    return Recording(folder, tuple(targets))


def timeline(recording: Recording) -> Iterator[tuple[float, str, Entry]]:
    """(seconds, target's name, entry) of all targets in the order of time, and of targets within a moment."""
    streams = (
        [(entry.seconds, index, target.name, entry) for entry in target.entries]
        for index, target in enumerate(recording.targets)
    )
    for seconds, _, name, entry in heapq.merge(*streams, key=lambda row: row[:2]):
        yield seconds, name, entry


class RecordingWriter:
    """Writes a recording, or goes on with one. Every page appears whole or not at all, and none is ever overwritten.

    Safe to use from several threads. Raises RecordingError; the constructor for a folder with something else in it.
    """

    def __init__(self, out: str | Path, begins: float | None = None) -> None:
        """begins: seconds of the first page to come, which a folder with another clock is refused for at once."""
        self.path = Path(out)
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}  # seconds of the last entry by target
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{self.path}: cannot be used as a folder ({error.strerror}); use a new one") from None
        if next(self.path.iterdir(), None) is None:
            return
        if contents(self.path)[0]:
            raise RecordingError(f"{self.path} has the scrapes of one target; use the folder above, or a new one")
        try:
            existing = open_recording(self.path)
        except RecordingError:
            raise RecordingError(f"{self.path} is neither empty nor a recording; use a new folder") from None
        self._last = {target.name: target.entries[-1].seconds for target in existing.targets}
        if begins is not None:
            self._same_clock(begins)

    def page(self, target_name: str, seconds: float, scrape: Scrape) -> Path:
        """Keeps a page; returns its file."""
        data = gzip.compress(scrape.text.encode(), 6, mtime=0)
        about = {"duration": round(scrape.seconds, 6), "status": scrape.status, "content_type": scrape.content_type}
        return self._write(target_name, seconds, ".prom.gz", data, about)

    def failure(self, target_name: str, seconds: float, reason: str, duration: float | None = None) -> Path:
        """Keeps why a scrape failed (one line); returns its file."""
        about = {} if duration is None else {"duration": round(duration, 6)}
        return self._write(target_name, seconds, ".fail", (" ".join(reason.split()) + "\n").encode(), about)

    def _write(self, target_name: str, seconds: float, suffix: str, data: bytes, about: dict[str, Any]) -> Path:
        with self._lock:
            try:
                folder = self.path / folder_name(target_name)
                seconds = self._free_moment(target_name, seconds)
                stem = f"{seconds:.3f}"
                folder.mkdir(exist_ok=True)
                file = folder / (stem + suffix)
                unfinished = folder / f".{stem}{suffix}.tmp"
                try:
                    unfinished.write_bytes(data)
                    os.replace(unfinished, file)
                finally:
                    unfinished.unlink(missing_ok=True)
                _append_line(folder / SCRAPES, json.dumps({"seconds": float(stem), **about}))
            except OSError as error:
                raise RecordingError(
                    f"{self.path}: cannot write ({error.strerror}); the scrapes so far are kept"
                ) from None
            except TargetError as error:
                raise RecordingError(f"target {target_name!r}: {error}") from None
            self._last[target_name] = float(stem)
            return file

    def _free_moment(self, target_name: str, seconds: float) -> float:
        """`seconds`, or just after the last entry: a clock set back must not turn a page into an earlier one."""
        self._same_clock(seconds)
        last = self._last.get(target_name)
        return seconds if last is None or round(seconds, 3) > last else last + 0.001

    def _same_clock(self, seconds: float) -> None:
        """Pages of two clocks, even of two targets, have no common time, and could not be read again."""
        if any(last < EARLIEST_UNIX for last in self._last.values()) and seconds >= EARLIEST_UNIX:
            raise RecordingError(
                f"{self.path} counts seconds from its own start and cannot go on in clock time; use a new folder"
            )


def contents(folder: Traversable) -> tuple[list[str], list[Traversable]]:
    """(names of pages and failures, subfolders), each sorted. Raises RecordingError."""
    try:
        children = sorted(folder.iterdir(), key=lambda child: child.name)
        return (
            [child.name for child in children if _ENTRY.fullmatch(child.name) and child.is_file()],
            [child for child in children if child.is_dir()],
        )
    except FileNotFoundError:
        raise RecordingError(f"{folder}: no such folder; a recording is a folder made by `phasewatch record`") from None
    except NotADirectoryError:
        raise RecordingError(
            f"{folder} is a file; a recording is a folder, or one file NAME.tar.xz: give the folder it lies in"
        ) from None
    except OSError as error:
        raise RecordingError(f"{folder}: cannot be read ({error.strerror})") from None


def _no_recording(folder: Traversable, subfolders: Iterable[Traversable]) -> str:
    for sub in subfolders:
        for below in contents(sub)[1]:
            if contents(below)[0]:
                return f"{folder} has several recordings; give one of them, such as {sub}"
    return f"{folder} has no scrapes; a recording is TARGET/SECONDS.prom or .prom.gz, as made by `phasewatch record`"


def _entries(folder: Traversable, names: list[str]) -> tuple[Entry, ...]:
    about = _about(folder / SCRAPES)
    entries: dict[float, Entry] = {}
    for name in names:
        match = _ENTRY.fullmatch(name)
        assert match is not None
        seconds = float(match[1])
        if seconds in entries:
            raise RecordingError(
                f"{folder} has {entries[seconds].path.name} and {name} for one moment; remove one of them"
            )
        known = about.get(seconds, {})
        entries[seconds] = Entry(
            seconds,
            folder / name,
            _typed(known, "content_type", str) or "text/plain",
            _typed(known, "duration", int, float),
            _typed(known, "status", int),
        )
    return tuple(entries[seconds] for seconds in sorted(entries))


def _words(path: Traversable) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def _about(path: Traversable) -> dict[float, dict[str, Any]]:
    """What scrapes.jsonl says by seconds. A torn or odd line is skipped: pages can be read without it."""
    try:
        lines = _words(path).split("\n")
    except OSError:
        return {}
    about = {}
    for line in lines:
        try:
            row = json.loads(line)
            about[float(row["seconds"])] = row
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return about


def _typed(row: dict[str, Any], key: str, *types: type) -> Any:
    value = row.get(key)
    return value if type(value) in types else None


def _append_line(path: Path, line: str) -> None:
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            # What a killed writer left torn stays a line of its own.
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode() + b"\n")
