"""Training loops that are not mimokit's: torch's DDP and DTensor, and Megatron's GPTModel."""

import json
import multiprocessing
import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.overrides import TorchFunctionMode

import mimokit

SAMPLES, WIDTH = 8, 16
TENSOR_PARALLEL = 2
RANKS = 4

NEXT_TO_EACH_OTHER, APART = "tp-cp-ep-dp-pp", "dp-cp-ep-tp-pp"
"""Orders of Megatron's parallel sizes: where ranks that share a matrix lie."""

LOOPS = {"ddp": ("ddp", ""), "dtensor": ("dtensor", ""), "wrong": ("ddp", "scale")}
"""Name of a recording -> the kind of its loop, and a fault."""


def without_digests(index: Path) -> dict[str, Any]:
    """Return what the first recordings said of a rank: a test may change it."""
    about = json.loads(index.read_text())
    return {name: value for name, value in about.items() if name not in ("digest", "tensors")}


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
        device = named.get("device")
        if device == "cuda" or (isinstance(device, int) and not isinstance(device, bool)):
            named["device"] = "cpu"
        return function(*args, **named)


@dataclass(frozen=True)
class Setting:
    """How Megatron's GPTModel is built and trained.

    Attributes:
        gathers_logits: Megatron's loss of shards of the vocabulary is given all of it: finding 2
            of Megatron-LM 7452.
        smoothing: of labels, in a loss outside of the model, which counts the words of a shard:
            finding 1. 0: the loss of the model.
        fault: "doubled": the last feed-forward layer adds up what ranks have twice; "exchanged":
            the second of the ranks that share a sequence exchanges the chunks of its keys in the
            last attention; "summed": gradients of the last experts are summed over all replicas.
        stages: of a pipeline.
        experts: ranks that a mixture of four experts spreads over; None: there is none.
        contexts: ranks that share a sequence, in attention of mimokit.
        ahead: a layer predicts one token further ahead, and samples count up to different lengths,
            so that replicas do not count equally many tokens: finding 3.
    """

    gathers_logits: bool = False
    smoothing: float = 0.0
    fault: str = ""
    stages: int = 1
    contexts: int = 1
    experts: int | None = None
    ahead: bool = False


RIGHT, SMOOTH = Setting(), Setting(smoothing=0.1)


