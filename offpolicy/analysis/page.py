"""The page of `offpolicy report`: one HTML file that needs no other, for one run or several side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from offpolicy.analysis.learning_curves import EVAL, RETURNS
from offpolicy.analysis.report import quantity
from offpolicy.analysis.reported_run import SIDES, ReportedRun
from offpolicy.analysis.runs import PLACE_KEYS
from offpolicy.analysis.svg import Line, Piece, areas_chart, lines_chart, stacked_bars, waterfall_chart
from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.schema import RunConfig
from offpolicy.logger.colors import COLORS, LINES
from offpolicy.logger.summary import COLLECTOR_NAMES, LEARNER_NAMES, WHOLE

NAMES = {"learner": LEARNER_NAMES, "collector": COLLECTOR_NAMES}
UNITS = {"learner": "ms per iteration", "collector": "ms per vector step"}
PERCENTILES = ("p50", "p95", "p99", "max")
SHOWN_PERCENT = 0.05  # of the wall: a phase with less is not in the tables and legends
NO_VALUE = "–"
STYLE = """
:root{color-scheme:light dark;--text:#1d1d1f;--soft:#666;--line:#d8d8dc;--back:#fff}
@media(prefers-color-scheme:dark){:root{--text:#e8e8ea;--soft:#a0a0a6;--line:#3c3c42;--back:#18181b}}
*{box-sizing:border-box} body{font:15px/1.45 system-ui,sans-serif;color:var(--text);background:var(--back);
margin:0 auto;max-width:84em;padding:.5em 1em 3em} h1{font-size:1.5em}
h2{font-size:1.2em;margin:1.8em 0 .4em;border-bottom:1px solid var(--line);padding-bottom:.2em}
h3{font-size:1em;margin:.8em 0 .3em} p{margin:.4em 0;max-width:60em}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,23em),1fr));gap:1em 2em} .grid>*{min-width:0}
.wide{overflow-x:auto} table{border-collapse:collapse} th,td{padding:.15em .8em .15em 0;text-align:right;
vertical-align:top;white-space:nowrap} th:first-child,td:first-child,.text td,.text th{text-align:left}
.text td,td:first-child{white-space:normal;overflow-wrap:break-word} @media(max-width:30em){.text{font-size:12px}}
thead th{border-bottom:1px solid var(--line)}
svg{display:block;width:100%;height:auto} svg text{font:10px system-ui,sans-serif;fill:var(--text)}
svg path{stroke:var(--line);stroke-width:1;fill:none} .key{display:flex;flex-wrap:wrap;gap:.1em 1em;margin:.3em 0}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border:1px solid var(--line)}
.soft{color:var(--soft)}
"""
Section = Callable[[Sequence[ReportedRun]], str]


def page(runs: Sequence[ReportedRun]) -> str:
    """Returns the page: its sections in the order in which a reader asks."""
    title = escape(", ".join(run.label for run in runs))
    sections: Mapping[str, Section] = {
        "What came out": _outcome,
        "Learning": _curves,
        "Where the time went": _accounts,
        "The account over time": _accounts_over_time,
        "From what both sides could do to what they did": _waterfalls,
        "How even it was": _percentiles,
        "What a change would bring": _what_ifs,
        "How the verdict changed": _verdicts,
        "Configuration": _configurations,
        "Versions and machine": _versions,
    }
    bodies = {name: section(runs) for name, section in sections.items()}
    body = "".join(f"<h2>{escape(name)}</h2>{text}" for name, text in bodies.items() if text)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{title}</title><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>\n"
    )


def _outcome(runs: Sequence[ReportedRun]) -> str:
    rows: dict[str, Callable[[ReportedRun], str]] = {
        "algorithm": lambda run: _option(run, "algo.name"),
        "environment": lambda run: _option(run, "env.id"),
        "runner": lambda run: f"{_option(run, 'runner.name')}, {run.summary.get('mode', NO_VALUE)}",
        "status": lambda run: str(run.summary.get("status", "not ended")),
        "env steps": lambda run: f"{run.records.last_env_steps:,.0f}",
        "wall, s": lambda run: f"{run.records.columns['wall_s'][-1]:,.1f}",
        "env steps/s": lambda run: _known(run.summary, "rates", "steps_per_sec"),
        "final return": _final_return,
        "train, % of the learner's wall": _train_percent,
        "bottleneck": lambda run: run.bottleneck or NO_VALUE,
    }
    head = ["", *(escape(run.label) for run in runs)]
    table = _table(head, ([name, *map(cell, runs)] for name, cell in rows.items()), "text")
    return table + _grid(_verdict(run) for run in runs)


def _verdict(run: ReportedRun) -> str:
    found = run.summary.get("bottleneck")
    if not found:
        return f"<div><h3>{escape(run.label)}</h3><p>{escape(run.problem)}</p></div>"
    advice = "".join(f"<p>→ {escape(text)}</p>" for text in found["advice"])
    return f"<div><h3>{escape(run.label)}</h3><p>{escape(found['reason'])}</p>{advice}</div>"


def _curves(runs: Sequence[ReportedRun]) -> str:
    key = _key((run.label, _color(index)) for index, run in enumerate(runs))
    rows = "".join(_grid(_curve_charts(runs, key, name)) for key, name in RETURNS.items())
    return key + rows if rows else ""


def _curve_charts(runs: Sequence[ReportedRun], key: str, name: str) -> Iterator[str]:
    """Yields a curve over env steps and one over wall time."""
    for axis, title in (("env_steps", "env steps"), ("wall_s", "wall time, s")):
        if chart := _curve_chart(runs, key, axis, f"{name} over {title}"):
            yield f"<div><h3>{name} over {title}</h3>{chart}</div>"


def _curve_chart(runs: Sequence[ReportedRun], key: str, axis: str, alt: str) -> str:
    curves = [run.records.curve(key) for run in runs]
    lines = [
        Line(run.label, _color(index), getattr(curve, axis), curve.value)
        for index, (run, curve) in enumerate(zip(runs, curves, strict=True))
    ]
    return lines_chart(lines, "env steps" if axis == "env_steps" else "s", alt)


def _accounts(runs: Sequence[ReportedRun]) -> str:
    parts = []
    for side in SIDES:
        accounts = {run.label: account for run in runs if (account := run.account(side))}
        bars = {label: _pieces(account, side) for label, account in accounts.items()}
        if bars:
            shown = [phase for phase in SIDES[side][0] if any(phase in _shown(each) for each in accounts.values())]
            key = _key((NAMES[side][phase], COLORS[phase]) for phase in shown)
            rows = (
                [NAMES[side][phase], *(f"{each.get(phase, 0.0):z,.3f}" for each in accounts.values())]
                for phase in shown
            )
            whole = ["in all", *(f"{sum(each.values()):,.3f}" for each in accounts.values())]
            table = _table([UNITS[side], *map(escape, accounts)], [*rows, whole])
            alt = f"shares of the wall of the {side}"
            parts.append(f"<div><h3>{side}, % of its wall</h3>{stacked_bars(bars, alt)}{key}{table}</div>")
    return _grid(parts)


def _shown(account: Mapping[str, float]) -> set[str]:
    whole = sum(account.values())
    return {phase for phase, ms in account.items() if 100.0 * ms >= SHOWN_PERCENT * whole}


def _pieces(account: Mapping[str, float], side: str) -> list[Piece]:
    positive = {phase: max(0.0, ms) for phase, ms in account.items()}
    whole = sum(positive.values()) or 1.0
    return [Piece(NAMES[side][phase], COLORS[phase], 100.0 * ms / whole) for phase, ms in positive.items()]


def _accounts_over_time(runs: Sequence[ReportedRun]) -> str:
    parts = []
    for side in SIDES:
        for run in runs:
            steps, percent = run.account_over_time(side)
            layers = [(NAMES[side][phase], COLORS[phase], values) for phase, values in percent.items()]
            alt = f"{run.label}: account of the {side} over env steps"
            if chart := areas_chart(steps, layers, "env steps", alt):
                parts.append(f"<div><h3>{escape(run.label)}, {side}</h3>{chart}</div>")
    return _grid(parts)


def _waterfalls(runs: Sequence[ReportedRun]) -> str:
    charts = []
    for run in runs:
        if run.finished is not None:
            steps = [(LEARNER_NAMES.get(loss.cause, loss.cause), loss.steps_per_sec) for loss in run.finished.losses]
            chart = waterfall_chart(steps, f"{run.label}: env steps per second lost by cause")
            charts.append(f"<div><h3>{escape(run.label)}, env steps/s</h3>{chart}</div>")
    return _grid(charts)


def _percentiles(runs: Sequence[ReportedRun]) -> str:
    parts = []
    for run in runs:
        timing = run.summary.get("timing", {})
        for side in SIDES:
            spreads = (timing.get(side) or {}).get("spread_ms", {})
            rows = [
                ["in all" if phase == WHOLE else NAMES[side][phase], *(f"{spread[name]:,.2f}" for name in PERCENTILES)]
                for phase, spread in spreads.items()
            ]
            if rows:
                parts.append(
                    f"<div><h3>{escape(run.label)}, {side}</h3>{_table([UNITS[side], *PERCENTILES], rows)}</div>"
                )
    return _grid(parts)


def _what_ifs(runs: Sequence[ReportedRun]) -> str:
    parts = []
    for run in runs:
        if (finished := run.finished) is not None:
            predicted = {
                name: finished.with_pauses(finished.predicted(then)) for name, then in finished.what_ifs.items()
            }
            rows = [[name, f"{value:,.0f}", finished.gain_text(value)] for name, value in predicted.items()]
            error = finished.prediction_error
            note = "" if error is None else f'<p class="soft">Its own predictions were off by {error:.1%}.</p>'
            table = _table(["if", "env steps/s", "change"], rows)
            parts.append(f"<div><h3>{escape(run.label)}</h3>{table}{note}</div>")
    return _grid(parts)


def _verdicts(runs: Sequence[ReportedRun]) -> str:
    parts = []
    for run in runs:
        if run.verdicts:
            rows = ([f"{each.env_steps:,}", each.label, each.reason] for each in run.verdicts)
            table = _table(["from env step", "verdict", "because"], rows, "text")
            parts.append(f"<div><h3>{escape(run.label)}</h3>{table}</div>")
    return _grid(parts)


def _configurations(runs: Sequence[ReportedRun]) -> str:
    """Returns the options in which the runs differ; of a single run, those that are not the defaults."""
    if len(runs) > 1:
        columns, what = {run.label: run.config for run in runs}, "Options in which the runs differ."
    else:
        defaults = flatten(RunConfig().to_mapping())
        columns, what = {runs[0].label: runs[0].config, "default": defaults}, "Options other than the defaults."
    keys = dict.fromkeys(key for config in columns.values() for key in config)
    differing = [key for key in keys if len({str(config.get(key, NO_VALUE)) for config in columns.values()}) > 1]
    rows = [
        [key, *(str(config.get(key, NO_VALUE)) for config in columns.values())]
        for key in differing
        if not is_within(key, PLACE_KEYS) or key == "seed"
    ]
    return f"<p>{what}</p>" + _table(["", *map(escape, columns)], rows, "text") if rows else ""


def _versions(runs: Sequence[ReportedRun]) -> str:
    sections = ("run", "versions", "hardware", "threads")
    found = {run.label: flatten({name: run.summary.get(name) or {} for name in sections}) for run in runs}
    keys = dict.fromkeys(key for each in found.values() for key in each)
    rows = [[key, *(str(each.get(key, NO_VALUE)) for each in found.values())] for key in keys]
    return _table(["", *map(escape, found)], rows, "text") if rows else ""


def _final_return(run: ReportedRun) -> str:
    evaluation = run.summary.get("eval") or {}
    if evaluation.get("episodes"):
        mean, spread = (_tenths(evaluation.get(key)) for key in ("mean_reward", "std_reward"))
        return mean if NO_VALUE in (mean, spread) else f"{mean} ± {spread}"
    values = run.records.curve(EVAL).value
    return _tenths(float(values[-1])) if len(values) else NO_VALUE


def _tenths(value: float | None) -> str:
    return NO_VALUE if value is None or not math.isfinite(value) else f"{value:,.1f}"


def _train_percent(run: ReportedRun) -> str:
    account = run.account("learner")
    return f"{100.0 * account['train'] / sum(account.values()):.1f}" if "train" in account else NO_VALUE


def _option(run: ReportedRun, key: str) -> str:
    return str(run.config.get(key, NO_VALUE))


def _known(summary: Mapping[str, Any], section: str, key: str) -> str:  # Any: the nested mapping of summary.json
    value = (summary.get(section) or {}).get(key)
    return NO_VALUE if value is None or not math.isfinite(value) else quantity(value)


def _color(index: int) -> str:
    return LINES[index % len(LINES)]


def _key(entries: Iterator[tuple[str, str]]) -> str:
    items = "".join(f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in entries)
    return f'<div class="key">{items}</div>'


def _grid(parts: Iterator[str] | Sequence[str]) -> str:
    body = "".join(parts)
    return f'<div class="grid">{body}</div>' if body else ""


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]], kind: str = "") -> str:
    """Returns a table; `head` is HTML, the cells are texts."""
    columns = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'
    )
