"""The ranks in the picture of a step, a column per module or stage, and what crosses as arrows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from mimokit.config.graph import topological_order
from mimokit.experiment import StepSnapshot
from mimokit.planning.stepper import Crossing, SeenCrossing
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted, samples_text
from mimokit_widgets.view_models.step_samples import Faces

BOX_WIDTH, BOX_HEIGHT, BOX_GAP = 164, 54, 8
CELL_WIDTH = 868.0
"""Of a narrow cell, at the least scale of the picture: four columns fit."""
NARROWEST_GUTTER, WIDEST_GUTTER = 60.0, 300.0
TOP, HEADING, STAGE = 8, 24, 14
FACE, MOST_FACES = 11.0, 4
"""Height of a sample that travels, and how many of a message are drawn."""


@dataclass(frozen=True)
class Box:
    """A rank in its place.

    Attributes:
        module: that it works for here; ranks that modules share have a place for each.
        x: left edge.
        y: top edge.
    """

    rank: int
    module: str
    x: float
    y: float

    @property
    def middle(self) -> float:
        """Where arrows begin and end."""
        return self.y + BOX_HEIGHT / 2


@dataclass(frozen=True)
class Places:
    """All boxes of a layout.

    Attributes:
        boxes: (module, rank) -> its box.
        headings: (module, stage or None, x, y) above the ranks of a module or stage.
    """

    boxes: Mapping[tuple[str, int], Box]
    headings: tuple[tuple[str, int | None, float, float], ...]
    width: float
    height: float


def places_of(plan: LayoutPlan) -> Places:
    """Lay the ranks out: what feeds stands left of what is fed."""
    boxes: dict[tuple[str, int], Box] = {}
    headings = []
    width = height = 0.0
    columns = _columns(plan)
    staged = {name for name, sizes in plan.modules.items() if sizes.pipeline_parallel > 1}
    heading = HEADING + STAGE * bool(staged)  # of all alike, so that ranks stand in rows
    for number, column in enumerate(columns):
        x, y = 1.0 + number * (BOX_WIDTH + _gutter(len(columns))), float(TOP)
        for module, stage, ranks in column:
            headings.append((module, stage if module in staged else None, x, y + 14))
            y += heading
            for rank in ranks:
                boxes[module, rank] = Box(rank, module, x, y)
                y += BOX_HEIGHT + BOX_GAP
            y += BOX_GAP
        width, height = max(width, x + BOX_WIDTH + 1), max(height, y)
    return Places(boxes, tuple(headings), width, height)


def _gutter(columns: int) -> float:
    left = (CELL_WIDTH - 2 - columns * BOX_WIDTH) / max(1, columns - 1)
    return min(WIDEST_GUTTER, max(NARROWEST_GUTTER, left))


def _columns(plan: LayoutPlan) -> list[list[tuple[str, int, range]]]:
    if plan.pipeline is not None and plan.deployment_mode == "heterogeneous":
        columns: dict[int, list[tuple[str, int, range]]] = {}
        for stage, ranks in zip(plan.pipeline.graph.stages, plan.pipeline.ranks, strict=True):
            columns.setdefault(stage.position, []).append((stage.module, stage.place, ranks))
        return [columns[position] for position in sorted(columns)]
    order = topological_order(plan.topology)
    language = plan.llm_module_name
    encoders = [(name, 0, plan.modules[name].ranks) for name in order if name != language]
    last = [(language, 0, plan.modules[language].ranks)]
    return [encoders, last] if encoders else [last]


MOST_LABELS = 24


@dataclass(frozen=True)
class Arrow:
    """A crossing in the picture.

    Attributes:
        piece: as one end saw it, the receiving end where there are both.
        wrong: something about it differs from the plan.
    """

    piece: SeenCrossing
    wrong: bool
    begin: Box
    end: Box

    @property
    def crossing(self) -> Crossing:
        """Samples and ranks."""
        return self.piece.crossing


def arrows_of(plan: LayoutPlan, snapshot: StepSnapshot, places: Places) -> list[Arrow]:
    """Return the arrows of a step; those that differ from the plan come last, on top."""
    wrong = {difference.crossing for difference in snapshot.differences}
    seen: dict[Crossing, SeenCrossing] = {}
    for piece in snapshot.pieces:
        if not (piece.crossing in seen and piece.sent):
            seen[piece.crossing] = piece
    for difference in snapshot.differences:
        missing = SeenCrossing(difference.crossing, True, (), 0, ())
        seen.setdefault(difference.crossing, missing)
    arrows = []
    for crossing, piece in seen.items():
        ends = [
            (crossing.source, crossing.source_rank),
            (crossing.destination, crossing.destination_rank),
        ]
        if crossing.backward:
            ends = [
                (crossing.destination, crossing.source_rank),
                (crossing.source, crossing.destination_rank),
            ]
        begin, end = (places.boxes.get(key) for key in ends)
        if begin is not None and end is not None:
            arrows.append(Arrow(piece, crossing in wrong, begin, end))
    return sorted(arrows, key=lambda arrow: arrow.wrong)


def draw_arrows(arrows: Iterable[Arrow], colors: dict[str, str], faces: Mapping[int, Faces]) -> str:
    """Return SVG: a curve with a head for every arrow, a label for every group of equal ones.

    Args:
        faces: of the micro-batches; the samples of an arrow travel along it.
    """
    arrows = list(arrows)
    parts = [_curve(arrow, colors[arrow.crossing.source]) for arrow in arrows]
    labels = _labels(arrows)
    if len(labels) <= MOST_LABELS:
        parts.extend(labels)
    parts += [_traveller(arrow, faces.get(arrow.crossing.microbatch, {})) for arrow in arrows]
    return "".join(parts)


def _traveller(arrow: Arrow, faces: Faces) -> str:
    """Return the samples of an arrow, which `stepper.css` moves from its begin to its end."""
    crossing = arrow.crossing
    shown = [faces.get(sample) for sample in range(crossing.start, crossing.stop)][:MOST_FACES]
    images = [face for face in shown if face is not None and face.address]
    parts = [
        f'<image href="{face.address}" x="{-FACE * face.ratio / 2:.1f}" '
        f'y="{(place - len(images) / 2) * (FACE + 1):.1f}" width="{FACE * face.ratio:.1f}" '
        f'height="{FACE}"/>'
        for place, face in enumerate(images)
    ]
    if not parts:
        words = samples_text((crossing.start, crossing.stop))
        parts = [f'<text text-anchor="middle" y="4">{words}</text>']
    kind = "traveller gradient" if crossing.backward else "traveller"
    return f'<g class="{kind}" style="offset-path:path(\'{_path(arrow)}\')">{"".join(parts)}</g>'


def _edges(arrow: Arrow) -> tuple[float, float, float]:
    """Return (x where it begins, x where it ends, direction)."""
    if arrow.begin.x <= arrow.end.x:
        return arrow.begin.x + BOX_WIDTH, arrow.end.x, 1.0
    return arrow.begin.x, arrow.end.x + BOX_WIDTH, -1.0


def _path(arrow: Arrow) -> str:
    x, to, way = _edges(arrow)
    y, end = arrow.begin.middle, arrow.end.middle
    reach, tip = abs(to - x) * 0.45 * way, to - 5 * way
    return (
        f"M{x:.1f} {y:.1f}C{x + reach:.1f} {y:.1f} {tip - reach:.1f} {end:.1f} {tip:.1f} {end:.1f}"
    )


def _curve(arrow: Arrow, color: str) -> str:
    _, to, way = _edges(arrow)
    kept = arrow.crossing.source_rank == arrow.crossing.destination_rank
    kind = "wrong" if arrow.wrong else "kept" if kept else "moved"
    stroke = "" if arrow.wrong else f' style="stroke:{color};fill:{color}"'
    return (
        f'<g class="arrow {kind}"{stroke}><title>{escape(_title(arrow))}</title>'
        f'<path d="{_path(arrow)}" fill="none"/>'
        f'<path class="head" d="M{to:.1f} {arrow.end.middle:.1f}l{-7 * way:.1f} -3.6v7.2z"/></g>'
    )


def _title(arrow: Arrow) -> str:
    piece = arrow.piece
    return f"{piece.crossing}: {list(piece.shape)}, {counted(piece.bytes, 'byte')}"


def _labels(arrows: list[Arrow]) -> list[str]:
    by_begin: dict[tuple[str, int], list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        by_begin[arrow.begin.module, arrow.begin.rank].append(arrow)
    labels = []
    for group in by_begin.values():
        spans = {(arrow.crossing.start, arrow.crossing.stop) for arrow in group}
        if len(spans) == 1:
            x, _, way = _edges(group[0])
            labels.append(_label(group[0], x + 8 * way, group[0].begin.middle, way))
            continue
        for arrow in group:
            _, to, way = _edges(arrow)
            labels.append(_label(arrow, to - 10 * way, arrow.end.middle, -way))
    return labels


def _label(arrow: Arrow, x: float, y: float, way: float) -> str:
    anchor = "start" if way > 0 else "end"
    shape = "×".join(map(str, arrow.piece.shape))
    samples = samples_text((arrow.crossing.start, arrow.crossing.stop))
    wrong = " wrong" if arrow.wrong else ""
    return (
        f'<text class="label{wrong}" x="{x:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}">{samples} '
        f'<tspan class="shape" x="{x:.1f}" y="{y + 14:.1f}">[{shape}]</tspan></text>'
    )
