"""The text next to the picture of a step, as HTML: heading, code, and checked messages."""

from html import escape

from mimokit.experiment import Stepper, StepSnapshot
from mimokit.planning.stepper import Crossing, PlanDifference, PlannedStep, SeenCrossing
from mimokit.planning.stepper.crossings import INPUT
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import StepKind
from mimokit.units import counted, samples_text, seconds_text, span_text

MOST_ROWS = 12
_AT_BRIDGES = {
    ("fan_out", StepKind.GATHER): "cut",
    ("fan_out", StepKind.SCATTER): "gather gradients",
    ("fan_in", StepKind.SCATTER): "cut gradients",
}
"""What a bridge does, where the name of its step, which is that of its place in the order, is
another word."""


def name_of(step: PlannedStep, plan: LayoutPlan) -> str:
    """Return what a rank does at a step, in a word or two."""
    for bridge in plan.colocated_bridges:
        if bridge.source == step.module:
            return _AT_BRIDGES.get((bridge.direction, step.name), str(step.name))
    return str(step.name)


def _in_words(step: PlannedStep, plan: LayoutPlan) -> str:
    return str(step).replace(str(step.name), name_of(step, plan), 1)


def heading_html(stepper: Stepper) -> str:
    """Return where the stepper stands and what the ranks did, in words."""
    snapshot, ticks = stepper.now, len(stepper.clock)
    if snapshot is None:
        return (
            "<p><b>Before the first step</b> <span class='muted'>an optimizer step is steps 0 to "
            f"{ticks - 1}</span></p>"
        )
    first, steps = snapshot.iteration * ticks, snapshot.tick.steps
    place = f"iteration {snapshot.iteration} is steps {first} to {first + ticks - 1}"
    did = dict.fromkeys(
        _in_words(steps[rank], stepper.plan) if rank in steps else str(snapshot.records[rank].did)
        for rank in snapshot.acted
    )
    loss = f" <b>loss {snapshot.result['loss']:.6g}</b>" if snapshot.result else ""
    planned = dict.fromkeys(_in_words(step, stepper.plan) for step in steps.values())
    words = " · ".join(did) or f"{' · '.join(planned)}: no rank had anything to do"
    return (
        f"<p><b>Step {snapshot.number}</b> <span class='muted'>{place}</span>"
        f"{loss}<br>{escape(words)}</p>{_edits(stepper, snapshot)}{_findings(snapshot)}"
    )


def _edits(stepper: Stepper, snapshot: StepSnapshot) -> str:
    edits = [edit for edit in stepper.edits if edit.number <= snapshot.number]
    if not edits:
        return ""
    last = edits[-1]
    place = "" if last.index is None else f"[{', '.join(map(str, last.index))}]"
    where = f"{last.name}{place} of rank {last.rank} after step {last.number}"
    return (
        f"<p class='edited'>{counted(len(edits), 'edit')}, the last of {escape(where)}: what "
        "follows is computed with it</p>"
    )


def _findings(snapshot: StepSnapshot) -> str:
    by_words: dict[str, list[int]] = {}
    for finding in snapshot.findings:
        by_words.setdefault(finding.words, []).append(finding.rank)
    rows = [f"<li>{ranks_text(ranks)} {escape(words)}</li>" for words, ranks in by_words.items()]
    more = len(rows) - MOST_ROWS
    rows = rows[:MOST_ROWS] + ([f"<li>and {more} more</li>"] if more > 0 else [])
    return f"<ul class='findings'>{''.join(rows)}</ul>" if rows else ""


def code_html(snapshot: StepSnapshot | None) -> str:
    """Return the code that the ranks did, each once."""
    if snapshot is None:
        return ""
    blocks = dict.fromkeys(snapshot.records[rank].code for rank in snapshot.acted)
    return "".join(_block(code) for code in blocks if code)


def _block(code: str) -> str:
    place, _, text = code.partition("\n")
    return f"<div class='code'><span>{escape(place)}</span><pre>{escape(text)}</pre></div>"


