"""The text next to the picture of a step, as HTML: heading, code, and checked messages."""

from __future__ import annotations

from html import escape

from mimokit.experiment import Stepper, StepSnapshot
from mimokit.planning.stepper import Crossing, PlanDifference, SeenCrossing
from mimokit.units import samples_text

MOST_ROWS = 12


def heading_html(stepper: Stepper) -> str:
    """Return where the stepper stands and what the ranks did, in words."""
    snapshot, clock = stepper.now, stepper.clock
    if snapshot is None:
        return (
            f"<p><b>Before the first step</b> <span class='muted'>{len(clock)} ticks make an "
            "optimizer step</span></p>"
        )
    tick = snapshot.number % len(clock) + 1
    place = f"iteration {snapshot.iteration} · tick {tick} of {len(clock)} · plan's clock"
    did = dict.fromkeys(str(snapshot.records[rank].did) for rank in snapshot.acted)
    loss = f" <b>loss {snapshot.result['loss']:.6g}</b>" if snapshot.result else ""
    planned = dict.fromkeys(str(step) for step in snapshot.tick.steps.values())
    words = " · ".join(did) or f"{' · '.join(planned)}: no rank had anything to do"
    return (
        f"<p><b>Step {snapshot.number}</b> "
        f"<span class='muted'>{place} {snapshot.tick.time:g}</span>"
        f"{loss}<br>{escape(words)}</p>"
    )


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
    for piece in snapshot.pieces:
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
    """Return why the plan carries it this way, between modules on separate ranks."""
    crossed = {(c.source, c.destination, c.backward) for c in (p.crossing for p in snapshot.pieces)}
    reasons = [
        (bridge.backward if backward else bridge.forward).reason
        for bridge in stepper.plan.disjoint_bridges
        for backward in (False, True)
        if (bridge.source, bridge.destination, backward) in crossed
    ]
    return "".join(f"<p class='muted'>{escape(reason)}</p>" for reason in reasons)


def _ends(crossing: Crossing) -> tuple[str, str]:
    """Return the modules that give and take."""
    ends = (crossing.source, crossing.destination)
    return (ends[1], ends[0]) if crossing.backward else ends


def _row(piece: SeenCrossing, wrong: list[PlanDifference], named: bool) -> str:
    crossing = piece.crossing
    giver, taker = _ends(crossing) if named else ("", "")
    if wrong:
        told = "<br>".join(
            f"planned: {escape(step.planned)}<br>happened: {escape(step.happened)}"
            for step in wrong
        )
    else:
        told = "as planned" if not piece.sent else "as planned, on its way"
    cells = (
        f"rank {crossing.source_rank} <span class='muted'>{escape(giver)}</span>",
        f"rank {crossing.destination_rank} <span class='muted'>{escape(taker)}</span>",
        samples_text((crossing.start, crossing.stop)) if crossing.stop > crossing.start else "—",
        " × ".join(map(str, piece.shape)) or "—",
        f"{piece.bytes:,}",
        told,
    )
    kind = " class='wrong'" if wrong else ""
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def tensors_html(stepper: Stepper, rank: int | None) -> str:
    """Return the tensors of a rank after the step, as a table."""
    if rank is None or stepper.now is None or rank not in stepper.now.records:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{' × '.join(map(str, facts.shape)) or '—'}"
        f"</td><td>{escape(facts.dtype)}</td></tr>"
        for name, facts in stepper.now.records[rank].tensors.items()
    )
    if not rows:
        return f"<p class='muted'>Rank {rank} has no tensors between its steps here.</p>"
    return (
        f"<p><b>Rank {rank}</b> <span class='muted'>holds; "
        f"<code>stepper.inspect({rank}, name)</code> returns one</span></p>"
        f"<table class='crossings'><tbody>{rows}</tbody></table>"
    )
