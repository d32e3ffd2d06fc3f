"""Fleets as documents: one as JSON, many as a document a line."""

import json
from collections.abc import Iterable
from typing import TextIO

from phasewatch.core.model import Fleet
from phasewatch.core.report.document import document


def print_document(fleet: Fleet, out: TextIO) -> None:
    print(json.dumps(document(fleet), allow_nan=False), file=out, flush=True)


def print_documents(fleets: Iterable[Fleet], out: TextIO) -> None:
    for fleet in fleets:
        print_document(fleet, out)
