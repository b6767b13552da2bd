"""A user's own code in a run: modules, loss and forward step in place of those of mimokit."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.runtime import RuntimeConfig
from mimokit.config.sections import ExperimentSections
from mimokit.config.user_modules import ReadAfresh, without_bytecode
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

OwnData: TypeAlias = "Callable[[Any], Any]"
"""A function of the config that returns a `TrainingData`."""

FUNCTIONS = "loss_func", "forward_step"
"""The functions of a run, as arguments and as fields of `runtime`."""


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
            name: imported_name("Section 'runtime'", "runtime", name, path)
            for name in FUNCTIONS
            if getattr(self, name) is None and (path := getattr(runtime, name)) is not None
        }
        return replace(self, **named)

    def builder_of(self, name: str, network: ModuleArchitecture) -> OwnModule | None:
        """Return what builds a module, or None where mimokit does."""
        builder = self.modules.get(name, network.builder)
        if not isinstance(builder, str):
            return builder
        return imported_name(f"Module '{name}'", name, "builder", builder)


NO_CODE = UserCode()


def _of_parts(parts: tuple[Any, ...]) -> UserCode:
    return UserCode(*parts)


def named_source(config: ExperimentSections) -> OwnData | None:
    """Return the function that `data.source` names, None where it names none."""
    path = config.data.source
    if path is None:
        return None
    source: OwnData = imported_name("Section 'data'", "data", "source", path)
    if (why := why_uncallable(source, arguments=1)) is not None:
        sentence = (
            f"Section 'data': source {why}; it must be a function of the config that returns a "
            "TrainingData (mimokit.engine)."
        )
        raise ConfigError([Problem("data", "source", path, sentence)])
    return source


def is_spec(builder: OwnModule) -> bool:
    """Return whether what builds a module is a `ModuleSpec`; Megatron is not imported for that."""
    return hasattr(builder, "module") and hasattr(builder, "params")


def why_uncallable(builder: object, arguments: int = 2) -> str | None:
    """Return why something cannot be called with a number of arguments, None if it can."""
    if not callable(builder):
        return f"is a {type(builder).__name__}"
    try:
        inspect.signature(builder).bind(*[None] * arguments)
    except (TypeError, ValueError) as error:
        called = getattr(builder, "__qualname__", type(builder).__name__)
        count = "one argument" if arguments == 1 else "two arguments"
        return f"is {called}, which cannot be called with {count} ({error})"
    return None


def imported_name(where: str, section: str, part: str, path: str) -> Any:
    """Return what `package.module:function` names; raise `ConfigError` if it names nothing."""

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
