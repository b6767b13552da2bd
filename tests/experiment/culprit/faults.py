"""Faults of parallel training: what each changes on the ranks, and how it should be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import CulpritReport, Reference, compute_reference, explain
from mimokit.planning.seams import SeamPhase
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_experts import experts_config
from tests.planted import planted
from tests.whole_runs import (
    learned_positions_in_slices,
    learned_positions_on_contexts,
    tied_on_stages,
    with_sizes,
)

LANGUAGE, IMAGES = "language_module", "images"
LAYERS = "megatron.core.tensor_parallel.layers."
BRIDGE = "mimokit.engine.colocated.bridge."
UPDATE = "mimokit.engine.parallel.update."


STEPS = 1
"""All faults of the list show in the first step."""

_references: list[Reference] = []


def reference_of(cluster: EngineCluster, config: ExperimentConfig) -> Reference:
    """Return one process of a layout, computed once for all layouts of a model."""
    found = next((one for one in _references if one.is_for(config, STEPS)), None)
    if found is None:
        found = compute_reference(cluster, config, steps=STEPS)
        _references.append(found)
    return found


@dataclass(frozen=True)
class Fault:
    """A fault, and the right answer.

    Attributes:
        make: takes the original, returns what takes its place; runs on the rank.
        module, operation, phase: of the first tensor that differs; of the operation its end.
        kind: a part of the words that name the pattern; empty: the fault has none.
    """

    name: str
    config: Callable[[], ExperimentConfig]
    target: str
    make: Callable[[Any], Any]
    module: str
    operation: str
    phase: SeamPhase
    kind: str = ""

    def explained(self, cluster: EngineCluster) -> CulpritReport:
        """Run the layout with the fault."""
        config = self.config()
        reference = reference_of(cluster, config)
        make = partial(_in_layouts, self.make)
        with planted(cluster, self.target, make, config.model.total_world_size):
            return explain(cluster, config, steps=STEPS, reference=reference)

    def wrong(self, found: CulpritReport) -> str:
        """Return what of an answer is wrong; nothing if it is right."""
        first = found.divergence
        if first is None:
            return "nothing was found"
        seam = first.seam
        right = (
            seam.module == self.module
            and seam.operation.endswith(self.operation)
            and seam.phase == self.phase
            and self.kind in first.kind
        )
        return "" if right else found.verdict


def _in_layouts(make: Callable[[Any], Any], original: Any) -> Any:
    """Plant a fault in worlds of several ranks alone: one process stays right."""
    wrong = make(original)

    def either(*args: Any, **named: Any) -> Any:
        import torch.distributed as dist

        return (wrong if dist.get_world_size() > 1 else original)(*args, **named)

    return either


def _identity(original: Any) -> Any:
    return lambda tensor, *args, **named: tensor


def _twice(original: Any) -> Any:
    def done_twice(tensor: Any, *args: Any, **named: Any) -> Any:
        return original(original(tensor, *args, **named), *args, **named)

    return done_twice


def _scaled(factor: float, original: Any) -> Any:
    return lambda *args, **named: original(*args, **named) * factor


def _nothing(original: Any) -> Any:
    return lambda self, *args, **named: None


def _no_input_reduction(original: Any) -> Any:
    """Leave the sum of the input's gradient over tensor-parallel ranks out."""

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        self.allreduce_dgrad, self.disable_grad_reduce = False, True
        return original(self, *args, **named)

    return forward


def _no_reduction_of_fc1(original: Any) -> Any:
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        self.linear_fc1.allreduce_dgrad = False
        self.linear_fc1.disable_grad_reduce = True
        return original(self, *args, **named)

    return forward


def _zero_padded(original: Any) -> Any:
    """Leave the rows of other replicas 0 where their gradient is gathered."""

    def gather_rows(gradient: Any, cuts: Any, group: Any) -> Any:
        whole = gradient.new_zeros((cuts.total, *gradient.shape[1:]))
        start = cuts.starts[cuts.position]
        whole[start : start + cuts.sizes[cuts.position]] = gradient
        return whole

    return gather_rows