def train_gpt(folder: Path, ranks: int, nudge: int | None = None, setting: Setting = RIGHT) -> None:
    """Train Megatron's GPTModel with Megatron's schedule, reduction and optimizer; record a step.

    Args:
        ranks: that share each matrix; the others are stages, share sequences, and are replicas.
    """
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_mtp_block_spec,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import TransformerConfig

    from mimokit.engine.models.attention import SequenceAttention

    # Without dropout nothing draws from these states, which are those of GPUs.
    CudaRNGStatesTracker.fork = lambda *_: nullcontext()  # type: ignore[method-assign]
    parallel_state.initialize_model_parallel(
        ranks, setting.stages, context_parallel_size=setting.contexts,
        expert_model_parallel_size=setting.experts or 1,
    )  # fmt: skip
    stage = parallel_state.get_pipeline_model_parallel_rank()
    replicas = parallel_state.get_data_parallel_world_size()
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=WIDTH, num_attention_heads=4, use_cpu_initialization=True,
        tensor_model_parallel_size=ranks, pipeline_model_parallel_size=setting.stages,
        context_parallel_size=setting.contexts, pipeline_dtype=torch.float32,
        hidden_dropout=0.0, attention_dropout=0.0,
        finalize_model_grads_func=finalize_model_grads, **_of_experts(setting),
        mtp_num_layers=1 if setting.ahead else None, calculate_per_token_loss=setting.ahead,
    )  # fmt: skip
    layer = get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
    if setting.contexts > 1:
        layer.submodules.self_attention.submodules.core_attention = SequenceAttention
    model = GPTModel(
        config, layer, vocab_size=64, max_sequence_length=WIDTH,
        parallel_output=not setting.gathers_logits, pre_process=stage == 0,
        post_process=stage == setting.stages - 1,
        mtp_block_spec=get_gpt_mtp_block_spec(config, layer, False) if setting.ahead else None,
    )  # fmt: skip
    tensor = parallel_state.get_tensor_model_parallel_group()
    _draw(model, tensor, stage * (2 // setting.stages))
    context = parallel_state.get_context_parallel_rank()
    if setting.fault:
        _plant(model, setting.fault, context)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.1, clip_grad=0.0), [model])
    words = torch.randint(
        0, 64, (2, SAMPLES, WIDTH + 1), generator=torch.Generator().manual_seed(2)
    ).chunk(replicas, 1)[parallel_state.get_data_parallel_rank()]
    held = _of_context(torch.arange(WIDTH), setting.contexts, context)
    lengths = (3 + torch.arange(SAMPLES)).chunk(replicas)[parallel_state.get_data_parallel_rank()]

    def forward_step(batches: Any, model: Any) -> Any:
        batch = next(batches)
        given, labels = batch[:, held], batch[:, held + 1]
        places = held.expand(len(batch), -1)
        if setting.ahead:
            counts = (places < lengths[:, None]).float()
            losses = model(given, places, None, labels=labels, loss_mask=counts)
            return losses, lambda output: ((output * counts).sum(), counts.sum().int(), {})
        if not setting.smoothing:
            losses = model(given, places, None, labels=labels)
            return losses, lambda output: (output.mean() / setting.contexts, {})
        logits = model(given, places, None).transpose(0, 1).contiguous()
        losses = vocab_parallel_cross_entropy(logits, labels.t().contiguous(), setting.smoothing)
        return losses, lambda output: (output.mean(), {})

    groups = {
        "tp": parallel_state.get_tensor_model_parallel_group(),
        "pp": parallel_state.get_pipeline_model_parallel_group(),
        "cp": parallel_state.get_context_parallel_group(),
    }
    with mimokit.watch(model, folder, optimizer=optimizer, groups=groups, nudge=nudge):
        get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iter(words), model=[model],
            num_microbatches=2, seq_length=WIDTH, micro_batch_size=SAMPLES // replicas,
            forward_only=False,
        )  # fmt: skip
        optimizer.step()
    parallel_state.destroy_model_parallel()


def _of_experts(setting: Setting) -> dict[str, Any]:
    """Return what of a config concerns experts, to which tokens are sent directly."""
    if setting.experts is None:
        return {}
    return {
        "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": WIDTH,
        "moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "none",
        "expert_model_parallel_size": setting.experts, "add_bias_linear": False,
    }  # fmt: skip


def _of_context(whole: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """Return the part of a rank, of two chunks as Megatron cuts a sequence."""
    chunks = whole.chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[-1 - rank]))


def _plant(model: Any, fault: str, context: int) -> None:
    """Plant a fault of a `Setting` in the last layer; only the last stage doubles a sum."""
    last = model.decoder.layers[-1]
    if fault == "doubled" and model.post_process:
        last.mlp.linear_fc2.register_forward_hook(_double)
    elif fault == "exchanged" and context == 1:
        last.self_attention.core_attention.register_forward_pre_hook(_exchange_chunks)
    elif fault == "summed":
        for parameter in last.mlp.experts.parameters():
            parameter.allreduce = True


def _double(module: Any, args: Any, output: Any) -> Any:
    return 2 * output[0], output[1]


def _exchange_chunks(module: Any, args: Any) -> Any:
    query, key, value, *others = args
    return query, *(torch.cat(each.chunk(2)[::-1]) for each in (key, value)), *others


def _draw(model: Any, tensor: Any, first_layer: int = 0) -> None:
    """Draw every matrix from its name in the whole model, so that no layout changes it.

    Args:
        tensor: the group of the ranks that share each matrix, but for those of experts.
    """
    from megatron.core import parallel_state

    of_rank = 4 // parallel_state.get_expert_model_parallel_world_size()
    first_expert = of_rank * parallel_state.get_expert_model_parallel_rank()
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        whole = re.sub(
            r"layers\.(\d+)", lambda found: f"layers.{int(found[1]) + first_layer}", name
        )
        whole = re.sub(
            r"experts\.(\d+)", lambda found: f"experts.{int(found[1]) + first_expert}", whole
        )
        ranks = tensor.size() if ".experts." not in name else 1
        cut = getattr(parameter, "partition_dim", -1) if ranks > 1 else -1
        shape = list(parameter.shape)
        if cut >= 0:
            shape[cut] *= ranks
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(crc32(whole.encode())))
        with torch.no_grad():
            own = drawn.chunk(ranks, cut)[tensor.rank()] if cut >= 0 else drawn
            parameter.copy_(0.02 * own)


