"""Who reads which bytes of the weights of a Hugging Face directory."""

from mimokit.planning.weights.directory import WeightDirectory, read_directory
from mimokit.planning.weights.plan import WeightPlanner, plan_weights
from mimokit.planning.weights.slices import Slice, SlicedTensor, sliced_tensors
from mimokit.planning.weights.types import Piece, PlannedParameter, RankWeights, WeightPlan

__all__ = [
    "Piece",
    "PlannedParameter",
    "RankWeights",
    "Slice",
    "SlicedTensor",
    "WeightDirectory",
    "WeightPlan",
    "WeightPlanner",
    "plan_weights",
    "read_directory",
    "sliced_tensors",
]
