"""The picture of a step: the micro-batch, the ranks with their slices, and what crosses."""

from collections.abc import Mapping
from html import escape

from mimokit.charts._palette import module_colors
from mimokit.experiment import Stepper, StepSnapshot
from mimokit.planning.stepper import PlannedStep
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted
from mimokit_widgets.view_models.step_arrows import (
    BOX_HEIGHT,
    BOX_WIDTH,
    STAGE,
    Arrow,
    Box,
    arrows_of,
    draw_arrows,
    places_of,
)
from mimokit_widgets.view_models.step_samples import Faces, SampleFace, SampleFaces
from mimokit_widgets.view_models.step_words import name_of

MARGIN = 8
"""Of what stands in a box."""
STRIP = BOX_WIDTH - 2.0 * MARGIN
"""Width of the strip of samples in a box."""
BATCH_HEIGHT = 62
MOST_NUMBERED, MOST_PICTURED = 40, 12
"""Samples up to which each has a number, and its images."""
LETTER = 6.0
"""Width of a letter below a sample."""
LEAST_SCALE = 0.9
"""A narrower page scrolls: smaller text is not read."""


def step_svg(stepper: Stepper, samples: SampleFaces) -> str:
    """Return the step that is looked at as SVG; its colours are those of `stepper.css`."""
    plan, snapshot = stepper.plan, stepper.now
    places, colors = places_of(plan), module_colors(plan.modules)
    arrows = [] if snapshot is None else arrows_of(plan, snapshot, places)
    faces = {} if snapshot is None else samples.of(snapshot)
    boxes = "".join(
        _box(plan, box, snapshot, stepper.next_step(box.rank), colors[box.module])
        for box in places.boxes.values()
    )
    headings = "".join(_heading(*each, colors[each[0]]) for each in places.headings)
    return (
        f'<svg viewBox="0 0 {places.width:.0f} {places.height + BATCH_HEIGHT:.0f}" role="group" '
        f'aria-label="{escape(_in_words(snapshot))}" '
        f'style="width:{places.width:.0f}px;max-width:100%;'
        f'min-width:{LEAST_SCALE * places.width:.0f}px">'
        f"{_batch(stepper, arrows, colors, faces, places.width)}"
        f'<g transform="translate(0 {BATCH_HEIGHT})">{headings}{boxes}'
        f"{draw_arrows(arrows, colors, faces)}</g></svg>"
    )


def _heading(module: str, stage: int | None, x: float, y: float, color: str) -> str:
    below = "" if stage is None else _text("muted", x, y + STAGE, f"stage {stage}")
    return (
        f'<text class="heading" x="{x:.1f}" y="{y:.1f}" style="--hue:{color}">'
        f"{escape(module)}</text>{below}"
    )


def _text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _in_words(snapshot: StepSnapshot | None) -> str:
    return "before the first step" if snapshot is None else str(snapshot)


def _batch(
    stepper: Stepper,
    arrows: list[Arrow],
    colors: dict[str, str],
    faces: Mapping[int, Faces],
    whole: float,
) -> str:
    count = stepper.plan.batch.samples_per_microbatch
    shown = next(iter(faces.values()), {}) if count <= MOST_PICTURED else {}
    width = min(110.0, (whole - 2) / count) if shown else min(30.0, 640.0 / count)
    words = (
        f"micro-batch {', '.join(map(str, faces))} of {counted(count, 'sample')}"
        if faces
        else f"{counted(count, 'sample')} per micro-batch"
    )
    cells = []
    for sample in range(count):
        x, hues = 1 + sample * width, _hues(stepper, sample, arrows, colors)
        cells.append(_sample(x, width - 3 if width > 6 else width, hues))
        face = shown.get(sample)
        if face is not None and face.address:
            cells.append(_face(face, sample, x, width - 3))
        elif count <= MOST_NUMBERED:
            crosses = " crosses" if hues else ""
            place = f'x="{x + (width - 3) / 2:.1f}" y="37" text-anchor="middle"'
            cells.append(f'<text class="number{crosses}" {place}>{sample}</text>')
    return f'<text class="muted" x="1" y="13">{escape(words)}</text>{"".join(cells)}'


