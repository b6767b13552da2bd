"""The ticks of an optimizer step as small cells: where the stepper stands in the whole."""

from __future__ import annotations

from html import escape

from mimokit.charts._palette import PHASE_COLORS, forward_color, module_colors
from mimokit.experiment import Stepper
from mimokit.planning.stepper import PlannedStep
from mimokit.step_kinds import BRIDGES, RECEIVES, SENDS, Phase

LEFT, WIDTH, ROW = 150.0, 900.0, 15.0
CELL = 18.0


def clock_svg(stepper: Stepper) -> str:
    """Return a row per stage (of shared ranks: one row) and a column per tick."""
    lanes, clock = _lanes(stepper), stepper.clock
    cell = min(CELL, WIDTH / len(clock))
    number = -1 if stepper.now is None else stepper.now.number
    here = number % len(clock) if number >= 0 else -1
    first = number - here
    colors = module_colors(stepper.plan.modules)
    differing = {each.number for each in stepper.snapshots if each.differences}
    parts = []
    for lane, (name, rank) in enumerate(lanes):
        y = 2 + lane * ROW
        label = f'<text class="muted" x="{LEFT - 8}" y="{y + 10}" text-anchor="end">'
        parts.append(f"{label}{escape(name)}</text>")
        for place, tick in enumerate(clock):
            step = tick.steps.get(rank)
            x = LEFT + place * cell
            wrong = first + place in differing
            kind = "tick differs" if wrong else "tick"
            said = f"tick {place + 1}: {step or 'waits'}" + (", differs from the plan" * wrong)
            title = f"<title>{escape(said)}</title>"
            parts.append(
                f'<rect class="{kind}" data-number="{first + place}" x="{x:.1f}" y="{y}" '
                f'width="{max(cell - 1.5, 0.8):.1f}" height="{ROW - 3}" rx="2"'
                f"{_fill(step, colors)}>{title}</rect>"
            )
    height = 4 + len(lanes) * ROW
    if here >= 0:
        parts.append(
            f'<rect class="here" x="{LEFT + here * cell - 1:.1f}" y="0.5" '
            f'width="{cell + 0.5:.1f}" height="{height - 2}" rx="3"/>'
        )
    width = LEFT + len(clock) * cell + 2
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
        f'aria-label="tick {here + 1} of {len(clock)}">{"".join(parts)}</svg>'
    )


def _lanes(stepper: Stepper) -> list[tuple[str, int]]:
    """Return (name, a rank that stands for all that do the same)."""
    pipeline = stepper.plan.pipeline
    if pipeline is None or stepper.plan.deployment_mode != "heterogeneous":
        return [("all ranks", 0)]
    return [
        (f"{stage.module} {stage.place}", ranks[0])
        for stage, ranks in zip(pipeline.graph.stages, pipeline.ranks, strict=True)
    ]


def _fill(step: PlannedStep | None, colors: dict[str, str]) -> str:
    if step is None:
        return ""
    if step.name == "forward" and step.module is not None:
        return f' style="fill:{forward_color(colors[step.module])}"'
    if step.name == "backward" and step.module is not None:
        return f' style="fill:{colors[step.module]}"'
    crosses = step.name in (*BRIDGES, *SENDS, *RECEIVES)
    if crosses:
        return f' style="fill:{PHASE_COLORS[Phase.COMMUNICATION]}"'
    return ' style="fill:var(--muted);opacity:.45"'
