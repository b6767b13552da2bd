"""Proves that a layout of a checkpoint computes the model."""

from __future__ import annotations

import os

from mimokit.cluster import EngineCluster
from mimokit.experiment.inference import weights_on_rank
from mimokit.experiment.inference.check_report import CheckReport, layers_of
from mimokit.experiment.inference.weights_on_rank import ChangeShard
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.check_plan import TOLERANCES, check_input, loading_dtype
from mimokit.planning.weights.layout_files import checkpoint_of
from mimokit.planning.weights.running import check_runnable, runnable_functions

HUGGING_FACE = "transformers"
ONE_PROCESS = "one process"


def check_weights(
    cluster: EngineCluster,
    directory: str | os.PathLike[str],
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    dtype: str | None = None,
    batch: int = 2,
    length: int = 16,
    seed: int = 0,
    change: ChangeShard | None = None,
) -> CheckReport:
    """Compare a layout's forward pass on engines with Hugging Face's, part by part.

    Where `transformers` is not installed, or the directory is a converted one, the oracle is one
    process that computes from the same files.

    Args:
        cluster: with at least tensor_parallel x pipeline_parallel engines.
        directory: of a language model, a vision tower, or a LLaVA: its language model is checked
            on tokens, its tower up to the layer whose output is taken and its projector on images.
        dtype: torch's name of that of the weights; None: as in the files. Both compute in a wider
            one, which the report states: rounding in bf16 looks like a wrong shard.
        change: is called on each rank with its number and its parameters once they are loaded, and
            may change them in place: so a check shows that it finds a wrong shard.

    Raises:
        ConfigError: as `plan_weights`, or the network has what cannot run.
        ClusterError: the cluster has too few engines, or a rank fails.
    """
    from mimokit.engine.inference.checking import one_process
    from mimokit.engine.inference.hugging_face import can_load, hugging_face

    planner = checkable(directory, tensor_parallel, pipeline_parallel, dtype)
    positions = runnable_functions(planner.checkpoint).positions
    check_data = check_input(planner, batch, min(length, positions or length), seed)
    dtype = loading_dtype(planner, dtype)
    theirs = can_load(directory)
    oracle = (hugging_face if theirs else one_process)(directory, check_data, dtype)
    sizes = (tensor_parallel, pipeline_parallel)
    differences = cluster.run(
        weights_on_rank.check_rank,
        os.path.abspath(directory),
        sizes,
        dtype,
        check_data,
        oracle,
        change,
        world_size=tensor_parallel * pipeline_parallel,
    )
    return CheckReport(
        f"TP {tensor_parallel}, PP {pipeline_parallel}",
        HUGGING_FACE if theirs else ONE_PROCESS,
        dtype,
        TOLERANCES[dtype],
        layers_of(differences),
    )


def checkable(
    directory: str | os.PathLike[str], tensor: int, pipeline: int, dtype: str | None
) -> WeightPlanner:
    """Return the planner of a directory that can be checked; reads headers alone.

    Raises:
        ConfigError: as `plan_weights`, or the network has what cannot run.
    """
    planner = WeightPlanner(checkpoint_of(directory), tensor, pipeline, dtype)
    check_runnable(planner.checkpoint)
    return planner
