"""A step of mimokit against a plain loop of Megatron: `python -m benchmarks.megatron_loop`.

One rank trains both in turn within one run: the same `GPTModel` on batches of the same data, with
AdamW and gradients in fp32. The loop has Megatron's reduction and optimizer, and its
layers as Megatron offers them: Transformer Engine's where it is installed, else local ones with the
attention that mimokit has. On a GPU three sizes in bf16; without one a small size in fp32, which
says nothing of GPUs.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.cluster.devices import gpus_of_host
from mimokit.config import ExperimentConfig
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE

TARGET = 0.97
WARMUP, ROUNDS = 4, 20
HEADS_OF = 128
"""Width of a head."""


@dataclass(frozen=True)
class Size:
    """Layers of a language model, and the samples of its micro-batch and their tokens."""

    layers: int
    hidden: int
    samples: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.hidden:,}, {self.samples} × {self.tokens:,} tokens"


ON_GPU = Size(24, 1024, 4, 2048), Size(16, 2048, 2, 2048), Size(4, 4096, 1, 4096)
ON_CPU = (Size(2, 128, 2, 64),)


def config_of(size: Size, precision: str | None) -> ExperimentConfig:
    """Return a language model alone, whose activation is that of Megatron's kernel."""
    config = digits_config(samples_per_microbatch=size.samples, precision=precision, clip_grad=0.0)
    model, network = config.model, config.model.get_architecture(LANGUAGE)
    model.module_parallelisms = {LANGUAGE: model.get_parallelism(LANGUAGE)}
    network.num_layers, network.hidden_size = size.layers, size.hidden
    network.num_attention_heads, network.ffn_hidden_size = size.hidden // HEADS_OF, 4 * size.hidden
    network.activation_func = "gelu_tanh"
    network.seq_length = config.data.seq_length = size.tokens
    model.module_architectures, model.special_token_ids = {LANGUAGE: network}, {}
    return config.finalize()


def step_pairs(config: ExperimentConfig, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of a step by mimokit and by the loop, per round."""
    import time

    import torch

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    seconds: tuple[list[float], list[float]] = [], []
    with prepared(RunOfRank(mimokit.plan(config), config)) as state, _loop(state) as step:
        ways: Sequence[Callable[[], Any]] = lambda: exhaust(training_step(state)), step
        for number in range(WARMUP + rounds):
            turn = list(zip(ways, seconds, strict=True))
            for way, own in turn if number % 2 else reversed(turn):
                begin = time.perf_counter()
                way()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                own.append(time.perf_counter() - begin)
    return list(zip(*(own[WARMUP:] for own in seconds), strict=True))


@contextlib.contextmanager
def _loop(state: Any) -> Iterator[Callable[[], None]]:
    """Yield an optimizer step of a plain loop, on the data of a training state."""
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from mimokit.engine.data.batch import to_device
    from mimokit.engine.device import rank_device

    device = rank_device()
    with _on(device):
        parallel_state.destroy_model_parallel()  # its buffer, which is there without groups
        parallel_state.initialize_model_parallel()
        gpt = _gpt_model(state.config)
        (own,) = state.model.modules().values()
        assert _numbers(gpt) == _numbers(own), "the same network"
        reduced = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        model = DistributedDataParallel(gpt.config, reduced, gpt.to(device))
        chosen = OptimizerConfig(
            lr=state.config.runtime.learning_rate,
            clip_grad=0.0,  # on a GPU alone Megatron clips
            bf16=gpt.config.bf16,
            params_dtype=gpt.config.params_dtype,
        )
        optimizer = get_megatron_optimizer(chosen, [model])

    def step() -> None:
        with _on(device):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            batch = to_device(next(state.iterator), device)
            mask = batch["loss_mask"]
            losses = model(batch["input_ids"], batch["position_ids"], None, labels=batch["labels"])
            (losses * mask).sum().backward()
            finalize_model_grads([model], mask.sum().int())
            optimizer.step()

    try:
        yield step
    finally:
        parallel_state.destroy_model_parallel()


def _gpt_model(config: ExperimentConfig) -> Any:
    """Return Megatron's model with the fused kernels that it has."""
    import torch
    from megatron.core.extensions import transformer_engine
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.transformer import TransformerConfig

    from mimokit.engine.models.attention import SequenceAttention

    network = config.model.get_architecture(LANGUAGE)
    on_gpu, half = torch.cuda.is_available(), config.runtime.precision is not None
    with_engine = on_gpu and transformer_engine.HAVE_TE
    spec = gpt_layer_specs.get_gpt_layer_local_spec()
    if with_engine:
        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    elif half:
        spec.submodules.self_attention.submodules.core_attention = SequenceAttention
    options = TransformerConfig(
        num_layers=network.num_layers,
        hidden_size=network.hidden_size,
        ffn_hidden_size=network.ffn,
        num_attention_heads=network.num_attention_heads,
        activation_func=torch.nn.functional.gelu,  # its kernel is the approximation by tanh
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        use_cpu_initialization=True,
        calculate_per_token_loss=True,
        bf16=half,
        params_dtype=torch.bfloat16 if half else torch.float32,
    )
    model = GPTModel(
        options,
        spec,
        vocab_size=network.vocab_size,
        max_sequence_length=network.seq_length,
        position_embedding_type="rope",
    )
    return model.to(options.params_dtype)


def _numbers(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _on(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Let Megatron's optimizer make its tensors on the CPU, if that is the device."""
    from tests.extras.foreign_loops.loops import OnCpu

    return OnCpu() if device.type == "cpu" else contextlib.nullcontext()


def rows(rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """Measure and yield the rows of the table."""
    sizes, precision = (ON_GPU, "bf16") if gpus_of_host() else (ON_CPU, None)
    with EngineCluster(n=1, progress=False) as cluster:
        for size in sizes:
            (pairs,) = cluster.run(step_pairs, config_of(size, precision), rounds, world_size=1)
            own = 1e3 * statistics.median(step for step, _ in pairs)
            ratio = statistics.median(loop / step for step, loop in pairs)
            where = "" if gpus_of_host() else "no GPU is here: "
            name = f"{where}{size}: {own:.0f} ms; steps per second over those of the loop"
            yield {
                "name": name,
                "measured": ratio,
                "target": f"at least {TARGET}" if gpus_of_host() else None,
                "unit": "",
                "ok": ratio >= TARGET,
            }


if __name__ == "__main__":
    show("A step against a plain loop of Megatron", rows())
