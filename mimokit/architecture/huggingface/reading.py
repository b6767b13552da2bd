"""The networks that a Hugging Face config describes. Nothing is downloaded."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface.encoders import (
    VISION_DEFAULTS,
    vision_fields,
    whisper_fields,
)
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.language import LANGUAGE_TYPES, language_fields
from mimokit.architecture.huggingface.llava import llava
from mimokit.architecture.huggingface.networks import Networks, projector_fields
from mimokit.architecture.huggingface.qwen_vision import (
    qwen2_vision,
    qwen3_vision,
    qwen25_vision,
)
from mimokit.architecture.huggingface.unreadable import check_readable
from mimokit.config.errors import ConfigError, Problem, unknown_name
from mimokit.config.text_file import read_text_file, reason_of
from mimokit.units import shown

_TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}
_QWEN_VISION = {
    "qwen2_vl": qwen2_vision,
    "qwen2_5_vl": qwen25_vision,
    "qwen3_vl": qwen3_vision,
    "qwen3_vl_moe": qwen3_vision,
}
_KNOWN = (*LANGUAGE_TYPES, *_TOWERS, *_TOWERS.values(), *_QWEN_VISION, "llava", "whisper")


def networks_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Networks, str]:
    """Return the networks of a config, and what it calls the model; see `from_hf`."""
    values, called = (dict(source), "model") if isinstance(source, Mapping) else _read(source)
    fields = Fields(values)
    kind = values.get("model_type")
    if kind is None:
        fields.refuse("model_type", "it decides how the other fields are read")
        fields.check()
    if not isinstance(kind, str):
        raise unknown_name("Model_type", shown(kind), _KNOWN)
    check_readable("Hugging Face configs", kind, _KNOWN)
    called = values.get("_name_or_path") or called
    networks = _networks(fields, kind)
    fields.check()
    return networks, called if isinstance(called, str) else shown(called)


def _read(source: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    if not isinstance(source, str | os.PathLike):
        raise _unreadable(source, "it is not a path")
    path = Path(source)
    file = path / "config.json" if os.path.isdir(path) else path
    try:
        content = json.loads(read_text_file(file))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, f"it cannot be read ({reason_of(error)})") from None
    except RecursionError:
        raise _unreadable(file, "it is nested too deeply") from None
    except ValueError:
        raise _unreadable(file, "it is not JSON") from None
    if not isinstance(content, dict):
        raise _unreadable(file, "it is not a mapping")
    return content, file.resolve().parent.name


def _unreadable(file: object, why: str) -> ConfigError:
    sentence = f"Hugging Face config '{file}': {why}; give a config.json or its directory."
    return ConfigError([Problem("config.json", "path", str(file), sentence)])


def _networks(fields: Fields, kind: str) -> Networks:
    if kind in LANGUAGE_TYPES:
        return Networks(language_fields(fields, kind))
    if kind in _TOWERS:
        tower = _TOWERS[kind]
        section = fields.section("vision_config", VISION_DEFAULTS[tower])
        return Networks(encoder=vision_fields(section, tower))
    if kind in VISION_DEFAULTS:
        return Networks(encoder=vision_fields(fields, kind))
    if kind == "whisper":
        return Networks(encoder=whisper_fields(fields))
    return llava(fields) if kind == "llava" else _qwen_vl(fields, kind)


def _qwen_vl(fields: Fields, kind: str) -> Networks:
    # Older files have the text fields next to vision_config.
    encoder, width = _QWEN_VISION[kind](fields.section("vision_config"))
    text = fields.section("text_config") if "text_config" in fields else fields
    tied = fields.flag("tie_word_embeddings")
    language = language_fields(text, f"{kind}_text", tied)
    if width != language["hidden_size"]:
        fields.refuse(
            "vision_config",
            f"its {'hidden_size' if kind == 'qwen2_vl' else 'out_hidden_size'} {width} contradicts "
            f"hidden_size {language['hidden_size']} of the language model",
        )
    merged = encoder["hidden_size"] * encoder["merge_size"] ** 2
    encoder["projector"] |= projector_fields(merged, language)
    return Networks(language, encoder)
