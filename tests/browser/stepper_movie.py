"""The moving picture of the stepper in README and pages.

    python -m tests.browser.stepper_movie docs/stepper.webp

Opens a fan-in of handwritten digits as a saved page, and writes frames while the digits travel.
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.engine import VOCABULARY
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView
from tests.browser.chromium import find_chromium
from tests.browser.conftest import ARGUMENTS
from tests.browser.movie import QUALITY

CONFIG = Path(__file__).parents[2] / "configs" / "digits_colocated.yaml"
WIDTH, HEIGHT = 720, 640
STEPS = ("gather", "scatter")
FRAMES, LASTS = 14, 120
"""Pictures of a step in which something travels, and the milliseconds that each stays."""
STILL = 900
AT = """time => document.getAnimations().forEach((motion) => {
  motion.pause();
  motion.currentTime = time;
})"""


def record(target: Path) -> None:
    """Write the moving picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "stepper.html"
        page_file.write_text(_saved())
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(page_file.as_uri())
        frames = []
        for step in STEPS:
            page.locator(f'.tick[aria-label*=": {step} of"]').first.click()
            frames += _frames(page)
        browser.close()
    (first, _), *rest = frames
    first.save(
        target, save_all=True, append_images=[frame for frame, _ in rest],
        duration=[lasts for _, lasts in frames], loop=0, quality=QUALITY, method=2,
    )  # fmt: skip


def _saved() -> str:
    config = mimokit.load_experiment_config(CONFIG)
    config.data.base_batch_size = 4
    with EngineCluster(n=8) as cluster:
        stepper = Stepper(cluster, config)
        gather = stepper.run_until(action="gather")
        stepper.run_until(action="report")
        stepper.look_at(gather.number)
        view = StepperView(stepper, vocabulary=VOCABULARY)
        return f"<!doctype html><meta charset='utf-8'><body>{view._in_html()}"


def _frames(page: Page) -> list[tuple[Image.Image, int]]:
    page.locator(".mimokit.stepper .picture").evaluate("node => node.scrollIntoView()")
    moves = page.locator(".traveller").count()
    times = [1600 * place / FRAMES for place in range(FRAMES)] if moves else []
    frames = []
    for time in times or [0.0]:
        page.evaluate(AT, time)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append((picture, LASTS if moves else STILL))
    return frames


if __name__ == "__main__":
    record(Path(sys.argv[1]))
