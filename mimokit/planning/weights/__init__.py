"""Who reads which bytes of the weights of a Hugging Face directory."""

from mimokit.planning.weights.directory import (
    CONFIG,
    WeightDirectory,
    read_directory,
    read_mapping,
    refused,
)
from mimokit.planning.weights.generation_planners import (
    computed_planner,
    language_planner,
    placeholder,
)
from mimokit.planning.weights.layout_files import LAYOUT, stored_weights
from mimokit.planning.weights.plan import WeightPlanner, plan_weights
from mimokit.planning.weights.slices import Slice, SlicedTensor, sliced_tensors
from mimokit.planning.weights.types import (
    DTYPE_BYTES,
    Piece,
    PlannedParameter,
    RankWeights,
    WeightPlan,
)

__all__ = [
    "CONFIG",
    "DTYPE_BYTES",
    "LAYOUT",
    "Piece",
    "PlannedParameter",
    "RankWeights",
    "Slice",
    "SlicedTensor",
    "WeightDirectory",
    "WeightPlan",
    "WeightPlanner",
    "computed_planner",
    "language_planner",
    "placeholder",
    "plan_weights",
    "read_directory",
    "read_mapping",
    "refused",
    "sliced_tensors",
    "stored_weights",
]
