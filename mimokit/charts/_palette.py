"""Colours of modules and phases, the same in every chart, table and widget.

Hues follow Okabe and Ito: they differ under the common kinds of colour blindness. No chart relies
on a hue alone; each mark also has its position and its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mimokit.planning.report.rows import MODULE_HUES
from mimokit.step_kinds import REMAINDER, Phase

INK = "#1F2933"
MUTED = "#5F6B7A"
GRID = "#E4E7EB"
PAPER = "#FFFFFF"
LINE = "#0B6E4F"
ACCENT = "#B8336A"

PHASE_COLORS: Mapping[str, str] = {
    Phase.COMMUNICATION: "#CC79A7",
    Phase.OPTIMIZER: "#4B5563",
    Phase.DATA: "#9AA5B1",
    REMAINDER: "#D5DAE1",
}

MEMORY_COLORS: Mapping[str, str] = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#4B5563",
    "activations": "#D55E00",
    "logits": "#E69F00",
    "buffers": "#D5DAE1",
    "strategy": "#009E73",
}

STEP_COLORS: Mapping[str, str] = {
    "matrix": "#0072B2",
    "attention": "#56B4E9",
    "memory": "#009E73",
    "encoder": "#D55E00",
    "tensor": "#CC79A7",
    "context": "#8C6BB1",
    "expert": "#E69F00",
    "pipeline": "#B8336A",
    "bridge": "#7A5C3E",
    "host": "#9AA5B1",
    "update": "#4B5563",
    "bubble": "#D5DAE1",
}
"""Parts of a predicted step: computation, modules, communication, and the rest in grey."""

WAITING = "#F0D9E6"
"""Next to the colour of communication, where a chart distinguishes the two."""

DIVERGING = ("#0B5A8A", "#F4F6F8", "#B8336A")
"""Less than usual, as usual, more than usual."""

HEAT = ("#EDF4F9", "#A9CFE5", "#4A98C5", "#0B5A8A", "#052C49")
"""From half to one and a half times the median; even in lightness, so it also prints in grey."""


def module_colors(modules: Iterable[str]) -> dict[str, str]:
    """Return the colour of each module, in the given order."""
    return {
        module: MODULE_HUES[index % len(MODULE_HUES)]
        for index, module in enumerate(dict.fromkeys(modules))
    }


SHARED = "#9AA5B1"
"""What several ranks of a group hold alike."""


def place_colors(count: int) -> list[str]:
    """Return the colours of the places in a group; after all hues they begin again, lighter."""
    hues = len(MODULE_HUES)
    return [tint(MODULE_HUES[place % hues], 0.4 * (place // hues % 2)) for place in range(count)]


def tint(color: str, share: float) -> str:
    """Return `color` mixed with white; a share of 1 is white."""
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    mixed = (round(channel + (255 - channel) * share) for channel in channels)
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def ink_on(color: str) -> str:
    """Return black or white, whichever can be read on a colour."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else PAPER


def forward_color(module_color: str) -> str:
    """Return the colour of a module's forward pass; its backward pass has `module_color`."""
    return tint(module_color, 0.5)


def pass_colors(modules: Iterable[str]) -> dict[str, str]:
    """Return the colours of the forward passes of modules, then of their backward passes."""
    hues = module_colors(modules)
    forward = {f"{name} forward".strip(): forward_color(hue) for name, hue in hues.items()}
    return forward | {f"{name} backward".strip(): hue for name, hue in hues.items()}


def mode_colors(modes: Iterable[str]) -> dict[str, str]:
    """Return the colours of deployment modes, in the given order."""
    colors = module_colors(("homogeneous", "colocated", "heterogeneous"))
    return {mode: colors[mode] for mode in modes}
