"""What a monitor says of a run before its first step: layout, phases, the predicted step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mimokit.analysis.many_runs import predicted_if_known
from mimokit.axes import GRID_AXES, Axis
from mimokit.charts import _palette
from mimokit.planning.ranks import ModuleRanks
from mimokit.step_kinds import REMAINDER
from mimokit.units import counted
from mimokit_widgets.live.rows import WAITING

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource


def colored_phases(
    columns: Mapping[str, str], hues: Mapping[str, str]
) -> list[dict[str, str | None]]:
    """Return name, colour and column of every phase; the remainder, the last one, has no column."""
    colors = {**_palette.PHASE_COLORS, WAITING: _palette.WAITING, **_palette.pass_colors(hues)}
    return [
        {"name": name, "color": colors[name], "column": columns.get(name)}
        for name in [*columns, REMAINDER]
    ]


def layout_in_words(plan: Any) -> str:
    """Return mode, ranks and sizes: of a layout, of each of its replicas, or of a fit's nodes."""
    modules = ", ".join(
        f"{name} " + "·".join(f"{axis.label}{size}" for axis, size in _sizes(ranks))
        for name, ranks in plan.modules.items()
        if ranks is not None
    )
    words = f"{plan.deployment_mode} on {counted(plan.world_size, 'rank')}"
    replicas = getattr(plan, "replicas", None)
    if replicas is not None:
        each = counted(replicas.layout_ranks, "rank")
        name = replicas.config.name
        words += f", {counted(replicas.replicas, 'replica')} of {each} with {name}"
    return f"{words}: {modules}" if modules else words


def predicted_for(config: Any, hardware: HardwareSource | None) -> dict[str, float | str] | None:
    """Return the predicted seconds of a step with their band, as `predicted_if_known` does."""
    known = predicted_if_known(config, hardware)
    if known is None:
        return None
    seconds, low, high = known
    return {"seconds": seconds, "low": low, "high": high, "words": "predicted"}


def _sizes(ranks: ModuleRanks) -> Iterator[tuple[Axis, int]]:
    for axis in GRID_AXES:
        size = ranks.size_of(axis)
        if size > 1 or axis in (Axis.TENSOR, Axis.DATA):
            yield axis, size
