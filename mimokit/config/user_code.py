"""A user's own code in a run: modules, loss and forward step in place of those of mimokit."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.messages import problem_at
from mimokit.config.rules.facts import module_problem, network_path, size_path
from mimokit.config.runtime import FRAME_PARALLEL, RuntimeConfig
from mimokit.config.user_modules import (
    ReadAfresh,
    files_of,
    read_again,
    without_bytecode,
)
from mimokit.import_path import find_in_working_directory
from mimokit.units import listed

OwnModule: TypeAlias = "Callable[[ModuleArchitecture, Any], Any] | Any"
"""A function of (architecture, process groups) that returns a module, a Megatron `ModuleSpec`, or
the text `package.module:function` that names one of them."""

OwnLoss: TypeAlias = "Callable[[Any, Any], tuple[Any, ...]]"
"""A function of (loss mask, loss of every token), both [samples, tokens], as Megatron's training
loop has it; returns the sum of the losses, the number of their tokens, and anything else."""

ForwardStep: TypeAlias = "Callable[[Any, Any], tuple[Any, Any]]"
"""A function of (data iterator, model), as Megatron's training loop has it; returns the output and
a function of the output that returns what an `OwnLoss` returns."""

OwnData: TypeAlias = "Callable[[ExperimentConfig], Any]"
"""A function of the config that returns a `TrainingData`."""


@dataclass(frozen=True)
class UserCode:
    """What of a run is the user's; a rank that receives it imports its files afresh.

    Engines live longer than a run: modules that an earlier run has imported may have been edited
    since, and their globals are those of that run.

    Attributes:
        modules: module -> what builds it, in place of the builder that the config names.
        loss_func: the loss of the language model, None for the sum over unmasked tokens.
        forward_step: the forward of one micro-batch; None: that of mimokit.
        data: makes the data, in place of the function that the config names.
        named: modules of Python that the config names.
        files: of these and of the functions that are given -> digest of what they held.
    """

    modules: Mapping[str, OwnModule] = field(default_factory=dict)
    loss_func: OwnLoss | None = None
    forward_step: ForwardStep | None = None
    data: OwnData | None = None
    named: tuple[str, ...] = field(default=(), compare=False)
    files: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (dict(self.modules), self.loss_func, self.forward_step, self.data, self.named)
        if self == NO_CODE and not self.named:
            return UserCode, ()
        return _of_parts, (ReadAfresh(given, self.named),)

    def is_older_than(self, other: UserCode) -> bool:
        """Return whether a file that both were read from has been edited in between."""
        return any(
            self.files[file] != other.files[file] for file in self.files.keys() & other.files
        )

    def completed(self, runtime: RuntimeConfig) -> UserCode:
        """Return the code with the functions that a config names, where no other was given.

        Raises:
            ConfigError: a function cannot be imported.
        """
        named = {
            name: _imported("Section 'runtime'", "runtime", name, path)
            for name in _FUNCTIONS
            if getattr(self, name) is None and (path := getattr(runtime, name)) is not None
        }
        return replace(self, **named)

    def builder_of(self, name: str, network: ModuleArchitecture) -> OwnModule | None:
        """Return what builds a module, or None where mimokit does.

        Raises:
            ConfigError: the config names a builder that cannot be imported.
        """
        builder = self.modules.get(name, network.builder)
        if not isinstance(builder, str):
            return builder
        return _imported(f"Module '{name}'", name, "builder", builder)


NO_CODE = UserCode()


def _of_parts(parts: tuple[Any, ...]) -> UserCode:
    return UserCode(*parts)


def named_modules(config: ExperimentConfig, further: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the modules of Python that a config names, and those of further paths."""
    networks = config.model.module_architectures.values()
    paths = [config.data.source, *(getattr(config.runtime, name) for name in _FUNCTIONS)]
    paths += [*(network.builder for network in networks), *further]
    return tuple(dict.fromkeys(path.partition(":")[0] for path in paths if path is not None))


def named_source(config: ExperimentConfig) -> Callable[[ExperimentConfig], Any] | None:
    """Return the function that `data.source` names, None where it names none.

    Raises:
        ConfigError: it cannot be imported, or cannot be called with the config alone.
    """
    path = config.data.source
    if path is None:
        return None
    source: Callable[[ExperimentConfig], Any] = _imported("Section 'data'", "data", "source", path)
    if (why := _uncallable(source, arguments=1)) is not None:
        sentence = (
            f"Section 'data': source {why}; it must be a function of the config that returns a "
            "TrainingData (mimokit.engine)."
        )
        raise ConfigError([Problem("data", "source", path, sentence)])
    return source


