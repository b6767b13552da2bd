"""Opens the stepper where the first tensor that differs is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.cluster import EngineCluster
from mimokit.experiment.prepare import Config
from mimokit.experiment.stepper import Stepper
from mimokit.experiment.stepping.ranks import StepperError
from mimokit.planning.seams import BRIDGE, SeamPhase
from mimokit.step_kinds import StepKind

if TYPE_CHECKING:
    from mimokit.experiment.culprit.report import CulpritReport

_KINDS = {
    SeamPhase.FORWARD: StepKind.FORWARD,
    SeamPhase.BACKWARD: StepKind.BACKWARD,
    SeamPhase.ACCUMULATED: StepKind.BACKWARD,
    SeamPhase.REDUCED: StepKind.GRAD_SYNC,
    SeamPhase.NORM: StepKind.OPTIMIZER,
    SeamPhase.WEIGHT: StepKind.OPTIMIZER,
}


def stepper_at(cluster: EngineCluster, config: Config, report: CulpritReport) -> Stepper:
    """Return a stepper of a layout that has done the step that makes the first wrong tensor.

    Args:
        config: of the layout of the report.

    Raises:
        ValueError: no tensor of the report differs.
        StepperError, ConfigError, RankError: as `Stepper`.
    """
    if report.divergence is None:
        raise ValueError(f"No tensor of {report.name!r} differs, so there is no step to show.")
    stepper = Stepper(cluster, config)
    seam = report.divergence.seam
    if seam.step < 0:  # it was wrong before anything was done
        return stepper
    for _ in range(seam.step):
        stepper.run_until(action=StepKind.REPORT)
    kind, module = _KINDS[seam.phase], seam.module or None
    if seam.operation == BRIDGE and seam.phase == SeamPhase.FORWARD:
        module = stepper.plan.topology[seam.module][0]  # where it arrives
    microbatch = report.divergence.microbatch
    for asked in ((module, microbatch), (None, microbatch), (None, None)):
        try:
            stepper.run_until(action=kind, module=asked[0], microbatch=asked[1])
            break
        except StepperError:
            continue  # a step of all modules of a rank has no module
    return stepper
