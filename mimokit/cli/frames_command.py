"""`mimokit frames`: what balancing the frames of a batch over ranks saves."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.experiment.prepare import refusals

if TYPE_CHECKING:
    from rich.table import Table

    from mimokit.config import ConfigError
    from mimokit.planning.frames import FrameForecast

MOST_FRAMES = 1_000_000


def frames(
    counts: Annotated[
        str,
        typer.Argument(
            help="Frames of every sample, ranks separated by a slash: '64 1 / 2 / 8 1'."
        ),
    ],
    frame_time: Annotated[
        str, typer.Option(help="Of the encoder for a frame, forward and backward: 2 ms.")
    ],
    bandwidth: Annotated[str, typer.Option(help="Of a rank: 400 Gbit/s, 25 GB/s.")],
    latency: Annotated[str, typer.Option(help="Of a collective: 20 us.")] = "0 ms",
    patches: Annotated[int, typer.Option(min=1, help="Patches per frame.")] = 256,
    input_bytes: Annotated[
        float, typer.Option(min=0, help="Per patch; by default 3 x 2 x 14 x 14 numbers of bf16.")
    ] = 2 * 3 * 2 * 14 * 14,
    output_bytes: Annotated[
        float,
        typer.Option(min=0, help="Per patch; by default 1,280 numbers, and 3,584 for 4 patches."),
    ] = 2 * (1280 + 3584 / 4),
    frozen: Annotated[bool, typer.Option("--frozen", help="Without gradients.")] = False,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Frames rather move within a node.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Show the frames of every rank as read and balanced, what travels, and if it is worth it."""
    from mimokit.planning.frames import FrameCost, FrameLinks, forecast_frames
    from mimokit.prediction.network.links import Link
    from mimokit.units import seconds_of

    with refusals():
        ranks = _counts(counts)
        link = Link.of(bandwidth, latency)
        try:
            cost = FrameCost(per_patch=0.0, per_frame=seconds_of(frame_time))
        except ValueError as error:
            raise _refused("--frame-time", frame_time, str(error).rstrip(".")) from None
        found = forecast_frames(
            [[patches] * sum(samples) for samples in ranks],
            cost,
            FrameLinks(link.bandwidth / 8, link.latency, input_bytes, output_bytes, not frozen),
            ranks_per_node=ranks_per_node,
        )
    if as_json:
        typer.echo(json.dumps(_json(ranks, found)))
        return
    from rich.console import Console

    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(_table(ranks, patches, found))
    console.print(f"\n{found}", highlight=False)


def _counts(text: str) -> list[list[int]]:
    """Read '64 1 / 2 / 8 1' as frames per sample of every rank.

    Raises:
        ConfigError: something is no number of frames, or there are too many.
    """
    ranks = []
    for part in text.split("/"):
        words = re.split(r"[\s,]+", part.strip()) if part.strip() else []
        wrong = next((word for word in words if not re.fullmatch(r"[0-9]{1,7}", word)), None)
        if wrong is not None:
            raise _refused(
                "The frames of samples", text, f"{wrong!r} is no number of frames; write 64 1 / 2"
            )
        ranks.append([int(word) for word in words])
    total = sum(map(sum, ranks))
    if total > MOST_FRAMES:
        raise _refused("The frames of samples", text, f"{total:,} are more than {MOST_FRAMES:,}")
    return ranks


def _refused(what: str, value: str, why: str) -> ConfigError:
    from mimokit.config import ConfigError, Problem
    from mimokit.units import shown

    sentence = f"{what}, {shown(value)}: {why}."
    return ConfigError([Problem("frames", what.removeprefix("--"), value, sentence)])


def _json(ranks: list[list[int]], found: FrameForecast) -> dict[str, Any]:
    return {
        "frames": [sum(samples) for samples in ranks],
        "assignment": list(found.plan.assignment),
        "before": list(found.before),
        "after": list(found.after),
        "patches_between": found.patches_between.tolist(),
        "traffic_bytes": found.traffic_bytes,
        "traffic_seconds": found.traffic_seconds,
        "saving": found.saving,
        "worth_it": found.worth_it,
    }


def _table(ranks: list[list[int]], patches: int, found: FrameForecast) -> Table:
    from mimokit.tables import rich_table
    from mimokit.units import seconds_text, span_text

    between = found.patches_between / patches
    columns = (
        "rank", "samples", "frames", "patches", "encoder", "frames encoded", "encoder then",
        "sent to", "received from",
    )  # fmt: skip
    rows = []
    for rank, samples in enumerate(ranks):
        sent = [other for other in between[rank].nonzero()[0].tolist() if other != rank]
        received = [other for other in between[:, rank].nonzero()[0].tolist() if other != rank]
        rows.append(
            (
                str(rank),
                str(len(samples)),
                f"{sum(samples):,}",
                f"{sum(samples) * patches:,}",
                seconds_text(found.before[rank]),
                f"{int(between[:, rank].sum()):,}",
                seconds_text(found.after[rank]),
                span_text(sent) or "–",
                span_text(received) or "–",
            )
        )
    return rich_table(f"Frames on {len(ranks)} ranks", columns, rows)
