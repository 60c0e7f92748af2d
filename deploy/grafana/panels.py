"""The panels that dashboards are made of: how all of them look is decided here.

Knows Grafana's types; nothing of what is watched. Colours follow the series' names, so that an API or a topic has the
same one in every panel; thresholds only where a number is good or bad by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    FieldColorModeId,
    Panel,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG = "korvet"
SOURCE = DataSourceRef("prometheus", "${datasource}")
_WIDTH, _HEIGHT = 12, 8
_WIDTH_OF_NUMBERS, _HEIGHT_OF_NUMBERS = 4, 4
_FILL_OF_STACKS, _FILL_OF_LINES = 40, 8

Unit = Literal[
    "short", "reqps", "Bps", "bytes", "s", "ms", "percentunit", "ops", "cps", "none", "dateTimeAsIso"
]


class Query(NamedTuple):
    """A question in PromQL, and how its series are called: a text with `{{label}}` in it."""

    expression: str
    legend: str = ""


def quantiles(histogram: str, selector: str) -> list[Query]:
    """Return the median and the tail of a histogram, over all of its series that the selector matches."""
    rates = f"sum by (le) (rate({histogram}_bucket{{{selector}}}[$__rate_interval]))"
    return [
        Query(f"histogram_quantile({share}, {rates})", f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)
    ]


class Variable(NamedTuple):
    """A choice above the panels: all values of a label of a metric."""

    name: str
    label: str
    metric: str
    by: str


class Row(NamedTuple):
    """Panels under one title."""

    title: str
    panels: Sequence[Builder[Panel]]


def graph(
    title: str,
    description: str,
    unit: Unit,
    *queries: Query,
    stacked: bool = False,
    largest: float | None = None,
    width: int = _WIDTH,
) -> Builder[Panel]:
    """Make lines over time, from 0; `largest` is the end of the axis where a value has one."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(_HEIGHT)
        .line_width(1)
        .fill_opacity(_FILL_OF_STACKS if stacked else _FILL_OF_LINES)
        .show_points(VisibilityMode.NEVER)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
            .calcs([])
        )
    )
    if largest is not None:
        panel = panel.max(largest)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for query in queries:
        panel = panel.with_target(_target(query))
    return panel


def number(
    title: str,
    description: str,
    unit: Unit,
    query: Query,
    *,
    warn: float | None = None,
    alarm: float | None = None,
    low_is_bad: bool = False,
) -> Builder[Panel]:
    """Make one number with its recent course; yellow from `warn` and red from `alarm`, or below them."""
    steps = [Threshold(None, "green")]
    if low_is_bad:
        steps = [Threshold(None, "red")] if alarm is not None else [Threshold(None, "yellow")]
        if alarm is not None and warn is not None:
            steps.append(Threshold(alarm, "yellow"))
        steps.append(Threshold(warn if warn is not None else alarm, "green"))
    else:
        steps += [
            Threshold(value, color)
            for value, color in ((warn, "yellow"), (alarm, "red"))
            if value is not None
        ]
    watched = warn is not None or alarm is not None
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(_WIDTH_OF_NUMBERS)
        .height(_HEIGHT_OF_NUMBERS)
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE if watched else BigValueColorMode.NONE)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(query))
    )


def listing(
    title: str, description: str, unit: Unit, *queries: Query, by: str, columns: Sequence[str]
) -> Builder[Panel]:
    """Make a table of what is now: a line for each value of the label `by`, a column for each query."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(2 * _WIDTH)
        .height(_HEIGHT)
    )
    names = "ABCDEFGH"[: len(queries)]
    for name, query in zip(names, queries, strict=True):
        panel = panel.with_target(
            prometheus.Dataquery()
            .datasource(SOURCE)
            .expr(query.expression)
            .instant()
            .format(PromQueryFormat.TABLE)
            .ref_id(name)
        )
    renamed = {f"Value #{name}": column for name, column in zip(names, columns, strict=True)}
    organize = {"excludeByName": {"Time": True}, "renameByName": renamed}
    return panel.with_transformation(
        DataTransformerConfig(id_val="joinByField", options={"byField": by, "mode": "outer"})
    ).with_transformation(DataTransformerConfig(id_val="organize", options=organize))


def board(
    name: str, title: str, description: str, rows: Sequence[Row], variables: Sequence[Variable] = ()
) -> Dashboard:
    """Make a dashboard; `name` is its identity in Grafana and the name of its file."""
    made = (
        dashboard.Dashboard(title)
        .uid(f"{TAG}-{name}")
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("Korvet")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in (Variable("job", "Job", "korvet_build_info", "job"), *variables):
        made = made.with_variable(_choice(variable))
    for row in rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(panel)
    whole = made.build()
    for number_of_panel, each in enumerate(whole.panels or [], start=1):
        each.id_val = number_of_panel
    return whole


def _target(query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery().datasource(SOURCE).expr(query.expression).legend_format(query.legend).range()
    )


def _choice(variable: Variable) -> dashboard.QueryVariable:
    job = "" if variable.name == "job" else '{job=~"$job"}'
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}{job}, {variable.by})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        # A name of any bytes is let in, so the empty one of what is summed too.
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )
