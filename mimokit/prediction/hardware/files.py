"""Hardware files: shipped ones by name, the user's own by path.

A hardware file is JSON or YAML with the fields of `Hardware`; `save_hardware` writes one, as
calibration does for the machine at hand. What is shipped serves as the example: `gpus/h100.json`.
Bandwidths are in bytes per second and rank, times in seconds, `peak_flops` in operations per
second, everything under `efficiency` but `kernel` and `half_width` as shares of the specification.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from mimokit.config.errors import Problem, refuse_if_any, unknown_name
from mimokit.config.files.yaml_file import read_yaml
from mimokit.prediction.hardware.hardware import Efficiency, Hardware, Link

_FOLDER = Path(__file__).parent / "gpus"
_SUFFIXES = (".json", ".yaml", ".yml")
_RECORDS: Mapping[str, type[Link] | type[Efficiency]] = {
    "domain": Link,
    "network": Link,
    "efficiency": Efficiency,
}
_TEXTS = ("name",)
_SHARES = ("attention", "memory", "links", "network", "matrix")
_FREE = ("latency", "kernel", "half_width")


def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped hardware."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_hardware(source: str | os.PathLike[str] | Hardware) -> Hardware:
    """Return hardware by its shipped name, or from a file that `save_hardware` wrote.

    Raises:
        ConfigError: an unknown name (the nearest are offered), or a file that holds no hardware.
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
        where: begins the sentence of a refusal.

    Raises:
        ConfigError: a field is missing, unknown, or no number that can be.
    """
    refuse_if_any(_problems(content, Hardware, where, ""))
    values = dict(content)
    for name, kind in _RECORDS.items():
        refuse_if_any(_problems(values[name], kind, where, f"{name}."))
        values[name] = kind(**values[name])
    hardware = Hardware(**values)
    refuse_if_any(_unknown_precisions(hardware, where))
    return hardware


@cache
def _shipped(name: str) -> Hardware:
    path = _FOLDER / f"{name}.json"
    if not path.exists():
        raise unknown_name("GPU", name, hardware_names())
    content = json.loads(path.read_text(encoding="utf-8"))
    return hardware_from_mapping(content, f"Hardware '{name}'")


def _problems(content: object, kind: type[Any], where: str, prefix: str) -> Iterator[Problem]:
    if not isinstance(content, Mapping):
        yield _problem(where, prefix.rstrip("."), content, "must be a mapping of its fields")
        return
    known = {field.name: field for field in fields(kind)}
    for name in content:
        if name not in known:
            allowed = ", ".join(known)
            yield _problem(where, f"{prefix}{name}", content[name], f"is none of {allowed}")
    for name, field in known.items():
        if name not in content:
            if field.default is MISSING and field.default_factory is MISSING:
                yield _problem(where, f"{prefix}{name}", None, "is missing")
        elif name not in _RECORDS or prefix:
            yield from _value_problems(content[name], name, where, prefix)


def _value_problems(value: object, name: str, where: str, prefix: str) -> Iterator[Problem]:
    if name in _TEXTS or name == "sources":
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _number_problems(one, name, where, f"{prefix}{name}.{key}")
    else:
        yield from _number_problems(value, name, where, f"{prefix}{name}")


def _number_problems(value: object, name: str, where: str, path: str) -> Iterator[Problem]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0 or (value == 0 and name not in _FREE):  # type: ignore[operator]
        least = "of at least 0" if name in _FREE else "above 0"
        yield _problem(where, path, value, f"must be a number {least}")
    elif name in _SHARES and path.startswith("efficiency.") and value > 1:  # type: ignore[operator]
        yield _problem(where, path, value, "is a share of the specification; it is at most 1")


def _unknown_precisions(hardware: Hardware, where: str) -> Iterator[Problem]:
    for name in hardware.efficiency.matrix:
        if name not in hardware.peak_flops:
            known = ", ".join(hardware.peak_flops)
            yield _problem(
                where, f"efficiency.matrix.{name}", name, f"has no peak_flops; those have: {known}"
            )


def _problem(where: str, field: str, value: object, what: str) -> Problem:
    shown = "" if value is None or isinstance(value, Mapping) else f" ({value})"
    return Problem("hardware", field, value, f"{where}: {field}{shown} {what}.")
