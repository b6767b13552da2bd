"""What a machine can do (arithmetic, memory and links), shipped or from the user's hardware file.

A hardware file is JSON or YAML with the fields of `Hardware`. `save_hardware` writes one, and
calibration writes one for the machine at hand. `gpus/h100.json` is an example. Bandwidths are in
bytes per second and rank, times in seconds, `peak_flops` in operations per second. Everything under
`efficiency` except `kernel` and `half_width` is a share of the specification.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.sizes import Numbers
from mimokit.config.yaml_file import read_yaml

OUT_OF_BOUNDS = "out_of_bounds"
"""Type of the errors whose message ends the sentence about a field of a hardware file."""


def _bounded(what: str, above: str | None = None) -> Any:
    def check(value: object, inner: ValidatorFunctionWrapHandler) -> object:
        try:
            return inner(value)
        except ValidationError as error:
            too_large = error.errors()[0]["type"] == "less_than_equal"
            said = above if above and too_large else what
            raise PydanticCustomError(OUT_OF_BOUNDS, "{what}", {"what": said}) from None

    return WrapValidator(check)


LEAST, MOST = 1e-6, 1e18
"""Bounds of sizes and rates. Within them no prediction overflows or divides by 0."""

Rate = Annotated[
    float,
    Field(strict=True, ge=LEAST, le=MOST),
    _bounded(f"must be a number above 0, from {LEAST:g} to {MOST:g}"),
]
Count = Annotated[
    int,
    Field(strict=True, ge=1, le=10**6),
    _bounded("must be a whole number of at least 1 and at most 1,000,000"),
]
Seconds = Annotated[
    float,
    Field(strict=True, ge=0, le=3600),
    _bounded("must be a number of at least 0 and at most 3600"),
]
Width = Annotated[
    float,
    Field(strict=True, ge=0, le=1e9),
    _bounded("must be a number of at least 0 and at most 1e+09"),
]
Share = Annotated[
    float,
    Field(strict=True, ge=LEAST, le=1),
    _bounded(
        "must be a number above 0, from 1e-06 to 1",
        above="is a share of the specification; it is at most 1",  # probably a percentage
    ),
]
Text = Annotated[str, Field(strict=True), _bounded("must be text; put it in quotes")]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class RankLink:
    """One kind of connection between ranks.

    Attributes:
        bandwidth: bytes per second that one rank can send while it receives the same number.
        latency: least seconds of a collective.
    """

    bandwidth: Rate
    latency: Seconds

    __pydantic_config__ = _STRICT


UNKNOWN_LINK = RankLink(bandwidth=LEAST, latency=0.0)
"""In place of a link that was not measured: layouts over it are refused, see `has_links`."""


@dataclass(frozen=True)
class Efficiency:
    """The part of the specification that programs reach.

    Attributes:
        matrix: share of peak arithmetic that large matrix products sustain, per precision.
        attention: share of peak 16-bit arithmetic that a fused attention core sustains.
        memory: share of memory bandwidth that elementwise kernels reach.
        links: share of link bandwidth inside a domain that collectives reach.
        kernel: seconds that a kernel loses at its start and end, whatever its size.
        half_width: width of a matrix on one rank at which a product takes twice as long as `matrix`
            says. Narrow experts and thin shards lose time; wide matrices reach `matrix`.
    """

    matrix: Annotated[Mapping[str, Share], Field(min_length=1)]
    attention: Share
    memory: Share
    links: Share
    network: Share
    kernel: Seconds
    half_width: Width = 0.0

    __pydantic_config__ = _STRICT


ByRanks = Mapping[Annotated[int, Field(ge=1)], Rate]


@dataclass(frozen=True)
class Cores:
    """The cores of a host whose ranks compute on its CPU; rates are those of one core.

    Attributes:
        shared: ranks of a host that train -> CPU seconds per second that they get together.
        latency: the same -> seconds of a rank's part in a collective; it is that of `domain` where
            this is empty. Ranks that have a core each wait for each other's threads to wake up.
        micro_batch: CPU seconds of a module per micro-batch, outside its layers.
        step: CPU seconds of a rank per step, outside passes, gradients and optimizer.
    """

    shared: Annotated[ByRanks, Field(min_length=1)]
    micro_batch: Seconds
    step: Seconds
    latency: ByRanks = field(default_factory=dict)

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Hardware:
    """One GPU of a cluster, or one core of its CPUs, and its links.

    Attributes:
        peak_flops: precision -> floating-point operations per second, dense.
        domain_ranks: ranks that the fast links (NVLink) connect.
        domain: link between ranks of a domain.
        network: link between domains, per rank.
        cores: of a host, where ranks compute on its CPU; None: each rank has a device.
    """

    name: Text
    memory_gib: Rate
    memory_bandwidth: Rate
    peak_flops: Annotated[Mapping[str, Rate], Field(min_length=1)]
    domain_ranks: Count
    domain: RankLink
    network: RankLink
    efficiency: Efficiency
    sources: Mapping[str, Text] = field(default_factory=dict)
    cores: Cores | None = None

    __pydantic_config__ = _STRICT

    @property
    def memory_bytes(self) -> float:
        """Bytes that a process can use."""
        return self.memory_gib * 2**30

    @property
    def has_links(self) -> bool:
        """Whether the links between ranks are known."""
        return UNKNOWN_LINK not in (self.domain, self.network)

    def ranks_per_core(self, ranks: Numbers) -> Numbers:
        """Return how many ranks a core has if so many train; 1 if they have devices."""
        if self.cores is None:
            return 1.0
        shared: Numbers = self._here(ranks) / self._between(self.cores.shared, ranks)
        return shared

    def with_ranks(self, ranks: int) -> Hardware:
        """Return the hardware with the latency that collectives have if so many ranks train."""
        if self.cores is None or not self.cores.latency:
            return self
        link = replace(self.domain, latency=float(self._between(self.cores.latency, ranks)))
        network = link if self.network == self.domain else self.network
        return replace(self, domain=link, network=network)

    def _here(self, ranks: Numbers) -> Numbers:
        return np.minimum(ranks, self.domain_ranks)

    def _between(self, known: Mapping[int, float], ranks: Numbers) -> Numbers:
        """Return a value between those of measured numbers of ranks; beyond them the nearest."""
        numbers = sorted(known)
        values = [known[number] for number in numbers]
        between: Numbers = np.interp(np.asarray(self._here(ranks)), numbers, values)
        return between

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that time can be predicted for."""
        return tuple(p for p in self.peak_flops if p in self.efficiency.matrix)


