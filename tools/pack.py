"""A recorded folder, with the truth beside it, as one small file: `python -m tools.pack FOLDER... --out recordings`.

What is in recordings/ was made so. The same folder gives the same bytes with the same liblzma.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from phasewatch.sources.packed import SUFFIX
from phasewatch.sources.packing import pack
from phasewatch.sources.recording import RecordingError


def main(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Recordings, one a folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write NAME.tar.xz to.")],
) -> None:
    """Pack recordings as strongly as xz can, truth.json.gz included."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        file = out / (folder.name + SUFFIX)
        try:
            size = pack(folder, file, strongly=True, beside=sorted(folder.glob("truth.json*")))
        except RecordingError as error:
            print(f"pack: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        print(f"{file}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
