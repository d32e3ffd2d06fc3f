"""Rows of panels -> Grafana's classic dashboard JSON, by way of the typed builders."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grafana_foundation_sdk.builders import bargauge, heatmap, prometheus, stat, statetimeline, table, text, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from tools.dashboards.looks import LOOKS, PALETTE
from tools.dashboards.panels import Dashboard, Panel, Query, Row, Variable
from tools.dashboards.queries import FLEET, MOST_ENGINES, PHASES, TARGET

TAG = "phasewatch"
WIDTH = 24
# A query's cost grows with its points; more than these nobody sees.
MOST_POINTS = 300
# The newest of the classic schema. Grafana 13 brings it up to date as it loads it, but takes no newer kind from files.
SCHEMA_VERSION = 42
SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ALWAYS_WRITTEN = {"placement", "auto", "auto_count", "auto_min"}
# Where a click in a table leads, by the dashboard's uid: title, and what the line says besides the usual variables.
_LINKS = {
    "phasewatch-triage": ("Triage of this model", "&var-model_name=${__data.fields.model}"),
    "phasewatch-engine": (
        "Compare this engine with its peers",
        "&${model_name:queryparam}&var-target=${__data.fields.target}&var-engine=${__data.fields.engine}",
    ),
}
# Drawn on the right where a graph has a second unit.
_RIGHT = {"custom.axisPlacement": "right"}


def to_json(row: Dashboard) -> str:
    """The file's text. The same rows give the same text, byte for byte."""
    built = _plain(json.loads(JSONEncoder().encode(_dashboard(row))))
    return json.dumps(built, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _plain(built: Any) -> Any:
    """Without what the builders always write: `placement` would hide links in a menu, `auto` is for intervals."""
    if isinstance(built, list):
        return [_plain(value) for value in built]
    if not isinstance(built, dict):
        return built
    return {key: _plain(value) for key, value in built.items() if key not in _ALWAYS_WRITTEN}


def _dashboard(row: Dashboard) -> dashboard.Dashboard:
    board = (
        builders.Dashboard(row.title)
        .uid(row.uid)
        .description(row.description)
        .tags([TAG, "vllm"])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time(row.since, "now")
        .link(_link())
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in row.variables:
        board.with_variable(_variable(variable))
    for annotation in _annotations(row):
        board.annotation(annotation)
    built = board.build()
    built.schema_version = SCHEMA_VERSION
    built.panels = list(_laid_out(row.rows))
    return built


def _link() -> builders.DashboardLink:
    link = builders.DashboardLink("phasewatch").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).keep_time(True).include_vars(True)


def _variable(row: Variable) -> builders.QueryVariable:
    order = dashboard.VariableSort.ALPHABETICAL_DESC if row.descending else dashboard.VariableSort.ALPHABETICAL_ASC
    variable = (
        builders.QueryVariable(row.name)
        .label(row.label)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": row.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(order)
        .multi(not row.single)
        .include_all(not row.single)
    )
    if row.single:
        return variable
    everything = dashboard.VariableOption(selected=True, text="All", value="$__all")
    return variable.all_value(row.all_value).current(everything)


def _annotations(row: Dashboard) -> Iterable[builders.AnnotationQuery]:
    if not row.marks:
        return
    selector = TARGET if any(variable.name == "target" for variable in row.variables) else 'namespace=~"$namespace"'
    # An alert that names no model concerns every one. "phasewatch itself" shows no model and has no such variable.
    of_model = FLEET.partition(",")[2].removesuffix('"') + '|"' if _has(row, "model_name") else 'alertname!=""'
    grown = f"sum by (target) (increase(phasewatch_target_restarts_total{{{selector}}}[$__rate_interval]))"
    restarts = f"topk({MOST_ENGINES}, {grown} > 0)"
    firing = f'alertname=~"Phasewatch.+",alertstate="firing",severity=~"warning|critical",{of_model}'
    alerts = f"count by (alertname, severity, target) (ALERTS{{{firing}}})"
    marks = (
        ("Restarts", restarts, "An engine of this target restarted", "target", PALETTE[6]),
        ("Firing alerts", alerts, "{{alertname}}", "severity,target", PALETTE[4]),
    )
    for name, expr, title, tags, colour in marks:
        target = prometheus.Dataquery().expr(expr).ref_id("Anno").range().legend_format(title)
        built = builders.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour)
        yield built.target(target).expr(expr).title_format(title).tag_keys(tags).step("60s")


