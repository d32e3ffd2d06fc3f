"""Pictures for README of what the dashboards show on the demo's incident: a preview, not Grafana.

    make pictures        writes docs/pictures/*.png (the tests' helpers must be on PYTHONPATH)

The panels' own queries are asked of a real Prometheus, filled by what `phasewatch replay --format openmetrics` says of
the recordings that the package ships. Only the drawing is ours (a small SVG a panel, shown by Chromium): it keeps the
layout, titles, units, colours and words of the dashboards' JSON, and little else of Grafana.
"""

import html
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from boards import BOARDS, Target, shown
from histories import CONFIG, START, STEP, Filled, exported, scraped, text_of
from phasewatch.commands.demo import OBJECTIVES, demo_recording
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.outputs.backfill import Backfill
from phasewatch.sources.recording import Recording
from phasewatch.sources.replaying import replay
from support import SUITES, Tools, start_prometheus

OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures"
# Of the demo's three replicas the two with the longest recordings, until the middle of the incident.
REPLICAS, END, SCRAPE = ("vllm-0", "vllm-2"), 30.0, 2.0
# Dashboard, the rows that are drawn, and what its variables are set to.
PICTURES: Mapping[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "phasewatch-triage": (("What is slow, and since when", "Where the time goes"), {}),
    "phasewatch-fleet": (("Now", "Replicas", "$model_name"), {}),
    "phasewatch-engine": (("Now", "Latency"), {"target": "vllm-2"}),
}
TICKS = range(0, int(END) + 1, 5)
UNIT, GAP, COLUMN = 38, 8, 60  # pixels of a grid row, between panels, of a grid column
SHADES = ("#0072B2", "#4C9CC9", "#003F66", "#99C7E0", "#5B6E7A", "#1F5F8B")
TEXT, FAINT, PAPER, CARD = "#222", "#888", "#eef0f2", "#fff"
NOTE = "Preview of the dashboard's own queries on the recorded incident that ships with phasewatch. Not Grafana."


# --- data


def history() -> str:
    whole = demo_recording()
    recording = Recording(whole.path, tuple(t for t in whole.targets if t.name in REPLICAS))
    objectives = parse_objectives([f"{name}={limit}" for name, limit in OBJECTIVES.items()])
    written = Backfill()
    for fleet in replay(recording, Settings(windows=(60.0, 300.0), objectives=objectives), SCRAPE, END):
        written.add(scraped(exported(fleet, START, objectives)), START + fleet.at)
    return text_of(written)


def rows(board: dict[str, Any], titles: Sequence[str]) -> list[dict[str, Any]]:
    """The panels under these row titles, moved up so that nothing is left empty between."""
    gone = set(titles) - {panel["title"] for panel in board["panels"] if panel["type"] == "row"}
    assert not gone, f"{board['title']} has no row titled {', '.join(sorted(gone))}"
    chosen, offset, take = [], 0, False
    for panel in board["panels"]:
        if panel["type"] == "row":
            take = panel["title"] in titles
            if take:
                bottom = max((p["at"]["y"] + p["at"]["h"] for p in chosen), default=0)
                offset = panel["gridPos"]["y"] - bottom
        if take:
            chosen.append({**panel, "at": {**panel["gridPos"], "y": panel["gridPos"]["y"] - offset}})
    return chosen


# --- drawing


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg>'


def text(x: float, y: float, words: str, size: int = 11, colour: str = TEXT, anchor: str = "start") -> str:
    escaped = html.escape(words)
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escaped}</text>'


