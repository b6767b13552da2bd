"""How long a tensor's picture takes to open: `python -m benchmarks.tensor_pictures`.

On its rank, and in a real browser from the click to the first task after the frame that shows it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from playwright.sync_api import Page, sync_playwright

from benchmarks.plan_speed import Row
from benchmarks.table import show
from mimokit.engine.stepper.tensor_copies import KeptTensors
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView
from tests.browser.chromium import find_chromium
from tests.browser.conftest import ARGUMENTS, VIEWPORT
from tests.browser.view_page import shown
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster

REPEATS = 9
TARGET = 100.0
ROWS, COLUMNS = 97_657, 1_024
NAME = "microbatch.0.output.tensor"
AFTER_THE_FRAME = """(name) => new Promise((done) => {
  const entry = [...document.querySelectorAll(".tensor")]
    .find((each) => each.textContent.includes(name));
  const wanted = entry.getAttribute("aria-pressed") !== "true";
  const begun = performance.now();
  const look = () => {
    if (document.querySelector(".tensor-view").hidden === wanted) requestAnimationFrame(look);
    else setTimeout(() => done(performance.now() - begun), 0);
  };
  entry.click();
  look();
})"""


def rows() -> Iterator[Row]:
    """Measure a tensor of 100 million values on its rank, then pictures in Chromium."""
    million = f"{ROWS * COLUMNS / 1e6:.0f} million values on the rank"
    whole = torch.randn(ROWS, COLUMNS)
    for name, tensor in (
        ("fp32", whole),
        ("bf16", whole.to(torch.bfloat16)),
        ("fp32, one row", whole.reshape(-1)),
    ):
        kept = KeptTensors(1)
        kept.remember(0, {NAME: tensor})

        def draw(kept: KeptTensors = kept) -> object:
            return kept.drawn(0, NAME)

        yield _row(f"{million}, {name}", _median(draw))
    del whole, kept
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        for shape in ((512, 1_024), (ROWS, COLUMNS)):
            page = browser.new_page(viewport=VIEWPORT)
            text = " × ".join(f"{size:,}" for size in shape)
            yield _row(f"click to picture in Chromium, {text}", _opening(page, shape, Path(folder)))
            page.close()


def _opening(page: Page, shape: tuple[int, int], folder: Path) -> float:
    cluster = FakeCluster()
    stepper = Stepper(cluster, apart_config((1, 1, 4), (2, 1, 2), 2))
    cluster._tensors[0] = {NAME: np.ones(shape, np.float32)}
    view = StepperView(stepper)
    stepper.next()
    view.selected = 0
    shown(page, view, folder, answered=True)
    page.locator(".tensor").wait_for()
    took = [float(page.evaluate(AFTER_THE_FRAME, NAME)) for _ in range(2 * REPEATS)]
    return statistics.median(took[::2])  # every other click closes it


def _median(call: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - begun))
    return statistics.median(took)


def _row(name: str, measured: float) -> Row:
    return Row(name=name, measured=measured, target=TARGET, unit="ms", ok=measured <= TARGET)


if __name__ == "__main__":
    show("Pictures of tensors", rows())
