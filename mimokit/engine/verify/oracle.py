"""The same model on the same global batches in ONE process, whose results every layout must match.

Each replica of a layout is a model; they are trained one after the other. As little of mimokit as
possible is used: Megatron's `MimoModel.forward` on the whole micro-batch, torch's own cross
entropy, gradients in `.grad`, torch's AdamW. No data parallel wrapper, no bridge, no batch slicing,
no schedule, no gradient buffers.

What a layout computes in fewer bits than fp32 is compared with one process in fp32 that starts from
the same, rounded weights; how much one process in as few bits differs from that is the yardstick.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from mimokit.architecture.from_config import decoder_head
from mimokit.architecture.tensor_cut import ShardPlace
from mimokit.architecture.tensors import cuts_of
from mimokit.config import ExperimentSections, ModuleArchitecture, ModuleOptimizerConfig
from mimokit.config.graph import topological_order
from mimokit.engine.data.batch import to_device
from mimokit.engine.data.iterators import iterate_batches
from mimokit.engine.data.reconstruction import Reconstruction
from mimokit.engine.data.sources import data_of
from mimokit.engine.device import rank_device, without_tf32
from mimokit.engine.megatron import ProcessGroupCollection, scale_auxiliary_losses
from mimokit.engine.models.chunks import built
from mimokit.engine.models.experts import routers_of
from mimokit.engine.models.projector import receiver_columns
from mimokit.engine.models.provider import inject_process_groups
from mimokit.engine.models.rng import module_seed
from mimokit.engine.models.specs import decoder_spec, multimodal_provider
from mimokit.engine.models.transformer import DTYPES, ModuleBuild, set_precision
from mimokit.engine.parallel.marks import set_shards
from mimokit.engine.parallel.optimizer import learning_rate_scheduler, optimizer_spec, set_epsilon
from mimokit.engine.rounding import nudge_weights
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.verify.inner_layers import add_inner_layers
from mimokit.engine.verify.routing import WholeRouting, replay_routing
from mimokit.engine.verify.steps import OracleStep, Tensors
from mimokit.engine.verify.whole_model import WholeModel
from mimokit.planning.execution import Dtype
from mimokit.planning.expert_choices import ExpertChoices
from mimokit.planning.replicas import strategies


@dataclass(frozen=True)
class OracleStart:
    """With what one process begins.

    Attributes:
        decoders: networks of the modules behind the language model, which its config has not.
        dtype: to which the first weights are rounded.
        loss_scale: what losses are multiplied by for the backward pass, in fp16.
        nudge: seed of a change of every weight before the first step, by a unit in the last place
            of `dtype` or none; None: no weight is changed.
    """

    decoders: Mapping[str, ModuleArchitecture] = field(default_factory=dict)
    dtype: Dtype = "fp32"
    loss_scale: float = 1.0
    nudge: int | None = None


@without_tf32()
def run_oracle(
    run: RunOfRank,
    steps: int,
    begin: OracleStart,
    choices: Sequence[Sequence[ExpertChoices]] | None = None,
) -> list[list[OracleStep]]:
    """Train in a world of one rank; return the steps of each replica.

    Args:
        run: of the single-rank layout with the global batch of the layout to verify.
        choices: of experts that each replica takes in every step; None: its own.
    """
    config = run.config
    models = [
        OneProcess(replace(run, plan=run.plan.of_replica(number)), begin)
        for number in range(config.replicas)
    ]
    replicas = _replicas(config, models)
    largest_norm = 1.0
    recorded: list[list[OracleStep]] = [[] for _ in models]
    for step in range(steps):
        losses = [
            model.accumulate(None if choices is None else choices[number][step])
            for number, model in enumerate(models)
        ]
        if replicas is not None:
            replicas.average_gradients()
        largest_norm = max(largest_norm, *(model.clip() for model in models))
        epsilon = config.inner_runtime.adam_epsilon * largest_norm
        for model in models:
            model.set_epsilon(epsilon)
        for model in models:
            model.update()
        if replicas is not None:
            replicas.exchange_weights()
            for model in models:
                model.round()
        for steps_of, model, loss in zip(recorded, models, losses, strict=True):
            steps_of.append(model.record(loss, epsilon))
    return recorded


class ReplicaRules(Protocol):
    """What replicas exchange, between whole models in one process."""

    def average_gradients(self) -> None:
        """Average the gradients of a step, if the rule does that."""

    def exchange_weights(self) -> None:
        """Exchange what is due after a step."""


def _replicas(config: ExperimentSections, models: Sequence[OneProcess]) -> ReplicaRules | None:
    if config.strategy is None:
        return None
    named, cuts = [model.named() for model in models], models[0].model.cuts()
    rules: ReplicaRules = strategies().ReplicasInOneProcess(
        config.strategy, named, cuts, config.runtime.seed
    )
    return rules


def _build(run: RunOfRank, begin: OracleStart) -> WholeModel:
    plan, config, code = run.plan, run.config, run.code
    seed, language = config.runtime.seed, config.model.llm_module_name
    provided = multimodal_provider(config.model, plan, seed, code).provide(plan, wrap=False)
    assert provided.model is not None
    groups = provided.pg_collections[language]  # all of this one rank
    execution, width = plan.executions[language], config.model.get_architecture(language)
    behind = {
        name: _decoder(
            ModuleBuild(name, execution, network, width, module_seed(seed, name)), groups
        )
        for name, network in begin.decoders.items()
    }
    modules = (*(part for _, part in provided.model.parts()), *behind.values())
    weights = [parameter for module in modules for parameter in module.parameters()]
    for weight in weights:
        weight.data = weight.data.to(DTYPES[begin.dtype])
    if begin.nudge is not None:
        nudge_weights(weights, begin.nudge)
    for weight in weights:
        weight.data = weight.data.to(DTYPES[execution.weights])
    if any(config.model.get_architecture(name).inner_layers for name in plan.modules):
        add_inner_layers(provided.model)
    own_language = code.builder_of(language, width) is not None
    words = 0 if own_language else width.vocab_size
    completed = code.completed(config.runtime)
    order = topological_order(config.model.module_topology)
    adapters = {
        name: config.model.feeders_of(name)
        for name in order
        if name in config.model.adapter_module_names
    }
    several = {name: receiver_columns(config.model, name) for name in plan.modules}
    columns = {name: own for name, own in several.items() if own}
    images = {
        name: Reconstruction.of(config.model, name, network)
        for name, network in begin.decoders.items()
        if network.modality != "text"
    }
    return WholeModel(provided.model, behind, language, completed, words, adapters, columns, images)


def _decoder(build: ModuleBuild, groups: ProcessGroupCollection) -> torch.nn.Module:
    torch.manual_seed(build.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Megatron's classes say that they are new
        decoder: torch.nn.Module = built(inject_process_groups(decoder_spec(build), groups))
    decoder.to(rank_device())
    set_precision(decoder, build.execution, groups)
    cuts = cuts_of(decoder_head(build.name, build.architecture, build.joined))
    set_shards(build.name, dict(decoder.named_parameters()), cuts, ShardPlace())
    if build.architecture.is_frozen:
        decoder.requires_grad_(False)
    return decoder


class OneProcess:
    """One replica: a model, its optimizer and its place in the data.

    Attributes:
        tokens: whose losses were added up in the last step.
    """

    tokens: float = 1.0

    def __init__(self, run: RunOfRank, begin: OracleStart) -> None:
        plan, config = run.plan, run.config
        self._loss_scale = begin.loss_scale
        self.model = _build(run, begin)
        self.routing = WholeRouting()
        if begin.dtype != "fp32":
            for name, module in self.model.parts():
                replay_routing(name, module, self.routing)
        # fp32 copies of weights of fewer bits. Gradients are added up and stepped there.
        self._copies = {
            p: torch.nn.Parameter(p.detach().float())
            for p in self.model.trained()
            if p.dtype != torch.float32
        }
        self._stepped = [self._copies.get(p, p) for p in self.model.trained()]
        self._plan, self._runtime = plan, config.inner_runtime
        data = data_of(run.source, config)
        # One process puts no samples in a row, but reads what may say how long they are.
        read = config.data.model_copy(update={"pack_sequences_in_batch": True})
        batches = iterate_batches(plan, read, 0, data.train, data.collate_fn, config.runtime.seed)
        assert batches is not None
        self._batches = batches
        networks = {**config.model.module_architectures, **begin.decoders}
        spec = optimizer_spec(config)
        self._optimizer = spec.cls(self._groups(networks), **spec.kwargs)
        self._scheduler = learning_rate_scheduler(self._optimizer, self._runtime)
        self._norm: float | None = None
        self._weights = {
            name: {path: self._copies.get(p, p) for path, p in module.named_parameters()}
            for name, module in self.model.parts()
        }
        self._start = {
            name: {path: weight.detach().clone() for path, weight in of_module.items()}
            for name, of_module in self._weights.items()
        }

    def accumulate(self, choices: ExpertChoices | None = None) -> float:
        """Compute the gradient of the mean loss of a global batch; return that loss.

        Args:
            choices: of experts, which tokens take; None: their own.
        """
        self.routing.begin(choices)
        self._optimizer.zero_grad()
        scale_auxiliary_losses(self._loss_scale)
        self.model.reached.clear()
        loss_sum, tokens = 0.0, 0.0
        language = self.model.language_module_name
        for microbatch in range(self._plan.batch.num_microbatches):
            self.model.samples = self._plan.batch.numbers(language, 0, microbatch)
            batch = to_device(next(self._batches), rank_device())
            loss, counted = self.model.loss_sum(batch)
            whole = loss + self.model.further_loss
            if whole.requires_grad:  # False where all modules of this micro-batch are frozen
                (whole * self._loss_scale).backward()  # type: ignore[no-untyped-call]
            self._add_gradients()
            loss_sum += float(loss.detach())
            tokens += counted
        for _, module in self.model.parts():
            for router in routers_of(module).values():
                router.update_expert_bias()
        self.model.step += 1
        self.tokens = tokens or 1.0
        for parameter in self._stepped:
            if parameter.grad is None:  # an encoder without inputs in any sample: weights decay
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad /= self.tokens * self._loss_scale
        return loss_sum / self.tokens

    def _add_gradients(self) -> None:
        for parameter, copy in self._copies.items():
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                copy.grad = gradient if copy.grad is None else copy.grad + gradient
                parameter.grad = None

    def norm(self) -> float:
        """Return the norm of all gradients."""
        gradients = [p.grad for p in self._stepped if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def clip(self) -> float:
        """Clip the gradients; return the norm that is left."""
        most, norm = self._runtime.clip_grad, self.norm()
        if most <= 0:
            return norm
        self._norm = norm
        torch.nn.utils.clip_grad_norm_(self._stepped, most)
        return min(norm, most)

    def set_epsilon(self, epsilon: float) -> None:
        """Step by this epsilon from now on."""
        set_epsilon(self._optimizer, epsilon)

    def update(self) -> None:
        """Step the weights."""
        self._optimizer.step()
        self._scheduler.step()
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Make weights of fewer bits their copies, rounded."""
        for parameter, copy in self._copies.items():
            parameter.copy_(copy)

    def named(self) -> dict[str, torch.nn.Parameter]:
        """Return what is stepped, by module and name."""
        return {name: self._copies.get(p, p) for name, p in self.model.named().items()}

    def trained(self) -> Iterator[tuple[str, str, torch.nn.Parameter, torch.nn.Parameter]]:
        """Yield module, name and what is stepped of every parameter that trains."""
        for name, module in self.model.parts():
            for path, parameter in module.named_parameters():
                if parameter.requires_grad:
                    yield name, path, parameter, self._copies.get(parameter, parameter)

    def record(self, loss: float, epsilon: float) -> OracleStep:
        """Return copies of gradients and weights after a step."""
        return OracleStep(
            loss=loss,
            gradients={name: _gradients(of) for name, of in self._weights.items()},
            weights={name: _numbers(of) for name, of in self._weights.items()},
            norm=self._norm,
            epsilon=epsilon,
            reached=frozenset(self.model.reached),
            choices=self.routing.made,
            rerouted=self.routing.rerouted,
            moved={
                name: {
                    path: float((p.detach() - self._start[name][path]).abs().max())
                    for path, p in of.items()
                }
                for name, of in self._weights.items()
            },
        )

    def _groups(self, networks: Mapping[str, ModuleArchitecture]) -> list[dict[str, Any]]:
        groups = []
        for name, module in self.model.parts():
            section = networks[name].optimizer or ModuleOptimizerConfig()
            stepped = [self._copies.get(p, p) for p in module.parameters() if p.requires_grad]
            groups.append({"params": stepped, **section.model_dump(exclude_none=True)})
        return groups


def _gradients(parameters: Mapping[str, torch.nn.Parameter]) -> Tensors:
    return {
        name: p.grad.cpu().numpy().copy() for name, p in parameters.items() if p.grad is not None
    }


def _numbers(parameters: Mapping[str, torch.nn.Parameter]) -> Tensors:
    # A frozen weight of fewer bits has no copy.
    return {name: p.detach().float().cpu().numpy().copy() for name, p in parameters.items()}
