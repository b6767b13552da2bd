"""Colours of modules and phases, the same in every chart, table and widget.

Hues follow Okabe and Ito: they differ under the common kinds of colour blindness. No chart relies
on a hue alone; each mark also has its position and its text.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from mimokit.planning.report.rows import MODULE_HUES, module_hues
from mimokit.step_kinds import COMPUTATIONS, REMAINDER, Phase

TEXT = "currentColor"
"""Of the page around a chart: dark on a light one, light on a dark one."""
FAINT, FAINTEST = 0.75, 0.12
"""Opacities of `TEXT`: of what stands next to a chart, and of lines of its grid."""
INK = "#1F2933"
"""Text where the ground is known to be light."""
MUTED = "#5F6B7A"
PAPER = "#FFFFFF"
BLACK = "#000000"
EQUALLY_FAR = 0.179
"""Luminance at which black and white have the same contrast, 4.6 : 1; above it black has more."""
LINE = "#0B6E4F"
ACCENT = "#B8336A"

PHASE_COLORS: Mapping[str, str] = {
    Phase.COMMUNICATION: "#CC79A7",
    Phase.OPTIMIZER: "#4B5563",
    Phase.DATA: "#9AA5B1",
    REMAINDER: "#D5DAE1",
}

MEMORY_COLORS: Mapping[str, str] = {
    "weights": "#4B3B78",
    "gradients": "#9A8FC2",
    "optimizer": "#4B5563",
    "activations": "#8A7A2E",
    "logits": "#C9BC74",
    "buffers": "#D5DAE1",
    "strategy": "#5E8C6A",
}
"""Parts of a rank's memory. None has the colour of a module, of a part of a step or of a mode."""

STEP_COLORS: Mapping[str, str] = {
    "matrix": "#355C8A",
    "attention": "#6B8CB5",
    "memory": "#9DB3CF",
    "encoder": "#3F7C80",
    "tensor": "#CC79A7",
    "context": "#A3568A",
    "expert": "#E3AECB",
    "pipeline": "#B8336A",
    "bridge": "#7A5C3E",
    "host": "#9AA5B1",
    "update": "#4B5563",
    "bubble": "#D5DAE1",
}
"""Parts of a predicted step: computation greyish blue, communication pink, the rest grey."""
MODE_COLORS: Mapping[str, str] = {
    "homogeneous": "#6B7280",
    "colocated": "#B8407F",
    "heterogeneous": "#A67C00",
}

RUN_HUES = (
    "#3B6FD4", "#C2410C", "#0F766E", "#A21CAF", "#8A6100", "#4D7C0F", "#BE123C", "#52606D",
)  # fmt: skip
"""Lines of runs, each dark enough to be followed on white; those of modules have other hues."""

WAITING = "#F0D9E6"
"""Next to the colour of communication, where a chart distinguishes the two."""

DIVERGING = ("#0B5A8A", "#F4F6F8", "#B8336A")
"""Less than usual, as usual, more than usual."""

HEAT = ("#EDF4F9", "#A9CFE5", "#4A98C5", "#0B5A8A", "#052C49")
"""From little to much; even in lightness, so it also prints in grey."""


module_colors = module_hues
"""Module -> its colour, which follows from its name."""

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


def shade(color: str, share: float) -> str:
    """Return `color` mixed with black; a share of 1 is black."""
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(channel * (1 - share)):02X}" for channel in channels)


def ink_on(color: str) -> str:
    """Return black or white, whichever can be read on a colour."""
    return BLACK if luminance(color) > EQUALLY_FAR else PAPER


def luminance(color: str) -> float:
    """Return the relative luminance of a colour, 0 to 1, as WCAG 2.1 defines it."""
    channels = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def forward_color(module_color: str) -> str:
    """Return the colour of a module's forward pass; its backward pass has `module_color`."""
    return tint(module_color, 0.5)


def pass_colors(modules: Iterable[str]) -> dict[str, str]:
    """Return colours of what modules compute: forward, backward, gradients of weights apart."""
    shades: tuple[Callable[[str], str], ...] = (forward_color, str, partial(shade, share=0.35))
    hues = module_colors(modules)
    return {
        f"{name} {kind}".strip(): shaded(hue)
        for kind, shaded in zip(COMPUTATIONS, shades, strict=True)
        for name, hue in hues.items()
    }


def mode_colors(modes: Iterable[str]) -> dict[str, str]:
    """Return the colours of deployment modes, in the given order."""
    return {mode: MODE_COLORS[mode] for mode in modes}