_BUILDER = "a ModuleSpec or a function of (architecture, process groups) that returns a module"
_FUNCTIONS = {
    "loss_func": "a function of (loss mask, loss of every token) that returns their sum and their "
    "number",
    "forward_step": "a function of (data iterator, model) that returns an output and a function of "
    "it",
}
"""What the functions of a run have to be, by the argument and the field of `runtime`."""


def is_spec(builder: OwnModule) -> bool:
    """Return whether what builds a module is a `ModuleSpec`; Megatron is not imported for that."""
    return hasattr(builder, "module") and hasattr(builder, "params")


def checked_code(
    config: ExperimentConfig,
    modules: Mapping[str, OwnModule] | None = None,
    loss_func: OwnLoss | None = None,
    forward_step: ForwardStep | None = None,
    data: OwnData | None = None,
) -> UserCode:
    """Return the code that a run is given, after a look at what the config names.

    Raises:
        ConfigError: a name is not that of a module, a builder or function cannot be imported or is
            not one, the module cannot be the user's, or both a loss and a forward step are given.
    """
    texts = [builder for builder in (modules or {}).values() if isinstance(builder, str)]
    named = named_modules(config, texts)
    code = UserCode(dict(modules or {}), loss_func, forward_step, data, named)
    with read_again(named):
        refuse_if_any(_problems(config, code))
        return replace(code, files=files_of([*named, *_homes(code)]))


def _homes(code: UserCode) -> Iterator[str]:
    """Yield the modules of Python that hold what a run was given."""
    for part in (*code.modules.values(), code.loss_func, code.forward_step, code.data):
        yield getattr(getattr(part, "module", part), "__module__", None) or ""


def _problems(config: ExperimentConfig, code: UserCode) -> Iterator[Problem]:
    yield from _wrong_functions(config, code)
    try:
        named_source(config)
    except ConfigError as error:
        yield from error.problems
    model = config.model
    for name in code.modules:
        if name not in model.module_parallelisms:
            yield from unknown_name("Module", name, model.module_parallelisms).problems
    for name, network in model.module_architectures.items():
        try:
            builder = code.builder_of(name, network)
        except ConfigError as error:
            yield from error.problems
            continue
        if builder is not None:
            yield from _unfit(name, builder)
            yield from _out_of_place(config, name, builder)


def _wrong_functions(config: ExperimentConfig, code: UserCode) -> Iterator[Problem]:
    """Yield what is wrong with the loss and the forward step."""
    try:
        functions = code.completed(config.runtime)
    except ConfigError as error:
        yield from error.problems
        return
    for name, wanted in _FUNCTIONS.items():
        function = getattr(functions, name)
        if function is not None and (why := _uncallable(function)) is not None:
            where = f"Argument {name}" if getattr(code, name) is not None else "Section 'runtime'"
            what = "it" if getattr(code, name) is not None else f"{name}"
            sentence = f"{where}: {what} {why}; it must be {wanted}."
            yield Problem("code", name, str(function), sentence)
    if functions.loss_func is not None and functions.forward_step is not None:
        sentence = (
            "Both loss_func and forward_step are given, but a forward step returns its loss "
            "function; leave loss_func out."
        )
        yield Problem("code", "loss_func", str(functions.loss_func), sentence)
    model = config.model
    stages = model.get_parallelism(model.llm_module_name).pipeline_parallel
    shared = model.deployment_mode != "heterogeneous"
    if functions.forward_step is not None and shared and stages > 1:
        sentence = (
            f"A forward step is given, but in {model.deployment_mode} mode a rank of the "
            f"pipeline of '{model.llm_module_name}' computes encoders next to its stage, which "
            "no forward step does; leave it out, or use heterogeneous mode."
        )
        yield Problem("code", "forward_step", str(functions.forward_step), sentence)


def _unfit(name: str, builder: OwnModule) -> Iterator[Problem]:
    """Yield why something does not build a module."""
    why = None if is_spec(builder) else _uncallable(builder)
    if why is not None:
        sentence = f"Module '{name}': its builder {why}; it must be {_BUILDER}."
        yield Problem(name, "builder", str(builder), sentence)


def _uncallable(builder: object, arguments: int = 2) -> str | None:
    """Return why something cannot be called with so many arguments, or None if it can."""
    if not callable(builder):
        return f"is a {type(builder).__name__}"
    try:
        inspect.signature(builder).bind(*[None] * arguments)
    except (TypeError, ValueError) as error:
        called = getattr(builder, "__qualname__", type(builder).__name__)
        count = "one argument" if arguments == 1 else "two arguments"
        return f"is {called}, which cannot be called with {count} ({error})"
    return None


