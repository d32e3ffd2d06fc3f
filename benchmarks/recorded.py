"""Recordings for the benchmarks: those of this repository, or another folder's, each a folder or one file."""

import gzip
import json
from pathlib import Path
from typing import Any

from phasewatch.sources.packed import SUFFIX
from phasewatch.sources.recording import Recording, RecordingError
from phasewatch.sources.sources import recording_at

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
TRUTH = "truth.json"


def name_of(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def recordings_in(folder: Path) -> list[Path]:
    """By name. Raises RecordingError for what is no folder, or has none."""
    if not folder.is_dir():
        raise RecordingError(f"{folder} is no folder; name the folder that holds the recordings")
    found = [path for path in folder.iterdir() if path.is_dir() or path.name.endswith(SUFFIX)]
    if not found:
        raise RecordingError(f"{folder} holds no recordings; name the folder that holds some")
    return sorted(found, key=name_of)


def named(folder: Path, name: str) -> Path:
    """The recording of this name in a folder of recordings."""
    file = folder / f"{name}{SUFFIX}"
    return file if file.is_file() else folder / name


def opened(path: Path) -> Recording:
    return recording_at(str(path))


def truth_of(recording: Recording) -> dict[str, Any] | None:
    """What was done and what clients saw; None where that was not kept. Raises RecordingError for a broken record."""
    for name, read in ((TRUTH, bytes), (f"{TRUTH}.gz", gzip.decompress)):
        file = recording.path.joinpath(name)
        if file.is_file():
            try:
                truth = json.loads(read(file.read_bytes()))
                if isinstance(truth, dict) and isinstance(truth["requests"], list):
                    return truth
                raise ValueError("requests is no list")
            except (OSError, EOFError, ValueError, KeyError) as error:
                raise RecordingError(f"{file} is no record of what clients saw: {error!r}") from None
    return None
