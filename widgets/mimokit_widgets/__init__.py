"""Notebook views of mimokit.

Names are loaded when they are first used, so that running a notebook from the command line does
not wait for widgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit_widgets.live_chart import LiveChart

__all__ = ["LiveChart"]


def __getattr__(name: str) -> Any:
    if name == "LiveChart":
        from mimokit_widgets.live_chart import LiveChart

        return LiveChart
    raise AttributeError(f"module 'mimokit_widgets' has no attribute '{name}'")
