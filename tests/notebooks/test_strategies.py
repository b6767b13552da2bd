"""Strategies between replicas: the notebook from top to bottom, with less time for each."""

import re
from typing import Any

from make.site.check import external_references
from tests.notebooks.headless import executed_copy, insert_behind, printed

BUDGET = 0.5
STRATEGIES = 9


def _shortened(notebook: Any) -> None:
    insert_behind(notebook, "budget", f"budget = {BUDGET}")


def shown(notebook: Any, source: str, mime: str) -> str:
    (cell,) = [one for one in notebook.cells if source in one.source and one.cell_type == "code"]
    return "".join(one.data.get(mime, "") for one in cell.outputs if "data" in one)


def rows(notebook: Any, source: str) -> dict[str, list[float]]:
    found = {}
    for line in shown(notebook, source, "text/html").split("<tr>")[1:]:
        (name,) = re.findall(r"<th>([^<]*)</th>\s*<td>", line) or [""]
        values = re.findall(r"<td>([^<]*)</td>", line)
        if name and values:
            found[name] = list(map(float, values))
    return found


def test_the_winner_is_computed_and_replicas_are_verified(tmp_path):
    notebook, page = executed_copy("07_strategies.ipynb", tmp_path, _shortened)
    assert external_references(page) == []
    table = rows(notebook, "table.round(3)")
    assert len(table) == STRATEGIES
    losses = [values[-2] for values in table.values()]
    assert losses == sorted(losses)
    best = next(iter(table))
    steps = {name: int(values[0]) for name, values in table.items()}
    said = printed(notebook, "wins: its loss")
    assert f"{best} wins: its loss is {table[best][-2]:.3f}" in said
    assert (
        f"In {BUDGET:g} s it does {steps[best]} steps, SimpleReduce {steps['SimpleReduce']}" in said
    )
    assert steps[best] > 3 * steps["SimpleReduce"] > 0
    monitor = shown(notebook, "LiveMonitor(run)", "text/plain")
    assert f"Training finished. {steps['DiLoCo']} iterations in" in monitor
    assert "rank 3 exchanges with (7,): " in printed(notebook, "outer.peers(rank)")
    assert "computes what one process computes" in page
    assert "2 replicas with diloco" in page
    own = rows(notebook, "both.round(3)")
    assert own["one tensor in turn"][2] < own["FedAvg"][2]  # bytes
