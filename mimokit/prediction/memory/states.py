"""Bytes of weights, gradients and optimizer state per parameter."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.rank_parameters import RankParameters
from mimokit.config import OptimizerConfig, StrategyConfig
from mimokit.config.sizes import Numbers, ParallelSizes

WEIGHT, GRADIENT, MASTER_WEIGHT, MOMENTS = 2, 4, 4, 8
"""bf16 weight, fp32 gradient, fp32 master weight, both fp32 moments of Adam."""

OPTIMIZER = MASTER_WEIGHT + MOMENTS
"""With weight and gradient 18 bytes (Megatron-LM `theoretical_memory_usage.py`)."""


STATE_BYTES = 4
"""Of an outer weight or an outer momentum of a strategy, which are fp32."""

_STATES = {"sgd": 0, "adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1}
"""Optimizer -> numbers that it keeps per parameter, without momentum."""


@dataclass(frozen=True)
class Storage:
    """Bytes per stored number that depend on precision and training stack.

    Attributes:
        product_input: an input of a matrix product, stored for its backward pass; 1 in 8 bits.
        matrix_weight: a weight in the layer matrices of a dense model; 1 in 8 bits without a
            transposed copy.
        strategy: what a strategy between replicas keeps per parameter that trains: outer weights,
            the state of the outer optimizer.
        gathered: what it keeps besides where no rank of a replica has a whole weight in fp32.
        optimizer: fp32 master weight and what the optimizer keeps, per parameter that trains.
        number: an activation.
        weight: a weight, apart from those of `matrix_weight`.
        fused_attention: attention keeps no scores.
        dummy_gradients: Transformer Engine keeps an unused gradient of each shape of a weight.
        recompute_layers: layers of each stage that keep their input alone.
        recompute_modules: parts of other layers that are computed again, by Megatron's names.
        reserved: memory reserved for activations, over what these take.
        keeps_copies: a layer keeps the activated gate, and the output of attention once more.
        whole_buffers: activations of all tensor-parallel ranks that a rank's buffers hold.
        logit_copies: bytes that the loss keeps of a logit, beside the logit.
    """

    gradient: float = GRADIENT
    product_input: float = 2.0
    matrix_weight: float = WEIGHT
    strategy: float = 0.0
    gathered: float = 0.0
    optimizer: float = OPTIMIZER
    number: float = 2.0
    weight: float = WEIGHT
    fused_attention: bool = True
    dummy_gradients: bool = False
    recompute_layers: int = 0
    recompute_modules: tuple[str, ...] = ()
    reserved: float = 1.0
    keeps_copies: bool = False
    whole_buffers: float = 1.0
    logit_copies: float = 4.0


IN_HALF = Storage()
"""16-bit training with gradients in 32 bits."""


def state_bytes(
    on_rank: RankParameters, sizes: ParallelSizes, *, frozen: bool, storage: Storage = IN_HALF
) -> Mapping[str, Numbers]:
    """Return weights, gradients and optimizer bytes on one rank.

    With Adam and 16-bit weights bytes per parameter are 6 + 12 / D with the distributed optimizer,
    6 + 12 i / D with i optimizer instances (arXiv 2605.27678), and 18 / D if fully sharded.
    A frozen module stores only weights. D is the number of data x context ranks, for experts that
    of ranks with the same experts.

    What a strategy keeps is another part, if it keeps anything: every rank of a replica exchanges
    all that it trains.
    """
    whole = np.where(sizes.fully_sharded, 1 / sizes.replicas, 1.0)
    whole_expert = np.where(sizes.fully_sharded, 1 / sizes.expert_replicas, 1.0)
    optimizer = _owned(on_rank, sizes)
    kept = on_rank.ordinary * whole + on_rank.expert * whole_expert
    saved = (storage.weight - storage.matrix_weight) * on_rank.matrices * whole
    trained = 0 if frozen else 1
    parts: dict[str, Numbers] = {
        "weights": storage.weight * kept - saved,
        "gradients": trained * storage.gradient * kept,
        "optimizer": trained * storage.optimizer * optimizer,
    }
    in_shards = sizes.distributed_optimizer * (storage.weight < STATE_BYTES)
    gathered = storage.gathered * np.logical_or(sizes.fully_sharded, in_shards)
    if storage.strategy or storage.gathered:
        kept_by_strategy = storage.strategy + gathered
        parts["strategy"] = trained * kept_by_strategy * (on_rank.ordinary + on_rank.expert)
    return parts


def update_bytes(
    on_rank: RankParameters, sizes: ParallelSizes, *, storage: Storage = IN_HALF
) -> Numbers:
    """Return what the step of the optimizer needs besides states; activations are gone by then.

    Gradients in 16 bits are copied to fp32 for all parameters that a rank owns at once
    (`_copy_model_grads_to_main_grads` of Megatron's distributed optimizer). Where weights are
    stored in 8 bits, their fp32 masters are first copied to 16 bits, again all at once
    (`cast_master_weights_to_fp8` of Transformer Engine). Fully sharded training does neither.
    """
    copied = MASTER_WEIGHT if storage.gradient < MASTER_WEIGHT else 0
    matrices = on_rank.matrices / np.where(sizes.distributed_optimizer, _shards(sizes), 1)
    cast = storage.number * matrices * (storage.matrix_weight < storage.number)
    return np.where(sizes.fully_sharded, 0.0, copied * _owned(on_rank, sizes) + cast)


def _shards(sizes: ParallelSizes) -> Numbers:
    return np.maximum(1, sizes.replicas / sizes.instances)


def _owned(on_rank: RankParameters, sizes: ParallelSizes) -> Numbers:
    cut = np.logical_or(sizes.distributed_optimizer, sizes.fully_sharded)
    expert_shards = np.maximum(1, sizes.expert_replicas / sizes.instances)
    experts = on_rank.expert / np.where(cut, expert_shards, 1)
    return on_rank.ordinary / np.where(cut, _shards(sizes), 1) + experts


def state_bytes_of(config: StrategyConfig) -> int:
    """Return the bytes that a strategy between replicas keeps per parameter that trains.

    They are outer weights and the state of the outer optimizer; no buffers.
    """
    if config.name != "diloco":
        return 0
    return STATE_BYTES * (1 + _optimizer_numbers(config.outer_optimizer))


def gathered_bytes_of(config: StrategyConfig) -> int:
    """Return the bytes of a whole weight that ranks with shards gather for an exchange."""
    return STATE_BYTES if not config.averages_gradients else 0


def inner_state_bytes_of(config: StrategyConfig) -> int:
    """Return the bytes that the optimizer of each replica keeps per parameter, between steps."""
    inner = config.inner_optimizer
    return STATE_BYTES * (_STATES["adamw"] if inner is None else _optimizer_numbers(inner))


def _optimizer_numbers(optimizer: OptimizerConfig | None) -> int:
    if optimizer is None:
        return 1  # the momentum of the default
    momentum = bool(optimizer.momentum) and optimizer.name in ("sgd", "rmsprop")
    return _STATES[optimizer.name] + momentum
