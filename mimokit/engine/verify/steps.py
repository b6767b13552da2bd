"""What ranks return of the steps that they compare; the process that receives it needs no torch."""

from dataclasses import dataclass, field

import numpy as np

from mimokit.planning.expert_choices import ExpertChoices, Rerouted

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class OracleStep:
    """One optimizer step of the oracle.

    Attributes:
        loss: mean over the unmasked tokens of the step, including those of modules behind the
            language model.
        gradients: module -> parameter -> gradient of that mean, after clipping; a frozen module
            has none.
        weights: module -> parameter -> weight after the step.
        norm: of all gradients before clipping, which would hide a wrong scale; None: not clipped.
        epsilon: what the optimizer adds to what it divides by. It is that of the run times the
            largest norm of clipped gradients so far, if that is above 1: a rounding error of the
            gradients is divided by no less than the same share of them in every run.
        loss_scale: what a layout in fp16 multiplies its losses by: no gradient overflows then.
        moved: module -> parameter -> largest change of an entry since the start.
        choices: of experts, in fewer bits than fp32: of these, or what was taken from them.
    """

    loss: float
    gradients: dict[str, Tensors]
    weights: dict[str, Tensors]
    epsilon: float
    norm: float | None = None
    reached: frozenset[str] = frozenset()
    moved: dict[str, dict[str, float]] = field(default_factory=dict)
    loss_scale: float = 1.0
    choices: ExpertChoices = field(default_factory=ExpertChoices)
    rerouted: Rerouted = field(default_factory=Rerouted)

    @property
    def is_finite(self) -> bool:
        """Whether all gradients are."""
        tensors = [tensor for module in self.gradients.values() for tensor in module.values()]
        return all(bool(np.isfinite(tensor).all()) for tensor in tensors)


@dataclass(frozen=True)
class Noise:
    """The relative differences of a loss, and the largest of gradients and weights, of a step."""

    loss: float
    gradients: float
    weights: float


@dataclass(frozen=True)
class StepDifference:
    """The differences of one optimizer step from that of the oracle, on this rank.

    Attributes:
        gradients: module -> largest difference of a gradient entry, relative to the largest entry
            of its tensor, and of the norm before clipping.
        weights: module -> the same for weights after the step.
        parameters: module -> the parameter whose gradient or weight differs most.
        rerouted: how the choices of experts on this rank differ, in fewer bits than fp32.
    """

    loss: float
    gradients: dict[str, float]
    weights: dict[str, float]
    parameters: dict[str, str]
    rerouted: Rerouted = field(default_factory=Rerouted)


@dataclass(frozen=True)
class StepRounding:
    """How much a step of one process changes where every weight is rounded differently once.

    Attributes:
        gradients: module -> as in `StepDifference`.
        weights: module -> the same.
    """

    gradients: dict[str, float]
    weights: dict[str, float]
