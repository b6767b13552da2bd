"""Compares a layout with the oracle, entry by entry, on every rank."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from mimokit.config.runtime import AS_DRAWN
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import without_tf32
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.main_weights import is_main_weight, main_value, whole_gradient
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.steps import exhaust
from mimokit.engine.training.optimizer_step import TrainingState, prepared, training_step
from mimokit.engine.verify.routing import Routing, replay_routing
from mimokit.engine.verify.steps import Noise, OracleStep, StepDifference, StepRounding, Tensors

Parameters: TypeAlias = Mapping[str, torch.nn.Parameter]  # by their names in the whole module

# A tensor whose entries are all below this share of its module's largest entry is measured
# against that share. Relative to itself, rounding noise (the gradient of a key bias is only noise)
# would be an error of 100 %.
FLOOR = 1e-3

# The same in fewer bits than fp32. A gradient that is the small rest of large terms (a bias) has
# the rounding errors of these, and so few entries that their largest error is of no use as a
# yardstick: with 1e-3 the differences of nine right layouts were 0.4 to 1.0 times those of one
# process, which were 2e-2 to 8e-2; with 0.1 they are 0.9 to 1.3 times 1.0e-2 to 1.7e-2.
FLOOR_OF_NOISE = 0.1

ROUNDED_STEPS = 4 * 2.0**-23
"""Share of a weight that is left out of its difference in fewer bits, where it is measured by what
the updates have changed: fp32 rounds a weight in every step, here and in the oracle. The norms of a
new model are 1, and the updates of some are as small as a hundred such roundings."""

NORM = "the norm of all gradients before clipping"
"""In place of a parameter: clipping gives gradients of a wrong scale the right one."""


@without_tf32()
def compare_on_rank(run: RunOfRank, oracle: Sequence[OracleStep]) -> list[StepDifference]:
    """Train the layout for as many steps as the oracle and compare after each. Collective.

    Raises:
        ValueError: if the ranks together do not have the parameters of the oracle, or a parameter
            of a rank is neither whole nor marked as the part that it is.
    """
    with prepared(run) as state:
        modules = state.model.modules()
        held = {name: named_parameters(wrapped.module) for name, wrapped in modules.items()}
        _check_parameters(held, oracle[0])
        routing = Routing()
        if oracle[0].choices.experts and run.config.runtime.sample_order == AS_DRAWN:
            for name, wrapped in modules.items():
                replay_routing(name, wrapped.module, routing)
        return [_compare_step(state, held, expected, routing) for expected in oracle]


def _check_parameters(held: Mapping[str, Parameters], expected: OracleStep) -> None:
    names = {module: list(parameters) for module, parameters in held.items()}
    by_rank: list[dict[str, list[str]]] = gather_json(names)
    for module, whole in expected.weights.items():
        together = {name for rank in by_rank for name in rank.get(module, [])}
        if together != set(whole):
            raise ValueError(
                f"The ranks hold the parameters {sorted(together)} of module {module!r}, the "
                f"oracle has {sorted(whole)}."
            )
    for sentences in gather_json(list(_wrong_shapes(held, expected))):
        if sentences:
            raise ValueError(sentences[0])


def _wrong_shapes(held: Mapping[str, Parameters], expected: OracleStep) -> Iterator[str]:
    for module, parameters in held.items():
        for name, parameter in parameters.items():
            whole, cut = expected.weights[module][name].shape, shard_of(parameter).cut
            if cut.padded(1) == whole:
                continue
            how = (
                "it is not marked as cut"
                if cut.dimension is None
                else f"it is marked as cut along dimension {cut.dimension}"
            )
            shape = list(parameter.shape)
            yield (
                f"Module {module!r}, parameter {name}: rank {dist.get_rank()} holds {shape} "
                f"of {list(whole)}, but {how}; mark what tensor parallelism cuts with Megatron's "
                "tensor_model_parallel, partition_dim and partition_stride."
            )


def _compare_step(
    state: TrainingState, held: Mapping[str, Parameters], expected: OracleStep, routing: Routing
) -> StepDifference:
    routing.begin(expected.choices)
    state.update.set_epsilon(expected.epsilon)
    if state.update.loss_scale is not None:
        state.update.loss_scale.value = expected.loss_scale
    result = exhaust(training_step(state))
    gradients, weights, worst = {}, {}, {}
    norm = _norm_difference(result.grad_norm, expected.norm), NORM
    for name, own in held.items():
        in_fp32 = state.model.plan.executions[name].weights == "fp32"
        scales = _gradient_scales(expected, name, in_fp32)
        gradient = largest_difference(local_gradients(own), expected.gradients[name], scales, own)
        if expected.gradients[name]:
            gradient = max(gradient, norm)
        scales = _weight_scales(expected, name, in_fp32)
        exact = 0.0 if in_fp32 else ROUNDED_STEPS
        whole = expected.weights[name]
        weight = largest_difference(local_weights(own), whole, scales, own, exact)
        gradients[name], weights[name] = gradient[0], weight[0]
        worst[name] = max(gradient, weight)[1]
    return StepDifference(result.loss, gradients, weights, worst, routing.rerouted)


def _norm_difference(norm: float, whole: float | None) -> float:
    """Return the relative difference of the norms; 0 where the oracle clips nothing."""
    if whole is None or norm == whole == 0:
        return 0.0
    difference = abs(norm - whole) / whole if whole > 0 else float("inf")
    return difference if math.isfinite(difference) else float("inf")


def rounding_of(oracle: Sequence[OracleStep], nudged: Sequence[OracleStep]) -> list[StepRounding]:
    """Compare the steps of one process with those after a change of its weights by a rounding."""
    return [
        StepRounding(
            {
                name: _most(other.gradients[name], own, _gradient_scales(step, name, in_fp32=True))
                for name, own in step.gradients.items()
            },
            {
                name: _most(other.weights[name], own, _weight_scales(step, name, in_fp32=True))
                for name, own in step.weights.items()
            },
        )
        for step, other in zip(oracle, nudged, strict=False)
    ]


def noise_of(reference: Sequence[OracleStep], rounded: Sequence[OracleStep]) -> list[Noise]:
    """Return how much each step of one process in fewer bits differs from one in fp32.

    The measures are those of a layout.
    """
    return [_noise_of(*pair) for pair in zip(reference, rounded, strict=True)]


def _noise_of(expected: OracleStep, rounded: OracleStep) -> Noise:
    gradients, weights = [_norm_difference(rounded.norm or 0.0, expected.norm)], [0.0]
    for name, whole in expected.gradients.items():
        scales = _gradient_scales(expected, name, in_fp32=False)
        gradients.append(_most(rounded.gradients[name], whole, scales))
    for name, whole in expected.weights.items():
        scales = _weight_scales(expected, name, in_fp32=False)
        weights.append(_most(rounded.weights[name], whole, scales, ROUNDED_STEPS))
    loss = abs(rounded.loss - expected.loss) / abs(expected.loss or 1.0)
    return Noise(loss, max(gradients), max(weights))


def _most(
    layout: Tensors, whole: Tensors, scales: Mapping[str, float], rounding: float = 0.0
) -> float:
    differences = (
        _relative(layout[name], tensor, scales[name], rounding) for name, tensor in whole.items()
    )
    return max(differences, default=0.0)


def _gradient_scales(expected: OracleStep, module: str, in_fp32: bool) -> dict[str, float]:
    """Return against what the differences of each gradient are measured: its largest entry."""
    largest = _largest(expected.gradients[module])
    return _scales(largest, FLOOR if in_fp32 else FLOOR_OF_NOISE)


def _weight_scales(expected: OracleStep, module: str, in_fp32: bool) -> dict[str, float]:
    if in_fp32:
        return _scales(_largest(expected.weights[module]), FLOOR)
    return _scales(expected.moved[module], FLOOR_OF_NOISE)


def _largest(tensors: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.abs(tensor).max()) for name, tensor in tensors.items()}


def _scales(largest: Mapping[str, float], floor: float) -> dict[str, float]:
    most = floor * max(largest.values(), default=0.0)
    return {name: max(value, most) for name, value in largest.items()}


def _relative(
    piece: np.ndarray, expected: np.ndarray, scale: float, rounding: float = 0.0
) -> float:
    """Return the largest difference of an entry in terms of a scale; infinite if not finite.

    Args:
        rounding: share of an entry by which it may differ without being counted.
    """
    differences = np.abs(piece - expected) - rounding * np.abs(expected)
    difference = float(differences.max()) if expected.size else 0.0
    if difference <= 0:
        return 0.0
    return difference / scale if scale > 0 and math.isfinite(difference) else float("inf")


def local_gradients(held: Parameters) -> Tensors:
    """Return this rank's reduced gradients of parameters by name; a frozen module has none.

    Collective, as `local_weights`, over ranks that share states of an optimizer.
    """
    whole = {name: whole_gradient(parameter) for name, parameter in held.items()}
    return {name: g.cpu().numpy() for name, g in whole.items() if g is not None}


def local_weights(held: Parameters) -> Tensors:
    """Return this rank's weights by parameter name, in the most bits that there are of each.

    One that is not its main weight, rounded, is not a number.
    """
    weights = {}
    for name, parameter in held.items():
        weight = main_value(parameter)
        if not is_main_weight(parameter, weight):
            weight = torch.full_like(weight, math.nan)
        weights[name] = weight.float().cpu().numpy()
    return weights


def largest_difference(
    shards: Mapping[str, np.ndarray],
    whole: Mapping[str, np.ndarray],
    scales: Mapping[str, float],
    held: Parameters,
    rounding: float = 0.0,
) -> tuple[float, str]:
    """Return the largest relative difference of any entry of this rank's shards, and its parameter.

    The difference is infinite where only one side has a tensor or an entry is not finite; the name
    is empty where nothing differs.
    """
    if set(shards) != set(whole) & set(held):
        return float("inf"), min(set(shards) ^ (set(whole) & set(held)))
    worst = 0.0, ""
    for name in shards:
        expected = shard_of(held[name]).of(whole[name])
        difference = _relative(shards[name], expected, scales[name], rounding)
        if difference > 0:
            worst = max(worst, (difference, name))
    return worst
