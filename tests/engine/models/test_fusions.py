"""Fused kernels are those of GPUs, compute what networks say, and judge as they are judged."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import compute_oracle, verify
from tests import seams
from tests.experiment.culprit.faults.fault import scaled
from tests.layouts import digits_config
from tests.layouts_experts import experts_config
from tests.layouts_multimodal import LANGUAGE
from tests.layouts_networks import network_config
from tests.planted import planted

RANKS = 4
GATED = {"gated_linear_unit": True}


def _as_on_a_gpu(original: object) -> bool:
    """Plant: modules are built for a GPU."""
    return False


def _as_with_triton(original: object) -> Any:
    """Plant: torch compiles kernels."""
    return lambda: True


@contextmanager
def fused(cluster: EngineCluster) -> Iterator[None]:
    """Let ranks build modules as on a GPU; Megatron's kernels are not compiled on a CPU."""
    with ExitStack() as stack:
        for seam, plant in ((seams.CPU_ONLY, _as_on_a_gpu), (seams.COMPILES, _as_with_triton)):
            stack.enter_context(planted(cluster, seam, plant, RANKS))
        yield


def _layouts() -> dict[str, tuple[str, ExperimentConfig]]:
    """Return layouts, and the function of Megatron that their language model activates by."""
    return {
        "GELU by a tanh, pooled": (
            seams.BIAS_GELU, network_config("gpt2", "pooled", (1, 1, 4), (2, 1, 2)),
        ),
        "SwiGLU": (
            seams.BIAS_SWIGLU, network_config("llama", "siglip", (2, 1, 1), (1, 1, 2), apart=True),
        ),
        "SwiGLU of experts": (
            seams.WEIGHTED_SWIGLU, experts_config((1, 1, 2), (1, 1, 2)),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", _layouts())
def test_layouts_compute_by_fused_kernels_what_one_process_does_without(
    cluster: EngineCluster, name: str
) -> None:
    kernel, config = _layouts()[name]
    unfused = compute_oracle(cluster, config, steps=2)
    with fused(cluster):
        right = verify(cluster, config, steps=2, oracle=unfused)
        with planted(cluster, kernel, partial(scaled, 1.01), RANKS):
            wrong = verify(cluster, config, steps=1, oracle=unfused)
            alike = verify(cluster, config, steps=2)
    assert right.passed, right.verdict
    assert not wrong.passed
    assert alike.passed, "one process has the kernels of the layout"


def steps_on_a_device(plan: Any, config: ExperimentConfig) -> list[float]:
    """Return the losses of two steps on a rank that has a device."""
    from tests.rank_steps import run_step, state_of
    from tests.two_devices import two_devices

    with two_devices(), state_of(plan, config) as state:
        return [run_step(state).loss for _ in range(2)]


def test_fused_kernels_compute_on_the_device_of_the_rank(cluster: EngineCluster) -> None:
    _, config = _layouts()["GELU by a tanh, pooled"]
    with fused(cluster):
        losses = cluster.run(
            steps_on_a_device, mimokit.plan(config), config, world_size=RANKS
        )  # fmt: skip
    assert losses[0][1] < losses[0][0]


def _options(monkeypatch: pytest.MonkeyPatch, weights: str = "bf16", **fields: Any) -> set[str]:
    """Return which operations of a language model are one kernel where all kernels are there."""
    from mimokit.engine.megatron.available_kernels import FusedKernels
    from mimokit.engine.models import fusions

    offered = FusedKernels(flash=True, elementwise=True, softmax=True)
    monkeypatch.setattr(fusions, "fused_kernels", lambda: offered)
    network = digits_config().model.get_architecture(LANGUAGE).model_copy(update=fields)
    options = fusions.fused_options(network, weights)
    return {name.removesuffix("_fusion") for name, value in options.items() if value is True}


def test_only_what_computes_the_same_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    options = partial(_options, monkeypatch)
    exact = {"bias_dropout", "masked_softmax"}
    assert options() == exact, "an exact GELU has no kernel"
    assert options(activation_func="gelu_tanh") == {*exact, "bias_activation"}
    assert options(activation_func="gelu_tanh", add_bias_linear=False) == exact
    assert options(activation_func="quick_gelu", **GATED) == exact
    assert options(activation_func="silu") == exact
    assert options(**GATED) == {*exact, "bias_activation"}
    assert options(**GATED, num_moe_experts=4) == exact, "experts have no kernel with a bias"
    mixture = {"num_moe_experts": 4, "add_bias_linear": False}
    assert options(**GATED, **mixture) == {*exact, "bias_activation"}
    assert options(**GATED, **mixture, activation_func="gelu_tanh") == exact
    for other in ({"weights": "fp32"}, {"window_size": 8}, {"vocab_size": 0}):
        assert options(**other) == {"bias_dropout"}, "scores of others are torch's"


def test_kernels_are_those_that_are_installed_and_none_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mimokit.engine.megatron import available_kernels

    assert available_kernels.fused_kernels() == available_kernels.FusedKernels()
    monkeypatch.setattr(available_kernels, "CPU_ONLY", False)
    engine = SimpleNamespace(HAVE_TE=False, TENorm=object(), TEDotProductAttention=object())
    monkeypatch.setattr(available_kernels, "transformer_engine", engine)
    there = {"triton", "scaled_upper_triang_masked_softmax_cuda"}
    monkeypatch.setattr(
        available_kernels, "find_spec", lambda name: name if name in there else None
    )
    monkeypatch.setattr(available_kernels, "which", lambda name: name if name == "gcc" else None)
    monkeypatch.delenv("CC", raising=False)
    all_but_engine = available_kernels.FusedKernels(flash=True, elementwise=True, softmax=True)
    assert available_kernels.fused_kernels() == all_but_engine
    there.clear()
    assert available_kernels.fused_kernels() == available_kernels.FusedKernels(flash=True)
    there.add("triton")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not available_kernels.fused_kernels().elementwise
    engine.HAVE_TE = True
    with_engine = available_kernels.fused_kernels()
    assert with_engine == replace(
        with_engine, norm=engine.TENorm, attention=engine.TEDotProductAttention
    )


def test_norms_of_transformer_engine_are_used_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from mimokit.engine.megatron.available_kernels import FusedKernels
    from mimokit.engine.models.transformer import transformer_config
    from mimokit.engine.parallel import sequence
    from mimokit.engine.parallel.marks import is_of_slice

    built = []

    def norm(config: Any, width: int, eps: float) -> torch.nn.Module:
        built.append((config.normalization, config.sequence_parallel, width, eps))
        return torch.nn.RMSNorm(width, eps)

    monkeypatch.setattr(sequence, "fused_kernels", lambda: FusedKernels(norm=norm))
    _, layout = _layouts()["SwiGLU"]
    execution = mimokit.plan(layout).executions[LANGUAGE].resized(tensor=2, sequence_parallel=True)
    network = layout.model.get_architecture(LANGUAGE)
    config = transformer_config(network, replace(execution, weights="bf16"))
    ((weight,), (head,)) = (
        tuple(kind(config, 32, eps=1e-6).parameters())
        for kind in (sequence.SliceNorm, sequence.HeadNorm)
    )
    assert built == [("RMSNorm", False, 32, 1e-6)] * 2
    assert is_of_slice(weight)
    assert is_of_slice(head)
    assert weight.dtype == torch.bfloat16


def test_a_plain_loop_of_megatron_is_timed_next_to_a_step(cluster: EngineCluster) -> None:
    from benchmarks import megatron_loop

    (size,) = megatron_loop.ON_CPU
    config = megatron_loop.config_of(size, precision=None)
    ((pair,),) = cluster.run(megatron_loop.step_pairs, config, 1, world_size=1)
    assert min(pair) > 0
