"""Weights and sampling: the notebook from top to bottom, with fewer iterations."""

import re
from typing import Any

import pytest

from make.site.check import external_references
from tests.notebooks.headless import executed_copy, insert_behind, printed

ITERATIONS = 8


def _shortened(notebook: Any) -> None:
    insert_behind(notebook, "iterations", f"iterations = {ITERATIONS}")


def shown(notebook: Any, source: str, kind: str = "text/html") -> str:
    """Return what the one cell whose source contains a text shows last."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and source in c.source]
    text: str = cell.outputs[-1].data[kind]
    return text


def test_a_checkpoint_is_planned_loaded_checked_and_sampled(tmp_path):
    notebook, page = executed_copy("08_weights_and_sampling.ipynb", tmp_path, _shortened)
    assert external_references(page) == []
    assert "Weights of llama on 4 ranks, TP 4, PP 1" in page
    differences = re.findall(r"by (\S+) of the largest", printed(notebook, "theirs = llama(torch"))
    assert len(differences) == 3
    assert max(map(float, differences)) < 1e-5
    verdicts = printed(notebook, "for ranks in (1, 2):")
    assert verdicts.count("computes what transformers computes") == 2
    assert "TP 4 computes what transformers computes" in shown(notebook, "for ranks in (1, 2):")
    broken = shown(notebook, "def exchange_gate_and_up")
    assert "decoder.layers.1 is the first part that differs" in broken
    assert broken.count("<td") > 0
    assert re.search(r"decoder\.layers\.0</td>.{0,400}?yes</td>", broken)
    generated = printed(notebook, "on_token=").split("\n")
    assert len(generated[0].split()) == 12, "token by token"
    assert re.match(r"[\d,]+ bytes per token, \d+ tokens/s", generated[1])
    table = shown(notebook, "kinds = {", "text/plain").splitlines()
    parameters = {
        row.split("  ")[0]: int(float(re.findall(r"[\d.]+", row)[0])) for row in table[1:]
    }
    assert parameters["GeGLU"] == parameters["SwiGLU"] > parameters["GELU"]
    assert parameters["SwiGLU, two thirds as wide"] == pytest.approx(parameters["GELU"], rel=0.02)
    assert "language_module" in shown(notebook, "digits_llava.yaml")
    assert (tmp_path / "checkpoints" / "digits_llava" / "config.json").is_file()
    said = printed(notebook, "trained = train(cluster")
    ((first, last),) = re.findall(r"loss ([\d.]+) at first, ([\d.]+) at last", said)
    assert float(last) < float(first)
    changed = shown(notebook, "trained = train(cluster", "text/plain")
    parts = re.findall(r"^(\w+) +([\d.]+)$", changed, re.MULTILINE)
    assert [name for name, _ in parts] == [
        "language_model", "lm_head", "multi_modal_projector", "vision_tower",
    ]  # fmt: skip
    assert all(float(most) > 1e-3 for _, most in parts)
