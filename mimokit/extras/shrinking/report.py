"""Explains a layout of any number of ranks on small layouts that have all its kinds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mimokit.axes import CONFIG_FIELDS, SHOWN_AXES, short_sizes
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import CulpritReport, explain
from mimokit.experiment.tolerances import STEPS
from mimokit.extras.shrinking.layout import MOST_RANKS, shrunk
from mimokit.planning import ConfigSource
from mimokit.planning.layout import checked_config
from mimokit.tables import Report, Section
from mimokit.units import counted

COLUMNS = ("layout", "ranks", "sizes", "tensors", "differing")


@dataclass(frozen=True, repr=False)
class ShrunkReport(Report):
    """Small layouts in place of a large one, each compared with one process.

    Attributes:
        ranks: of the large layout.
        layouts: the small ones, which together have every kind of group, bridge and schedule
            pattern; see `mimokit.extras.shrinking`.
        reports: one of each that was compared; none follows one that differs.
    """

    name: str
    ranks: int
    layouts: tuple[ExperimentConfig, ...]
    reports: tuple[CulpritReport, ...]

    @property
    def passed(self) -> bool:
        """Whether no tensor of any differs by more than is allowed."""
        return all(report.passed for report in self.reports)

    @property
    def verdict(self) -> str:
        """What was compared in place of the layout, and what was found."""
        sizes = " and ".join(str(layout.total_world_size) for layout in self.layouts)
        instead = f"In place of {counted(self.ranks, 'rank')} of {self.name!r}: {sizes} ranks, "
        return (
            f"{instead}with every kind of group, bridge and schedule pattern, networks made small. "
            f"{self.reports[-1].verdict}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "passed": self.passed,
            "verdict": self.verdict,
            "layouts": [layout.to_mapping() for layout in self.layouts],
            "reports": [report.to_json() for report in self.reports],
        }

    def section(self) -> Section:
        """Return a row per layout; the last line is the sentence."""
        return Section("Small layouts", COLUMNS, list(self._rows()), (self.verdict,))

    def _rows(self) -> Iterator[list[str]]:
        for layout, report in zip(self.layouts, self.reports, strict=False):
            differing = sum(tensor.differs for tensor in report.compared)
            yield [
                layout.name, str(layout.total_world_size), _sizes(layout),
                str(len(report.compared)), str(differing),
            ]  # fmt: skip


def explain_shrunk(
    cluster: EngineCluster, config: ConfigSource, *, steps: int = STEPS
) -> ShrunkReport:
    """Shrink a layout to what the cluster has room for, and explain each small layout.

    Raises:
        ConfigError: the config is wrong, or cannot be made so small, or cannot run.
        RankError: a rank fails.
    """
    checked = checked_config(config)
    layouts = shrunk(checked, min(MOST_RANKS, len(cluster)))
    reports: list[CulpritReport] = []
    for number, layout in enumerate(layouts, 1):
        layout.name = f"{checked.name}, small {number}"
        reports.append(explain(cluster, layout, steps=steps))
        if not reports[-1].passed:
            break
    return ShrunkReport(checked.name, checked.total_world_size, layouts, tuple(reports))


def _sizes(layout: ExperimentConfig) -> str:
    words = []
    for name, module in layout.model.module_parallelisms.items():
        sizes = {axis: getattr(module, CONFIG_FIELDS[axis]) for axis in SHOWN_AXES}
        words.append(f"{name} {short_sizes(sizes) or '1 rank'}")
    return " · ".join(words)
