"""Fills in what a config leaves out because the rest of it implies the value.

A config states each fact once. The sources of a value are tried in order:

| value | sources |
|---|---|
| `model.deployment_mode` | `runtime.pipeline_schedule`; homogeneous |
| `runtime.pipeline_schedule` | `model.deployment_mode` |
| `model.llm_module_name` | the module that embeds tokens and has no special token id |
| `model.encoder_module_name` | the first module that feeds the language module |
| `data.vocab_size` | the language module's `vocab_size` |
| `model.special_token_ids.ENCODER` | the first free id at or above `data.vocab_size` |
| `data.image_special_token_id` | the special token id of `model.encoder_module_name`; where \
there are no encoders, `data.vocab_size` |
| `data.seq_length` | the language module's `seq_length`; `DEFAULT_SEQ_LENGTH` |
| `data.image_seq_length` | the encoder's `seq_length`; `DEFAULT_IMAGE_SEQ_LENGTH` |
| `seq_length` of the language module | `data.seq_length` |
| `seq_length` of an encoder | its patches per image; `data.image_seq_length` |
| fields of a module with `weights` | the config.json of those weights |

The mapping may be wrong in any way: a source that cannot be read implies nothing, and the rules
report it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.runtime import MODE_OF_SCHEDULE, SCHEDULE_OF_MODE
from mimokit.config_files.weights import LANGUAGE_MODULE_NAMES, fields_of_weights

DEFAULT_SEQ_LENGTH = 8192
"""Tokens per sample where no network and no data section states them."""

DEFAULT_IMAGE_SEQ_LENGTH = 1024
"""Tokens of an encoder's output per sample where nothing states them."""


def fill_in(sections: dict[str, Any]) -> dict[str, str]:
    """Fill in the implied values, in place.

    Args:
        sections: model, data and runtime, as a YAML file holds them; changed in place.

    Returns:
        Path of a value that was filled in -> path of the value that implies it. A default that
        nothing implies is absent.
    """
    model, data, runtime = (_mapping(sections.get(key)) for key in ("model", "data", "runtime"))
    if model is None:
        return {}
    derived = fields_of_weights(model)
    derived |= _mode_and_schedule(model, runtime)
    derived |= _module_names(model)
    if data is not None:
        derived |= _token_ids(model, data)
        derived |= _lengths(model, data)
    return derived


def _mode_and_schedule(model: dict[str, Any], runtime: dict[str, Any] | None) -> dict[str, str]:
    derived = {}
    schedule = None if runtime is None else runtime.get("pipeline_schedule")
    modes = {str(key): value for key, value in MODE_OF_SCHEDULE.items()}
    schedules = {str(key): value for key, value in SCHEDULE_OF_MODE.items()}
    if "deployment_mode" not in model:
        known = modes.get(schedule) if isinstance(schedule, str) else None
        model["deployment_mode"] = known or "homogeneous"
        derived["model.deployment_mode"] = "runtime.pipeline_schedule"
    mode = model["deployment_mode"]
    if schedule is None and runtime is not None and isinstance(mode, str) and mode in schedules:
        runtime["pipeline_schedule"] = schedules[mode]
        derived["runtime.pipeline_schedule"] = "model.deployment_mode"
    return derived


def _module_names(model: dict[str, Any]) -> dict[str, str]:
    derived = {}
    if "llm_module_name" not in model and (language := _language_module(model)) is not None:
        model["llm_module_name"] = language
        derived["model.llm_module_name"] = "model.module_architectures"
    if "encoder_module_name" not in model and (encoders := list(_encoders(model))):
        ids = _mapping(model.get("special_token_ids")) or {}
        model["encoder_module_name"] = next((name for name in encoders if name in ids), encoders[0])
        derived["model.encoder_module_name"] = "model.special_token_ids"
    return derived


def _language_module(model: Mapping[str, Any]) -> str | None:
    modules = _modules(model)
    named = [name for name in LANGUAGE_MODULE_NAMES if name in modules]
    if named:
        return named[0]
    ids = _mapping(model.get("special_token_ids")) or {}
    embedding = [
        name
        for name in modules
        if name not in ids and (_number(_network(model, name), "vocab_size") or 0) > 0
    ]
    others = embedding or [name for name in modules if name not in ids]
    return others[0] if len(others) == 1 else None


