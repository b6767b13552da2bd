"""Functions that build the model of a user's training loop, one for each mode."""

from typing import NamedTuple

from mimokit.config import MimoParallelismConfig
from mimokit.engine.megatron import HyperCommGrid, ProcessGroupCollection
from mimokit.engine.models.provider import MimoModelProviderResult
from mimokit.engine.pipeline.model import RankModel, build_rank_model, rank_model_of
from mimokit.engine.user_loop.models import SharedRanksModel, StageModel
from mimokit.planning.types import LayoutPlan


class HomogeneousParts(NamedTuple):
    """A model of which all modules share one grid."""

    mimo_model: SharedRanksModel
    shared_grid: HyperCommGrid
    shared_pg_collection: ProcessGroupCollection
    topology: dict[str, list[str]]


class ColocatedParts(NamedTuple):
    """A model of which the modules share all ranks, with separate grids."""

    mimo_model: SharedRanksModel
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]


class HeterogeneousParts(NamedTuple):
    """A model of which the modules have separate ranks; a rank holds one stage of one module."""

    mimo_model: StageModel
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]


def get_vlm_mimo_model_homogeneous(
    model_config: MimoParallelismConfig, seq_len: int, *, plan: LayoutPlan, seed: int = 1234
) -> HomogeneousParts:
    """Build a model whose modules all have the same sizes. Collective.

    Args:
        seq_len: tokens of a sample, as in the architecture of the language model.
        plan: of the same config, from `mimokit.plan`.
        seed: of the weights; `RuntimeConfig.seed` has the same default.

    Raises:
        ValueError: the plan is for another mode or another world, or the config has another
            sequence length.
    """
    _check(model_config, seq_len, plan, "homogeneous")
    model = build_rank_model(model_config, plan, seed)
    language = model.language_module_name
    grid, groups = model.module_to_grid_map[language], model.pg_collections[language]
    return HomogeneousParts(_on_shared_ranks(model), grid, groups, model.topology)


def get_vlm_mimo_model_colocated(
    model_config: MimoParallelismConfig, seq_len: int, *, plan: LayoutPlan, seed: int = 1234
) -> ColocatedParts:
    """Build a model whose modules share all ranks with separate sizes. Collective.

    Arguments and errors are those of `get_vlm_mimo_model_homogeneous`.
    """
    _check(model_config, seq_len, plan, "colocated")
    model = build_rank_model(model_config, plan, seed)
    return ColocatedParts(_on_shared_ranks(model), model.module_to_grid_map, model.topology)


def _on_shared_ranks(model: RankModel) -> SharedRanksModel:
    shared = SharedRanksModel(model)
    shared.checks = model.check_replicas_rarely()
    return shared


def get_vlm_mimo_model(
    model_config: MimoParallelismConfig, seq_len: int, *, plan: LayoutPlan, seed: int = 1234
) -> HeterogeneousParts:
    """Build this rank's stage of a model whose modules have separate ranks. Collective.

    Arguments and errors are those of `get_vlm_mimo_model_homogeneous`; it raises as well where two
    stages do not agree on what crosses between them.
    """
    _check(model_config, seq_len, plan, "heterogeneous")
    model = build_rank_model(model_config, plan, seed)
    return HeterogeneousParts(StageModel(model), model.module_to_grid_map, model.topology)


def get_mimo_model_of(provided: MimoModelProviderResult) -> SharedRanksModel | StageModel:
    """Return what a `MimoModelProvider` has built on this rank for a training loop. Collective.

    The schedules run it as they run the model of the makers above, of the plan `provided.plan`.

    Raises:
        ValueError: the rank has no module, two stages do not agree on what crosses between them,
            or the ranks of a pipeline compute encoders as well.
    """
    model = rank_model_of(provided)
    if len(model.stages) > 1 and model.communicator is not None:
        raise ValueError("A loop of your own runs no pipeline on the ranks of its encoders.")
    return _on_shared_ranks(model) if model.communicator is None else StageModel(model)


def _check(config: MimoParallelismConfig, seq_len: int, plan: LayoutPlan, mode: str) -> None:
    if plan.deployment_mode != mode:
        raise ValueError(f"The plan is {plan.deployment_mode}, not {mode}.")
    name = config.llm_module_name
    if plan.pipeline is not None and mode != "heterogeneous":
        raise ValueError(
            f"The plan cuts {name!r} into stages on the ranks of its encoders, which `train` and "
            "`verify` run, and no loop of your own; set its pipeline_parallel to 1."
        )
    planned = config.get_architecture(name).seq_length
    if seq_len != planned:
        raise ValueError(
            f"seq_len is {seq_len}, but the architecture of {name!r} has seq_length {planned}."
        )
