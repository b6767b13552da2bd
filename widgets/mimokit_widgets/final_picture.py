"""What stays of a run when it is over: pictures that need no kernel."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from mimokit.analysis import samples_to_evaluations, samples_to_steps
from mimokit_widgets.live_saved import remembered

PICTURE = "image/svg+xml"


def final_picture(
    samples: Sequence[Mapping[str, Any]], state: Mapping[str, Any], title: str
) -> dict[str, Any]:
    """Return the MIME bundle of a run that is over.

    The HTML is the monitor itself, which draws from what it holds; the SVG is for what runs no
    scripts, such as the preview of a code host. Without a single step there is only the sentence.

    Args:
        samples: all that the ranks have sent.
        state: the state of the monitor.
        title: how the run ended, in two words.
    """
    sentence = f"{title}. {state['sentence']}"
    svg = _svg(samples, title, state)
    if svg is None:
        return {"text/html": remembered(state, sentence), "text/plain": sentence}
    address = f"data:{PICTURE};base64,{base64.b64encode(svg.encode()).decode()}"
    return {
        "text/html": remembered(state, sentence, address),
        PICTURE: svg,
        "text/plain": sentence,
    }


def _svg(samples: Sequence[Mapping[str, Any]], title: str, state: Mapping[str, Any]) -> str | None:
    steps = samples_to_steps(samples)
    if steps.empty:
        return None
    # Altair takes a second to import; nobody should wait for it before the run has ended.
    from mimokit import charts
    from mimokit.charts import _renderer

    chart = charts.training(
        steps,
        samples_to_evaluations(samples),
        title,
        state["sentence"],
        state["warmup_iterations"],
    )
    return _renderer.bundle_of(chart).get(PICTURE)
