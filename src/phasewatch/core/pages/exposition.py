"""One page of /metrics -> what it says of each engine, by the catalog's stable names.

One tolerant reader takes the Prometheus text format (0.0.4, 1.0.0) and OpenMetrics 1.0: their sample lines differ only
in what may follow the value. A line that cannot be read costs only itself; a page that cannot be trusted as a whole
raises ExpositionError.
"""

from collections.abc import Sequence
from itertools import compress
from operator import ne

from phasewatch.core.model import Page
from phasewatch.core.pages.layout import Reading, layout_of
from phasewatch.core.pages.lines import Lines, numbers_in, read_lines, shortened

# Of the text formats and OpenMetrics.
_CONTENT_TYPES = frozenset({"text/plain", "application/openmetrics-text"})


class ExpositionError(ValueError):
    """The page must be discarded as a whole; str() is one line that says why."""


def parse(text: str, *, at: float, content_type: str = "text/plain") -> Page:
    """Read one page. at: when it was read, in seconds on a monotonic clock; content_type: as the server sent it.

    Gauges and counters that are NaN count as not there. Raises ExpositionError for a page that is empty, is no
    metrics page, or was cut.
    """
    return _reading(text, content_type).page(at)


class PageReader:
    """Reads the pages of one target in turn: each as `parse` would, but of a page that differs from the one before
    in nothing but numbers only those that changed."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._content_type = ""
        self._tails: Sequence[str] = ()

    def read(self, text: str, *, at: float, content_type: str = "text/plain") -> Page:
        """As `parse`. A page that is refused changes nothing."""
        if self._last is not None and content_type == self._content_type and self._moved(self._last, text):
            return self._last.page(at)
        self._last, self._content_type = _reading(text, content_type), content_type
        self._tails = list(map(str.removeprefix, text.split("\n"), self._last.layout.heads))
        return self._last.page(at)

    def _moved(self, last: Reading, text: str) -> bool:
        """Whether the page differs from the last one in nothing but numbers, which are taken then."""
        layout = last.layout
        lines = text.split("\n")
        if len(lines) != len(self._tails):
            return False
        tails = list(map(str.removeprefix, lines, layout.heads))
        # Where every line had its head and lost it, this is what is left.
        if sum(map(len, tails)) != len(text) - (len(lines) - 1) - layout.heads_length:
            return False
        changed = list(map(ne, tails, self._tails))
        where = [at for at in compress(layout.numbered, changed) if at is not None]
        numbers = numbers_in(list(compress(tails, changed)))
        if numbers is None or len(where) < len(numbers) or not last.move(where, numbers):
            return False
        self._tails = tails
        return True


def _reading(text: str, content_type: str) -> Reading:
    lines = read_lines(text)
    _refuse_untrustworthy(text, lines, content_type)
    if problem := _undeclared(content_type):
        lines.anomalies.add("content_type", problem)
    return Reading(layout_of(text, lines), lines.values, lines.anomalies.all())


def _undeclared(content_type: str) -> str | None:
    """What is wrong with the type that a page is sent as; Prometheus 3 refuses what it does not know."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in _CONTENT_TYPES:
        return None
    return f"sent as {shortened(kind) if kind else 'no type'}, not as text/plain; Prometheus 3 refuses such a scrape"


def _refuse_untrustworthy(text: str, lines: Lines, content_type: str) -> None:
    body = text.strip()
    if not body:
        raise ExpositionError("the response is empty")
    if body.startswith("<"):
        raise ExpositionError(
            "the response is HTML, not metrics; check the URL's path and what stands in front of the server"
        )
    ended = body.rpartition("\n")[2] == "# EOF"
    if not (lines.good_lines or lines.declared or ended):
        what = "the response is JSON, not metrics" if body[0] in "{[" else "the response has no line of metrics"
        raise ExpositionError(f"{what}; it begins {shortened(body.partition(chr(10))[0])}")
    if "application/openmetrics-text" in content_type.lower() and not ended:
        raise ExpositionError("the response was truncated: OpenMetrics without # EOF at its end")
    if not (ended or text.endswith("\n")):
        raise ExpositionError("the response was truncated: its last line does not end in a line feed")
