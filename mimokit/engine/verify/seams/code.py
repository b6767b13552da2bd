"""The source lines that compute what is recorded, as `path/in/package.py:line`."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from mimokit.engine.bridges.colocated import ColocatedBridgeCommunicator
from mimokit.engine.parallel.loss import vocab_parallel_cross_entropy
from mimokit.engine.parallel.update import MainGradUpdate, finalize_model_grads
from mimokit.engine.pipeline.communicator import MultiModulePipelineCommunicator
from mimokit.engine.pipeline.encoder_stages import EncoderStage
from mimokit.engine.pipeline.language_stages import LanguageStage
from mimokit.engine.pipeline.packing import assemble
from mimokit.planning.seams import BRIDGE, GIVEN_ROWS, LOSS, ROWS, SeamPhase
from mimokit.planning.types import LayoutPlan

_BETWEEN = (
    "torch/nn/modules/module.py",
    "megatron/core/transformer/module.py",
    "mimokit/engine/verify/seams/",
)
"""Files of the frames between a line that calls a module and a hook on it."""


def line_of_call() -> str:
    """Return the line that called the module of which a hook runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        if not any(part in path for part in _BETWEEN):
            return f"{_short(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def lines_of_step(plan: LayoutPlan) -> Mapping[tuple[str, str], str]:
    """Return the functions of a layout's step outside of its modules, as `Recording.code`."""
    crossing: Any = assemble
    if plan.disjoint_bridges:
        crossing = MultiModulePipelineCommunicator.receive
    elif plan.deployment_mode == "colocated":
        crossing = ColocatedBridgeCommunicator.cross
    functions = {
        BRIDGE: crossing,
        ROWS: EncoderStage._forward,
        GIVEN_ROWS: LanguageStage._forward,
        LOSS: vocab_parallel_cross_entropy,
        SeamPhase.REDUCED: finalize_model_grads,
        SeamPhase.NORM: MainGradUpdate.norm,
        SeamPhase.WEIGHT: MainGradUpdate.step,
    }
    return {("", str(name)): _line_of(function) for name, function in functions.items()}


def _line_of(function: Any) -> str:
    code = inspect.unwrap(function).__code__
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


def _short(path: str) -> str:
    for root, package in (("/site-packages/", ""), ("/mimokit/", "mimokit/")):
        before, _, after = path.replace("\\", "/").rpartition(root)
        if before:
            return package + after
    return path
