"""The config.json of a Hugging Face model, opened in a planner: which model, on how many GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.config import ConfigError, Problem
from mimokit.extra_rooms import MissingRoomError, import_extra
from mimokit.units import counted
from mimokit_widgets.planner.paths import shown

if TYPE_CHECKING:
    from mimokit.architecture.modules import Model
    from mimokit.layout_search import SearchTask


def model_in(text: str, name: str) -> Model | None:
    """Return the model that a text describes; None where it may be a config of mimokit.

    Raises:
        ConfigError: it is no JSON though its name says so, or the model cannot be trained.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and "model" in content:
        return None
    if isinstance(content, dict) and (name.endswith(".json") or "model_type" in content):
        # What reads a model is slow to import, and few planners open one.
        try:
            plans = import_extra("experiment.plan_of_model", f"File '{shown(name)}'")
        except MissingRoomError as error:
            raise ConfigError([Problem("model", "file", name, str(error))]) from None
        model: Model = plans.model_to_train(content)
        return model
    if not name.endswith(".json"):
        return None
    sentence = (
        f"File '{shown(name)}': it is no JSON mapping; give the config.json of a Hugging Face "
        "model, or a YAML config."
    )
    raise ConfigError([Problem("model", "file", name, sentence)])


def asked_gpus(typed: str, otherwise: int) -> int | str:
    """Return the GPUs that were typed, those of the layout for none, or what is wrong."""
    try:
        return int(typed.replace(",", "") or otherwise)
    except ValueError:
        return (
            f"Search: GPUs is the text '{typed[:24]}'; write a whole number, or nothing for as "
            "many as the layout has."
        )


def planned_words(name: str, taken: int, task: SearchTask) -> Iterator[str]:
    """Yield the sentences about a model that was opened: on what, for what it is planned."""
    load = task.workload
    yield (
        f"{name}: the fastest layout that fits on {counted(task.gpus, 'GPU')} "
        f"({task.hardware.name}), for samples of {load.seq_length:,} tokens and "
        f"{load.global_batch_size:,} of them per step."
    )
    if fewer := import_extra("experiment.plan_of_model", name).fewer_gpus(taken, task):
        yield fewer
