"""What stays of a live chart when the run is over: a picture that needs no kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mimokit.analysis import samples_to_evaluations, samples_to_steps


def final_picture(
    samples: Sequence[Mapping[str, Any]], title: str, sentence: str, warmup_iterations: int
) -> dict[str, Any]:
    """Return the MIME bundle of all charts of a run; without a single step only the sentence."""
    steps = samples_to_steps(samples)
    if steps.empty:
        return {
            "text/html": f"<p><b>{escape(title)}.</b> {escape(sentence)}</p>",
            "text/plain": f"{title}. {sentence}",
        }
    # Altair takes a second to import; nobody should wait for it before the run has ended.
    from mimokit import charts
    from mimokit.charts import renderer

    chart = charts.training(
        steps, samples_to_evaluations(samples), title, sentence, warmup_iterations
    )
    return {**renderer.bundle_of(chart), "text/plain": f"{title}. {sentence}"}
