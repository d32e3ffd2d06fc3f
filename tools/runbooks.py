"""`python -m tools.runbooks [FOLDER]` rewrites the remedies in every verdict's runbook from its cause's row.

FOLDER defaults to config/runbooks/verdicts. Only what stands between the two marks is touched; the rest is written by
hand. A runbook without the marks stops it, by one line that says which.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from phasewatch.core.diagnosis.causes import CAUSES
from phasewatch.core.diagnosis.causes._row import Advice

FOLDER = Path(__file__).parents[1] / "config" / "runbooks" / "verdicts"
BEGIN, END = "<!-- begin: written by `make runbooks` from the cause's row -->", "<!-- end -->"
_WHEN = {"now": "now", "restart": "with a restart", "capacity": "more capacity"}


class MissingMarksError(ValueError):
    """A runbook that has no place for its remedies."""


def listed(remedies: Sequence[Advice]) -> str:
    """The remedies as a numbered list, first what can be done now."""
    return "\n".join(_item(number, remedy) for number, remedy in enumerate(remedies, 1))


def _item(number: int, remedy: Advice) -> str:
    since = f", vLLM {remedy.since} on" if remedy.since else ""
    side_effect = "" if remedy.side_effect == "none" else f" Side effect: {remedy.side_effect}."
    why = remedy.why[0].upper() + remedy.why[1:]
    where = f" Only where {remedy.where}." if remedy.where else ""
    text = f"{number}. **{remedy.change}** ({_WHEN[remedy.when]}{since}). {why}.{side_effect}{where}"
    return fill(text, 110, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)


def with_remedies(text: str, remedies: Sequence[Advice]) -> str:
    """The runbook with these remedies between its marks. Raises MissingMarksError."""
    before, begin, rest = text.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MissingMarksError(f"no lines {BEGIN!r} and {END!r} under '## Change'; write them there")
    return f"{before}{begin}{listed(remedies)}\n{end}{after}"


def files(folder: Path = FOLDER) -> dict[Path, str]:
    """Every cause's runbook as it must be. Raises MissingMarksError or OSError, with the path."""
    written = {}
    for row in CAUSES:
        path = folder / f"{row.verdict}.md"
        try:
            written[path] = with_remedies(path.read_text(encoding="utf-8"), row.remedies)
        except MissingMarksError as error:
            raise MissingMarksError(f"{path}: {error}") from None
    return written


def main() -> None:
    try:
        written = files(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    except (MissingMarksError, OSError) as error:
        sys.exit(f"runbooks: {error}")
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