def train_padded(folder: Path, ranks: int, order: str = NEXT_TO_EACH_OTHER) -> None:
    """Run Megatron's GPTModel with experts, whose router is told what padding is; record it.

    The model is given its groups. Megatron cuts the mask over those of its global state, which are
    of ranks next to each other: finding 5.

    Args:
        ranks: that share each matrix and slices of a sequence.
        order: of the parallel sizes in the model's groups.
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    from mimokit.engine.parallel.sequence import SliceNorm

    torch.manual_seed(1)
    sizes = {"tensor_model_parallel_size": ranks, "expert_tensor_parallel_size": 1}
    parallel_state.initialize_model_parallel(**sizes, order=order)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes)
    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=4, use_cpu_initialization=True,
        hidden_dropout=0.0, attention_dropout=0.0, sequence_parallel=ranks > 1, **sizes,
        **{**_of_experts(Setting(experts=1)), "moe_router_load_balancing_type": "seq_aux_loss"},
        moe_aux_loss_coeff=1.0,
    )  # fmt: skip
    layer = get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
    # Megatron's own norm without Transformer Engine takes no slices of a sequence.
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = SliceNorm
    layers = TransformerBlockSubmodules(layer_specs=[layer], layer_norm=SliceNorm)
    model = GPTModel(config, layers, vocab_size=64, max_sequence_length=WIDTH, pg_collection=groups)
    _draw(model, groups.tp)
    words = torch.randint(0, 64, (SAMPLES, WIDTH), generator=torch.Generator().manual_seed(2))
    words = words.chunk(groups.dp.size())[groups.dp.rank()]
    places = torch.arange(WIDTH).expand(len(words), -1)
    MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1))  # it keeps that of an earlier loop
    with mimokit.watch(model, folder, groups={"tp": groups.tp, "cp": groups.cp}):
        logits = model(words, places, None, padding_mask=places >= 9)
        (logits.square().sum() / logits.size(0)).backward()
    parallel_state.destroy_model_parallel()


def train_positions(folder: Path, rank: int, ranks: int, routed: bool | None = None) -> None:
    """Train a network whose positions context-parallel ranks share; few of them count.

    Megatron divides the loss of each rank by the positions that count there: finding 9 of
    Megatron-LM 7452. Where the loss is one of tokens, its router scales an auxiliary loss by
    tokens: finding 10. That of 0.16.1 takes those of all ranks of padded samples alone, and else
    those of one rank; that of 0.19.2 multiplies by the ranks, also those of all ranks.

    Args:
        routed: whether the router is told what is padding; None: there is no router.
    """
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.enums import ModelType
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=4, context_parallel_size=ranks,
        finalize_model_grads_func=finalize_model_grads, num_moe_experts=4, moe_router_topk=1,
        moe_router_pre_softmax=True, moe_ffn_hidden_size=WIDTH, moe_aux_loss_coeff=1.0,
        calculate_per_token_loss=routed is not None,
    )  # fmt: skip
    network: Any = Network() if routed is None else _Routed(config, routed)
    network.config, network.model_type = config, ModelType.encoder_or_decoder
    network.set_input_tensor, network.share_embeddings_and_output_weights = id, False
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), network)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.1, clip_grad=0.0), [model])
    counts = torch.arange(SAMPLES) < SAMPLES // 2 + 1
    if routed is not None:
        counts = torch.arange(SAMPLES) % 2 == 0  # as many on each rank
    given, wanted, counts = (
        _of_context(one, ranks, rank) for one in (*torch.randn(2, SAMPLES, WIDTH), counts)
    )

    def forward_step(batches: Any, model: Any) -> Any:
        losses = (model(given) - wanted).square().mean(1)
        return losses, lambda output: ((output * counts).sum(), counts.sum().int(), {})

    network.padding = ~counts
    groups = {"cp": parallel_state.get_context_parallel_group()}
    with mimokit.watch(model, folder, optimizer=optimizer, groups=groups):
        get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iter([None]), model=[model],
            num_microbatches=1, seq_length=WIDTH, micro_batch_size=1, forward_only=False,
        )  # fmt: skip
        optimizer.step()
    parallel_state.destroy_model_parallel()


class _Routed(torch.nn.Module):
    """A network whose output Megatron's router scales.

    Attributes:
        padding: which positions are, [samples].
    """

    padding: torch.Tensor

    def __init__(self, config: Any, masked: bool) -> None:
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer.moe.router import TopKRouter

        super().__init__()
        self.network, self.masked = Network(), masked
        self.router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
        self.router.layer_number = 1

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return a number for every entry of [samples, width]."""
        shares, _ = self.router(given[:, None], self.padding[:, None] if self.masked else None)
        return self.network(given) * shares.sum(-1, keepdim=True)