def _halves_of_gradients(original: Any) -> Any:
    """Average instead of adding: the backward pass of a fan-in, which keeps rows."""
    return lambda whole, cuts, group=None: original(whole, cuts) / 2


def _gathered_backwards(original: Any) -> Any:
    """Put the pieces of a gather group together in reverse order of the ranks."""

    def gather_rows(piece: Any, cuts: Any, group: Any) -> Any:
        import torch

        whole = original(piece, cuts, group)
        return torch.cat(torch.split(whole, list(cuts.sizes))[::-1])

    return gather_rows


def _one_further(original: Any) -> Any:
    """Keep the rows after those of this rank."""
    return lambda whole, cuts: original(whole.roll(-1, 0), cuts)


def _samples_shifted(original: Any) -> Any:
    """Cut the words out one sample too late."""

    def slice_text(batch: Any, start: int, stop: int) -> Any:
        rolled = {
            name: value.roll(-1, 0) if name in ("labels", "loss_mask") else value
            for name, value in batch.items()
        }
        return original(rolled, start, stop)

    return slice_text


def _not_reduced(original: Any) -> Any:
    """Step on what this rank alone has summed."""

    def finalize(modules: Any) -> float:
        import torch.distributed as dist

        from mimokit.engine.collectives import gather_json

        own = sum(m.num_tokens for m, _ in modules if m.ownership.counts_tokens())
        total = sum(gather_json(own))
        for module, _ in modules:
            module.scale_gradients(1.0 / total)
        dist.barrier()
        return float(total)

    return finalize


def _of_scale(factor: float, original: Any) -> Any:
    def finalize(modules: Any) -> float:
        count: float = original(modules)
        for module, _ in modules:
            module.scale_gradients(factor)
        return count

    return finalize


def _encoder_of_scale(factor: float, original: Any) -> Any:
    def finalize(modules: Any) -> float:
        count: float = original(modules)
        modules[0][0].scale_gradients(factor)
        return count

    return finalize


def _rows_flipped(backward: bool, original: Any) -> Any:
    """Send rows in the wrong order."""
    from mimokit.engine.pipeline.messages import StageMessage

    def send(self: Any, message: Any, edge: Any, microbatch: int, direction: int) -> None:
        if bool(direction) == backward:
            message = StageMessage([rows.flip(0) for rows in message.rows], message.counts)
        original(self, message, edge, microbatch, direction)

    return send


def _sent_twice(backward: bool, original: Any) -> Any:
    """Send twice the numbers between the stages of one module."""
    from mimokit.engine.pipeline.messages import StageMessage

    def send(self: Any, message: Any, edge: Any, microbatch: int, direction: int) -> None:
        stages = self.pipeline.graph.stages
        inside = stages[edge.source].module == stages[edge.destination].module
        if bool(direction) == backward and inside:
            hidden, *others = message.rows
            message = StageMessage([2 * hidden, *others], message.counts)
        original(self, message, edge, microbatch, direction)

    return send


def _other_start(original: Any) -> Any:
    """Draw weights from a seed of every rank's own."""

    def seed(run: int, module: str) -> int:
        import torch.distributed as dist

        return int(original(run, module)) + dist.get_rank()

    return seed


