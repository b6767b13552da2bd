"""What views say once nobody answers them: the model is one of an ended kernel."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

import mimokit
from mimokit.experiment import Stepper
from mimokit_widgets import BatchSplit, LayoutPlanner, StepperView
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster

PAGE = """<!doctype html><meta charset="utf-8"><style>{styles}</style>
<div id="host" style="width: 1200px"></div><script type="module">
const state = {state};
for (const [name, value] of Object.entries(state)) {{
  if (value?.bytes === undefined) continue;
  const bytes = Uint8Array.from(atob(value.bytes), (letter) => letter.charCodeAt(0));
  state[name] = new DataView(bytes.buffer);
}}
const model = {{ get: (name) => state[name], set() {{}}, save_changes() {{}}, on() {{}}, off() {{}},
  send() {{ throw new Error("Cannot send"); }} }};
{module}
const made = typeof widget === "function" ? widget() : widget;
made.initialize?.({{ model }});
made.render({{ model, el: document.getElementById("host") }});
</script>"""


def shown(page: Page, widget: Any, folder: Path) -> Page:
    """Open a page with a widget as it is drawn, whose kernel has ended."""
    state = {
        name: {"bytes": base64.b64encode(bytes(value)).decode()}
        if isinstance(value, bytes | memoryview)
        else value
        for name, value in widget.get_state().items()
        if name.startswith("_") and name not in ("_esm", "_css")
    }
    module = widget._esm.replace("export default", "const widget =")
    text = PAGE.format(styles=widget._css, state=json.dumps(state), module=module)
    file = folder / "view.html"
    file.write_text(text, encoding="utf-8")
    page.goto(file.as_uri())
    return page


def expect_told(page: Page) -> None:
    expect(page.locator(".mimokit > .kernel-ended")).to_have_text(
        re.compile("^The kernel has ended")
    )
    expect(page.locator(".mimokit > .kernel-ended")).to_be_visible()


def test_views_say_that_their_kernel_has_ended(browser_page: Page, tmp_path: Path) -> None:
    page = shown(browser_page, LayoutPlanner(), tmp_path)
    expect(page.locator(".kernel-ended")).to_be_hidden()
    page.get_by_label("DP of images", exact=True).fill("2")
    expect_told(page)
    shown(page, BatchSplit(mimokit.plan("preset:llava_7b_colocated")), tmp_path)
    page.locator("canvas").first.click()
    expect_told(page)
    shown(
        page, StepperView(Stepper(FakeCluster(), apart_config((1, 1, 4), (2, 1, 2), 2))), tmp_path
    )
    page.get_by_role("button", name="Next ›").click()
    expect_told(page)
    expect(page.get_by_role("button", name="Next ›")).to_be_disabled()
