"""Broken configs as rows of a table, and all that is refused of each."""

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mimokit
from mimokit.config import ConfigError, MimoParallelismConfig, Problem, check_runnable
from tests.config.sections import load, network, put, sections, text_head, three_encoders
from tests.layouts_apart import (
    apart_config,
    apart_multimodal_config,
    decoded_config,
    with_adapter,
    with_image_decoder,
)
from tests.layouts_multimodal import multimodal_config
from tests.rows import table

LANGUAGE = "language_module"
GROUPS = (
    "layouts", "fields", "parts", "values", "networks", "modules", "worlds", "predictions",
    "strategies",
)  # fmt: skip
SENTENCES = Path(__file__).with_name("sentences.json")
"""What `refusals` returned when it was last written."""
SHORT = {"networks.": "model.module_architectures.", "sizes.": "model.module_parallelisms."}
ONE = (1, 1, 1)


def staged() -> dict[str, Any]:
    """Return an adapter with one stage behind an encoder with two, on the same ranks."""
    stages = {"pipeline_parallel": 2, "data_parallel": 1}
    content = sections(stages, stages, "three_phase")
    put(content, "model.module_parallelisms.probe", {"data_parallel": 2})
    put(content, "model.module_architectures.probe", network(modal_type="rows"))
    put(content, "model.topology", {"images": ["probe"], "probe": [LANGUAGE]})
    return put(content, "model.special_token_ids", {"probe": 1024})


def painted(encoder: str) -> dict[str, Any]:
    """Return an encoder of several modalities, and a decoder of what it reads."""
    read = apart_multimodal_config({encoder: ONE, LANGUAGE: ONE})
    return with_image_decoder(read, ONE, encoder).to_mapping()


BASES: dict[str, Callable[[], dict[str, Any]]] = {
    "small": sections,
    "three encoders": three_encoders,
    "text head": text_head,
    "many": lambda: multimodal_config(
        dict.fromkeys(("dino", "audio", "words", LANGUAGE), (1, 1)), "colocated"
    ).to_mapping(),
    "decoded": lambda: decoded_config(
        dict.fromkeys(("images", LANGUAGE, "writer"), ONE), 1
    ).to_mapping(),
    "staged": staged,
    "model alone": sections,
    "adapted": lambda: with_adapter(apart_config(ONE, ONE), ONE).to_mapping(),
    "painted": lambda: with_image_decoder(apart_config(ONE, ONE), ONE).to_mapping(),
    "any size painted": lambda: painted("qwen"),
    "sound painted": lambda: painted("audio"),
}
"""Configs to change; a row without a `base` changes the small one."""


@functools.cache
def rows_of(group: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a group, by their names."""
    written = _tables()[group]
    made = {
        "values": _of_values,
        "networks": _of_networks,
        "modules": _of_modules,
        "worlds": _of_worlds,
        "predictions": functools.partial(_of_sections, "prediction"),
        "strategies": functools.partial(_of_sections, "strategy"),
    }
    return dict(made[group](written)) if group in made else written


@functools.cache
def _tables() -> dict[str, Any]:
    return table(Path(__file__).with_name("refusals.yaml"))


Rows = Iterator[tuple[str, dict[str, Any]]]


def _of_values(written: list[Any]) -> Rows:
    for module, field, path, value in written:
        yield f"{path} {value!r}", {"put": {path: value}, "at": [module, field, value], "said": []}


def _of_networks(written: dict[str, Any]) -> Rows:
    for module, rows in written.items():
        for said, fields in rows.items():
            changes = {f"networks.{module}.{name}": value for name, value in fields.items()}
            if "num_moe_experts" in fields:
                changes[f"sizes.{module}.sequence_parallel"] = True
            yield f"{module}: {said}", {"put": changes, "at": [module], "said": said}


def _of_modules(written: dict[str, Any]) -> Rows:
    for base, rows in written.items():
        for said, row in rows.items():
            yield f"{base}: {said}", {"said": said, **row, "base": base}


def _of_worlds(written: list[Any]) -> Rows:
    for number in written:
        yield repr(number), {"world": number, "at": ["world", "world_size"], "said": []}


def _of_sections(name: str, written: dict[str, Any]) -> Rows:
    for said, section in written.items():
        yield said, {"put": {name: section}, "said": said}


def changed(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Set the values at paths, of which the first words may be short; null leaves a key out."""
    for path, value in copy.deepcopy(changes).items():
        for short, whole in SHORT.items():
            path = whole + path.removeprefix(short) if path.startswith(short) else path
        put(content, path, value)
    return content


def content_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the broken config of a row."""
    row = copy.deepcopy(row)
    if row.get("base", "small") != "small":
        content = BASES[row["base"]]()
    else:
        content = sections(row.get("images"), row.get("language"), row.get("schedule", "colocated"))
    return changed(content, row.get("put", {}))


def refused(row: dict[str, Any]) -> tuple[Problem, ...]:
    """Return everything that is wrong with the config of a row."""
    content = content_of(row)
    try:
        if row.get("base") == "model alone":
            MimoParallelismConfig.model_validate(content["model"]).finalize()
        config = load(content, row.get("world"))
        check_runnable(config)
        mimokit.plan(config)
    except ConfigError as error:
        return error.problems
    return ()


def answer(row: dict[str, Any]) -> list[list[Any]]:
    """Return sentence and fix of every problem of a row."""
    found = ([problem.sentence, problem.fix and dict(problem.fix)] for problem in refused(row))
    return sorted(found, key=str)


def cases() -> dict[str, dict[str, Any]]:
    """Return all rows, by their groups and names."""
    return {f"{group} | {name}": row for group in GROUPS for name, row in rows_of(group).items()}


def refusals() -> dict[str, list[list[Any]]]:
    """Return the answer to every row."""
    return {name: answer(row) for name, row in cases().items()}
