"""How far from a prediction four of five measured steps are, and what widens that.

The bands are those of `python -m benchmarks.prediction`: models that no constant was fitted
to. They are wider where nobody says how the stack runs a model, and where nothing like it was
measured.
"""

from dataclasses import dataclass

from mimokit.architecture.modules import LanguageModel
from mimokit.prediction.step_time import System

DENSE, EXPERTS = 0.07, 0.12
"""Relative error that 80 % of the rows of left-out families stay within, GPT-OSS among them."""
CPU = 0.25
"""The same of small layouts on the cores of one host: of 13, twice, 80 % stay within 0.20."""
UNKNOWN_RECIPE, OUTSIDE = 1.4, 1.5
"""Times the band: with the defaults instead of recipes, 80 % stay within 0.09 and 0.16; where whole
GPU generations are left out, 80 % stay within 0.10 and 0.15."""


TIE = 0.03
"""Relative difference up to which predictions do not say which of two layouts is faster. Layouts
share most of a prediction's error, so that a difference is known better than its ends: of pairs of
measured layouts of one workload that are predicted up to 3 % apart, with constants fitted without
their family, the order is right in 62 % (53 pairs); 3 to 12 % apart in 77 % (172), farther in 97 %
(820). Measured steps of one layout differ by 3 % between releases."""
CLEAR = 0.12
"""Relative difference from which predictions have the order right: in 97 % of those pairs."""


def is_tie(seconds: float, other: float) -> bool:
    """Return whether the difference of two predictions says nothing."""
    return max(seconds, other) <= (1 + TIE) * min(seconds, other)


@dataclass(frozen=True)
class Fitted:
    """What was fitted for one chip and one kind of model.

    Attributes:
        hidden: narrowest and widest.
        experts: fewest and most.
    """

    hidden: tuple[int, int]
    precisions: tuple[str, ...]
    experts: tuple[int, int] = (0, 0)


_DENSE = {
    "A100": Fitted((1024, 25600), ("fp16", "bf16")),
    "H100": Fitted((4096, 8192), ("fp8",)),
    "B200": Fitted((4096, 8192), ("bf16", "fp8", "mxfp8")),
    "GB200": Fitted((4096, 8192), ("fp8", "mxfp8", "nvfp4")),
    "GB300": Fitted((4096, 8192), ("fp8", "mxfp8", "nvfp4")),
}
_EXPERTS = {
    "H100": Fitted((2048, 7168), ("fp8",), (128, 256)),
    "B200": Fitted((2048, 7168), ("bf16", "fp8", "mxfp8"), (128, 256)),
    "GB200": Fitted((2048, 7168), ("bf16", "fp8", "mxfp8"), (128, 256)),
    "B300": Fitted((2048, 7168), ("mxfp8",), (128, 256)),
    "GB300": Fitted((2048, 7168), ("bf16", "mxfp8"), (128, 256)),
}
"""Chip -> what the published steps that constants were fitted to are of."""
WORDS = {"dispatcher": "dispatcher", "graphs": "CUDA graphs"}
"""Field of a recipe that decides the band -> what it is called."""


def band_of(model: LanguageModel, system: System) -> tuple[float, tuple[str, ...]]:
    """Return the band of a model's predictions, as a share, and why it is wider than the least."""
    if system.hardware.cores is not None:
        return CPU, ()
    has_experts = model.net.moe is not None
    band, why = EXPERTS if has_experts else DENSE, []
    recipe = system.recipe
    deciding = tuple(WORDS) if has_experts else ("graphs",)
    unknown = [name for name in deciding if name in recipe.unknown]
    if unknown:
        band *= UNKNOWN_RECIPE
        values = ", ".join(f"{WORDS[name]} {getattr(recipe, name)}" for name in unknown)
        why.append(f"Assumed, since runtime.recipe does not say: {values}.")
    unlike = _unlike(model, system)
    if unlike:
        band *= OUTSIDE
        why.append(unlike)
    return min(band, 0.5), tuple(why)


def _unlike(model: LanguageModel, system: System) -> str:
    net, gpu = model.net, system.hardware.name
    words = gpu.upper().replace("-", " ").split()
    table = _DENSE if net.moe is None else _EXPERTS
    chip = next((name for name in table if name in words), None)
    kind = "dense model" if net.moe is None else f"model with {net.moe.experts} experts"
    if chip is None:
        return f"No {kind} on {gpu} was fitted."
    known = table[chip]
    if system.precision not in known.precisions:
        return f"No {kind} in {system.precision} on this GPU was fitted."
    if net.moe is not None and not known.experts[0] <= net.moe.experts <= known.experts[1]:
        return f"No {kind} on this GPU was fitted."
    least, most = known.hidden
    if not least <= net.hidden <= most:
        return f"No {kind} of width {net.hidden:,} on this GPU was fitted."
    return ""