def _out_of_place(config: ExperimentConfig, name: str, builder: OwnModule) -> Iterator[Problem]:
    """Yield what a module of the user's cannot be combined with."""
    model = config.model
    network, sizes = model.get_architecture(name), model.get_parallelism(name)
    stages = sizes.pipeline_parallel
    encoder = name in model.encoder_module_names
    if not encoder and name != model.llm_module_name:
        sentence = (
            f"it has a builder, which modules behind '{model.llm_module_name}' cannot have so far; "
            "leave it out."
        )
        yield problem_at(network_path(name, "builder"), network.builder, sentence, None)
        return
    if stages > 1:
        sentence = (
            f"pipeline_parallel is {stages}, but its builder builds a whole module; set it to 1."
        )
        yield problem_at(size_path(name, "pipeline_parallel"), stages, sentence, 1)
    if sizes.tensor_parallel > 1 and sizes.in_runs("sequence_parallel"):
        sentence = (
            "sequence_parallel is true, but its builder builds a module of whole sequences; leave "
            "it out."
        )
        path = size_path(name, "sequence_parallel")
        yield problem_at(path, True, sentence, None)
    mixture = network.num_moe_experts is not None
    what = "experts" if mixture else "a model"
    whole = {Axis.TENSOR: mixture, Axis.CONTEXT: mixture or not encoder}
    for axis in (CONFIG_FIELDS[axis] for axis, applies in whole.items() if applies):
        if (size := getattr(sizes, axis)) > 1:
            sentence = (
                f"{axis} is {size}, but its builder builds {what} of whole sequences; set it to 1."
            )
            yield problem_at(size_path(name, axis), size, sentence, 1)
    if network.mtp_num_layers:
        sentence = (
            f"mtp_num_layers is {network.mtp_num_layers}, which mimokit's own language model has, "
            "but its builder builds another; leave it out."
        )
        path = network_path(name, "mtp_num_layers")
        yield problem_at(path, network.mtp_num_layers, sentence, None)
    if not encoder and config.data.pack_sequences_in_batch:
        sentence = (
            "pack_sequences_in_batch is true, which puts samples in a row for mimokit's own "
            f"language model, but '{name}' has a builder; leave it out."
        )
        yield problem_at("data.pack_sequences_in_batch", True, sentence, False)
    if network.weights is not None:
        sentence = (
            f"weights is {network.weights}, but its builder builds a network "
            "with other parameters; leave weights out, and load them in the builder."
        )
        yield problem_at(network_path(name, "weights"), network.weights, sentence, None)
    if encoder:
        yield from _of_a_modality(config, name, builder)


def _of_a_modality(config: ExperimentConfig, name: str, builder: OwnModule) -> Iterator[Problem]:
    """Yield what a spec of encoders and their projection cannot be combined with."""
    parts = getattr(builder, "submodules", None)
    if not (is_spec(builder) and isinstance(parts, Mapping) and "encoders" in parts):
        return
    right = f"but the builder of '{name}' is a spec of a whole modality; leave one of them out, or "
    right += "let the builder be that of the encoder alone."
    if FRAME_PARALLEL in config.runtime.patch_type:
        sentence = (
            f"patch_type has {FRAME_PARALLEL}, which shares the images of an encoder, {right}"
        )
        yield problem_at("runtime.patch_type", FRAME_PARALLEL, sentence, [])
    if name in config.model.adapter_module_names:
        sentence = (
            "its builder is a spec of a whole modality, which reads items, but it takes rows of "
            f"{listed(config.model.feeders_of(name))}; build the encoder alone."
        )
        yield problem_at(network_path(name, "builder"), str(builder), sentence)
    fed = config.model.receivers_of(name)
    if len(fed) > 1:
        sentence = (
            f"by the topology it feeds {listed(fed)}, each of which takes rows of its width, "
        )
        yield module_problem(name, "topology", list(fed), f"{sentence}{right}")
    experts = config.model.get_architecture(name).num_moe_experts
    if experts is not None:
        sentence = f"num_moe_experts is {experts}, of an encoder whose tokens replicas exchange, "
        yield problem_at(network_path(name, "num_moe_experts"), experts, f"{sentence}{right}")


def _imported(where: str, section: str, part: str, path: str) -> Any:
    """Return what `package.module:function` names.

    Raises:
        ConfigError: it cannot be imported, or does not exist.
    """

    def rejected(why: str) -> ConfigError:
        sentence = f"{where}: {part} is {path}, but {why}."
        return ConfigError([Problem(section, part, path, sentence)])

    package, colon, function = path.partition(":")
    if not (colon and package and function):
        raise rejected("it must be package.module:function")
    find_in_working_directory()
    try:
        with without_bytecode():
            imported: Any = importlib.import_module(package)
    except Exception as error:  # whatever the user's module raises
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise rejected(f"{package} cannot be imported ({said})") from None
    for name in function.split("."):
        if not hasattr(imported, name):
            raise rejected(f"{package} has no {function}")
        imported = getattr(imported, name)
    return imported
