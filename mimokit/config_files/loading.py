"""From a YAML file, or a mapping, to a checked config: all problems at once."""

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from mimokit.config.base import world_check
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.messages import model_at, problems_of
from mimokit.config.rules import ValidationContext, all_problems
from mimokit.config_files.implications import fill_in
from mimokit.config_files.inheritance import PRESET_PREFIX, merged, read_layers

SWEEP = "sweep"
"""Key of the lists that make several experiments of one file; see `mimokit.config_files.sweep`."""


def load_experiment_config(
    config_path: str | os.PathLike[str],
    experiment_dir: str | os.PathLike[str] | None = None,
    *,
    world_size: int | None = None,
) -> ExperimentConfig:
    """Read a config from a YAML file; unpacks as `model, data, runtime = ...`.

    Args:
        config_path: the file, or `preset:NAME` for one that is shipped. It inherits from a
            `baseline.yaml` next to it or from the file that its `extends` names.
        experiment_dir: the run's folder, in place of `runtime.metrics_output_dir`; TensorBoard
            files, where the config asks for some, go to its folder `tensorboard`.
        world_size: ranks of the world, to check against; missing data_parallel sizes are left
            missing (`config.model.finalize` fills them in).

    Raises:
        ConfigError: everything that is wrong with it, or it has a `sweep`.
    """
    layers = read_layers(config_path)
    config = config_from_mapping(
        merged(layers),
        name=layers[0].path.stem,
        world_size=world_size,
        world_may_be_open=world_size is None,
    )
    if experiment_dir is not None:
        folder = Path(experiment_dir)
        config.runtime.metrics_output_dir = str(folder)
        if config.runtime.tensorboard_dir is not None:
            config.runtime.tensorboard_dir = str(folder / "tensorboard")
    return config


def load_preset(name: str) -> ExperimentConfig:
    """Return a config that is shipped; raise `ConfigError` if there is none of that name."""
    return load_experiment_config(PRESET_PREFIX + name)


def config_from_mapping(
    content: Mapping[str, Any],
    *,
    name: str = "experiment",
    world_size: int | None = None,
    world_may_be_open: bool = False,
) -> ExperimentConfig:
    """Return the checked config that a mapping in the form of a YAML file describes.

    Args:
        content: the sections model, data and runtime; it is left as it is.
        name: what to call the config where the mapping does not say.
        world_size: ranks of the world, or None for as many as the modules need.
        world_may_be_open: accept a data_parallel that depends on the world size.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    refuse_if_any(_sweep_problem(content))
    sections, problems, derived = _normalise(content, name)
    reading = read_sections(sections)
    problems += reading.problems
    if reading.config is not None:
        invalid = reading.invalid_paths
        context = ValidationContext.of(
            reading.config,
            world_size,
            invalid_paths=invalid | {path for path, source in derived.items() if source in invalid},
            world_may_be_open=world_may_be_open,
        )
        problems += tuple(all_problems(context))
    refuse_if_any(problems)
    assert reading.config is not None, "a config without a problem was read"
    if not _world_is_open(reading.config):
        reading.config.mark_passed([world_check(world_size)])
    return reading.config


def _sweep_problem(content: Mapping[str, Any]) -> tuple[Problem, ...]:
    if content.get(SWEEP) is None:
        return ()
    sentence = (
        "Section 'sweep': it makes several experiments of one file; run it with mimokit run, or "
        "load them with mimokit.load_experiments."
    )
    return (Problem(SWEEP, SWEEP, None, sentence),)


def _world_is_open(config: ExperimentConfig) -> bool:
    sizes = config.model.module_parallelisms.values()
    return any(module.data_parallel is None for module in sizes)


def _normalise(
    content: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], tuple[Problem, ...], dict[str, str]]:
    """Return the sections in their full form, problems, and path -> path it was derived from."""
    sections = _copied(dict(content))
    for key in ("extends", SWEEP):
        sections.pop(key, None)
    sections.setdefault("name", name)
    sections.setdefault("runtime", {})
    model = sections.get("model")
    derived = fill_in(sections)
    return sections, _move_rank_offset(model) if isinstance(model, dict) else (), derived


def _copied(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _copied(value) for key, value in content.items()}
    return list(map(_copied, content)) if isinstance(content, list) else content


def _move_rank_offset(model: dict[str, Any]) -> tuple[Problem, ...]:
    if "llm_rank_offset" not in model:
        return ()
    offset = model.pop("llm_rank_offset")
    name, modules = model.get("llm_module_name"), model.get("module_parallelisms")
    module = modules.get(name) if isinstance(modules, dict) and isinstance(name, str) else None
    if not isinstance(module, dict):
        return ()  # rejected for another reason
    if "rank_offset" not in module:
        module["rank_offset"] = offset
    elif module["rank_offset"] != offset:
        sentence = (
            f"Module '{name}': rank_offset is {module['rank_offset']}, but model.llm_rank_offset "
            f"is {offset}; they mean the same, so write one of them."
        )
        return (Problem(str(name), "rank_offset", module["rank_offset"], sentence),)
    return ()


@dataclass(frozen=True)
class Reading:
    """What could be read."""

    config: ExperimentConfig | None
    problems: tuple[Problem, ...]
    invalid_paths: frozenset[str]


def read_sections(sections: dict[str, Any]) -> Reading:
    """Read the sections of a config as far as they can be read, so that the rest is checked too.

    A rejected value is replaced by a stand-in (its default, or 1), and its path is kept: checks
    that depend on it stay silent.
    """
    try:
        return Reading(ExperimentConfig.model_validate(sections), (), frozenset())
    except ValidationError as error:
        problems = problems_of(error, ExperimentConfig)
        places = [tuple(detail["loc"]) for detail in error.errors(include_url=False)]
    invalid_paths = frozenset(
        ".".join(str(key) for key in place if key != "[key]") for place in places
    )
    patched = copy.deepcopy(sections)
    if not all(_stand_in(patched, place) for place in places):
        return Reading(None, problems, invalid_paths)
    try:
        return Reading(ExperimentConfig.model_validate(patched), problems, invalid_paths)
    except ValidationError:
        return Reading(None, problems, invalid_paths)


def _stand_in(sections: dict[str, Any], place: tuple[Any, ...]) -> bool:
    if not place:
        return False  # it is the whole config that is wrong
    keys = place[:-1] if place[-1] == "[key]" else place
    parent = _parent(sections, keys[:-1])
    if parent is None:
        return True  # went away with something above it
    owner = model_at((str(key) for key in keys[:-1]), ExperimentConfig)
    field = None if owner is None else owner.model_fields.get(str(keys[-1]))
    if field is None or not field.is_required():
        parent.pop(keys[-1], None)
        return True
    if field.annotation is int or int in get_args(field.annotation):
        parent[keys[-1]] = 1
        return True
    return False


def _parent(sections: dict[str, Any], keys: Iterable[Any]) -> dict[Any, Any] | None:
    current: Any = sections
    for key in keys:
        current = current.get(key) if isinstance(current, dict) else None
    return current if isinstance(current, dict) else None
