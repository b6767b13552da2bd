"""Everything about some runs on one page that opens without a network."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import altair as alt

from mimokit.analysis import (
    Comparison,
    Runs,
    compare,
    difference_of_runs,
    explain,
    scaling_table,
)
from mimokit.analysis.comparison import HEADINGS
from mimokit.analysis.two_runs import pair_of
from mimokit.charts import _renderer
from mimokit.charts._compared_runs import scaling
from mimokit.charts._heat_maps import expert_load, stragglers
from mimokit.charts._memory import rank_memory
from mimokit.charts.runs_view.page import runs_view
from mimokit.samples import experts_of, over_ranks
from mimokit.tables import Section
from mimokit.units import counted, listed

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

MOST_EXPLAINED = 40
"""Runs that are explained in words."""
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 Helvetica Neue, Arial, sans-serif; max-width: 1180px; margin: 0 auto;
  padding: 32px 16px 64px; color: #1f2933; background: #fff; }
h1 { font-size: 1.6em; margin-bottom: .1em; } nav a { margin-right: 1.2em; }
.when { margin: 0 0 .8em; opacity: .8; } h2 { font-size: 1.2em; margin: 2em 0 .4em; }
.wide { overflow-x: auto; } .problem { color: #b8336a; }
section > figure { margin: 1em 0; overflow-x: auto; }
section > figure > * { border-radius: 6px; } section > figure > div { width: 100%; }
summary { cursor: pointer; margin: .5em 0; }
@media (prefers-color-scheme: dark) {
  body { color: #e4e7eb; background: #14181d; } .problem { color: #f28ab2; } }
"""
DRAW = """
for (const figure of document.querySelectorAll("section > figure")) {
  const place = document.createElement("div");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  if (spec.layer || spec.mark) spec.width ??= "container";
  figure.append(place);
  vegaEmbed(place, spec, {actions: false, logLevel: 1}
  ).then(() => figure.querySelector("img").replaceWith(place));
}
"""


def report(
    runs: Runs,
    baseline: str | None = None,
    metric: str = "tokens_per_sec",
    *,
    by: str = "run",
    hardware: HardwareSource | None = None,
) -> str:
    """Return a page about runs: tables, comparison, explanations, charts and problems.

    The page holds its scripts: charts have tool tips without a network, and are pictures where
    scripts are not run. It follows the light or dark colours of the reader's machine.

    Args:
        baseline: as in `mimokit.analysis.compare`.
        by: "run", or "layout" to put repeated runs of one layout together.
        hardware: to predict for, as in `mimokit.analysis.many_runs.predicted_if_known`.

    Raises:
        ValueError: as `compare`, except for runs of which none was measured; or vl-convert is not
            installed.
    """
    if importlib.util.find_spec("vl_convert") is None:
        raise ValueError("A report needs vl-convert-python; install mimokit with its extra `lab`.")
    comparison = _comparison(runs, baseline, metric, by)
    title = _title(runs)
    parts = _section("In short", list(_in_short(runs, comparison)))
    if isinstance(comparison, Comparison):
        explored = runs_view(runs, baseline if by == "run" else None, comparison.metric, hardware)
        parts += _section("Explore", [explored])
    parts += _section("Runs", [f'<div class="wide">{runs._repr_html_()}</div>'])
    if isinstance(comparison, Comparison):
        parts += _section("Comparison", _compared(runs, comparison))
    parts += _section("Where the time went", _explained(runs, comparison))
    if isinstance(comparison, Comparison):
        parts += _section("Ranks", _ranks(runs, comparison))
    return _page(title, _head(runs, title, parts) + "".join(parts))


def _title(runs: Runs) -> str:
    folder = Path(os.path.commonpath([path.resolve().parent for path in runs.folders.values()]))
    return f"{folder.name or folder}: {counted(len(runs), 'run')}"


