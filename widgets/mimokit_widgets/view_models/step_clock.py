"""The ticks of an optimizer step as small cells: where the stepper stands in the whole."""

from html import escape

from mimokit.charts._palette import PHASE_COLORS, forward_color, module_colors
from mimokit.experiment import Stepper
from mimokit.planning.stepper import PlannedStep
from mimokit.step_kinds import BRIDGES, RECEIVES, SENDS, Phase

LEFT, WIDTH, ROW = 150.0, 900.0, 15.0
CELL = 18.0
GUTTER = 13


def clock_svg(stepper: Stepper) -> str:
    """Return a row per stage (of shared ranks: one row) and a column per tick."""
    lanes, clock = _lanes(stepper), stepper.clock
    cell = min(CELL, WIDTH / len(clock))
    number = -1 if stepper.now is None else stepper.now.number
    here = number % len(clock) if number >= 0 else -1
    first = number - here if number >= 0 else 0
    colors = module_colors(stepper.plan.modules)
    differing = {each.number for each in stepper.snapshots if each.differences}
    parts = [_gutter(stepper, first, cell)]
    for lane, (name, rank) in enumerate(lanes):
        y = GUTTER + lane * ROW
        label = f'<text class="muted" x="{LEFT - 8}" y="{y + 10}" text-anchor="end">'
        parts.append(f"{label}{escape(name)}</text>")
        for place, tick in enumerate(clock):
            step = tick.steps.get(rank)
            x = LEFT + place * cell
            wrong = first + place in differing
            kind = "tick differs" if wrong else "tick"
            said = f"step {first + place}, {name}: {step or 'waits'}"
            said += ", differs from the plan" * wrong + ", looked at" * (place == here)
            parts.append(
                f'<rect class="{kind}" data-number="{first + place}" x="{x:.1f}" y="{y}" '
                f'width="{max(cell - 1.5, 0.8):.1f}" height="{ROW - 3}" rx="2" role="button" '
                f'tabindex="-1" aria-label="{escape(said)}"{_fill(step, colors)}>'
                f"<title>{escape(said)}</title></rect>"
            )
    height = GUTTER + 2 + len(lanes) * ROW
    if here >= 0:
        parts.append(
            f'<rect class="here" x="{LEFT + here * cell - 1:.1f}" y="{GUTTER - 1.5}" '
            f'width="{cell + 0.5:.1f}" height="{height - GUTTER}" rx="3"/>'
        )
    width = LEFT + len(clock) * cell + 2
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="group" '
        f'aria-label="steps of an iteration">{"".join(parts)}</svg>'
    )


def legend_html(stepper: Stepper) -> str:
    """Return what the colours of the clock mean."""
    entries = []
    for module, color in module_colors(stepper.plan.modules).items():
        entries += [(forward_color(color), f"{module} forward"), (color, f"{module} backward")]
    entries += [
        (PHASE_COLORS[Phase.COMMUNICATION], "transfer"),
        ("color-mix(in srgb, var(--muted) 45%, var(--paper))", "other steps"),
        ("var(--bad)", "differs from the plan"),
    ]
    return "".join(
        f"<span><i class='dot' style='background:{color}'></i>{escape(words)}</span>"
        for color, words in entries
    )


def _gutter(stepper: Stepper, first: int, cell: float) -> str:
    marks = []
    for place in range(len(stepper.clock)):
        is_set = place in stepper.breakpoints
        said = f"breakpoint at step {first + place}{'' if is_set else ': none'}"
        x = LEFT + place * cell
        radius = min(3.5, cell / 2 - 0.5)
        marks.append(
            f'<g class="break{" set" if is_set else ""}" data-tick="{place}" role="checkbox" '
            f'tabindex="-1" aria-checked="{str(is_set).lower()}" aria-label="{said}">'
            f'<rect x="{x:.1f}" y="0" width="{cell:.1f}" height="{GUTTER - 2}"/>'
            f'<circle cx="{x + (cell - 1.5) / 2:.1f}" cy="{GUTTER / 2 - 1}" r="{radius:.1f}"/>'
            f"<title>{said}</title></g>"
        )
    label = f'<text class="muted" x="{LEFT - 8}" y="9" text-anchor="end">breakpoints</text>'
    return label + "".join(marks)


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
