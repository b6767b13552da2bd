"""Hardware files: shipped ones by name, the user's own by path.

A hardware file is JSON or YAML with the fields of `Hardware`. `save_hardware` writes one, and
calibration writes one for the machine at hand. `gpus/h100.json` is an example. Bandwidths are in
bytes per second and rank, times in seconds, `peak_flops` in operations per second. Everything under
`efficiency` except `kernel` and `half_width` is a share of the specification.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.yaml_file import read_yaml
from mimokit.prediction.hardware.hardware import OUT_OF_BOUNDS, Efficiency, Hardware, RankLink

_FOLDER = Path(__file__).parent / "gpus"
_SUFFIXES = (".json", ".yaml", ".yml")
_RECORDS: Mapping[str, type[RankLink] | type[Efficiency]] = {
    "domain": RankLink,
    "network": RankLink,
    "efficiency": Efficiency,
}
_HARDWARE = TypeAdapter(Hardware)


def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped hardware."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_hardware(source: str | os.PathLike[str] | Hardware) -> Hardware:
    """Return hardware by its shipped name, or from a file that `save_hardware` wrote.

    Raises:
        ConfigError: the name is unknown (the sentence suggests similar names), or the file is not
            a hardware file.
    """
    if isinstance(source, Hardware):
        return source
    if not isinstance(source, str | os.PathLike):
        raise unknown_name("GPU", source, hardware_names())
    path = Path(source)
    if path.suffix in _SUFFIXES:
        return hardware_from_mapping(read_yaml(path), f"Hardware file '{path}'")
    return _shipped(str(source).lower())


def save_hardware(hardware: Hardware, path: str | os.PathLike[str]) -> Path:
    """Write hardware to a JSON file that `load_hardware` reads, and return its path."""
    target = Path(path)
    target.write_text(json.dumps(asdict(hardware), indent=2) + "\n", encoding="utf-8")
    return target


def hardware_from_mapping(content: Mapping[str, Any], where: str) -> Hardware:
    """Return the hardware that a mapping describes.

    Args:
        content: the fields of `Hardware`, those of links and efficiency as mappings.
        where: the start of the sentence if the content is rejected.

    Raises:
        ConfigError: a field is missing, unknown, of the wrong type, or out of its bounds.
    """
    try:
        hardware = _HARDWARE.validate_python(content)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError([_problem(where, detail) for detail in details]) from None
    refuse_if_any(_unknown_precisions(hardware, where))
    return hardware


@cache
def _shipped(name: str) -> Hardware:
    path = _FOLDER / f"{name}.json"
    if not path.exists():
        raise unknown_name("GPU", name, hardware_names())
    content = json.loads(path.read_text(encoding="utf-8"))
    return hardware_from_mapping(content, f"Hardware '{name}'")


def _problem(where: str, detail: Any) -> Problem:
    """Return the problem for what pydantic reports about one field."""
    path, value = tuple(str(key) for key in detail["loc"]), detail["input"]
    match detail["type"]:
        case "missing":
            return _said(where, path, None, "is missing")
        case "unexpected_keyword_argument":
            known = ", ".join(field.name for field in fields(_RECORDS.get(path[0], Hardware)))
            return _said(where, path, value, f"is none of {known}")
        case kind if kind == OUT_OF_BOUNDS:
            return _said(where, path, value, detail["msg"])
        case "too_short":
            return _said(where, path, value, "must have at least one entry")
        case _:
            return _said(where, path, value, "must be a mapping of its fields")


def _unknown_precisions(hardware: Hardware, where: str) -> Iterator[Problem]:
    known = ", ".join(hardware.peak_flops)
    for name in hardware.efficiency.matrix:
        if name not in hardware.peak_flops:
            path = ("efficiency", "matrix", name)
            yield _said(where, path, name, f"has no peak_flops; those have: {known}")


def _said(where: str, path: tuple[str, ...], value: object, what: str) -> Problem:
    field = ".".join(key for key in path if key != "[key]")
    shown = "" if value is None or isinstance(value, Mapping) else f" ({str(value)[:60]})"
    return Problem("hardware", field, value, f"{where}: {field}{shown} {what}.")