def _face(face: SampleFace, sample: int, x: float, width: float) -> str:
    """Return the images of a sample in its cell, with its number and its words below."""
    wide = min(width - 6, 14 * face.ratio)
    words = face.words if len(face.words) * LETTER < width - 14 else ""
    return (
        f"<g><title>{escape(f'sample {sample}: {face.words}'.rstrip(': '))}</title>"
        f'<image href="{face.address}" x="{x + (width - wide) / 2:.1f}" y="26" '
        f'width="{wide:.1f}" height="14"/>'
        f'<text class="number" x="{x + 1:.1f}" y="57">{sample} '
        f'<tspan class="words">{escape(words)}</tspan></text></g>'
    )


def _hues(stepper: Stepper, sample: int, arrows: list[Arrow], colors: dict[str, str]) -> list[str]:
    present = stepper.config.data.is_present
    crossings = (arrow.crossing for arrow in arrows)
    return list(
        dict.fromkeys(
            colors[crossing.source]
            for crossing in crossings
            if crossing.start <= sample < crossing.stop
            and present(crossing.source, crossing.microbatch, sample)
        )
    )


def _sample(x: float, width: float, hues: list[str]) -> str:
    if not hues:
        return _part(x, 22, width, 22, "sample", "")
    high = 22 / len(hues)
    return "".join(
        _part(x, 22 + place * high, width, high, "sample crosses", hue)
        for place, hue in enumerate(hues)
    )


def _part(x: float, y: float, width: float, height: float, kind: str, hue: str) -> str:
    fill = f' style="fill:{hue}"' if hue else ""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="3"{fill}/>'
    )


def _box(
    plan: LayoutPlan, box: Box, snapshot: StepSnapshot | None, following: PlannedStep, color: str
) -> str:
    step = None if snapshot is None else snapshot.tick.steps.get(box.rank)
    did = snapshot is not None and snapshot.records[box.rank].did is not None
    acts = step is not None and did and step.module in (None, box.module)
    if acts and step is not None:
        words = _short(step, plan)
    elif plan.deployment_mode == "heterogeneous":
        words = f"next: {_short(following, plan)}"
    else:
        words = ""
    place = plan.modules[box.module].coordinates(box.rank)
    sizes = plan.modules[box.module]
    where = [f"tp {place['tp']}"] if sizes.tensor_parallel > 1 else []
    where += [f"dp {place['dp']}"] if sizes.data_parallel > 1 else []
    findings = () if snapshot is None else snapshot.findings
    wrong = any((each.rank, each.module) == (box.rank, box.module) for each in findings)
    edge = f' style="stroke:{color}"' if acts and not wrong else ""
    said = ", ".join(filter(None, (f"rank {box.rank} of {box.module}", *where, words)))
    said += ", differs from the plan" * wrong
    kind = "rank" + " acts" * acts + " wrong" * wrong
    return (
        f'<g class="{kind}" data-rank="{box.rank}" data-module="{escape(box.module)}" '
        f'role="button" tabindex="-1" aria-label="{escape(said)}; show its tensors" '
        f'transform="translate({box.x:.1f} {box.y:.1f})">'
        f'<rect class="box" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"{edge}/>'
        f"{_text('name', MARGIN, 17, f'rank {box.rank}')}"
        f'<text class="muted" x="{BOX_WIDTH - MARGIN}" y="17" text-anchor="end">'
        f"{' · '.join(where)}</text>"
        f"{_slice(plan, box, color)}"
        f"{_text('action', MARGIN, 47, words)}</g>"
    )


def _short(step: PlannedStep, plan: LayoutPlan) -> str:
    name = name_of(step, plan)
    return name if step.microbatch is None else f"{name} · {step.microbatch}"


def _slice(plan: LayoutPlan, box: Box, color: str) -> str:
    start, stop = plan.batch.modules[box.module].samples[box.rank]
    count = plan.batch.samples_per_microbatch
    width = STRIP / count
    gap = 1.5 if width > 5 else 0.0
    if gap:
        cells = "".join(
            f'<rect class="cell" x="{MARGIN + n * width:.1f}" y="24" width="{width - gap:.1f}" '
            f'height="8" rx="1.5"' + (f' style="fill:{color}"/>' if start <= n < stop else "/>")
            for n in range(count)
        )
        return cells
    return (
        f'<rect class="cell" x="{MARGIN}" y="24" width="{STRIP}" height="8" rx="1.5"/>'
        f'<rect x="{MARGIN + start * width:.1f}" y="24" width="{(stop - start) * width:.1f}" '
        f'height="8" rx="1.5" style="fill:{color}"/>'
    )
