"""The batches in a user's training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch.distributed as dist

from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import DataConfig, MimoParallelismConfig
from mimokit.engine.data.batch import Batch, check_tokens, to_device
from mimokit.engine.data.iterators import Order, iterate_batches
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.parallel.grids import participating
from mimokit.planning.types import LayoutPlan


def get_data_iterator(
    model_config: MimoParallelismConfig,
    data_config: DataConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
    *,
    plan: LayoutPlan,
    data: TrainingData,
    seed: int = 1234,
    order: Order | None = None,
) -> Iterator[Batch] | None:
    """Iterate over the batches of this rank in homogeneous or heterogeneous mode.

    Args:
        plan: of the same experiment, from `mimokit.plan`.
        data: gives the samples; for example `mimokit.engine.default_data(config)`.
        seed: of the order of the samples; `RuntimeConfig.seed` has the same default.
        order: of the samples within a micro-batch, see `order_of`.

    Returns:
        The batches, None on a stage that reads none.

    Raises:
        ValueError: the plan is colocated, or the data set is smaller than a micro-batch.
    """
    if plan.deployment_mode == "colocated":
        raise ValueError("The plan is colocated; call get_data_iterator_colocated.")
    batches = iterate_batches(
        plan, data_config, dist.get_rank(), data.train, data.collate_fn, seed, order
    )
    return None if batches is None else _checked(batches, model_config)


def get_data_iterator_colocated(
    model_config: MimoParallelismConfig,
    data_config: DataConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
    *,
    plan: LayoutPlan,
    data: TrainingData,
    seed: int = 1234,
    order: Order | None = None,
) -> Iterator[Batch]:
    """Iterate over the batches that a rank reads once for all its modules.

    They hold the samples of the module with the fewest replicas; the forward step cuts them for
    the others, with `slice_modality` and `slice_text`.

    Arguments are those of `get_data_iterator`.

    Raises:
        ValueError: the modules have separate ranks, or the data set is smaller than a micro-batch.
    """
    rank, mine = dist.get_rank(), participating(module_to_grid_map)
    if len(mine) != len(module_to_grid_map):
        raise ValueError(
            f"Rank {rank} takes part in {mine} of {list(module_to_grid_map)}; call "
            "get_data_iterator where modules have separate ranks."
        )
    batches = iterate_batches(plan, data_config, rank, data.train, data.collate_fn, seed, order)
    assert batches is not None  # every rank has the modules that read
    return _checked(batches, model_config)


def _checked(batches: Iterator[Batch], config: MimoParallelismConfig) -> Iterator[Batch]:
    rows = {
        name: tokens_per_item(config.get_architecture(name)) for name in config.encoder_module_names
    }
    for batch in batches:
        check_tokens(batch, config.special_token_ids, rows)
        yield batch


def get_batch(data_iterator: Iterator[Batch] | None) -> Batch | None:
    """Take the next batch to this rank's device; None where there is no iterator.

    Raises:
        ValueError: placeholders and items of a sample do not agree.
    """
    return None if data_iterator is None else to_device(next(data_iterator), rank_device())
