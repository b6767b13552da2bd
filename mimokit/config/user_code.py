"""A user's own code in a run: modules, loss and forward step in place of those of mimokit."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.rules.combinations import combination_problems
from mimokit.config.rules.context import ValidationContext
from mimokit.config.runtime import RuntimeConfig
from mimokit.config.user_modules import (
    ReadAfresh,
    files_of,
    read_again,
    without_bytecode,
)
from mimokit.import_path import find_in_working_directory

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
        parts = (dict(self.modules), self.loss_func, self.forward_step, self.data, self.named)
        if self == NO_CODE and not self.named:
            return UserCode, ()
        return _of_parts, (ReadAfresh(parts, self.named),)

    def is_older_than(self, other: UserCode) -> bool:
        """Return whether a file that both were read from has been edited in between."""
        return any(
            self.files[file] != other.files[file] for file in self.files.keys() & other.files
        )

    def completed(self, runtime: RuntimeConfig) -> UserCode:
        """Return the code with the functions that a config names, where no other was given."""
        named = {
            name: _imported("Section 'runtime'", "runtime", name, path)
            for name in _FUNCTIONS
            if getattr(self, name) is None and (path := getattr(runtime, name)) is not None
        }
        return replace(self, **named)

    def builder_of(self, name: str, network: ModuleArchitecture) -> OwnModule | None:
        """Return what builds a module, or None where mimokit does."""
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
    """Return the function that `data.source` names, None where it names none."""
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
    also: dict[str, list[str]] = {model.llm_module_name: list(_functions_of(config, code))}
    for name, network in model.module_architectures.items():
        try:
            builder = code.builder_of(name, network)
        except ConfigError as error:
            yield from error.problems
            continue
        if builder is not None:
            yield from _unfit(name, builder)
            whole = ["builder (of a whole modality)"] if _is_modality(builder) else []
            also[name] = [*also.get(name, []), "builder", *whole]
    yield from combination_problems(ValidationContext.of(config, None), also)


def _functions_of(config: ExperimentConfig, code: UserCode) -> Iterator[str]:
    for name in _FUNCTIONS:
        if getattr(code, name) is not None or getattr(config.runtime, name) is not None:
            yield name


def _wrong_functions(config: ExperimentConfig, code: UserCode) -> Iterator[Problem]:
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


def _unfit(name: str, builder: OwnModule) -> Iterator[Problem]:
    why = None if is_spec(builder) else _uncallable(builder)
    if why is not None:
        sentence = f"Module '{name}': its builder {why}; it must be {_BUILDER}."
        yield Problem(name, "builder", str(builder), sentence)


def _uncallable(builder: object, arguments: int = 2) -> str | None:
    if not callable(builder):
        return f"is a {type(builder).__name__}"
    try:
        inspect.signature(builder).bind(*[None] * arguments)
    except (TypeError, ValueError) as error:
        called = getattr(builder, "__qualname__", type(builder).__name__)
        count = "one argument" if arguments == 1 else "two arguments"
        return f"is {called}, which cannot be called with {count} ({error})"
    return None


def _is_modality(builder: OwnModule) -> bool:
    parts = getattr(builder, "submodules", None)
    return is_spec(builder) and isinstance(parts, Mapping) and "encoders" in parts


def _imported(where: str, section: str, part: str, path: str) -> Any:
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
