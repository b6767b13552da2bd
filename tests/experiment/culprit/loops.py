"""Training loops that are not mimokit's: torch's DDP and DTensor, and Megatron's GPTModel."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.overrides import TorchFunctionMode

import mimokit

SAMPLES, WIDTH = 8, 16

LOOPS = {"ddp": ("ddp", ""), "dtensor": ("dtensor", ""), "wrong": ("ddp", "scale")}
"""Name of a recording -> the kind of its loop, and a fault."""


class Network(torch.nn.Module):
    """Two layers with a norm behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return a number for every entry of [samples, width]."""
        return self.norm(self.down(torch.nn.functional.gelu(self.up(given))))


GPT_OF_ONE = {"gpt of one": None, "rounding 1": 1, "rounding 2": 2}
"""Name of a recording of Megatron's model in one process -> the seed of a change of its weights."""


def train(kind: str, folder: Path, rank: int, ranks: int, fault: str = "") -> None:
    """Take two steps; record both."""
    torch.manual_seed(1)
    model: Any = Network()
    given, wanted = torch.randn(2, SAMPLES, WIDTH)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
        given, wanted = (one.chunk(ranks)[rank] for one in (given, wanted))
    elif kind == "dtensor":
        mesh = dist.init_device_mesh("cpu", (ranks,))
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if fault == "scale" and rank == 1:
        inner: Any = model.module
        inner.down.register_forward_hook(lambda module, args, output: output * 1.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mimokit.watch(model, folder, optimizer=optimizer, steps=2):
        for _ in range(2):
            optimizer.zero_grad()
            (model(given) - wanted).square().mean().backward()
            optimizer.step()


class OnCpu(TorchFunctionMode):
    """Lets Megatron's schedule and optimizer make tensors where there is no GPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        """Call a function of torch for the CPU."""
        named = dict(named or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return function(*args, **named)


def train_gpt(folder: Path, ranks: int, nudge: int | None = None, *, fault: bool = False) -> None:
    """Train Megatron's GPTModel with Megatron's schedule, reduction and optimizer; record a step.

    Args:
        ranks: that share each matrix.
        fault: the last feed-forward layer adds up what ranks have twice.
    """
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import TransformerConfig

    import mimokit.engine.megatron  # answers for CUDA where there is none

    # Without dropout nothing draws from these states, which are those of GPUs.
    CudaRNGStatesTracker.fork = lambda *_: nullcontext()  # type: ignore[method-assign]
    parallel_state.initialize_model_parallel(ranks)
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=WIDTH, num_attention_heads=4, use_cpu_initialization=True,
        tensor_model_parallel_size=ranks, hidden_dropout=0.0,
        attention_dropout=0.0, finalize_model_grads_func=finalize_model_grads,
    )  # fmt: skip
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=WIDTH)
    if fault:
        last = model.decoder.layers[1].mlp.linear_fc2
        last.register_forward_hook(lambda module, args, output: (2 * output[0], output[1]))
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.1, clip_grad=0.0), [model])
    words = torch.randint(0, 64, (2, SAMPLES, WIDTH + 1))

    def forward_step(batches: Any, model: Any) -> Any:
        batch = next(batches)
        places = torch.arange(WIDTH).expand(SAMPLES, -1)
        losses = model(batch[:, :-1], places, None, labels=batch[:, 1:])
        return losses, lambda output: (output.mean(), {})

    groups = {"tp": parallel_state.get_tensor_model_parallel_group()}
    with mimokit.watch(model, folder, optimizer=optimizer, groups=groups, nudge=nudge):
        get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iter(words), model=[model],
            num_microbatches=2, seq_length=WIDTH, micro_batch_size=SAMPLES, forward_only=False,
        )  # fmt: skip
        optimizer.step()
    parallel_state.destroy_model_parallel()


if __name__ == "__main__":
    _, folder, rank, ranks, store = sys.argv
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks)
    )
    if int(ranks) == 1:
        with OnCpu():
            for name, nudge in GPT_OF_ONE.items():
                train_gpt(Path(folder) / name, 1, nudge)
    else:
        with OnCpu():
            train_gpt(Path(folder) / "gpt", int(ranks))
            train_gpt(Path(folder) / "wrong gpt", int(ranks), fault=True)
        for name, (kind, fault) in LOOPS.items():
            train(kind, Path(folder) / name, int(rank), int(ranks), fault)
