"""What a machine can do: arithmetic, memory and links, with the sources of the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

OUT_OF_BOUNDS = "out_of_bounds"
"""Type of the errors whose message ends the sentence about a field of a hardware file."""


def _bounded(what: str) -> Any:
    """Return a rule that says `what` about every value outside its type and bounds."""

    def check(value: object, inner: ValidatorFunctionWrapHandler) -> object:
        try:
            return inner(value)
        except ValidationError:
            raise PydanticCustomError(OUT_OF_BOUNDS, "{what}", {"what": what}) from None

    return WrapValidator(check)


def _share(value: object, inner: ValidatorFunctionWrapHandler) -> object:
    """Check a share; one above 1 is probably a percentage."""
    try:
        return inner(value)
    except ValidationError as error:
        above = error.errors()[0]["type"] == "less_than_equal"
        what = (
            "is a share of the specification; it is at most 1"
            if above
            else "must be a number above 0, from 1e-06 to 1"
        )
        raise PydanticCustomError(OUT_OF_BOUNDS, "{what}", {"what": what}) from None


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
Share = Annotated[float, Field(strict=True, ge=LEAST, le=1), WrapValidator(_share)]
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


@dataclass(frozen=True)
class Efficiency:
    """The part of the specification that programs reach.

    Attributes:
        matrix: share of peak arithmetic that large matrix products sustain, per precision.
        attention: share of peak 16-bit arithmetic that a fused attention core sustains.
        memory: share of memory bandwidth that elementwise kernels reach.
        links: share of link bandwidth inside a domain that collectives reach.
        network: the same between domains.
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


@dataclass(frozen=True)
class Hardware:
    """One GPU (or CPU core) of a cluster and its links.

    Attributes:
        name: of the GPU or machine.
        memory_gib: GiB that a process can use.
        memory_bandwidth: bytes per second.
        peak_flops: precision -> floating-point operations per second, dense.
        domain_ranks: ranks that the fast links (NVLink) connect.
        domain: link between ranks of a domain.
        network: link between domains, per rank.
        efficiency: the part of all this that programs reach.
        sources: where the numbers are from.
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

    __pydantic_config__ = _STRICT

    @property
    def memory_bytes(self) -> float:
        """Bytes that a process can use."""
        return self.memory_gib * 2**30

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that time can be predicted for."""
        return tuple(p for p in self.peak_flops if p in self.efficiency.matrix)
