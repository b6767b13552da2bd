"""Goes on with training from a checkpoint."""

import torch.distributed as dist

from mimokit.config import ExperimentSections
from mimokit.engine.checkpoints.data import data_position
from mimokit.engine.checkpoints.loading import check_together, load
from mimokit.engine.run_of_rank import Peers, RunOfRank
from mimokit.engine.training.optimizer_step import TrainingState, prepare
from mimokit.planning import checkpoints
from mimokit.planning.checkpoint_files import check_save, without_digests


def go_on(run: RunOfRank) -> TrainingState:
    """Prepare as `prepare` does, from the checkpoint of `runtime.resume_from`, if any. Collective.

    Raises:
        ConfigError: the checkpoint is of another model or other data, or damaged.
    """
    saved = _saved_state(run.config, run.peers)
    if saved is None:
        return prepare(run)
    state, rank = prepare(run, saved.step), dist.get_rank()
    checkpoints.check_same_data(saved, data_position(run.config, run.plan, state.data, rank))
    load(saved, run.config, state.model, state.update, rank)
    return state


def _saved_state(config: ExperimentSections, peers: Peers | None) -> checkpoints.Checkpoint | None:
    if config.runtime.resume_from is None:
        return None
    whole = saved = checkpoints.read_checkpoint(config.runtime.resume_from)
    checkpoints.check_same_replicas(whole, config)
    if peers is not None and peers.replica:
        saved = checkpoints.read_checkpoint(
            whole.directory / checkpoints.folder_of_replica(peers.replica)
        )
        check_save(saved, whole)
    elif dist.get_rank() == 0 and (sentence := without_digests(whole)):
        print(sentence, flush=True)
    check_together(saved)
    return saved
