"""Faults of norms, updates and weights."""

from typing import Any

from mimokit.planning.seams import SeamPhase
from tests import seams
from tests.experiment.culprit.faults.fault import LANGUAGE, Fault
from tests.experiment.culprit.faults.layouts import parts, replicas, shared_states
from tests.planted import replacing
from tests.whole_runs import learned_positions_on_contexts

NORM = "all modules"


def _left_alone(original: Any) -> Any:
    return lambda self, *args, **named: None


@replacing
def _other_start(original: Any, run: int, module: str) -> int:
    """Draw weights from a seed of every rank's own."""
    import torch.distributed as dist

    return int(original(run, module)) + dist.get_rank()


def _by_replica(original: Any) -> Any:
    """Let every context-parallel rank count the same weights in the norm."""
    return lambda self, parameter: self.groups.dp.rank() == 0


def _whole_buffers(original: Any) -> Any:
    """Take the norm of whole buffers, of which a rank has reduced its shard only."""
    return lambda parameter: getattr(parameter, "main_grad", None)


def _no_new_weights(original: Any) -> Any:
    return lambda self: None


@replacing
def _larger_steps(original: Any, self: Any) -> None:
    for group in self.param_groups:
        group["lr"] *= 2
    original(self)
    for group in self.param_groups:
        group["lr"] /= 2


@replacing
def _shards_counted_once(original: Any, self: Any, parameter: Any) -> bool:
    """Count cut vectors on the first rank alone, as if all had the same.

    Finding 8 of Megatron-LM 7452.
    """
    from mimokit.engine.parallel.marks import is_cut

    alike = is_cut(parameter) and parameter.dim() == 1
    return bool(original(self, parameter)) and not (alike and self.groups.tp.rank())


FAULTS = (
    Fault("no update", replicas, seams.STEP_GROUPS, _no_new_weights,
          LANGUAGE, "", SeamPhase.WEIGHT, "before the update"),
    Fault("a larger learning rate", replicas, seams.STEP_GROUPS, _larger_steps,
          LANGUAGE, "", SeamPhase.WEIGHT),
    Fault("weights of another seed", replicas, seams.MODULE_SEED,
          _other_start, LANGUAGE, "", SeamPhase.WEIGHT, "should hold the same"),
    Fault("a norm that counts each context", learned_positions_on_contexts,
          seams.WRITES, _by_replica,
          "", NORM, SeamPhase.NORM),
    Fault("a norm of gradients that are not reduced", shared_states,
          seams.REDUCED_GRADIENT,
          _whole_buffers, "", NORM, SeamPhase.NORM),
    Fault("a norm that counts shards on the first rank alone", parts,
          seams.OWNS, _shards_counted_once,
          "", NORM, SeamPhase.NORM),
    Fault("shards of weights are not gathered", shared_states, seams.START_PARAM_SYNC, _left_alone,
          LANGUAGE, "", SeamPhase.WEIGHT, "should hold the same"),
)  # fmt: skip
