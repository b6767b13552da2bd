"""A user's own code in a run: modules and a loss in place of those of mimokit."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import ConfigError, Fix, Problem, refuse_if_any, unknown_name
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.rules.facts import network_path
from mimokit.config.runtime import FRAME_PARALLEL

OwnModule: TypeAlias = "Callable[[ModuleArchitecture, Any], Any] | Any"
"""A function of (architecture, process groups) that returns a module, a Megatron `ModuleSpec`, or
the text `package.module:function` that names one of them."""

OwnLoss: TypeAlias = "Callable[[Any, Any], tuple[Any, ...]]"
"""A function of (loss mask, loss of every token), both [samples, tokens], as Megatron's training
loop has it; returns the sum of the losses, the number of their tokens, and anything else."""


@dataclass(frozen=True)
class UserCode:
    """What of a run is the user's.

    Attributes:
        modules: module -> what builds it, in place of the builder that the config names.
        loss_func: the loss of the language model, None for the sum over unmasked tokens.
    """

    modules: Mapping[str, OwnModule] = field(default_factory=dict)
    loss_func: OwnLoss | None = None

    def builder_of(self, name: str, network: ModuleArchitecture) -> OwnModule | None:
        """Return what builds a module, or None where mimokit does.

        Args:
            name: of the module.
            network: its architecture.

        Raises:
            ConfigError: the config names a builder that cannot be imported.
        """
        own = self.modules.get(name, network.builder)
        return _imported(name, own) if isinstance(own, str) else own


NO_CODE = UserCode()

_BUILDER = "a ModuleSpec or a function of (architecture, process groups) that returns a module"
_LOSS = "a function of (loss mask, loss of every token) that returns their sum and their number"


def is_spec(own: OwnModule) -> bool:
    """Return whether what builds a module is a `ModuleSpec`; Megatron is not imported for that."""
    return hasattr(own, "module") and hasattr(own, "params")


def checked_code(
    config: ExperimentConfig,
    modules: Mapping[str, OwnModule] | None = None,
    loss_func: OwnLoss | None = None,
) -> UserCode:
    """Return the code that a run gets, after importing the builders that the config names.

    Args:
        config: finalized.
        modules: module -> what builds it.
        loss_func: of the language model.

    Raises:
        ConfigError: a name is not that of a module, a builder cannot be imported or is not one, the
            module cannot be the user's, or the loss is not a function of two arguments.
    """
    given = UserCode(dict(modules or {}), loss_func)
    refuse_if_any(_problems(config, given))
    return given


def _problems(config: ExperimentConfig, given: UserCode) -> Iterator[Problem]:
    if given.loss_func is not None and (why := _uncallable(given.loss_func)) is not None:
        sentence = f"Argument loss_func: it {why}; it must be {_LOSS}."
        yield Problem("code", "loss_func", str(given.loss_func), sentence)
    model = config.model
    for name in given.modules:
        if name not in model.module_parallelisms:
            yield from unknown_name("Module", name, model.module_parallelisms).problems
    for name, network in model.module_architectures.items():
        try:
            own = given.builder_of(name, network)
        except ConfigError as error:
            yield from error.problems
            continue
        if own is not None:
            yield from _unfit(name, own)
            yield from _out_of_place(config, name)


def _unfit(name: str, own: OwnModule) -> Iterator[Problem]:
    """Yield why something does not build a module."""
    why = None if is_spec(own) else _uncallable(own)
    if why is not None:
        sentence = f"Module '{name}': its builder {why}; it must be {_BUILDER}."
        yield Problem(name, "builder", str(own), sentence)


def _uncallable(own: object) -> str | None:
    """Return why something cannot be called with two arguments, or None if it can."""
    if not callable(own):
        return f"is a {type(own).__name__}"
    try:
        inspect.signature(own).bind(None, None)
    except (TypeError, ValueError) as error:
        called = getattr(own, "__qualname__", type(own).__name__)
        return f"is {called}, which cannot be called with two arguments ({error})"
    return None


def _out_of_place(config: ExperimentConfig, name: str) -> Iterator[Problem]:
    """Yield what a module of the user's cannot be combined with."""
    model = config.model
    network, stages = model.get_architecture(name), model.get_parallelism(name).pipeline_parallel
    encoder = name in model.encoder_module_names
    if not encoder and name != model.llm_module_name:
        sentence = (
            f"Module '{name}': it has a builder, which modules behind "
            f"'{model.llm_module_name}' cannot have so far; leave it out."
        )
        yield Problem(name, "builder", network.builder, sentence, _without(name, "builder"))
        return
    if stages > 1:
        sentence = (
            f"Module '{name}': pipeline_parallel is {stages}, but its builder builds a whole "
            "module; set it to 1."
        )
        path = f"model.module_parallelisms.{name}.pipeline_parallel"
        yield Problem(name, "pipeline_parallel", stages, sentence, {"path": path, "value": 1})
    if network.weights is not None:
        sentence = (
            f"Module '{name}': weights is {network.weights}, but its builder builds a network "
            "with other parameters; leave weights out, and load them in the builder."
        )
        yield Problem(name, "weights", network.weights, sentence, _without(name, "weights"))
    if encoder and FRAME_PARALLEL in config.runtime.patch_type:
        sentence = (
            f"Section 'runtime': patch_type has {FRAME_PARALLEL}, which shares the images of "
            f"mimokit's own encoders, but '{name}' has a builder; leave it out."
        )
        fix: Fix = {"path": "runtime.patch_type", "value": []}
        yield Problem("runtime", "patch_type", FRAME_PARALLEL, sentence, fix)


def _without(name: str, part: str) -> Fix:
    return {"path": network_path(name, part), "value": None}


def _imported(name: str, path: str) -> OwnModule:
    """Return what `package.module:function` names.

    Raises:
        ConfigError: it cannot be imported, or does not exist.
    """
    package, colon, function = path.partition(":")
    if not (colon and package and function):
        raise _not_imported(name, path, "it must be package.module:function")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # a command does not search the working directory
    try:
        found: Any = importlib.import_module(package)
    except Exception as error:  # whatever the user's module raises
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise _not_imported(name, path, f"{package} cannot be imported ({said})") from None
    for part in function.split("."):
        if not hasattr(found, part):
            raise _not_imported(name, path, f"{package} has no {function}")
        found = getattr(found, part)
    return found


def _not_imported(name: str, path: str, why: str) -> ConfigError:
    sentence = f"Module '{name}': builder is {path}, but {why}."
    return ConfigError([Problem(name, "builder", path, sentence)])