def record_one(folder: Path) -> None:
    """Record in one process what ranks are compared with."""
    for name, nudge in GPT_OF_ONE.items():
        train_gpt(folder / name, 1, nudge)
    train_gpt(folder / "ahead of one", 1, setting=Setting(ahead=True))
    train_padded(folder / "mask of one", 1)
    train_gpt(folder / "smooth of one", 1, setting=SMOOTH)
    train_positions(folder / "positions of one", 0, 1)
    train_positions(folder / "routed of one", 0, 1, routed=False)
    train_positions(folder / "padded of one", 0, 1, routed=True)


def record_several(folder: Path, rank: int, ranks: int) -> None:
    """Record on one of several ranks."""
    train_gpt(folder / "gpt", TENSOR_PARALLEL)
    train_gpt(folder / "stages", TENSOR_PARALLEL, setting=Setting(stages=2))
    wrong = Setting(fault="doubled", stages=2)
    train_gpt(folder / "wrong gpt", TENSOR_PARALLEL, setting=wrong)
    for name, fault in (("contexts", ""), ("wrong contexts", "exchanged")):
        shared = Setting(contexts=2, fault=fault)
        train_gpt(folder / name, TENSOR_PARALLEL, setting=shared)
    train_padded(folder / "mask", TENSOR_PARALLEL)
    train_padded(folder / "mask of others", TENSOR_PARALLEL, APART)
    train_gpt(folder / "ahead", 1, setting=Setting(ahead=True))
    gathered = Setting(gathers_logits=True)
    train_gpt(folder / "gathered", TENSOR_PARALLEL, setting=gathered)
    train_gpt(folder / "smooth", TENSOR_PARALLEL, setting=SMOOTH)
    train_positions(folder / "positions", rank, ranks)
    train_positions(folder / "routed", rank, ranks, routed=False)
    train_positions(folder / "padded", rank, ranks, routed=True)
    for name, (kind, fault) in LOOPS.items():
        train(kind, folder / name, rank, ranks, fault)


def record_experts(folder: Path, ranks: int) -> None:
    """Record those alone, in one process or on one of several ranks."""
    if ranks == 1:
        train_gpt(folder / "experts of one", 1, setting=Setting(experts=1))
        return
    for name, fault in (("experts", ""), ("wrong experts", "summed")):
        train_gpt(folder / name, 1, setting=Setting(experts=2, fault=fault))


def record(folder: Path, kind: str, rank: int, ranks: int) -> None:
    """Record loops of a world of one or several ranks, on one of them: experts, or all others."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store of {ranks}", rank=rank, world_size=ranks
    )
    with OnCpu():
        if kind == "experts":
            record_experts(folder, ranks)
        elif ranks == 1:
            record_one(folder)
        else:
            record_several(folder, rank, ranks)


if __name__ == "__main__":
    import_module("mimokit.engine.preload")  # once, before the processes are forked
    fork = multiprocessing.get_context("fork")
    worlds = [(0, 1), *((rank, RANKS) for rank in range(RANKS))]
    where, kind = sys.argv[1:]
    processes = [fork.Process(target=record, args=(Path(where), kind, *one)) for one in worlds]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