def _unmarked(original: Any) -> Any:
    """Let weights of experts count as any others, of which all replicas have the same."""

    def build(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        for parameter in self.parameters():
            parameter.allreduce = True

    return build


def _by_replica(original: Any) -> Any:
    """Let every context-parallel rank count the same weights in the norm."""
    return lambda self, parameter: self.groups.dp.rank() == 0


def _whole_buffers(original: Any) -> Any:
    """Take the norm of whole buffers, of which a rank has reduced its shard only."""
    return lambda parameter: getattr(parameter, "main_grad", None)


def _no_new_weights(original: Any) -> Any:
    return lambda self, closure=None: None


def _larger_steps(original: Any) -> Any:
    def step(self: Any, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 2
        done = original(self, closure)
        for group in self.param_groups:
            group["lr"] /= 2
        return done

    return step


def _first_tokens_only(original: Any) -> Any:
    """Leave the last token of every sample out of the loss."""

    def loss_sum(loss_func: Any, losses: Any, mask: Any) -> Any:
        left = mask.clone()
        left[:, -8:] = 0
        return original(loss_func, losses, left)

    return loss_sum


def _transposed_heads(original: Any) -> Any:
    """Bring the columns of a rank's heads into reverse order."""
    return lambda self, *args, **named: original(self, *args, **named).flip(-1)


def fan_in() -> ExperimentConfig:
    """Return two replicas of an encoder on the ranks of a language model of two parts."""
    return digits_config((1, 2), (2, 1))


def fan_out() -> ExperimentConfig:
    """Return an encoder of two parts on the ranks of two replicas."""
    return digits_config((2, 1), (1, 2))


def parts() -> ExperimentConfig:
    """Return both modules in two parts."""
    return digits_config((2, 1), (2, 1))


def replicas() -> ExperimentConfig:
    """Return two replicas of both modules."""
    return digits_config((1, 2), (1, 2))


def apart() -> ExperimentConfig:
    """Return modules on separate ranks."""
    return apart_config((1, 1, 1), (1, 1, 1), clip_grad=0.0)


def stages() -> ExperimentConfig:
    """Return a language model of two stages, behind an encoder on another rank."""
    return apart_config((1, 1, 1), (1, 2, 1), 2)


def shared_states() -> ExperimentConfig:
    """Return two replicas that share the states of the optimizer."""
    return with_sizes(replicas(), (IMAGES, LANGUAGE), use_distributed_optimizer=True)


FORWARD, BACKWARD, REDUCED = SeamPhase.FORWARD, SeamPhase.BACKWARD, SeamPhase.REDUCED
ATTENTION = "mimokit.engine.models.attention.SequenceAttention.forward"
SEND = "mimokit.engine.pipeline.communicator.MultiModulePipelineCommunicator.send"
FINALIZE = UPDATE + "finalize_model_grads"
STEP = "mimokit.engine.parallel.optimizer.MainGradAdamW.step"
NORM = "all modules"
STAGES = "mimokit.engine.pipeline.stages."
FIRST, LAST = "decoder.layers.0", "decoder.layers.1"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "no sum over tensor-parallel ranks", parts,
        LAYERS + "reduce_from_tensor_model_parallel_region", _identity,
        IMAGES, "self_attention.linear_proj", FORWARD, "not added up",
    ),
    Fault(
        "a sum over tensor-parallel ranks done twice", parts,
        LAYERS + "reduce_from_tensor_model_parallel_region", _twice,
        IMAGES, "self_attention.linear_proj", FORWARD, "which is tensor_parallel",
    ),
    Fault(
        "no sum of the input's gradient", parts,
        LAYERS + "ColumnParallelLinear.forward", _no_input_reduction,
        LANGUAGE, "output_layer", BACKWARD, "not added up",
    ),
    Fault(
        "the same in feed-forward layers alone", parts,
        "megatron.core.transformer.mlp.MLP.forward", _no_reduction_of_fc1,
        LANGUAGE, f"{LAST}.mlp.linear_fc1", BACKWARD, "not added up",
    ),
    Fault(
        "attention of a wrong scale", parts, ATTENTION, partial(_scaled, 0.5),
        IMAGES, "core_attention", FORWARD, "1 / tensor_parallel",
    ),
    Fault(
        "heads in reverse order", parts, ATTENTION, _transposed_heads,
        IMAGES, "core_attention", FORWARD,
    ),
    Fault(
        "losses of a wrong scale", parts, STAGES + "vocab_parallel_cross_entropy",
        partial(_scaled, 0.5), LANGUAGE, "loss", BACKWARD, "1 / tensor_parallel",
    ),
    Fault(
        "tokens left out of the loss", parts, STAGES + "loss_sum", _first_tokens_only,
        LANGUAGE, "loss", BACKWARD,
    ),
    Fault(
        "rows of other replicas are 0", fan_out, BRIDGE + "gather_rows", _zero_padded,
        IMAGES, "bridge", BACKWARD, "not added up",
    ),
    Fault(
        "a bridge averages gradients", fan_in, BRIDGE + "keep_rows", _halves_of_gradients,
        IMAGES, "bridge", BACKWARD, "0.5 times",
    ),
    Fault(
        "pieces gathered in reverse order", fan_in, BRIDGE + "gather_rows", _gathered_backwards,
        IMAGES, "bridge", FORWARD,
    ),
    Fault(
        "rows kept one too far", fan_out, BRIDGE + "keep_rows", _one_further,
        IMAGES, "bridge", FORWARD, "shifted by -1",
    ),
    Fault(
        "labels of the next sample", replicas, BRIDGE + "slice_text", _samples_shifted,
        LANGUAGE, "loss", BACKWARD,
    ),
    Fault(
        "gradients are not reduced", replicas, FINALIZE, _not_reduced,
        LANGUAGE, "", REDUCED, "not added up",
    ),
    Fault(
        "all gradients twice as large", replicas, FINALIZE, partial(_of_scale, 2.0),
        LANGUAGE, "", REDUCED, "which is data_parallel",
    ),
    Fault(
        "the gradients of the encoder half as large", replicas, FINALIZE,
        partial(_encoder_of_scale, 0.5), IMAGES, "", REDUCED, "1 / data_parallel",
    ),
    Fault(
        "no update", replicas, STEP, _no_new_weights,
        LANGUAGE, "", SeamPhase.WEIGHT, "before the update",
    ),
    Fault("a larger learning rate", replicas, STEP, _larger_steps, LANGUAGE, "", SeamPhase.WEIGHT),
    Fault(
        "weights of another seed", replicas, "mimokit.engine.models.provider.module_seed",
        _other_start, LANGUAGE, "", SeamPhase.WEIGHT, "should hold the same",
    ),
    Fault(
        "rows sent in reverse order", apart, SEND, partial(_rows_flipped, False),
        IMAGES, "bridge", FORWARD, "reverse order",
    ),
    Fault(
        "gradients sent in reverse order", apart, SEND, partial(_rows_flipped, True),
        IMAGES, "bridge", BACKWARD, "reverse order",
    ),
    Fault(
        "hidden states doubled between stages", stages, SEND, partial(_sent_twice, False),
        LANGUAGE, "decoder.layers.2.input", FORWARD, "2 times",
    ),
    Fault(
        "gradients doubled between stages", stages, SEND, partial(_sent_twice, True),
        LANGUAGE, f"{LAST}.output", BACKWARD, "2 times",
    ),
    Fault(
        "tied embeddings are not summed", lambda: tied_on_stages(2),
        "mimokit.engine.models.language.TiedGPTModel.sync_tied_embeddings", _nothing,
        LANGUAGE, "embedding.word_embeddings.weight", REDUCED, "not added up",
    ),
    Fault(
        "gradients of slices are not summed", learned_positions_in_slices,
        "mimokit.engine.parallel.data_parallel.ModuleDataParallel.sum_gradients_of_slices",
        _nothing, LANGUAGE, "", REDUCED, "not added up",
    ),
    Fault(
        "rows that all contexts compute alike counted by each", learned_positions_on_contexts,
        STAGES + "alike_on_contexts", lambda original: lambda rows, group: rows,
        IMAGES, ".output", BACKWARD, "context_parallel",
    ),
    Fault(
        "an encoder learns from the tokens of one context", learned_positions_on_contexts,
        STAGES + "for_all_contexts", lambda original: lambda rows, group: rows,
        IMAGES, "rows", BACKWARD,
    ),
    Fault(
        "a norm that counts each context", learned_positions_on_contexts,
        "mimokit.engine.parallel.data_parallel.Ownership.writes", _by_replica,
        "", NORM, SeamPhase.NORM,
    ),
    Fault(
        "a norm of gradients that are not reduced", shared_states, UPDATE + "reduced_gradient",
        _whole_buffers, "", NORM, SeamPhase.NORM,
    ),
    Fault(
        "experts summed over the ranks of others",
        lambda: experts_config((1, 1, 2), (2, 1, 1), expert_parallel=1),
        "mimokit.engine.models.experts.SeededExperts.__init__", _unmarked,
        LANGUAGE, "", REDUCED,
    ),
)  # fmt: skip
