"""Megatron-LM arguments, out and in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError
from mimokit.plan.architecture import load_model
from mimokit.plan.exchange import from_megatron_arguments, to_megatron_arguments
from mimokit.plan.prediction import Layout, Workload
from mimokit.plan.sizes import ParallelSizes

SIZE = st.integers(1, 8)


@settings(deadline=None)
@given(
    st.builds(
        ParallelSizes, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, st.integers(0, 2), SIZE,
        distributed_optimizer=st.booleans(),
    )
)  # fmt: skip
def test_what_goes_out_comes_back(sizes: ParallelSizes) -> None:
    layout = Layout("homogeneous", {"language": sizes})
    workload = Workload(4096, 96)
    back = from_megatron_arguments(to_megatron_arguments(layout, workload), gpus=layout.gpus)
    own = back.layout.modules["language"]
    assert own == sizes.__class__(
        **{**vars(sizes), "sequence_parallel": sizes.tensor > 1 and sizes.sequence_parallel}
    )
    assert back.workload == workload


LLAMA = r"""
torchrun --nproc_per_node 8 --nnodes=4 pretrain_gpt.py \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \
    --num-layers-per-virtual-pipeline-stage 2 --sequence-parallel --use-distributed-optimizer \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
    --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope \
    --vocab-size 128256 --seq-length 8192 --micro-batch-size 1 --global-batch-size 128 \
    --recompute-activations  # as in many scripts
"""


def test_a_script_as_people_write_it() -> None:
    found = from_megatron_arguments(LLAMA)
    own = found.layout.modules["language"]
    assert (own.tensor, own.pipeline, own.virtual, own.data) == (2, 4, 4, 4)
    assert (own.recompute, own.sequence_parallel) == (1, True)
    assert found.workload == Workload(8192, 128)
    assert found.model is not None
    assert found.model.parameters == load_model("llama-3-8b").parameters
    assert found.notes == ()


def test_experts() -> None:
    found = from_megatron_arguments(LLAMA + " --num-experts 8 --expert-model-parallel-size 2")
    assert found.model is not None
    assert found.model.net.moe is not None
    assert (found.model.net.moe.experts, found.layout.modules["language"].expert) == (8, 2)


def test_what_is_not_said_is_told() -> None:
    found = from_megatron_arguments("--tensor-model-parallel-size 2", gpus=8)
    assert (found.model, found.workload) == (None, None)
    assert any("--num-layers" in note for note in found.notes)
    assert any("--seq-length" in note for note in found.notes)


@pytest.mark.parametrize(
    ("arguments", "gpus", "sentence"),
    [
        ("--tensor-model-parallel-size two", 8, "--tensor-model-parallel-size is 'two'"),
        ("--tensor-model-parallel-size", 8, "--tensor-model-parallel-size is ''"),
        ("--tensor-model-parallel-size 3", 8, "does not divide 8"),
        ("--tensor-model-parallel-size 2", None, "how many GPUs there are"),
        ("--num-layers-per-virtual-pipeline-stage 3 --num-layers 32", 8, "correct it or"),
        ("--recompute-granularity some", 8, "choose selective or full"),
    ],
)
def test_wrong_arguments(arguments: str, gpus: int | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_megatron_arguments(arguments, gpus=gpus)


def test_other_modes_have_no_arguments() -> None:
    layout = Layout("colocated", {"images": ParallelSizes(data=2), "language": ParallelSizes(2)})
    with pytest.raises(ConfigError, match="choose a homogeneous one"):
        to_megatron_arguments(layout, Workload(4096, 8))
