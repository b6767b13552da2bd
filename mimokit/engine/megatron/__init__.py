"""The only package that imports Megatron-Core: patches it for a CPU, exports its names.

megatron-core asks CUDA for its device even where it needs none. Without CUDA `cpu.py` answers
instead; with CUDA it changes nothing. `versions.py` names the versions that this is tested with. No
other module of mimokit imports `megatron`, assigns to anything that comes from it, or asks
`sys.modules` for it.
"""

import logging

from mimokit.engine.megatron.cpu import CPU_ONLY, answer_for_cuda, patch_functions, quick_import
from mimokit.engine.megatron.versions import check_version, installed_version

check_version(installed_version())
if CPU_ONLY:
    answer_for_cuda()

with quick_import():
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.hyper_comm_grid import HyperCommGrid
    from megatron.core.models.common.embeddings.language_model_embedding import (
        LanguageModelEmbedding,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.mimo.config import MimoModelConfig
    from megatron.core.models.mimo.model.base import MimoModel
    from megatron.core.models.mimo.submodules.audio import AudioModalitySubmodules
    from megatron.core.models.mimo.submodules.base import ModalitySubmodules
    from megatron.core.models.mimo.submodules.vision import VisionModalitySubmodules
    from megatron.core.models.vision.multimodal_projector import MultimodalProjector
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.tensor_parallel.utils import VocabUtility
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.moe.experts import SequentialMLP
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher
    from megatron.core.transformer.multi_token_prediction import (
        MultiTokenPredictionBlock,
        MultiTokenPredictionBlockSubmodules,
    )
    from megatron.core.transformer.spec_utils import ModuleSpec, build_module
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_block import (
        TransformerBlock,
        TransformerBlockSubmodules,
    )
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import (
        TransformerLayer,
        get_transformer_layer_offset,
    )
    from megatron.core.transformer.utils import is_layer_window_attention

    from mimokit.engine.megatron.available_kernels import fused_kernels
    from mimokit.engine.megatron.collectives import take_new_names
    from mimokit.engine.megatron.experts import of_class, submodules_of, without_transformer_engine
    from mimokit.engine.megatron.fp8_linear import multiply_in_fp8
    from mimokit.engine.megatron.state import (
        ensure_memory_buffer,
        forget_rotary_embeddings,
        scale_auxiliary_losses,
        use_tracker,
    )
    from mimokit.engine.megatron.token_prediction import (
        count_from_first_stage,
        token_prediction_spec,
    )
    from mimokit.engine.megatron.transformer_engine import take_whole_linear
    from mimokit.engine.megatron.weight_products import WeightProducts

without_transformer_engine()
take_new_names()
take_whole_linear()
count_from_first_stage()
if CPU_ONLY:
    patch_functions()

# Megatron logs every group; the plan shows the same as its rank map.
logging.getLogger("absl").setLevel(logging.WARNING)
# From 0.19 on every `GPTModel` logs that it is deprecated; docs/hybrid_model.md has the plan.
logging.getLogger("megatron.core.models.gpt.gpt_model").addFilter(
    lambda record: "GPTModel IS DEPRECATED" not in record.getMessage()
)
# It computes the layout of buffers itself, and advises every rank to do so before.
logging.getLogger("megatron.core.distributed.distributed_data_parallel").addFilter(
    lambda record: "full_param_layout not provided" not in record.getMessage()
)

__all__ = [
    "CPU_ONLY",
    "MLP",
    "AttnMaskType",
    "AudioModalitySubmodules",
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "HyperCommGrid",
    "LanguageModelEmbedding",
    "MLPSubmodules",
    "MegatronModule",
    "MimoModel",
    "MimoModelConfig",
    "MoEAllGatherTokenDispatcher",
    "MoEAuxLossAutoScaler",
    "MoELayer",
    "ModalitySubmodules",
    "ModuleSpec",
    "MultiTokenPredictionBlock",
    "MultiTokenPredictionBlockSubmodules",
    "MultimodalProjector",
    "PackedSeqParams",
    "ProcessGroupCollection",
    "RowParallelLinear",
    "SelfAttention",
    "SequentialMLP",
    "TopKRouter",
    "TransformerBlock",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "TransformerLayer",
    "VisionModalitySubmodules",
    "VocabParallelCrossEntropy",
    "VocabUtility",
    "WeightProducts",
    "WrappedTorchNorm",
    "build_module",
    "ensure_memory_buffer",
    "forget_rotary_embeddings",
    "fused_kernels",
    "get_gpt_layer_local_spec",
    "get_transformer_layer_offset",
    "is_layer_window_attention",
    "multiply_in_fp8",
    "of_class",
    "parallel_state",
    "scale_auxiliary_losses",
    "submodules_of",
    "tensor_parallel",
    "token_prediction_spec",
    "use_tracker",
]
