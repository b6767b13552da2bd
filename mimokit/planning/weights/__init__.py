"""Who reads which bytes of the weights of a Hugging Face directory."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.planning.weights.directory import CONFIG as CONFIG
    from mimokit.planning.weights.directory import WeightDirectory as WeightDirectory
    from mimokit.planning.weights.directory import read_directory as read_directory
    from mimokit.planning.weights.directory import read_mapping as read_mapping
    from mimokit.planning.weights.directory import refused as refused
    from mimokit.planning.weights.generation_planners import computed_planner as computed_planner
    from mimokit.planning.weights.generation_planners import language_planner as language_planner
    from mimokit.planning.weights.generation_planners import placeholder as placeholder
    from mimokit.planning.weights.layout_files import LAYOUT as LAYOUT
    from mimokit.planning.weights.layout_files import stored_weights as stored_weights
    from mimokit.planning.weights.plan import WeightPlanner as WeightPlanner
    from mimokit.planning.weights.plan import plan_weights as plan_weights
    from mimokit.planning.weights.slices import Slice as Slice
    from mimokit.planning.weights.slices import SlicedTensor as SlicedTensor
    from mimokit.planning.weights.slices import sliced_tensors as sliced_tensors
    from mimokit.planning.weights.types import DTYPE_BYTES as DTYPE_BYTES
    from mimokit.planning.weights.types import Piece as Piece
    from mimokit.planning.weights.types import PlannedParameter as PlannedParameter
    from mimokit.planning.weights.types import RankWeights as RankWeights
    from mimokit.planning.weights.types import WeightPlan as WeightPlan
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
