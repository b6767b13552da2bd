"""Closed form of the passes of modules on separate ranks, for one layout or an array of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.config.runtime import GPIPE, PipelineOrder
from mimokit.prediction.paths import Edges, around


@dataclass(frozen=True)
class ModulePass:
    """The seconds of one micro-batch in a module.

    Attributes:
        busy: forward and backward in its slowest stage.
        forward: the part of `busy` in the forward pass.
        others: in its other stages, if it is the slowest module.
        passed: in all stages, of a micro-batch on its way to other modules.
        stages: of its pipeline.
    """

    busy: Numbers
    forward: Numbers
    others: Numbers
    passed: Numbers
    stages: Numbers


def seconds_of_passes(
    edges: Edges, modules: Mapping[str, ModulePass], count: Numbers, order: PipelineOrder | None
) -> Numbers:
    """Return the seconds of `count` micro-batches through a graph of modules.

    They are those of the module for which they are most. Its slowest stage computes all
    micro-batches, after the first has passed all modules before it and until the last has passed
    them back. What is behind it delays it twice: its first backward, as far as the forwards that it
    computes ahead, one for each stage behind it, are done sooner; and its last backwards likewise.
    """
    paths = around(edges, {name: module.passed for name, module in modules.items()})
    depths = around(edges, {name: module.stages for name, module in modules.items()})
    most: Numbers = 0.0
    for name, module in modules.items():
        back = module.others + paths[name][1]
        waits = back
        if order != GPIPE:
            forwards = np.minimum(count - 1, module.stages - 1 + depths[name][1])
            first = np.maximum(0.0, back - forwards * module.forward)
            last = np.maximum(0.0, back - forwards * (module.busy - module.forward))
            waits = np.minimum(back, first + last)
        most = np.maximum(most, count * module.busy + paths[name][0] + waits)
    return most
