"""Goes on from a checkpoint, under the layout that was saved or another one."""

import itertools

import torch.distributed as dist

from mimokit.cluster.rank import waiting
from mimokit.config import ExperimentSections
from mimokit.engine.checkpoints import state
from mimokit.engine.checkpoints.files import read_into, read_whole
from mimokit.engine.checkpoints.state import held_by
from mimokit.engine.collectives import gather_json
from mimokit.engine.parallel.update import MainGradUpdate
from mimokit.engine.pipeline.model import RankModel
from mimokit.planning import checkpoints
from mimokit.planning.checkpoint_files import changed_files, files_of_replica, refuse_differences


def check_together(checkpoint: checkpoints.Checkpoint) -> None:
    """Compare every file with what was saved, each on one rank. Collective.

    Raises:
        DamagedCheckpointError: some differ; on all ranks.
    """
    with waiting():
        own = files_of_replica(checkpoint, dist.get_rank(), dist.get_world_size())
        different = changed_files(checkpoint, own)
    refuse_differences(checkpoint, list(itertools.chain(*gather_json(different))))


def load(
    checkpoint: checkpoints.Checkpoint,
    config: ExperimentSections,
    model: RankModel,
    update: MainGradUpdate,
    rank: int,
) -> None:
    """Load weights, optimizer, learning rate, loss scale, random states, exchanges. Collective.

    Under the saved layout every rank goes on with its own random states. Under another one a module
    goes on with those of the same tensor parallel rank, where there was one.

    Raises:
        ConfigError: the checkpoint is of another model, or damaged.
    """
    own = {held.name: list(held.whole) for held in state.weights_of(model)}
    every = {name: tuple(shape) for part in gather_json(own) for name, shape in part.items()}
    checkpoints.check_same_model(
        checkpoint, {name.split("/", 1)[1]: shape for name, shape in every.items()}
    )
    for buffer in state.buffers_of(model):
        if buffer.name not in checkpoint.shapes:
            module, place = buffer.name.split("/", 2)[1:]
            why = f"module {module} has a buffer that no rank saved ({place})"
            raise checkpoints.unusable(
                checkpoint.directory, f"{why}; resume it with the sizes it was saved with"
            )
    state.begin_optimizer_states(model, update, set(checkpoint.shapes))
    read_into(checkpoint, held_by(model, update))
    try:
        update.go_on(checkpoint.update)
    except ValueError as error:
        raise checkpoints.unusable(checkpoint.directory, str(error)) from None
    states = read_whole(checkpoint, _random_names(checkpoint, config, model, rank))
    try:
        state.set_random(states)
    except (RuntimeError, ValueError, TypeError, OverflowError):
        why = f"the random states for rank {rank} are not those of generators"
        raise checkpoints.damaged(checkpoint.directory, why) from None
    prefix = checkpoints.tensor_name(checkpoints.EXCHANGE, str(rank), "")
    names = [name for name in checkpoint.shapes if name.startswith(prefix)]
    exchanged = read_whole(checkpoint, names) if names else {}
    update.go_on_exchanging(
        checkpoint.step, {name.removeprefix(prefix): each for name, each in exchanged.items()}
    )


def _random_names(
    checkpoint: checkpoints.Checkpoint, config: ExperimentSections, model: RankModel, rank: int
) -> list[str]:
    saved = sorted(
        (name for name in checkpoint.shapes if name.startswith(f"{checkpoints.RANDOM}/")),
        key=lambda name: int(name.split("/", 2)[1]),
    )
    own = checkpoints.tensor_name(checkpoints.RANDOM, str(rank), "")
    if checkpoint.layout == checkpoints.layout_json(config):
        return [name for name in saved if name.startswith(own)]
    # The first rank with it: of states that belong to no module, rank 0, so that they are equal on
    # the ranks of a tensor parallel group.
    first: dict[str, str] = {}
    for name in saved:
        first.setdefault(name.split("/", 2)[2], name)
    titles = [name.removeprefix(own) for name in state.random_of(model, rank)]
    return [first[title] for title in titles if title in first]