def _has(row: Dashboard, name: str) -> bool:
    return any(variable.name == name for variable in row.variables)


# --- layout ------------------------------------------------------------------------------------------------------


def _laid_out(rows: Iterable[Row]) -> Iterable[dashboard.Panel | dashboard.RowPanel]:
    """Panels from left to right, a new line where the next one does not fit; identifiers count up."""
    y = number = 0
    for row in rows:
        number += 1
        title = builders.Row(row.title).id(number).grid_pos(_place(0, y, WIDTH, 1)).collapsed(row.collapsed)
        if row.repeat:
            title.repeat(row.repeat)
        panels: list[dashboard.Panel] = []
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            number += 1
            panels.append(_panel(panel).id(number).grid_pos(_place(x, y, panel.width, panel.height)).build())
            x, height = x + panel.width, max(height, panel.height)
        built = title.build()
        built.panels = panels if row.collapsed else []
        yield built
        if row.collapsed:
            y = built.grid_pos.y + 1 if built.grid_pos else y
        else:
            yield from panels
            y += height


def _place(x: int, y: int, width: int, height: int) -> dashboard.GridPos:
    return dashboard.GridPos(h=height, w=width, x=x, y=y)


# --- panels ------------------------------------------------------------------------------------------------------


def _panel(row: Panel) -> Any:
    if row.kind == "text":
        return text.Panel().title(row.title).description(row.description).mode(TextMode.MARKDOWN).content(row.text)
    panel = _KINDS[row.kind](row)
    panel.title(row.title).description(row.description).datasource(SOURCE).no_value(row.no_value)
    for number, query in enumerate(row.queries):
        panel.with_target(_target(row, query, chr(ord("A") + number)))
    for name, properties in _overrides(row).items():
        panel.override_by_name(name, [dashboard.DynamicConfigValue(*one) for one in properties.items()])
    return panel


def _target(row: Panel, query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref).legend_format(query.name).datasource(SOURCE)
    if row.kind == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    if row.kind in ("stat", "bars"):
        return target.instant()
    return target.range().format(PromQueryFormat.HEATMAP if row.kind == "heatmap" else PromQueryFormat.TIME_SERIES)


def _overrides(row: Panel) -> Mapping[str, dict[str, Any]]:
    """Properties by series or column."""
    found: dict[str, dict[str, Any]] = {}
    graph = row.kind in ("timeseries", "stacked")
    for query in row.queries if graph else ():
        # Phases are the only names that come from a label and have looks.
        for name in PHASES if query.name == "{{phase}}" else (query.name,):
            found.setdefault(name, {}).update(LOOKS.get(name, {}))
    for name, unit in row.units.items():
        found.setdefault(name, {}).update({"unit": unit, **(_RIGHT if graph else {})})
    # An empty cell is no empty table: the row's text is for the latter.
    for column in _columns(row) if row.kind == "table" else ():
        found.setdefault(column, {})["noValue"] = "-"
    for column, uid in row.links.items():
        title, more = _LINKS[uid]
        usual = "${__url_time_range}&${datasource:queryparam}&${namespace:queryparam}&${window:queryparam}"
        found.setdefault(column, {})["links"] = [{"title": title, "url": f"/d/{uid}?{usual}{more}"}]
    return {name: properties for name, properties in found.items() if properties}


