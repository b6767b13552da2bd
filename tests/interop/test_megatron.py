"""Megatron-LM arguments, out and in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimokit.architecture import LanguageModel, load_model
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ConfigError, DeploymentMode
from mimokit.config.sizes import ParallelSizes
from mimokit.interop import (
    config_of_layout,
    from_megatron_arguments,
    layout_of_config,
    to_megatron_arguments,
)
from mimokit.prediction import Layout, Workload
from tests.rows import rows

SIZE = st.integers(1, 8)


@given(
    st.builds(
        ParallelSizes, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, st.integers(0, 2), SIZE,
        distributed_optimizer=st.booleans(),
    ),
    st.sampled_from(["bf16", "fp8", "mxfp8", "nvfp4"]),
)  # fmt: skip
def test_what_goes_out_comes_back(sizes: ParallelSizes, precision: str) -> None:
    layout = Layout("homogeneous", {"language": sizes})
    workload = Workload(4096, 96, precision)
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


def test_fp8_goes_out_with_one_current_scale_per_tensor() -> None:
    found = from_megatron_arguments(LLAMA + " --fp8-format hybrid")
    words = " ".join(to_megatron_arguments(found.layout, found.workload))
    assert "--fp8-format hybrid --fp8-recipe tensorwise" in words


def test_experts() -> None:
    found = from_megatron_arguments(LLAMA + " --num-experts 8 --expert-model-parallel-size 2")
    assert found.model is not None
    assert found.model.net.moe is not None
    assert (found.model.net.moe.experts, found.layout.modules["language"].expert) == (8, 2)


DEEPSEEK = """
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu
    --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --norm-epsilon 1e-6 --position-embedding-type rope --vocab-size 129280 --multi-latent-attention
    --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
    --v-head-dim 128 --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048 --moe-layer-freq '([0]*3+[1]*58)'
    --moe-router-enable-expert-bias --mtp-num-layers 1 --make-vocab-size-divisible-by 1280
    --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --fp8-format hybrid
    --seq-length 4096 --global-batch-size 64 --expert-model-parallel-size 8
"""


def test_latent_attention_and_experts_are_kept() -> None:
    found = from_megatron_arguments(DEEPSEEK, gpus=64)
    own = load_model("deepseek-v3")
    assert isinstance(own, LanguageModel)
    assert found.model == replace(own, name="language", vocab_multiple=1280)
    assert found.workload == Workload(4096, 64, "fp8")
    sizes = found.layout.modules["language"]
    assert (sizes.fully_sharded, sizes.distributed_optimizer) == (True, True)
    config = config_of_layout(found.layout, found.workload, model=found.model)
    assert layout_of_config(config) == found.layout
    assert model_of_config(config.model).language == found.model


def test_what_is_ignored_is_reported() -> None:
    words = "--expert-tensor-parallel-size 2 --recompute-granularity full --recompute-method block"
    notes = from_megatron_arguments(f"{LLAMA.replace('#', ' ' + words + ' #')}").notes
    assert any("--expert-tensor-parallel-size was ignored" in note for note in notes)
    assert any("layer by layer" in note for note in notes)


def test_missing_flags_are_reported() -> None:
    found = from_megatron_arguments("--tensor-model-parallel-size 2", gpus=8)
    assert (found.model, found.workload) == (None, None)
    assert any("--num-layers" in note for note in found.notes)
    assert any("--seq-length" in note for note in found.notes)


@rows(
    "arguments, gpus, sentence",
    ("no flag at all", 8, "there are none; give the words of a command line"),
    ("--tensor-model-parallel-size two", 8, "--tensor-model-parallel-size is 'two'"),
    ("--tensor-model-parallel-size", 8, "--tensor-model-parallel-size is ''"),
    ("--tensor-model-parallel-size 3", 8, "does not divide 8"),
    ("--tensor-model-parallel-size 2", None, "how many GPUs there are"),
    ("--num-layers-per-virtual-pipeline-stage 3 --num-layers 32", 8, "correct it or"),
    ("--recompute-granularity some", 8, "choose selective or full"),
    (DEEPSEEK.replace("[0]*3", "[0]*2"), 8, "--moe-layer-freq is"),
    (DEEPSEEK.replace("([0]*3+[1]*58)", "2"), 8, "--moe-layer-freq is '2'"),
)
def test_wrong_arguments(arguments: str, gpus: int | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_megatron_arguments(arguments, gpus=gpus)


@rows(
    "mode, sizes, precision, sentence",
    ("homogeneous", {"language": ParallelSizes()}, "fp32", "precision is fp32, for which there is"),
    (
        "colocated", {"images": ParallelSizes(data=2), "language": ParallelSizes(2)}, "bf16",
        "choose a homogeneous one",
    ),
)  # fmt: skip
def test_what_has_no_arguments(
    mode: DeploymentMode, sizes: dict[str, ParallelSizes], precision: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        to_megatron_arguments(Layout(mode, sizes), Workload(4096, 8, precision))


LONG = "9" * 5000


@rows(
    "arguments, sentence",
    (f"--tensor-model-parallel-size {LONG}", "it must be at most 1,099,511,627,776"),
    (f"--num-layers {LONG} --vocab-size 9 --hidden-size 8 --num-attention-heads 2", "at most"),
    (f"--nnodes {LONG} --nproc-per-node 8", "at most"),
    (DEEPSEEK.replace("[0]*3", f"[0]*{LONG}"), "--moe-layer-freq is"),
    (DEEPSEEK.replace("[0]*3", "[0]*999999999999"), "--moe-layer-freq is"),
    (f"--num-layers '{LONG[:10]}", "not a command line"),
    (
        "--num-layers 9 --vocab-size 9 --hidden-size 1099511627776 --num-attention-heads 2",
        "more than the 9.0e.15 that can be planned",
    ),
)
def test_numbers_that_no_layout_has(arguments: str, sentence: str) -> None:
    gpus = None if "--nnodes" in arguments else 8
    with pytest.raises(ConfigError, match=sentence):
        from_megatron_arguments(arguments, gpus)


def test_a_window_of_thousands_of_digits_is_none() -> None:
    found = from_megatron_arguments(f"{LLAMA.replace('#', f' --window-size ({LONG},0) #')}")
    assert found.model is not None
    assert found.model.net.window == 0


@rows(
    "frequency, without",
    ("4", (4, 8, 12, 16, 20, 24, 28, 32)),
    ("'([1]*15+[0]*1)*2'", (16, 32)),
    ("[1]*31+[0]", (32,)),
    ("'([0,1]*16)'", tuple(range(1, 33, 2))),
)
def test_layers_without_a_window_are_read(frequency: str, without: tuple[int, ...]) -> None:
    flags = f" --window-size (127,0) --window-attn-skip-freq {frequency} #"
    found = from_megatron_arguments(LLAMA.replace("#", flags))
    assert found.model is not None
    assert [n for n, reach in enumerate(found.model.network.reaches, 1) if not reach] == [*without]


@rows("frequency", "[1]*3", "0", "often", "'([1]*3+[0])*9'", "[1]*9999999999")
def test_patterns_of_windows_that_fit_no_layers_are_rejected(frequency: str) -> None:
    flags = f" --window-size (127,0) --window-attn-skip-freq {frequency} #"
    with pytest.raises(ConfigError, match=r"window-attn-skip-freq is .* pattern of 32 layers"):
        from_megatron_arguments(LLAMA.replace("#", flags))