def shown_value(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit == "s":
        return f"{value * 1000:.0f} ms" if abs(value) < 1 else f"{value:.2f} s".replace(".00", "")
    suffix = {"reqps": " req/s", "cps": " /s"}.get(unit, "")
    return f"{value:.3g}{suffix}"


def legend(target: dict[str, Any], labels: Mapping[str, str]) -> str:
    name: str = target.get("legendFormat") or ""
    for label, value in labels.items():
        name = name.replace(f"{{{{{label}}}}}", value)
    return name


def properties(panel: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        p["id"]: p["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == name
        for p in override["properties"]
    }


def graph(panel: dict[str, Any], answers: list[tuple[dict[str, Any], list[dict[str, Any]]]], w: float, h: float) -> str:
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    stacked = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
    lines = []
    for target, series in answers:
        for one in series:
            name = legend(target, one["metric"])
            look = properties(panel, name)
            points = [(float(at) - START, float(value)) for at, value in one["values"]]
            lines.append((name, look, points))
    left, bottom, top, right = 58, 38, 8, 52 if any("unit" in look for _, look, _ in lines) else 8
    plot_w, plot_h = w - left - right, h - bottom - top
    sums: dict[float, float] = {}
    if stacked:
        for _, _, points in lines:
            for at, value in points:
                sums[at] = sums.get(at, 0.0) + value
    highest = {
        side: max(
            [*(sums.values() if stacked else ()), *(v for _, look, points in lines for _, v in points
              if (look.get("custom.axisPlacement") == "right") == side)], default=0.0) * 1.08 or 1.0
        for side in (False, True)
    }  # fmt: skip
    largest = panel["fieldConfig"]["defaults"].get("max")
    highest[False] = largest or highest[False]

    def x(at: float) -> float:
        return left + plot_w * at / END

    def y(value: float, side: bool = False) -> float:
        return top + plot_h * (1 - min(1.0, value / highest[side]))

    out = []
    for tick in range(5):
        value = highest[False] * tick / 4
        out.append(f'<line x1="{left}" x2="{w - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e3e6e8"/>')
        out.append(text(left - 6, y(value) + 4, shown_value(value, unit), 10, FAINT, "end"))
        if right > 10:
            own = next(look["unit"] for _, look, _ in lines if "unit" in look)
            out.append(text(w - right + 6, y(value) + 4, shown_value(highest[True] * tick / 4, own), 10, FAINT))
    out += [text(x(at), h - bottom + 14, f"{at} s", 10, FAINT, "end" if at == END else "middle") for at in TICKS]
    base: dict[float, float] = {}
    named, at_x = [], float(left)
    shades = iter(SHADES * 10)
    band = {name: points for name, _, points in lines}
    for name, look, points in lines:
        side = look.get("custom.axisPlacement") == "right"
        colour = (look.get("color") or {}).get("fixedColor") or next(shades)
        if stacked:
            upper = [(at, base.get(at, 0.0) + value) for at, value in points]
            outline = [*upper, *((at, base.get(at, 0.0)) for at, _ in reversed(points))]
            base |= dict(upper)
            out.append(polygon([(x(a), y(v)) for a, v in outline], colour, 0.75))
        elif "custom.fillBelowTo" in look:
            lower = dict(band.get(look["custom.fillBelowTo"], ()))
            both = [(at, value) for at, value in points if at in lower]
            outline = [*both, *((at, lower[at]) for at, _ in reversed(both))]
            out.append(polygon([(x(a), y(v)) for a, v in outline], colour, 0.18))
        elif look.get("custom.lineWidth") != 0:
            dash = ' stroke-dasharray="7 6"' if "custom.lineStyle" in look else ""
            width = look.get("custom.lineWidth", 1) + 0.6
            for run in runs(points):
                path = " ".join(f"{x(a):.1f},{y(v, side):.1f}" for a, v in run)
                out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>')
        if not (look.get("custom.hideFrom") or {}).get("legend"):
            named.append(f'<rect x="{at_x:.0f}" y="{h - 14:.0f}" width="12" height="4" fill="{colour}"/>')
            named.append(text(at_x + 16, h - 8, name))
            at_x += 28 + 6.4 * len(name)
    return svg(w, h, [*out, *named])


def polygon(points: Sequence[tuple[float, float]], colour: str, opacity: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{path}" fill="{colour}" fill-opacity="{opacity}"/>'


def runs(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Parts without a gap: a missing value is no line."""
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if not parts or point[0] - parts[-1][-1][0] > SCRAPE * 1.5:
            parts.append([])
        parts[-1].append(point)
    return parts


def timeline(
    panel: dict[str, Any], answers: list[tuple[dict[str, Any], list[dict[str, Any]]]], w: float, h: float
) -> str:
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    series = [(legend(target, one["metric"]), one["values"]) for target, found in answers for one in found]
    left, bottom = 110.0, 20.0
    height = min(60.0, (h - bottom) / max(1, len(series)))
    out = []
    for number, (name, values) in enumerate(series):
        top = number * height
        out.append(text(left - 8, top + height / 2 + 4, name, 11, TEXT, "end"))
        segments: list[list[Any]] = []
        for at, value in values:
            if not segments or segments[-1][2] != value:
                segments.append([float(at) - START, float(at) - START, value])
            segments[-1][1] = float(at) - START + SCRAPE
        for begin, end, value in segments:
            word = options[str(int(float(value)))]
            x, width = left + (w - left - 8) * begin / END, (w - left - 8) * (min(end, END) - begin) / END
            out.append(
                f'<rect x="{x:.1f}" y="{top + 4:.1f}" width="{width:.1f}" height="{height - 8:.1f}"'
                f' fill="{word["color"]}" fill-opacity="0.85"/>'
            )
            if width > 7 * len(word["text"]):
                out.append(text(x + 6, top + height / 2 + 4, word["text"], 12, "#000"))
    wide, under = w - left - 8, len(series) * height + 14
    out += [text(left + wide * at / END, under, f"{at} s", 10, FAINT, "end" if at == END else "middle") for at in TICKS]
    return svg(w, h, out)


def table(panel: dict[str, Any], answers: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> str:
    organize = panel["transformations"][-1]["options"]
    titles, alone = organize["renameByName"], len(answers) == 1
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    ranks: dict[tuple[str, ...], float] = {}
    by = (panel["options"].get("sortBy") or [{"displayName": ""}])[0]["displayName"]
    keys = [k for k in titles if not k.startswith("Value")]
    common = [k for k in keys if all(k in s["metric"] for _, found in answers for s in found)]
    for target, found in answers:
        for one in found:
            key = tuple(one["metric"].get(k, "") for k in common)
            line = merged.setdefault(key, {})
            line |= {titles[k]: v for k, v in one["metric"].items() if k in titles}
            field = "Value" if alone else f"Value #{target['refId']}"
            if field in titles:
                title = titles[field]
                unit = properties(panel, title).get("unit") or panel["fieldConfig"]["defaults"].get("unit", "short")
                value = float(one["value"][1])
                ranks |= {key: value} if title == by else {}
                mapped = (panel["fieldConfig"]["defaults"].get("mappings") or [{"options": {}}])[0]["options"]
                word = mapped.get(f"{value:.0f}", {}).get("text") if title == "Now" else None
                line[title] = word or shown_value(value, unit)
    columns = [title for field, title in sorted(titles.items(), key=lambda one: organize["indexByName"][one[0]])]
    columns = [c for c in columns if any(c in line for line in merged.values())]
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(line.get(c, '-'))}</td>" for c in columns) + "</tr>"
        for _, line in sorted(merged.items(), key=lambda one: -ranks.get(one[0], 0.0))
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def bars(panel: dict[str, Any], answers: list[tuple[dict[str, Any], list[dict[str, Any]]]], w: float) -> str:
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    found = [(legend(t, s["metric"]), float(s["value"][1])) for t, series in answers for s in series]
    most = max((value for _, value in found), default=1.0) or 1.0
    out = []
    for number, (name, value) in enumerate(found):
        y = number * 34
        out.append(text(0, y + 20, name, 12))
        out.append(f'<rect x="110" y="{y + 6}" width="{(w - 180) * value / most:.0f}" height="20" fill="#0072B2"/>')
        out.append(text(116 + (w - 180) * value / most, y + 21, shown_value(value, unit), 12))
    return svg(w, 34 * len(found) + 4, out)


def drawn(panel: dict[str, Any], filled: Filled, values: dict[str, str]) -> str:
    answers = []
    for target in panel["targets"]:
        kind = "instant" if target["instant"] else "range"
        query = Target("", panel["title"], target["refId"], kind, target["expr"])
        answers.append((target, filled.ask(query, SCRAPE, **values)))
    w, h = panel["at"]["w"] * COLUMN - GAP - 20, panel["at"]["h"] * UNIT - GAP - 40
    if not any(series for _, series in answers):
        return f'<p class="empty">{html.escape(panel["fieldConfig"]["defaults"]["noValue"])}</p>'
    if panel["type"] == "timeseries":
        return graph(panel, answers, w, h)
    if panel["type"] == "state-timeline":
        return timeline(panel, answers, w, h)
    return table(panel, answers) if panel["type"] == "table" else bars(panel, answers, w)


STYLE = f"""
body {{ margin: 0; background: {PAPER}; font: 13px system-ui, sans-serif; color: {TEXT}; position: relative }}
header {{ padding: 10px 12px; display: flex; justify-content: space-between }}
header b {{ font-size: 16px }} header span {{ color: #555; font-style: italic }}
section {{ position: absolute; background: {CARD}; border: 1px solid #dde1e4; box-sizing: border-box; padding: 8px 10px;
  overflow: hidden }}
section h2 {{ font-size: 13px; margin: 0 0 6px; font-weight: 600 }}
section.row {{ background: none; border: 0; font-weight: 600; font-size: 14px }}
table {{ border-collapse: collapse; width: 100%; font-size: 12px }}
th, td {{ text-align: left; padding: 4px 10px 4px 0 }}
th {{ color: #666; border-bottom: 1px solid #dde1e4 }} .empty {{ color: {FAINT}; text-align: center; margin-top: 40px }}
"""


def page(board: dict[str, Any], titles: Sequence[str], filled: Filled, values: dict[str, str]) -> tuple[str, int, int]:
    out, bottom = [], 0
    for panel in rows(board, titles):
        at = panel["at"]
        place = (
            f"left:{at['x'] * COLUMN + GAP}px;top:{at['y'] * UNIT + 44}px;"
            f"width:{at['w'] * COLUMN - GAP}px;height:{at['h'] * UNIT - GAP}px"
        )
        title = html.escape(panel["title"].replace("$model_name", "demo-llama"))
        if panel["type"] == "row":
            out.append(f'<section class="row" style="{place}">{title}</section>')
        else:
            out.append(f'<section style="{place}"><h2>{title}</h2>{drawn(panel, filled, values)}</section>')
        bottom = max(bottom, (at["y"] + at["h"]) * UNIT + 44)
    head = f"<header><b>{html.escape(board['title'])}</b><span>{html.escape(NOTE)}</span></header>"
    return (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{head}{''.join(out)}",
        24 * COLUMN + GAP,
        bottom + GAP,
    )


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    assert all(len(list(shown(BOARDS[name]))) for name in PICTURES)
    with tempfile.TemporaryDirectory() as folder:
        openmetrics = history()
        (Path(folder) / "prometheus").mkdir()
        flags = (f"--query.lookback-delta={STEP}s",)
        server = start_prometheus(
            Tools(SUITES[0]), Path(folder) / "prometheus", CONFIG, openmetrics=openmetrics, arguments=flags
        )
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
                for name, (titles, values) in PICTURES.items():
                    filled = Filled(server, START + SCRAPE, START + END, step=SCRAPE)
                    content, width, height = page(BOARDS[name], titles, filled, values)
                    tab = browser.new_page(viewport={"width": width, "height": height})
                    tab.set_content(content)
                    tab.screenshot(path=str(OUT / f"{name}.png"))
                    print(OUT / f"{name}.png")
                browser.close()
        finally:
            server.stop()


if __name__ == "__main__":
    main()
