"""The seconds of one step as columns: of the rank, of every module, and of phases timed by hand."""

from collections import defaultdict
from collections.abc import Iterable

from mimokit.samples import MODULE_COLUMNS, STEP_COLUMNS, Row, module_column
from mimokit.step_kinds import (
    MODULE_PHASES,
    POINT_TO_POINT,
    RANK_PHASES,
    CommunicationPart,
    Phase,
    StepKind,
)

_OF_STEP, _OF_MODULE = frozenset(STEP_COLUMNS), frozenset(MODULE_COLUMNS)
PHASE_COLUMNS = {str(kind): kind.phase.column for kind in StepKind}
_OF_COMMUNICATION = tuple(kind.column for kind in CommunicationPart)
_TRAFFIC = {
    str(kind): CommunicationPart.POINT_TO_POINT
    if kind in POINT_TO_POINT
    else CommunicationPart.COLLECTIVE
    for kind in StepKind
    if kind.phase is Phase.COMMUNICATION
}
_MODULE_COLUMNS = (
    *(phase.column for phase in (*MODULE_PHASES, Phase.COMMUNICATION, Phase.OPTIMIZER)),
    *_OF_COMMUNICATION,
)
_RANK_COLUMNS = (*(phase.column for phase in (*MODULE_PHASES, *RANK_PHASES)), *_OF_COMMUNICATION)


class PhaseTimes:
    """Adds up the seconds of one step.

    Attributes:
        own: column of `StepSample` -> seconds of this rank.
        modules: module -> column of `ModuleSample` -> seconds.
        others: further column -> seconds.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self.own: Row = dict.fromkeys(_RANK_COLUMNS, 0.0)
        self.modules: dict[str, Row] = defaultdict(dict)
        for module in modules:
            self.modules[module] = dict.fromkeys(_MODULE_COLUMNS, 0.0)
        self.others: Row = {}

    def add_phase(self, module: str | None, name: str, seconds: float) -> None:
        """Add a step of the schedule, or a phase that was timed by hand.

        The communication of a phase timed by hand may be of either kind: neither column has it.
        """
        column = PHASE_COLUMNS.get(name, f"{name}_time")
        _add(self.own if column in _OF_STEP else self.others, column, seconds)
        if module is not None and column in _OF_MODULE:
            _add(self.modules[module], column, seconds)
        elif module is not None:
            _add(self.others, module_column(module, column), seconds)
        if name in _TRAFFIC:
            self._add(module, _TRAFFIC[name], seconds)

    def add_reduction(self, module: str, seconds: float) -> None:
        """Add the reduction of a module's gradients, which is part of a step of the whole rank."""
        for column in (Phase.COMMUNICATION.column, CommunicationPart.COLLECTIVE.column):
            _add(self.modules[module], column, seconds)

    def add_update(self, module: str, seconds: float) -> None:
        """Add the update of a module's weights, which is part of a step of the whole rank."""
        _add(self.modules[module], Phase.OPTIMIZER.column, seconds)

    def add_wait(self, module: str | None, seconds: float) -> None:
        """Add a wait, which is part of a step of communication."""
        self._add(module, CommunicationPart.WAITING, seconds)

    def move_to_collective(self, module: str | None, seconds: float) -> None:
        """Move seconds of point-to-point steps to the collectives."""
        self._add(module, CommunicationPart.POINT_TO_POINT, -seconds)
        self._add(module, CommunicationPart.COLLECTIVE, seconds)

    def _add(self, module: str | None, traffic: CommunicationPart, seconds: float) -> None:
        _add(self.own, traffic.column, seconds)
        if module is not None:
            _add(self.modules[module], traffic.column, seconds)


def _add(row: Row, column: str, seconds: float) -> None:
    row[column] = row.get(column, 0.0) + seconds
