"""Hardware files: shipped ones by name, the user's own by path."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mimokit.config.problems import ConfigError, Problem
from mimokit.plan.hardware.hardware import Efficiency, Hardware, Link
from mimokit.plan.names import unknown_name

_FOLDER = Path(__file__).parent / "gpus"


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
    path = Path(source)
    if path.suffix != ".json":
        name = str(source).lower()
        if name not in hardware_names():
            raise unknown_name("GPU", source, hardware_names())
        path = _FOLDER / f"{name}.json"
    try:
        return _hardware(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise _refused(path, f"it cannot be read ({error.strerror})") from None
    except ValueError:
        raise _refused(path, "it is not JSON") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise _refused(path, f"it misses {error}") from None


def save_hardware(hardware: Hardware, path: str | os.PathLike[str]) -> Path:
    """Write hardware to a file that `load_hardware` reads, and return its path."""
    target = Path(path)
    target.write_text(json.dumps(_mapping(hardware), indent=2) + "\n", encoding="utf-8")
    return target


def _refused(path: Path, why: str) -> ConfigError:
    sentence = f"Hardware file '{path}': {why}; write one with save_hardware."
    return ConfigError([Problem("hardware", "path", str(path), sentence)])


def _hardware(content: dict[str, Any]) -> Hardware:
    return Hardware(
        name=content["name"],
        memory_gib=float(content["memory_gib"]),
        memory_bandwidth=float(content["memory_bandwidth"]),
        peak_flops=dict(content["peak_flops"]),
        domain_ranks=int(content["domain_ranks"]),
        domain=Link(**content["domain"]),
        network=Link(**content["network"]),
        efficiency=Efficiency(**content["efficiency"]),
        sources=dict(content.get("sources", {})),
    )


def _mapping(hardware: Hardware) -> dict[str, Any]:
    def plain(value: object) -> Any:
        return dict(vars(value))

    content: dict[str, Any] = plain(hardware)
    for name in ("domain", "network", "efficiency"):
        content[name] = plain(content[name])
    content["efficiency"]["matrix"] = dict(content["efficiency"]["matrix"])
    content["peak_flops"], content["sources"] = dict(hardware.peak_flops), dict(hardware.sources)
    return content
