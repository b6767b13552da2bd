"""`WeightMap` in JupyterLab: a rank shows its slices, a tensor its ranks, other sizes replan."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.notebook_page import DARK, OpenNotebook

CELL = """
from pathlib import Path
from mimokit_widgets import WeightMap
from tests.sparse_weights import small_checkpoint
view = WeightMap(small_checkpoint(Path("tiny"), "llama", files=2), tensor_parallel=4)
view
"""
VIEW = ".mimokit:has(> div > .weight-map):not(.mimokit-saved *)"


def lit(cell: Locator) -> list[bool]:
    """Return which bands of a tensor are highlighted."""
    return ["on" in (band.get_attribute("class") or "").split() for band in cell.locator("i").all()]


def test_ranks_and_tensors_show_each_other(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL)
    notebook.run_all()
    page, view = notebook.page, notebook.page.locator(VIEW)
    ranks, said = view.locator(".rank"), view.get_by_role("status")
    expect(ranks).to_have_count(4)
    expect(page.locator(".mimokit-saved").first).to_be_hidden()
    notebook.screenshot("weight map light", view)
    # A rank shows its slices: one of four bands of a matrix, and all of a norm.
    query = view.get_by_role("button", name="model.layers.N.self_attn.q_proj.weight")
    norm = view.get_by_role("button", name="model.norm.weight")
    ranks.nth(1).hover()
    expect(said).to_contain_text("Rank 1 (TP 1, PP 0): layers 0–3, query heads 2–3")
    assert (lit(query), lit(norm)) == ([False, True, False, False], [True])
    strip = view.locator(".file canvas").first
    expect(strip).to_have_attribute("aria-label", re.compile(r"safetensors: [1-9][\d.]* % of its"))
    # A tensor shows its ranks.
    query.hover()
    expect(said).to_contain_text("rank 3 rows 24–31")
    expect(view.locator(".rank.on")).to_have_count(4)
    # Other sizes, with the mouse and with the keyboard: two stages, of which one has the embedding.
    view.get_by_role("radiogroup", name="PP").get_by_label("2", exact=True).check()
    expect(ranks).to_have_count(8)
    notebook.wait_until("len(view.plan.ranks) == 8")
    view.get_by_role("radiogroup", name="TP").get_by_label("4", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    expect(ranks).to_have_count(4)
    head = view.get_by_role("button", name="lm_head.weight")
    head.focus()
    expect(said).to_contain_text("lm_head.weight (101 × 32)")
    expect(view.locator(".rank.on b")).to_have_text(["rank 2", "rank 3"])
    page.keyboard.press("ArrowUp")
    expect(view.locator(".cell:focus")).to_have_attribute(
        "aria-label", re.compile(r"^model\.layers\.N\.mlp\.down_proj\.weight")
    )
    ranks.nth(0).focus()
    page.keyboard.press("ArrowDown")
    expect(ranks.nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    notebook.wait_until("view.selected == 2")
    expect(ranks.nth(2)).to_have_attribute("aria-pressed", "true")
    notebook.choose_theme(DARK)
    page.wait_for_selector(f'{VIEW}[data-theme="dark"]')
    notebook.screenshot("weight map dark", view)
    ranks.nth(2).focus()
    page.keyboard.press("Escape")
    notebook.wait_until("view.selected is None")
    # What cannot be cut says so, and the last plan stays.
    notebook.execute("view.ask(tensor_parallel=3)")
    expect(view.get_by_role("alert")).to_contain_text("tensor_parallel 3 does not divide")
    expect(ranks).to_have_count(4)
    notebook.screenshot("weight map problem", view)
