"""A view as HTML that stays alive on a page without a kernel."""

import base64
import json
import uuid
from collections.abc import Mapping
from typing import Any


def saved_view(
    module: str,
    styles: str,
    state: Mapping[str, Any],
    answers: Mapping[str, Mapping[str, Any]] | None = None,
    still: str = "",
) -> str:
    """Return HTML that draws a view from what it holds; where scripts are not run, `still`.

    Args:
        module: JavaScript that declares `show(name, styles, state, answers)`.
        state: name of a trait -> its value; bytes are allowed anywhere.
        answers: a message to Python, as JSON -> the traits that it would set.
        still: HTML for a page without scripts.
    """
    name = f"mimokit-saved-{uuid.uuid4().hex[:12]}"
    arguments = ", ".join(map(literal, (name, styles, state, answers or {})))
    return (
        f'<div class="mimokit-alive {name}">{still}</div>'
        f'<script type="module">\n{module}\nshow({arguments});\n</script>'
    )


def literal(value: Any) -> str:
    """Return a value as JavaScript that may stand within an element of HTML."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=_packed)
    return text.replace("<", "\\u003c")


def _packed(value: object) -> dict[str, str]:
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    raise TypeError(f"a page cannot hold {type(value).__name__}")
