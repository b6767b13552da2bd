"""What is refused with what: one table, which config, plan, planner and search read.

A combination that no run proves costs a row here, not code.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX, problem_at, written
from mimokit.config.parallelism import LEFT_OUT, ModuleParallelismConfig
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.roles import ENCODERS, LANGUAGE, WRITER, Role, may_have, role_of
from mimokit.config.rules.sharding import most_inner_layers
from mimokit.config.rules.writing import network_path, size_path
from mimokit.config.runtime import DeploymentMode, RuntimeConfig

MODES: tuple[DeploymentMode, ...] = get_args(DeploymentMode)


@dataclass(frozen=True)
class Refused:
    """What does not go with some others, in some modes.

    A name begins with the field that it is about. Alone it says that the field has another value
    than its default; with that value behind it, that it has this one. Other words behind a field
    are explained in `_DERIVED`.

    Attributes:
        what: what a fix leaves out.
        not_with: each of them is refused with it.
    """

    what: str
    not_with: tuple[str, ...]
    modes: tuple[str, ...] = MODES


_LEARNED = "position_embedding_type (learned)"
_BEHIND = "topology (behind the language module)"
_OWN = "builder"
_INNER = "projector.deepstack_layers (of an encoder)"
_HOMOGENEOUS, _COLOCATED, _HETEROGENEOUS = (f"deployment_mode {mode}" for mode in MODES)

REFUSED = (
    # networks
    Refused("pooling_head", ("merge_size", "keep_class_token", "projector.deepstack_layers")),
    Refused("keep_class_token", ("any_image_size", "merge_size")),
    Refused("mrope_section", ("multi_latent_attention", _LEARNED)),
    Refused("position_embedding_type learned_absolute", ("multi_latent_attention",)),
    Refused("rope_scaling (not yarn)", ("multi_latent_attention",)),
    Refused("rope_scaling", (_LEARNED,)),
    Refused("rotary_base", (_LEARNED,)),
    Refused("mtp_num_layers", (_LEARNED, _OWN)),
    Refused("init_std", ("init_method xavier",)),
    Refused("moe_router_pre_softmax true", ("moe_router_enable_expert_bias",)),
    Refused("moe_router_pre_softmax false", ("moe_router_enable_expert_bias", "moe_router_topk 1")),
    Refused("add_bias_linear (true)", ("moe_shared_expert_intermediate_size",)),
    Refused("optimizer", ("frozen (all)",)),
    # sizes and memory
    Refused("recompute_granularity", ("frozen (layers)",)),
    Refused("use_distributed_optimizer false", ("use_megatron_fsdp",)),
    Refused("virtual_pipeline_model_parallel_size", ("pipeline_order zb-h1",)),
    # modes and graphs
    Refused("encoder_microbatches", (_HOMOGENEOUS, _HETEROGENEOUS)),
    Refused("topology (several receivers)", (_HOMOGENEOUS, _COLOCATED)),
    Refused(_BEHIND, (_HOMOGENEOUS, _COLOCATED, "strategy", _OWN)),
    # predictions over samples
    Refused(
        "workload",
        (
            "modality_frames",
            "modality_presence",
            "strategy",
            "topology (several receivers)",
            _BEHIND,
            "virtual_pipeline_model_parallel_size",
            "pipeline_order zb-h1",
            _OWN,
        ),
    ),
    # the user's own code
    Refused(_OWN, ("pipeline_parallel", "sequence_parallel (several ranks)", "weights")),
    Refused(_OWN, ("pipeline_order gpipe", "pipeline_order zb-h1"), ("homogeneous",)),
    Refused(
        "builder (of a language model)",
        ("context_parallel", "pack_sequences_in_batch", _INNER),
    ),
    Refused("builder (with experts)", ("tensor_parallel", "context_parallel")),
    Refused(
        "builder (of a whole modality)",
        ("patch_type", "modal_type rows", "topology (several receivers)", "num_moe_experts"),
    ),
    Refused("loss_func", ("forward_step",)),
    Refused(
        "pipeline_parallel (of the language model)", ("forward_step",), ("homogeneous", "colocated")
    ),
)
"""All else that a config accepts runs."""


@dataclass(frozen=True)
class Part:
    """A module, and the run around it, as the table reads them.

    Attributes:
        values: field of a network, of sizes, of the run -> its value.
        role: what it is in its model.
        receivers: how many modules it feeds.
        trained: a gradient passes its layers.
        adds: inner layers of encoders whose rows it adds.
        also: names of `REFUSED` that it has whatever its fields say.
    """

    network: ModuleArchitecture
    values: Mapping[str, Any]
    role: Role
    receivers: int = 1
    trained: bool = True
    adds: int = 0
    also: Collection[str] = ()

    @property
    def is_language(self) -> bool:
        """Whether it is the language module."""
        return self.role == LANGUAGE

    @property
    def decodes(self) -> bool:
        """Whether it comes behind the language module."""
        return not self.is_language and self.role not in ENCODERS

    def has(self, name: str) -> bool:
        """Tell whether it has what a name of `REFUSED` says."""
        if name in self.also:
            return True
        if name in _DERIVED:
            return bool(_DERIVED[name](self))
        field, _, value = name.partition(" ")
        stated = self.values.get(field) if may_have(self.role, field) else None
        if value:
            return written(stated) == value
        return bool(stated and stated != _DEFAULTS[field])

    def refused(self) -> Iterator[tuple[str, str]]:
        """Yield what it has and what of it is refused with that."""
        for row in REFUSED:
            if self.values["deployment_mode"] in row.modes and self.has(row.what):
                yield from ((row.what, other) for other in row.not_with if self.has(other))


_DERIVED: Mapping[str, Callable[[Part], object]] = {
    _LEARNED: lambda part: part.network.has_learned_positions(
        by_default=part.role not in (LANGUAGE, WRITER)
    ),
    "rope_scaling (not yarn)": lambda part: (
        part.network.rope_scaling and part.network.rope_scaling.rope_type != "yarn"
    ),
    "projector.deepstack_layers": lambda part: part.network.inner_layers,
    _INNER: lambda part: part.adds,
    "add_bias_linear (true)": lambda part: part.network.ffn_bias,
    "frozen (all)": lambda part: part.network.is_frozen,
    "frozen (layers)": lambda part: not part.trained,
    "sequence_parallel (several ranks)": lambda part: (
        part.values["sequence_parallel"] and part.values["tensor_parallel"] > 1
    ),
    "topology (several receivers)": lambda part: not part.is_language and part.receivers > 1,
    _BEHIND: lambda part: part.decodes,
    "builder (of a language model)": lambda part: part.has(_OWN) and part.is_language,
    "builder (with experts)": lambda part: part.has(_OWN) and part.network.num_moe_experts,
    "builder (of a whole modality)": lambda part: False,  # of what is imported
    "pipeline_parallel (of the language model)": lambda part: (
        part.is_language and part.values["pipeline_parallel"] > 1
    ),
}
"""Names of `REFUSED` that follow from more than one field."""
_SECTIONS: Mapping[str, Mapping[str, Any]] = {
    section: {
        field: info.get_default(call_default_factory=True)
        for field, info in kind.model_fields.items()
    }
    for section, kind in (
        ("data", DataConfig),
        ("runtime", RuntimeConfig),
        ("sizes", ModuleParallelismConfig),
        ("network", ModuleArchitecture),
    )
}
_STATED = {field: value for fields in _SECTIONS.values() for field, value in fields.items()}
_DEFAULTS: Mapping[str, Any] = {"strategy": None, **_STATED, **LEFT_OUT}
_WITHOUT: Mapping[str, Any] = {
    **_STATED, "add_bias_linear": False, "loss_func": NO_FIX, "pipeline_parallel": NO_FIX
}  # fmt: skip
"""Field -> what rights a combination; a module keeps its size, and a run one of its functions."""
_OF_MODULES = "model.module_", "model.topology"


def combination_problems(
    context: ValidationContext, also: Mapping[str, Collection[str]] = MappingProxyType({})
) -> Iterator[Problem]:
    """Yield what modules have and what is refused with it.

    Args:
        also: module -> names of `REFUSED` that it has whatever the config says.
    """
    paths = ("model.llm_module_name", "model.topology", "model.deployment_mode", "strategy")
    if not context.is_valid(*paths):
        return
    for name, network in context.model.module_architectures.items():
        valid = context.is_valid(f"model.module_architectures.{name}")
        if not valid or name not in context.sizes or not context.has_valid_sizes(name):
            continue
        part = part_of(context, name, network, also.get(name, ()))
        for what, other in part.refused():
            whats = {path_of(name, each.partition(" ")[0]) for each in (what, other)}
            of_module = any(path.startswith(_OF_MODULES) for path in whats)
            if context.is_valid(*whats) and (of_module or part.is_language):
                yield refusal(part, name, what, other)


def refusal(part: Part, name: str, what: str, other: str) -> Problem:
    """Return the sentence that says what a module has and what is refused with it."""
    row = next(row for row in REFUSED if row.what == what and other in row.not_with)
    in_mode = "" if row.modes == MODES else f" in {part.values['deployment_mode']} mode"
    change = f"change one of them{', or the mode' if in_mode else ''}"
    sentence = f"{_told(part, what)} is refused with {_told(part, other)}{in_mode}; {change}."
    field = what.partition(" ")[0]
    path, value = path_of(name, field), part.values.get(field)
    return problem_at(path, value, sentence, _WITHOUT.get(field, NO_FIX))


def path_of(name: str, field: str) -> str:
    """Return the path of a field of a module, or of the run."""
    first = field.partition(".")[0]
    section = next((section for section, fields in _SECTIONS.items() if first in fields), "model")
    if section in ("network", "sizes"):
        return (network_path if section == "network" else size_path)(name, field)
    if field == "topology":
        return f"model.topology.{name}"
    return field if field == "strategy" else f"{section}.{field}"


def _told(part: Part, name: str) -> str:
    value = part.values.get(name)
    return f"{name} {written(value)}" if isinstance(value, bool | int | float | str) else name


def part_of(
    context: ValidationContext,
    name: str,
    network: ModuleArchitecture,
    also: Collection[str] = (),
) -> Part:
    """Return a module of a config as the table reads it."""
    model = context.model
    role = role_of(model, name, network)
    sections = (context.data, context.runtime, context.sizes[name], network)
    stated = {field: value for each in sections if each for field, value in vars(each).items()}
    run = {"deployment_mode": model.deployment_mode, "strategy": context.strategy}
    return Part(
        network=network,
        values={**stated, **run},
        role=role,
        receivers=len(model.module_topology.get(name, ())),
        trained=model.layers_have_backward(name),
        adds=most_inner_layers(context) if role == LANGUAGE else 0,
        also=also,
    )
