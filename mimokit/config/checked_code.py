"""Checks a user's own code before a run is given it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.rules.combinations import combination_problems
from mimokit.config.rules.context import ValidationContext
from mimokit.config.user_code import (
    FUNCTIONS,
    ForwardStep,
    OwnData,
    OwnLoss,
    OwnModule,
    UserCode,
    is_spec,
    named_source,
    why_uncallable,
)
from mimokit.config.user_modules import files_of, read_again

_BUILDER = "a ModuleSpec or a function of (architecture, process groups) that returns a module"
_WANTED = {
    "loss_func": "a function of (loss mask, loss of every token) that returns their sum and their "
    "number",
    "forward_step": "a function of (data iterator, model) that returns an output and a function of "
    "it",
}


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
    named = _named_modules(config, texts)
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
    given = code, config.runtime
    functions = [f for f in FUNCTIONS if any(getattr(each, f) is not None for each in given)]
    also: dict[str, list[str]] = {model.llm_module_name: functions}
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


def _wrong_functions(config: ExperimentConfig, code: UserCode) -> Iterator[Problem]:
    try:
        functions = code.completed(config.runtime)
    except ConfigError as error:
        yield from error.problems
        return
    for name, wanted in _WANTED.items():
        function = getattr(functions, name)
        if function is not None and (why := why_uncallable(function)) is not None:
            where = f"Argument {name}" if getattr(code, name) is not None else "Section 'runtime'"
            what = "it" if getattr(code, name) is not None else f"{name}"
            sentence = f"{where}: {what} {why}; it must be {wanted}."
            yield Problem("code", name, str(function), sentence)


def _unfit(name: str, builder: OwnModule) -> Iterator[Problem]:
    why = None if is_spec(builder) else why_uncallable(builder)
    if why is not None:
        sentence = f"Module '{name}': its builder {why}; it must be {_BUILDER}."
        yield Problem(name, "builder", str(builder), sentence)


def _is_modality(builder: OwnModule) -> bool:
    parts = getattr(builder, "submodules", None)
    return is_spec(builder) and isinstance(parts, Mapping) and "encoders" in parts


def _named_modules(config: ExperimentConfig, further: Iterable[str] = ()) -> tuple[str, ...]:
    networks = config.model.module_architectures.values()
    paths = [config.data.source, *(getattr(config.runtime, name) for name in FUNCTIONS)]
    paths += [*(network.builder for network in networks), *further]
    return tuple(dict.fromkeys(path.partition(":")[0] for path in paths if path is not None))
