"""Table and JSON of the frames of a micro-batch, as read and as shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mimokit.tables import Section
from mimokit.units import seconds_text, span_text

if TYPE_CHECKING:
    from mimokit.planning.frames.batch_frames import BatchFrames

HEADINGS = ("rank", "samples", "frames", "patches", "encoder")
SHARED_HEADINGS = (
    "frames then", "patches then", "encoder then", "patches sent", "patches received",
)  # fmt: skip
REPLICAS_SHOWN = 64


def frame_section(batch: BatchFrames) -> Section:
    """Return a row for each replica, the first `REPLICAS_SHOWN` of them, and what is saved."""
    headings = HEADINGS[:-1] if batch.forecast is None else (*HEADINGS, *SHARED_HEADINGS)
    rows = [_row(batch, number) for number in range(min(len(batch.ranks), REPLICAS_SHOWN))]
    said = [str(batch.forecast) if batch.forecast is not None else batch.unknown]
    hidden = len(batch.ranks) - REPLICAS_SHOWN
    sentences = said if hidden <= 0 else [f"… and {hidden:,} more replicas", *said]
    return Section(_title(batch), headings, rows, sentences)


def _row(batch: BatchFrames, number: int) -> tuple[str, ...]:
    frames, forecast = batch.frames[number], batch.forecast
    read = (
        span_text(batch.ranks[number]),
        f"{len(batch.counts[number]):,}",
        f"{frames:,}",
        f"{frames * batch.patches:,}",
    )
    if forecast is None:
        return read
    between = forecast.patches_of_pairs
    sent = between[[number]].toarray()[0]
    received = between[:, [number]].toarray()[:, 0]
    encoded = int(received.sum())
    return (
        *read,
        seconds_text(forecast.before[number]),
        f"{encoded // batch.patches:,}",
        f"{encoded:,}",
        seconds_text(forecast.after[number]),
        _partners(batch, sent, number, "to"),
        _partners(batch, received, number, "from"),
    )


def _partners(batch: BatchFrames, patches: Any, number: int, word: str) -> str:
    others = [other for other in patches.nonzero()[0].tolist() if other != number]
    if not others:
        return "–"
    ranks = [rank for other in others for rank in batch.ranks[other]]
    return f"{int(sum(patches[other] for other in others)):,} {word} {span_text(ranks)}"


def _title(batch: BatchFrames) -> str:
    if not batch.encoder:
        return "Frames of a micro-batch"
    state = "shared" if batch.shared else "not shared"
    return f"Frames of '{batch.encoder}' in a micro-batch, {state} (runtime.patch_type)"


def frames_to_json(batch: BatchFrames) -> dict[str, Any]:
    """Return the frames as plain lists and dicts; the lists have one entry per replica."""
    read = {
        "ranks": [list(ranks) for ranks in batch.ranks],
        "samples": [list(counts) for counts in batch.counts],
        "frames": list(batch.frames),
        "patches": [frames * batch.patches for frames in batch.frames],
    }
    forecast = batch.forecast
    if forecast is None:
        return {**read, "unknown": batch.unknown}
    encoded = forecast.patches_of_pairs.sum(axis=0).astype(int).tolist()
    return {
        **read,
        "frames_encoded": [patches // batch.patches for patches in encoded],
        "patches_encoded": encoded,
        "assignment": list(forecast.plan.assignment),
        "before": list(forecast.before),
        "after": list(forecast.after),
        "patches_between": forecast.patches_between.astype(int).tolist(),
        "traffic_bytes": forecast.traffic_bytes,
        "traffic_seconds": forecast.traffic_seconds,
        "saving": forecast.saving,
        "worth_it": forecast.worth_it,
        "says": str(forecast),
    }