def _head(runs: Runs, title: str, parts: Sequence[str]) -> str:
    known = runs.runs
    started, hosts = known["started"].dropna(), known["hosts"].dropna()
    said = [f"{min(started)[:16].replace('T', ' ')}"] if len(started) else []
    if len(started) and max(started)[:10] != min(started)[:10]:
        said[0] += f" to {max(started)[:10]}"
    if len(hosts):
        names = dict.fromkeys(name for text in hosts for name in str(text).split(", "))
        said.append(f"on {listed(list(names))}")
    devices = list(dict.fromkeys(map(str, known["accelerators"].dropna())))
    said += [f"with {listed(devices)}"] if devices else []
    said.append(f"page of {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}")
    headings = re.findall(r'<section id="([^"]+)"><h2>([^<]+)</h2>', "".join(parts))
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading in headings)
    when = escape(" · ".join(said))
    return f'<h1>{escape(title)}</h1><p class="when">{when}</p><nav>{links}</nav>'


def _comparison(runs: Runs, baseline: str | None, metric: str, by: str) -> Comparison | str:
    if runs.iterations.empty:
        return "No iteration of any run was measured, so there is nothing to compare."
    return compare(runs, baseline, metric, by=by)


def _section(heading: str, parts: list[str]) -> list[str]:
    if not parts:
        return []
    name = heading.lower().replace(" ", "-")
    return [f'<section id="{name}"><h2>{escape(heading)}</h2>', *parts, "</section>"]


def _in_short(runs: Runs, comparison: Comparison | str) -> Iterator[str]:
    said = [comparison] if isinstance(comparison, str) else comparison.sentences()
    pair = None if isinstance(comparison, str) else pair_of(runs, comparison)
    if pair is not None:
        said = [difference_of_runs(runs, *pair).headline, *said]
    yield "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
    if runs.problems:
        count = counted(len(runs.problems), "problem")
        yield f'<p class="problem">{count} below the runs.</p>'


def _compared(runs: Runs, comparison: Comparison) -> list[str]:
    heading = f"{comparison.metric}: medians with {comparison.confidence:.0%} intervals"
    medians = Section(heading, HEADINGS, comparison.rows())
    parts = [f'<div class="wide">{medians.to_html()}</div>']
    table = scaling_table(runs, comparison)
    if table["world_size"].nunique() > 1 and str(over_ranks(comparison.metric)) == "min":
        parts.append(_figure(scaling(table, comparison.metric)))
    return parts


def _explained(runs: Runs, comparison: Comparison | str) -> list[str]:
    compared = [] if isinstance(comparison, str) else list(map(str, comparison.table["name"]))
    ordered = [name for name in compared if name in runs.folders]
    ordered = [*ordered, *(name for name in runs if name not in ordered)][:MOST_EXPLAINED]
    parts = []
    for place, name in enumerate(ordered):
        words = explain(runs, name)
        opened = " open" if place == 0 else ""
        parts.append(
            f"<details{opened}><summary>{escape(name)}</summary>{words._repr_html_()}</details>"
        )
    hidden = len(runs) - MOST_EXPLAINED
    if hidden > 0:
        parts.append(f"<p>{hidden} further runs: `explain(runs, name)` explains each.</p>")
    return parts


def _ranks(runs: Runs, comparison: Comparison) -> list[str]:
    measured = set(runs.iterations["run"].unique())
    ordered = [name for name in comparison.ranked if name in measured]
    parts = []
    for name in dict.fromkeys([*ordered[:1], *ordered[-1:]]):
        ranks = runs[name].ranks
        if len(ranks):
            parts.append(f"<h3>{escape(name)}</h3>")
            parts.append(_figure(stragglers(ranks)))
            parts.append(_figure(rank_memory(ranks, runs.memory_limit(name))))
            parts += [_figure(expert_load(ranks, module)) for module in experts_of(ranks.columns)]
    return parts


def _figure(chart: alt.TopLevelMixin) -> str:
    bundle = _renderer.bundle_of(chart)
    picture = base64.b64encode(bundle["image/svg+xml"].encode()).decode()
    spec = json.dumps(bundle[_renderer.MIME_TYPE], separators=(",", ":")).replace("<", "\\u003c")
    words = escape(bundle["text/plain"], quote=True)
    return (
        f'<figure><img alt="{words}" src="data:image/svg+xml;base64,{picture}">'
        f'<script type="application/json">{spec}</script></figure>'
    )


def _page(title: str, body: str) -> str:
    import vl_convert

    script = vl_convert.javascript_bundle(DRAW, vl_version=_renderer.PICTURE_VERSION)
    script = script.replace("</script", "<\\/script")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}<script>{script}</script></body></html>"
    )
