"""What stays of a run when it is over: the monitor as a page and as a picture, without a kernel."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mimokit.analysis import samples_to_evaluations, samples_to_steps
from mimokit.charts.browser.saved import saved_view
from mimokit.samples import Sample
from mimokit_widgets._widget import suppress_missing_widget
from mimokit_widgets.modules import joined_styles, saved_modules

STYLES = ("shared.css", "live_monitor.css")

HIDE = suppress_missing_widget(saved=".mimokit-remembered", live=".mimokit-live-now")


def remembered(state: Mapping[str, Any], sentence: str, picture: str | None = None) -> str:
    """Return HTML that shows a run; where scripts are not run, the sentence and the picture.

    Args:
        state: what the view asks of its model, its rows under `_history`.
        sentence: what a page without scripts says.
        picture: an address (`data:...`) of a picture for a page without scripts.
    """
    image = f'<img alt="{escape(sentence)}" src="{picture}">' if picture else ""
    view = saved_view(
        saved_modules("live_monitor.js"),
        joined_styles(*STYLES),
        state,
        still=f"<p>{escape(sentence)}</p>{image}",
    )
    return f'<div class="mimokit-remembered">{view}</div><style>{HIDE}</style>'


PICTURE = "image/svg+xml"


def final_picture(
    samples: Sequence[Sample], state: Mapping[str, Any], title: str
) -> dict[str, Any]:
    """Return the MIME bundle of a run that is over.

    The HTML is the monitor itself, which draws from what it holds; the SVG, of its loss, is for
    what runs no scripts, such as the preview of a code host. Without a single step there is only
    the sentence.

    Args:
        samples: of the ranks, those that are drawn.
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


def _svg(samples: Sequence[Sample], title: str, state: Mapping[str, Any]) -> str | None:
    steps = samples_to_steps(samples)
    if steps.empty:
        return None
    # Altair takes half a second to import, so it is imported only after the run has ended.
    from mimokit import charts
    from mimokit.charts import _renderer

    words = {"text": title, "subtitle": state["sentence"]}
    chart = charts.loss(steps, samples_to_evaluations(samples)).properties(title=words)
    return _renderer.bundle_of(chart).get(PICTURE)
