"""Who reads which bytes of a Hugging Face checkpoint."""

from mimokit.planning.weights.directory import Checkpoint, read_checkpoint
from mimokit.planning.weights.plan import WeightPlanner, plan_weights
from mimokit.planning.weights.slices import Slice, SlicedTensor, sliced_tensors
from mimokit.planning.weights.types import Piece, PlannedParameter, RankWeights, WeightPlan

__all__ = [
    "Checkpoint",
    "Piece",
    "PlannedParameter",
    "RankWeights",
    "Slice",
    "SlicedTensor",
    "WeightPlan",
    "WeightPlanner",
    "plan_weights",
    "read_checkpoint",
    "sliced_tensors",
]
