"""`docs/names.md`: every name of the source documents, and where it is."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.rows import rows as each_of

PAGE = Path(__file__).parents[1] / "docs" / "names.md"
ROW = re.compile(r"^\| `([^|]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

OF_THE_DESIGN = """
    ModuleParallelismConfig MimoParallelismConfig MimoParallelismConfig.finalize
    MimoModelProvider DataConfig RuntimeConfig get_data_iterator get_data_iterator_colocated
    get_batch validate_heterogeneous_batch_config get_vlm_mimo_model_homogeneous
    get_vlm_mimo_model_colocated get_vlm_mimo_model ColocatedBridgeCommunicator
    MultiModulePipelineCommunicator forward_backward_no_pipelining
    forward_backward_1f1b_with_multimodule_communicator multimodule_no_sync finalize_model_grads
    zero_grad_buffer_for_multimodule get_module_to_grid_tuple is_current_rank_in_grid
    create_performance_monitor load_experiment_config HyperCommGrid ProcessGroupCollection
    MimoModel GPTModel ModuleSpec
"""

OF_THE_TOOLKIT = """
    FusedMegatronMLP GroupedQueryAttention LlamaForCausalLM MegatronMLP MegatronSelfAttention
    MegatronSwiGLU MegatronTransformerLayer ParallelEmbedding ParallelLMHead
    ParallelLMHeadWithPartitionedLogits benchmark_mlp_fusion calculate_memory_savings
    compare_mlp_variants compute_logits configure_for_hardware convert_hf_to_megatron
    initialize_megatron_weights load_megatron_checkpoint monitor_megatron_health sample
    validate_megatron_equivalence visualize_attention_parallelism
"""

OF_THE_PIPELINE_STAGE = """
    PipelineStage_Multimodality _shape_inference backward_one_chunk forward_one_chunk
    get_fwd_recv_ops mm_args_recv_info mm_bwd_cache mm_fwd_cache modal_type num_splits
    retain_graph_for_packed_mbs slot_offset stage_backward tag
"""

OF_FRAME_PARALLEL = """
    MONKEY_PATCHER.register input_dispatch lpt_balance output_dispatch patch_type
    wrap_vit_forward
"""

OF_THE_STRATEGIES = """
    CommunicateOptimizeStrategy CommunicationModule DeMoStrategy DiLoCoStrategy FedAvgStrategy
    GPTConfig GPTConfig.gpt2_sbase IndexSelector OptimSpec PartitionedIndexSelector
    RandomIndexSelector SPARTADiLoCoStrategy SPARTAStrategy ShuffledSequentialIndexSelector
    SimpleReduceStrategy Strategy TrainNode Trainer Trainer.fit all_reduce
"""


def rows(page: str) -> dict[str, list[str]]:
    """Return name of the documents -> dotted names in mimokit."""
    return {name: re.findall(r"`([\w.]+)`", places) for name, places, _ in ROW.findall(page)}


def resolve(dotted: str) -> Any:
    """Import as many parts of a dotted name as are modules, and get the rest as attributes."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


NAMES = rows(PAGE.read_text())


OF_THE_DOCUMENTS = (
    OF_THE_DESIGN, OF_THE_TOOLKIT, OF_THE_PIPELINE_STAGE, OF_FRAME_PARALLEL, OF_THE_STRATEGIES
)  # fmt: skip


@each_of("names", *OF_THE_DOCUMENTS)
def test_every_name_of_the_documents_is_on_the_page(names: str) -> None:
    assert not {*names.split()} - set(NAMES)


def test_every_row_of_the_page_is_read() -> None:
    written = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(written) == len(NAMES)


@each_of("name", *NAMES)
def test_every_name_is_where_the_page_says(name: str) -> None:
    assert NAMES[name]
    for dotted in NAMES[name]:
        assert dotted.startswith("mimokit.")
        resolve(dotted)


def test_a_name_that_is_nowhere_is_found() -> None:
    page = "| `get_batch` | `mimokit.engine.no_such_batch` | Nothing. |\n"
    assert rows(page) == {"get_batch": ["mimokit.engine.no_such_batch"]}
    with pytest.raises(AttributeError, match="no_such_batch"):
        resolve("mimokit.engine.no_such_batch")


def test_names_keep_the_places_that_the_page_gave_them_before() -> None:
    """Users import them from there, whatever file they live in now."""
    for name in (
        "mimokit.engine.tensor_parallel.convert_to_hf",
        "mimokit.engine.tensor_parallel.convert_to_layout",
        "mimokit.engine.tensor_parallel.read_shard",
        "mimokit.engine.tensor_parallel.sample",
        "mimokit.prediction.checkpoint_memory.checkpoint_memory",
    ):
        assert resolve(name).__name__ == name.rsplit(".", 1)[1]