def _timeseries(row: Panel) -> timeseries.Panel:
    stacked = row.kind == "stacked"
    panel = (
        timeseries.Panel()
        .unit(row.unit)
        .min(0)
        .line_width(0 if stacked else 1)
        .fill_opacity(70 if stacked else 0)
        .show_points(common.VisibilityMode.NEVER)
        .span_nulls(False)
        .max_data_points(MOST_POINTS)
        # Series without a look of their own (engines, models) differ in lightness, which everybody sees.
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.SHADES).fixed_color(PALETTE[0]))
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
    )
    if row.largest is not None:
        panel.max(row.largest)
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    return panel


def _timeline(row: Panel) -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .mappings([_mapping(row.values)])
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(PALETTE[7]))
        .fill_opacity(85)
        .line_width(0)
        .merge_values(True)
        .max_data_points(MOST_POINTS)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.85)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(False)
        )
        .unit(row.unit)
    )


def _mapping(values: Mapping[int, tuple[str, str]]) -> dashboard.ValueMap:
    results = {
        str(value): dashboard.ValueMappingResult(text=words, color=colour, index=index)
        for index, (value, (words, colour)) in enumerate(values.items())
    }
    return dashboard.ValueMap(options=results)


def _values(row: Panel) -> dict[str, str]:
    """Titles of the values' columns: Grafana calls them "Value #A", or "Value" where there is but one query."""
    if len(row.queries) == 1:
        return {"Value": row.queries[0].name}
    return {f"Value #{chr(ord('A') + number)}": query.name for number, query in enumerate(row.queries)}


def _columns(row: Panel) -> list[str]:
    return [title for title in (*row.names.values(), *_values(row).values()) if title]


def _table(row: Panel) -> table.Panel:
    panel = table.Panel().unit(row.unit).show_header(True)
    panel.color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color("text"))
    if row.values:
        panel.mappings([_mapping(row.values)])
    if row.sort:
        panel.sort_by([common_builders.TableSortByFieldState().display_name(row.sort).desc(True)])
    titles = {field: name for field, name in {**row.names, **_values(row)}.items() if name}
    order = {field: place for place, field in enumerate(titles)}
    hidden = {"Time": True, **{field: True for field, name in _values(row).items() if not name}}
    if len(row.queries) > 1:
        panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    return panel.with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": hidden, "indexByName": order, "renameByName": titles, "includeByName": {}},
        )
    )


def _heatmap(row: Panel) -> heatmap.Panel:
    colour = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64).reverse(False)
    return (
        heatmap.Panel()
        .calculate(False)
        .color(colour)
        .y_axis(heatmap.YAxisConfig().unit(row.unit).axis_placement(common.AxisPlacement.LEFT))
        .cell_gap(1)
        .show_value(common.VisibilityMode.NEVER)
        .unit(row.unit)
    )


def _now(panel: Any, row: Panel) -> Any:
    panel.unit(row.unit).reduce_options(
        common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields("")
    )
    if row.values:
        panel.mappings([_mapping(row.values)])
    if row.largest is not None:
        panel.max(row.largest)
    return panel.min(0)


def _stat(row: Panel) -> stat.Panel:
    panel: stat.Panel = _now(stat.Panel(), row)
    colour = builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color("text")
    return panel.color_scheme(colour).graph_mode(common.BigValueGraphMode.NONE).orientation(common.VizOrientation.AUTO)


def _bars(row: Panel) -> bargauge.Panel:
    panel: bargauge.Panel = _now(bargauge.Panel(), row)
    colour = builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(PALETTE[0])
    panel.color_scheme(colour).orientation(common.VizOrientation.HORIZONTAL)
    return panel.display_mode(common.BarGaugeDisplayMode.BASIC)


_KINDS: Mapping[str, Callable[[Panel], Any]] = {
    "timeseries": _timeseries,
    "stacked": _timeseries,
    "timeline": _timeline,
    "table": _table,
    "heatmap": _heatmap,
    "stat": _stat,
    "bars": _bars,
}
