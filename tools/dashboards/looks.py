"""Colours and line styles. The palette is Okabe and Ito's, which colour-blind people tell apart; no meaning hangs on
colour alone: series have names, timelines carry words, limits are dashed."""

from collections.abc import Mapping
from typing import Any

from phasewatch.core.diagnosis.causes._row import Phase
from phasewatch.core.diagnosis.verdicts import VERDICT_TABLE
from phasewatch.core.model import TROUBLE
from tools.dashboards.queries import STATE_NUMBERS, VERDICT_NUMBERS

BLUE, ORANGE, SKY, GREEN = "#0072B2", "#E69F00", "#56B4E9", "#009E73"
VERMILLION, PURPLE, YELLOW, GREY = "#D55E00", "#CC79A7", "#F0E442", "#999999"
PALETTE = (BLUE, ORANGE, SKY, GREEN, VERMILLION, PURPLE, YELLOW, GREY)

_DASHED = {"custom.lineStyle": {"fill": "dash", "dash": [10, 8]}, "custom.fillOpacity": 0, "custom.lineWidth": 1}
# The edges of the bucket that holds a percentile: an area between two lines of no width, named once.
_EDGE = {
    "custom.lineWidth": 0,
    "custom.fillOpacity": 0,
    "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
}


def _solid(colour: str) -> dict[str, Any]:
    return {"color": {"mode": "fixed", "fixedColor": colour}}


# Series of these names look the same in every panel.
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "p99": {**_solid(BLUE), "custom.lineWidth": 2},
    "p99 high": {**_solid(BLUE), **_EDGE, "custom.fillBelowTo": "p99 low", "custom.fillOpacity": 18},
    "p99 low": {**_solid(BLUE), **_EDGE},
    "p50": _solid(SKY),
    "mean": _solid(GREEN),
    "limit (warning)": {**_solid(ORANGE), **_DASHED},
    "limit (critical)": {**_solid(VERMILLION), **_DASHED},
    "budget": {**_solid(ORANGE), **_DASHED},
    "median of its peers": {**_solid(GREY), **_DASHED},
    "queue": _solid(ORANGE),
    "prefill": _solid(BLUE),
    "decode": _solid(PURPLE),
    "frontend": _solid(GREEN),
    "unexplained": _solid(GREY),
    "waiting": _solid(ORANGE),
    "deferred": _solid(YELLOW),
    "failed": _solid(VERMILLION),
    "gave up first": _solid(GREY),
    "running": _solid(BLUE),
    "KV cache, fullest": _solid(PURPLE),
    "KV cache, mean": {**_solid(PURPLE), **_DASHED},
    "preempted": _solid(VERMILLION),
    "stalled": _solid(VERMILLION),
    "arrivals": _solid(ORANGE),
    "admissions": _solid(BLUE),
    "completions": _solid(GREEN),
    "prompt tokens": _solid(BLUE),
    "output tokens": _solid(PURPLE),
}

# A verdict's colour is that of its phase, as in the stacked phases.
PHASE_COLOURS: Mapping[Phase, str] = {
    "none": "#BFD3E6", "unknown": GREY, "progress": VERMILLION, "failures": VERMILLION, "queue": ORANGE,
    "prefill": BLUE, "frontend": GREEN, "decode": PURPLE, "answers": YELLOW, "replicas": SKY,
}  # fmt: skip
_STATES: Mapping[str, str] = {"serving": "#DDDDDD", **dict.fromkeys(TROUBLE, "#777777"), "down": "#555555"}


TIMELINE: Mapping[int, tuple[str, str]] = {
    **{number: (state, _STATES.get(state, "#BBBBBB")) for state, number in STATE_NUMBERS.items()},
    **{VERDICT_NUMBERS[row.verdict]: (row.verdict, PHASE_COLOURS[row.phase]) for row in VERDICT_TABLE},
}
MET: Mapping[int, tuple[str, str]] = {
    -1: ("cannot be judged", GREY),
    0: ("met", "#BFD3E6"),
    1: ("missed", ORANGE),
    2: ("surely missed", VERMILLION),
}
UP: Mapping[int, tuple[str, str]] = {0: ("down", VERMILLION), 1: ("up", "#BFD3E6")}
