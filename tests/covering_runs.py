"""Which layouts `make test` compares with one process: few that together have all that runs.

A whole run takes seconds of eight processes. The suite takes some drawn layouts, which have nearly
every field in every mode, one whole run of each kind, and so many more that every (mode, part of
the model, field) that runs is in one of them, and fan-in and fan-out of encoders and adapters in
every mode, as `tests/test_whole_runs.py` sees to. All others are marked `beyond` the suite;
`make test-beyond` runs them. `python -m tests.covering_runs` chooses anew and prints what is to
stand here.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Set
from pprint import pformat
from typing import Any

import pytest

from mimokit.config import ExperimentConfig

DRAWN = (
    105, 203, 239, 286, 310, 432, 649, 696, 843, 948, 1035, 1056, 1097, 1178, 1205, 1263,
)  # fmt: skip
"""Numbers of `tests.layouts_drawn.numbered_config`.

Once that draws otherwise, numbers stand for other layouts: these are then chosen again, for what
they cover. `python -m benchmarks.drawn_layouts` verifies two hundred.
"""

GRAPHS = 3, 6, 7
"""Numbers of `numbered_graph`: with adapters, several receivers and decoders of items."""

COVERING: Mapping[str, tuple[str, ...]] = {
    "a decoder": ("fan-out to two stages",),
    "a decoder behind a model of which nothing is trained": ("two stages",),
    "a decoder next to a frozen module": ("writer",),
    "a distributed optimizer": ("colocated",),
    "a frozen module on separate ranks": ("dino",),
    "a frozen part of an encoder": ("encoder",),
    "a language model alone": ("four stages",),
    "a text head": ("shared ranks",),
    "a whole LLaVA": ("homogeneous",),
    "a whole MiMo": ("shards and stages",),
    "a whole Qwen-VL": ("colocated",),
    "absent modalities on separate ranks": ("three encoders",),
    "absent modalities on shared ranks": ("mixed",),
    "an adapter": ("with experts, recomputed", "of replicas that shard states, with dropout"),
    "an adapter next to frozen modules": ("images",),
    "an adapter on shared ranks": (
        "homogeneous TP2PP2DP2, with dropout",
        "homogeneous CP2DP2, with experts",
        "colocated, fan-in, then fan-out",
        "colocated, in front of another in stages",
        "colocated CP2, with experts",
    ),
    "an encoder behind the language model": ("of two replicas",),
    "an image decoder": ("frozen, with dropout",),
    "bf16": ("shards of states",),
    "chunks and orders": (
        "homogeneous, interleaved, ends as layers",
        "colocated, chunks of all in stages, passes of 3",
        "heterogeneous, chunks of all",
    ),
    "context parallelism": ("a decoder that pads, in slices", "an adapter"),
    "dropout of parts of samples": ("contexts",),
    "encoders behind two replicas": ("one",),
    "encoders of different depth": ("on stages",),
    "encoders on shared ranks": ("dino frozen",),
    "experts": (
        "EP2 ETP2 on separate ranks, gathered",
        "of encoders whose images replicas share, dropping",
        "of encoders on tensor and context ranks",
        "of a decoder that balances rows of stages",
    ),
    "fp16": ("colocated",),
    "fp8": (
        "colocated",
        "latent attention on contexts",
        "recomputed, overlapped",
        "layers in full shards",
    ),
    "frames that replicas share": ("stages, any size, dropout",),
    "images of any size on separate ranks": ("two stages into two",),
    "images of any size on shared ranks": ("fan-in",),
    "inner layers": ("stages, recomputed",),
    "keys without a bias": ("in an encoder and behind it",),
    "latent attention": ("samples in a row on contexts",),
    "layers in full shards": ("colocated, without items and with dropout", "a decoder"),
    "modules that start from weights": ("a pooling head",),
    "multi-token prediction": ("all cuts on shared ranks",),
    "networks": ("qwen3 clip TP1PP1DP4-TP4PP1DP1",),
    "overlapped reduction": ("colocated",),
    "pipelines on shared ranks": ("colocated TP2PP2DP2, stages of encoders, passes of 2",),
    "pooling heads": ("recomputed, dropping, in full shards",),
    "positions of encoders": ("rotary, stages",),
    "recomputed layers with dropout": ("a decoder",),
    "replicas": ("sparse_loco, full shards",),
    "samples in a row": ("learned positions of a decoder",),
    "sequence parallelism": ("a decoder",),
    "several receivers": ("in chunks, with inner layers",),
    "sizes on separate ranks": ("TP1PP1DP1-TP1PP1DP1 x1",),
    "sizes on shared ranks": ("TP1DP4-TP4DP1 x3",),
    "tied embeddings on stages": ("2 stages",),
    "windows": ("dropout on contexts",),
}
"""What runs prove -> the names of those in the suite."""


def parameter(value: Any, name: str, *, in_the_suite: bool) -> Any:
    """Return a parameter of a test, marked if it is beyond the suite."""
    return pytest.param(value, id=name, marks=() if in_the_suite else pytest.mark.beyond)


def in_and_beyond(names: Iterable[str], beyond: Collection[str]) -> list[Any]:
    """Return parameters of a test, of which some are beyond the suite."""
    missing = set(beyond) - set(names)
    assert not missing, f"no such parameters: {missing}"
    return [parameter(name, name, in_the_suite=name not in beyond) for name in names]


def choose(
    held: Mapping[tuple[str, str], Set[Hashable]],
) -> dict[str, tuple[str, ...]]:
    """Return few runs that hold all that is held, and one at least of each kind.

    The run that holds most of what is still missing comes next (greedy set cover); of equal ones
    that of a new kind, then the one that holds most.

    Args:
        held: (what it proves, its name) -> what a run holds.
    """
    chosen: set[tuple[str, str]] = set()
    kinds = {proves for proves, _ in held}
    missing: set[Hashable] = set().union(*held.values())
    while missing or kinds:
        best = max(held, key=lambda run: _worth(run[0], held[run], missing, kinds))
        chosen.add(best)
        missing -= held[best]
        kinds.discard(best[0])
    of_kind: dict[str, tuple[str, ...]] = {}
    for proves, name in held:
        if (proves, name) in chosen:
            of_kind[proves] = (*of_kind.get(proves, ()), name)
    return of_kind


def _worth(
    proves: str, holds: Set[Hashable], missing: Set[Hashable], kinds: Set[str]
) -> tuple[int, bool, int]:
    return len(missing & holds), proves in kinds, len(holds)


def fans(config: ExperimentConfig) -> frozenset[tuple[str, str, str]]:
    """Return (mode, part of the model, fan-in, fan-out or equal) of the bridges of a layout."""
    model = config.model
    sizes = {name: module.data_parallel for name, module in model.module_parallelisms.items()}
    found = set()
    for name in model.encoder_module_names:
        part = "adapter" if name in model.adapter_module_names else "encoder"
        for receiver in model.receivers_of(name):
            ours, theirs = sizes[name] or 1, sizes[receiver] or 1
            kind = "fan-in" if ours > theirs else "fan-out" if ours < theirs else "equal"
            found.add((str(model.deployment_mode), part, kind))
    return frozenset(found)


def _print_anew() -> None:
    from tests.test_whole_runs import held_by, held_by_drawn
    from tests.whole_runs import WHOLE_RUNS

    drawn = frozenset().union(*held_by_drawn())
    others = {(run.proves, run.name): held_by(run) - drawn for run in WHOLE_RUNS}
    print(pformat(choose(others), width=100))


if __name__ == "__main__":
    _print_anew()