def crossings_html(stepper: Stepper) -> str:
    """Return the crossings of a step as a table; what differs from the plan is red and first."""
    snapshot = stepper.now
    if snapshot is None or not (snapshot.pieces or snapshot.differences):
        return ""
    wrong: dict[Crossing, list[PlanDifference]] = {}
    for difference in snapshot.differences:
        wrong.setdefault(difference.crossing, []).append(difference)
    pieces: dict[Crossing, SeenCrossing] = {}
    inputs = [piece for record in snapshot.records.values() for piece in record.inputs]
    for piece in (*snapshot.pieces, *(piece for piece in inputs if piece.crossing in wrong)):
        if piece.crossing not in pieces or not piece.sent:
            pieces[piece.crossing] = piece
    for crossing in wrong:
        pieces.setdefault(crossing, SeenCrossing(crossing, True, (), 0, ()))
    ordered = sorted(pieces.values(), key=lambda piece: piece.crossing not in wrong)
    ends = {_ends(piece.crossing) for piece in ordered}
    named = len(ends) > 1
    giver, taker = ("", "") if named else ends.pop()
    rows = [_row(piece, wrong.get(piece.crossing, []), named) for piece in ordered[:MOST_ROWS]]
    more = len(ordered) - MOST_ROWS
    rest = f"<p class='muted'>and {more} more</p>" if more > 0 else ""
    return (
        f"<table class='crossings'><thead><tr><th>from {escape(giver)}</th>"
        f"<th>to {escape(taker)}</th><th>samples</th>"
        "<th>shape</th><th>bytes</th><th>against the plan</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{rest}{_reasons(stepper, snapshot)}"
    )


def _reasons(stepper: Stepper, snapshot: StepSnapshot) -> str:
    crossed = {(c.source, c.destination, c.backward) for c in (p.crossing for p in snapshot.pieces)}
    reasons = [
        (bridge.backward if backward else bridge.forward).reason
        for bridge in stepper.plan.disjoint_bridges
        for backward in (False, True)
        if (bridge.source, bridge.destination, backward) in crossed
    ]
    return "".join(f"<p class='muted'>{escape(reason)}</p>" for reason in reasons)


def _ends(crossing: Crossing) -> tuple[str, str]:
    ends = (crossing.source or "data", crossing.destination)
    return (ends[1], ends[0]) if crossing.backward else ends


def _row(piece: SeenCrossing, wrong: list[PlanDifference], named: bool) -> str:
    crossing = piece.crossing
    giver, taker = _ends(crossing) if named else ("", "")
    if wrong:
        told = "<br>".join(
            f"planned: {escape(step.planned)}<br>happened: {escape(step.happened)}"
            + (f"<br>{escape(step.how)}" if step.how else "")
            for step in wrong
        )
    else:
        told = "as planned" if not piece.sent else "as planned, on its way"
    cells = (
        f"{_giver(crossing)} <span class='muted'>{escape(giver)}</span>",
        f"rank {crossing.destination_rank} <span class='muted'>{escape(taker)}</span>",
        samples_text((crossing.start, crossing.stop)) if crossing.stop > crossing.start else "—",
        " × ".join(map(str, piece.shape)) or "—",
        f"{piece.bytes:,}",
        told,
    )
    kind = " class='wrong'" if wrong else ""
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def ranks_text(ranks: list[int]) -> str:
    """Return ranks in words."""
    return f"rank{'s' if ranks[1:] else ''} {span_text(ranks)}"


def _giver(crossing: Crossing) -> str:
    return "one process" if crossing.source == INPUT else f"rank {crossing.source_rank}"


def inside_html(snapshot: StepSnapshot | None) -> str:
    """Return what took place inside the steps of ranks: keys gathered, tokens dispatched, …."""
    if snapshot is None:
        return ""
    kinds: dict[str, dict[int, tuple[int, float]]] = {}
    for rank, record in snapshot.records.items():
        for kind, told in record.inside.items():
            kinds.setdefault(kind, {})[rank] = told
    rows = [
        f"<tr><td>{escape(kind)}</td><td>{max(count for count, _ in by_rank.values())}</td>"
        f"<td>{escape(span_text(by_rank))}</td>"
        f"<td>{seconds_text(max(seconds for _, seconds in by_rank.values()))}</td></tr>"
        for kind, by_rank in kinds.items()
    ]
    if not rows:
        return ""
    return (
        "<table class='crossings'><thead><tr><th>inside the step</th><th>times</th>"
        "<th>on ranks</th><th>longest on a rank</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
