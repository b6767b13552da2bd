"""`mimokit frames`: frames as ranks read them and balanced, over given links, without a model."""

import json
from dataclasses import replace
from typing import Annotated

import typer

from mimokit.cli.shared import Json, console, named_as_typed, rejected
from mimokit.experiment.refusals import refusals


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
    as_json: Json = False,
) -> None:
    """Show the frames of every rank as read and balanced, what travels, and if it is worth it."""
    from mimokit.config import ConfigError, Problem
    from mimokit.planning.frames import FrameCost, FrameLinks, forecast_frames
    from mimokit.planning.frames.batch_frames import BatchFrames
    from mimokit.planning.report.frames import frame_section, frames_to_json
    from mimokit.prediction.frames import read_counts
    from mimokit.prediction.link import Link
    from mimokit.units import counted, seconds_of, shown

    with refusals(), named_as_typed():
        ranks = read_counts(counts)
        if not any(ranks):
            sentence = "The frames of samples: no sample is given; write 64 1 / 2."
            raise ConfigError([Problem("frames", "counts", counts, sentence)])
        link = Link.of(bandwidth, latency)
        try:
            cost = FrameCost(per_patch=0.0, per_frame=seconds_of(frame_time))
        except ValueError as error:
            why = str(error).rstrip(".")
            sentence = f"--frame-time, {shown(frame_time)}: {why}."
            raise rejected(sentence, "--frame-time", frame_time) from None
        forecast = forecast_frames(
            [[patches] * sum(samples) for samples in ranks],
            cost,
            FrameLinks(link.bandwidth / 8, link.latency, input_bytes, output_bytes, not frozen),
            ranks_per_node=ranks_per_node,
        )
    batch = BatchFrames(
        "",
        tuple((rank,) for rank in range(len(ranks))),
        tuple(map(tuple, ranks)),
        patches,
        forecast=forecast,
    )
    if as_json:
        typer.echo(json.dumps(frames_to_json(batch)))
        return
    section = replace(frame_section(batch), heading=f"Frames on {counted(len(ranks), 'rank')}")
    console().print(section)
