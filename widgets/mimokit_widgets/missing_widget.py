"""Say nothing of a widget that a reopened notebook has no model for, where its picture stands."""

from __future__ import annotations


def hide_the_missing_widget(saved: str, live: str) -> str:
    """Return a style sheet that hides what JupyterLab says where it finds no model for a widget.

    Args:
        saved: selector of the picture that stays in the notebook.
        live: selector of the widget, which is there only while it has a model.
    """
    return (
        f".jp-OutputArea:has({saved}):not(:has({live})) "
        ".jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets)"
        "{display:none}"
    )
