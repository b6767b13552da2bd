"""What runs inside a rank: grids, models, data, bridges, schedules, monitor.

Most names are those that the source documents import, so that a training loop written after the
documents runs; `docs/names.md` says what differs. A name loads when it is first used: importing
the package alone loads neither torch nor Megatron-Core.
"""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.bridges.colocated import (
        ColocatedBridgeCommunicator as ColocatedBridgeCommunicator,
    )
    from mimokit.engine.bridges.routes import RouteCommunicator as RouteCommunicator
    from mimokit.engine.data.batch import slice_modality as slice_modality
    from mimokit.engine.data.batch import slice_text as slice_text
    from mimokit.engine.data.digits import VOCABULARY as VOCABULARY
    from mimokit.engine.data.digits import DigitStrips as DigitStrips
    from mimokit.engine.data.sources import TrainingData as TrainingData
    from mimokit.engine.data.sources import default_data as default_data
    from mimokit.engine.megatron import ColumnParallelLinear as ColumnParallelLinear
    from mimokit.engine.megatron import GPTModel as GPTModel
    from mimokit.engine.megatron import HyperCommGrid as HyperCommGrid
    from mimokit.engine.megatron import MimoModel as MimoModel
    from mimokit.engine.megatron import ModuleSpec as ModuleSpec
    from mimokit.engine.megatron import MultimodalProjector as MultimodalProjector
    from mimokit.engine.megatron import ProcessGroupCollection as ProcessGroupCollection
    from mimokit.engine.megatron import RowParallelLinear as RowParallelLinear
    from mimokit.engine.megatron import TransformerBlock as TransformerBlock
    from mimokit.engine.megatron import VisionModalitySubmodules as VisionModalitySubmodules
    from mimokit.engine.models.experts import experts_spec as experts_spec
    from mimokit.engine.models.own_modules import layer_config as layer_config
    from mimokit.engine.models.provider import MimoModelProviderResult as MimoModelProviderResult
    from mimokit.engine.parallel.grids import is_current_rank_in_grid as is_current_rank_in_grid
    from mimokit.engine.parallel.optimizer import MainGradAdamW as MainGradAdamW
    from mimokit.engine.parallel.update import finalize_model_grads as finalize_model_grads
    from mimokit.engine.parallel.update import get_module_to_grid_tuple as get_module_to_grid_tuple
    from mimokit.engine.parallel.update import multimodule_no_sync as multimodule_no_sync
    from mimokit.engine.parallel.update import (
        zero_grad_buffer_for_multimodule as zero_grad_buffer_for_multimodule,
    )
    from mimokit.engine.pipeline.communicator import (
        MultiModulePipelineCommunicator as MultiModulePipelineCommunicator,
    )
    from mimokit.engine.pipeline.microbatches import (
        PipelineStageMultimodality as PipelineStageMultimodality,
    )
    from mimokit.engine.stepper import live as live
    from mimokit.engine.training.loop_monitor import (
        create_performance_monitor as create_performance_monitor,
    )
    from mimokit.engine.user_loop.loop import (
        forward_backward_1f1b_with_multimodule_communicator as forward_backward_1f1b_with_multimodule_communicator,  # noqa: E501
    )
    from mimokit.engine.user_loop.loop import (
        forward_backward_no_pipelining as forward_backward_no_pipelining,
    )
    from mimokit.engine.user_loop.loop import get_batch as get_batch
    from mimokit.engine.user_loop.loop import get_data_iterator as get_data_iterator
    from mimokit.engine.user_loop.loop import (
        get_data_iterator_colocated as get_data_iterator_colocated,
    )
    from mimokit.engine.user_loop.makers import get_mimo_model_of as get_mimo_model_of
    from mimokit.engine.user_loop.makers import get_vlm_mimo_model as get_vlm_mimo_model
    from mimokit.engine.user_loop.makers import (
        get_vlm_mimo_model_colocated as get_vlm_mimo_model_colocated,
    )
    from mimokit.engine.user_loop.makers import (
        get_vlm_mimo_model_homogeneous as get_vlm_mimo_model_homogeneous,
    )
    from mimokit.engine.user_loop.provider import MimoModelProvider as MimoModelProvider
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