_FOLDER = Path(__file__).parent / "gpus"
_SUFFIXES = (".json", ".yaml", ".yml")
_RECORDS: Mapping[str, type[RankLink] | type[Efficiency] | type[Cores]] = {
    "cores": Cores,
    "domain": RankLink,
    "network": RankLink,
    "efficiency": Efficiency,
}
_HARDWARE = TypeAdapter(Hardware)


@cache
def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped hardware."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_hardware(source: str | os.PathLike[str] | Hardware) -> Hardware:
    """Return hardware by its shipped name, or from a file that `save_hardware` wrote.

    What shops and CUDA call it is understood as well: RTX A6000, NVIDIA H100 80GB HBM3.

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
    return _shipped(_shipped_name(str(source).lower()))


_COMMON = frozenset({"nvidia", "tesla", "rtx", "sxm", "sxm2", "sxm4", "sxm5", "sxm6"} | {
    "hbm2", "hbm2e", "hbm3", "hbm3e", "gpu",
})  # fmt: skip
"""Words next to the name of a GPU of which the shipped file is."""


def _shipped_name(name: str) -> str:
    names = hardware_names()
    words = [word for word in re.split(r"[^a-z0-9]+", name) if word and word not in _COMMON]
    for known in () if name in names or not words else names:
        size = re.fullmatch(r"NVIDIA .* (\d+)GB", _shipped(known).name)
        right = [known.split("-"), [known.split("-")[0], f"{size[1]}gb"]] if size else []
        if words in right:
            return known
    return name


def save_hardware(hardware: Hardware, path: str | os.PathLike[str]) -> Path:
    """Write hardware to a JSON file that `load_hardware` reads, and return its path."""
    target = Path(path)
    content = {name: value for name, value in asdict(hardware).items() if value is not None}
    target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return target


def hardware_from_mapping(content: Mapping[str, Any], where: str) -> Hardware:
    """Return the hardware that a mapping describes."""
    try:
        hardware = _HARDWARE.validate_python(content)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError([_problem(where, detail) for detail in details]) from None
    refuse_if_any(_unknown_precisions(hardware, where))
    return hardware


@cache
def _shipped(name: str) -> Hardware:
    if name not in hardware_names():
        raise unknown_name("GPU", name, hardware_names())
    path = _FOLDER / f"{name}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    return hardware_from_mapping(content, f"Hardware '{name}'")


def _problem(where: str, detail: Any) -> Problem:
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
