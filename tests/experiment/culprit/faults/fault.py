"""What a fault changes on the ranks, and how it should be named."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import CulpritReport, Reference, compute_reference, explain
from mimokit.planning.seams import SeamPhase
from tests.planted import planted

LANGUAGE, IMAGES = "language_module", "images"
FORWARD, BACKWARD, REDUCED = SeamPhase.FORWARD, SeamPhase.BACKWARD, SeamPhase.REDUCED
LAST = "decoder.layers.1"

STEPS = 1
"""All faults of the list show in the first step."""

_references: list[Reference] = []


def reference_of(cluster: EngineCluster, config: ExperimentConfig) -> Reference:
    """Return one process of a layout, computed once for all layouts of a model."""
    found = next((one for one in _references if one.is_for(config, STEPS)), None)
    if found is None:
        found = compute_reference(cluster, config, steps=STEPS)
        _references.append(found)
    return found


@dataclass(frozen=True)
class Fault:
    """A fault, and the right answer.

    Attributes:
        make: takes the original, returns what takes its place; runs on the rank.
        module, operation, phase: of the first tensor that differs; of the operation its end.
        kind: a part of the words that name the pattern; empty: the fault has none.
        ranks: whose part is wrong; None: not known.
        code: the line that is named, as a pattern; empty: not known.
    """

    name: str
    config: Callable[[], ExperimentConfig]
    target: str
    make: Callable[[Any], Any]
    module: str
    operation: str
    phase: SeamPhase
    kind: str = ""
    ranks: tuple[int, ...] | None = None
    code: str = ""

    def explained(self, cluster: EngineCluster, precision: str | None = None) -> CulpritReport:
        """Run the layout with the fault."""
        config = self.config()
        config.runtime.precision = precision
        config = config.finalize()
        reference = reference_of(cluster, config)
        make = partial(_in_layouts, self.make)
        with planted(cluster, self.target, make, config.model.total_world_size):
            return explain(cluster, config, steps=STEPS, reference=reference)

    def wrong(self, found: CulpritReport) -> str:
        """Return what of an answer is wrong; nothing if it is right."""
        first = found.divergence
        if first is None:
            return "nothing was found"
        seam = first.seam
        right = (
            seam.module == self.module
            and seam.operation.endswith(self.operation)
            and seam.phase == self.phase
            and self.kind in first.kind
            and self.ranks in (None, first.found.ranks)
            and re.search(self.code, first.code) is not None
        )
        return "" if right else found.verdict


def on_rank(wrong: int, make: Callable[[Any], Any], original: Any) -> Any:
    """Plant a fault on one rank alone."""
    changed = make(original)

    def either(*args: Any, **named: Any) -> Any:
        import torch.distributed as dist

        return (changed if dist.get_rank() == wrong else original)(*args, **named)

    return either


def _in_layouts(make: Callable[[Any], Any], original: Any) -> Any:
    """Plant a fault in worlds of several ranks alone: one process stays right."""
    wrong = make(original)

    @wraps(original)
    def either(*args: Any, **named: Any) -> Any:
        import torch.distributed as dist

        return (wrong if dist.get_world_size() > 1 else original)(*args, **named)

    return either


def scaled(factor: float, original: Any) -> Any:
    """Multiply what a function returns."""
    return lambda *args, **named: original(*args, **named) * factor