def _token_ids(model: dict[str, Any], data: dict[str, Any]) -> dict[str, str]:
    derived = {}
    language = model.get("llm_module_name")
    network = f"model.module_architectures.{language}"
    vocabulary = _number(_network(model, language), "vocab_size")
    if "vocab_size" not in data and vocabulary:
        data["vocab_size"] = vocabulary
        derived["data.vocab_size"] = f"{network}.vocab_size"
    size = _number(data, "vocab_size")
    ids = model.setdefault("special_token_ids", {})
    if isinstance(ids, dict) and size is not None:
        for encoder in _encoders(model):
            if encoder not in ids:
                ids[encoder] = _free_id(size, ids)
                derived[f"model.special_token_ids.{encoder}"] = "data.vocab_size"
    first = model.get("encoder_module_name") or next(iter(_encoders(model)), None)
    token, source = _number(_mapping(ids), first), f"model.special_token_ids.{first}"
    if first is None and not ids:  # no token represents an image
        token, source = size, "data.vocab_size"
    if "image_special_token_id" not in data and token is not None:
        data["image_special_token_id"] = token
        derived["data.image_special_token_id"] = source
    return derived


def _free_id(vocabulary: int, ids: Mapping[str, Any]) -> int:
    """Return the first id at or above the vocabulary that no encoder has."""
    used = [token for token in ids.values() if isinstance(token, int)]
    return next(
        token for token in range(vocabulary, vocabulary + len(ids) + 1) if token not in used
    )


def _lengths(model: dict[str, Any], data: dict[str, Any]) -> dict[str, str]:
    derived = {}
    language = model.get("llm_module_name")
    first = model.get("encoder_module_name") or next(iter(_encoders(model)), None)
    for field, module, default in (
        ("seq_length", language, DEFAULT_SEQ_LENGTH),
        ("image_seq_length", first, DEFAULT_IMAGE_SEQ_LENGTH if first else 0),
    ):
        if field in data:
            continue
        length = _number(_network(model, module), "seq_length")
        given = _network(model, module) or {}
        fields = ModuleArchitecture.keeps_class_token.field, ModuleArchitecture.one_row.field
        kept, one_row = (given.get(name) is True for name in fields)
        data[field] = default if length is None else 1 if one_row else length + kept
        if length is not None:
            derived[f"data.{field}"] = f"model.module_architectures.{module}.seq_length"
    for name in _modules(model):
        network = _network(model, name)
        if network is None or "seq_length" in network:
            continue
        field = "seq_length" if name == language else "image_seq_length"
        if (patches := _patches(network)) is not None:
            network["seq_length"] = patches
            derived[_length_of(name)] = f"model.module_architectures.{name}.image_size"
        elif (length := _number(data, field)) is not None:
            network["seq_length"] = max(length, 1)
            derived[_length_of(name)] = f"data.{field}"
    return derived


def _length_of(module: str) -> str:
    return f"model.module_architectures.{module}.seq_length"


def _patches(network: Mapping[str, Any]) -> int | None:
    pixels, patch = _number(network, "image_size"), _number(network, "patch_size")
    if pixels is None or not patch or pixels < patch:
        return None
    return (pixels // patch) ** 2


def _modules(model: Mapping[str, Any]) -> list[str]:
    modules = _mapping(model.get("module_parallelisms")) or {}
    return [name for name in modules if isinstance(name, str)]


def _encoders(model: Mapping[str, Any]) -> Iterator[str]:
    language, topology = model.get("llm_module_name"), model.get("topology")
    for name in _modules(model):
        fed = topology.get(name) if isinstance(topology, dict) else [language]
        if name != language and isinstance(fed, list) and language in fed:
            yield name


def _network(model: Mapping[str, Any], module: object) -> dict[str, Any] | None:
    networks = _mapping(model.get("module_architectures")) or {}
    return _mapping(networks.get(module)) if isinstance(module, str) else None


def _mapping(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _number(mapping: Mapping[str, Any] | None, field: object) -> int | None:
    value = None if mapping is None or not isinstance(field, str) else mapping.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
