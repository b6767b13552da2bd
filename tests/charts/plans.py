"""Plans to draw, made from small configs."""

import functools
import tempfile
from pathlib import Path

import mimokit
from mimokit.config_files import config_from_mapping
from mimokit.planning.types import LayoutPlan
from mimokit.planning.weights import WeightPlan, plan_weights
from tests.sparse_weights import LLAMA_70B, small_checkpoint, sparse_checkpoint


def plan(
    images: tuple[int, int] = (1, 8), language: tuple[int, int] = (4, 2), base_batch_size: int = 8
) -> LayoutPlan:
    """Return a colocated plan; sizes are (tensor parallel, data parallel)."""
    architecture = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "seq_length": 32,
        "vocab_size": 64,
    }
    config = config_from_mapping(
        {
            "model": {
                "module_architectures": {
                    "images": {**architecture, "seq_length": 8},
                    "language_module": architecture,
                },
                "module_parallelisms": {
                    "images": {"tensor_parallel": images[0], "data_parallel": images[1]},
                    "language_module": {
                        "tensor_parallel": language[0],
                        "data_parallel": language[1],
                    },
                },
                "special_token_ids": {"images": 64},
                "llm_module_name": "language_module",
                "encoder_module_name": "images",
            },
            "data": {
                "base_batch_size": base_batch_size,
                "num_microbatches": 2,
                "seq_length": 32,
                "image_seq_length": 8,
                "vocab_size": 64,
                "image_special_token_id": 64,
                "dataset_size": 64,
            },
            "runtime": {"num_iterations": 10, "pipeline_schedule": "colocated"},
        }
    )
    return mimokit.plan(config)


@functools.cache
def weight_plan(family: str, tensor_parallel: int, pipeline_parallel: int = 1) -> WeightPlan:
    """Return the plan of a small checkpoint; "70b" is a large one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if family == "70b":
            sparse_checkpoint(path, LLAMA_70B, files=3)
        else:
            small_checkpoint(path, family)
        return plan_weights(path, tensor_parallel, pipeline_parallel)
