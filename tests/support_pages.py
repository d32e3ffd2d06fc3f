"""Pages for tests: the fixture pages, and pages with families taken away."""

import gzip
from collections.abc import Iterable
from pathlib import Path

from phasewatch.core.pages.catalog import BY_NAME, CORE_SIGNALS, PREFIXES

PAGES = Path(__file__).resolve().parent / "fixtures" / "pages"

# Full names, old and new, of the five families that are enough for a first verdict (design: Verdicts).
FIVE_FAMILIES: tuple[str, ...] = tuple(
    prefix + name for signal in CORE_SIGNALS for name in BY_NAME[signal].names for prefix in PREFIXES
)

_SUFFIXES = ("_bucket", "_sum", "_count", "_total")


def read_page(path: Path) -> str:
    """A page from a file, gzipped or not; its line ends as they are."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def fixture_page(name: str) -> str:
    """A page of tests/fixtures/pages by its file name."""
    return read_page(PAGES / name)


def strip_page(text: str, families: Iterable[str]) -> str:
    """The page with nothing but these families, as if the server knew no others.

    families: full names as exposed ("vllm:num_requests_running"); a histogram's or counter's suffixed series belong
    to it, `_created` series to nothing.
    """
    wanted = {name + suffix for name in families for suffix in ("", *_SUFFIXES)}
    return "".join(line for line in text.splitlines(keepends=True) if _name(line) in wanted)


def _name(line: str) -> str:
    parts = line.split(None, 3)
    if parts[:2] in (["#", "HELP"], ["#", "TYPE"]):
        return parts[2]
    return line.partition("{")[0].split(None, 1)[0] if line.strip() else ""
