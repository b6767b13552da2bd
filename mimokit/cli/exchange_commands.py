"""`mimokit strategy` and `frames`: what exchange over given links takes, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.cli.shared import Json, console, rejected
from mimokit.experiment.prepare import refusals

if TYPE_CHECKING:
    from rich.table import Table

    from mimokit.config import Problem
    from mimokit.prediction.network import StrategyPrediction

Steps = Annotated[int | None, typer.Option(help="By default that of the strategy.")]


def strategy(
    name: Annotated[str, typer.Argument(help="simple_reduce, fedavg, diloco, sparta, …")],
    nodes: Annotated[int, typer.Option(help="Nodes that exchange.")],
    parameters: Annotated[int, typer.Option(help="Parameters that train.")],
    bandwidth: Annotated[str, typer.Option(help="Of a link: 200 Mbit/s, 25 MB/s.")],
    compute_seconds: Annotated[float, typer.Option(help="Time that a node computes per step.")],
    latency: Annotated[str, typer.Option(help="Of a link: 30 ms.")] = "0 ms",
    jitter: Annotated[str, typer.Option(help="By how much a message may be later.")] = "0 ms",
    h: Annotated[int | None, typer.Option("--h", help="Steps between two exchanges.")] = None,
    sync_offset: Steps = None,
    island_size: Annotated[int | None, typer.Option(help="Nodes of an island.")] = None,
    codec: Annotated[str | None, typer.Option(help="int8 or int4.")] = None,
    p_sparta: Annotated[float | None, typer.Option(help="Share of the entries.")] = None,
    sparta_interval: Annotated[int | None, typer.Option(help="Steps between two.")] = None,
    index_selector: Annotated[str | None, typer.Option(help="Of SPARTA.")] = None,
    delay: Steps = None,
    fault_rate: Annotated[float | None, typer.Option(help="Exchanges left out.")] = None,
    fragments: Annotated[int | None, typer.Option(help="Of streaming_diloco.")] = None,
    overlap_steps: Annotated[int | None, typer.Option(help="Of streaming_diloco.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Nodes that gossip.")] = None,
    density: Annotated[float | None, typer.Option(help="Of sparse_loco.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Of sparse_loco.")] = None,
    bits: Annotated[int | None, typer.Option(help="Of sparse_loco.")] = None,
    compression_topk: Annotated[int | None, typer.Option(help="Of demo.")] = None,
    compression_chunk: Annotated[int | None, typer.Option(help="Of demo.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps of the whole.")] = 1000,
    target_utilisation: Annotated[
        float, typer.Option(help="Compute utilisation that the smallest H reaches.")
    ] = 0.9,
    as_json: Json = False,
) -> None:
    """Show what nodes send under a strategy, and how long that takes, without a model."""
    arguments: dict[str, Any] = {
        "H": h, "sync_offset": sync_offset, "island_size": island_size, "codec": codec,
        "p_sparta": p_sparta, "sparta_interval": sparta_interval, "delay": delay,
        "index_selector": index_selector, "fault_rate": fault_rate, "fragments": fragments,
        "overlap_steps": overlap_steps, "group_size": group_size, "density": density,
        "chunk": chunk, "bits": bits, "compression_topk": compression_topk,
        "compression_chunk": compression_chunk,
    }  # fmt: skip
    options = {key: value for key, value in arguments.items() if value is not None}
    with refusals(), _named_as_typed():
        _check("parameters", parameters, parameters >= 1, "it must be at least 1")
        _check("compute-seconds", compute_seconds, 0 < compute_seconds < 1e9, "it must be above 0")
        _check("steps", steps, steps >= 1, "it must be at least 1")
        share = 0 < target_utilisation < 1
        _check("target-utilisation", target_utilisation, share, "it must be between 0 and 1")
        prediction = _predict(
            name, options, (parameters, nodes), (bandwidth, latency, jitter), compute_seconds,
            steps=steps, target_utilisation=target_utilisation,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(prediction.to_json()))
        return
    console().print(_table(prediction, target_utilisation))


def _predict(
    name: str,
    fields: dict[str, Any],
    size: tuple[int, int],
    line: tuple[str, str, str],
    compute_seconds: float,
    **options: Any,
) -> StrategyPrediction:
    from mimokit.config import StrategyConfig
    from mimokit.planning.strategies import plan_of_size
    from mimokit.prediction.network import Network, predict_strategy

    config = StrategyConfig(name=name.replace("-", "_"), **fields)  # type: ignore[arg-type]
    plan = plan_of_size(config, *size)
    return predict_strategy(plan, Network(*line), compute_seconds, **options)


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Reject fields of a config under the names of the options that were typed."""
    from mimokit.config import ConfigError

    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            replace(problem, sentence=_typed(problem)) for problem in error.problems
        ) from None


def _typed(problem: Problem) -> str:
    field, sentence = problem.field, problem.sentence
    for of_config in (f"strategy.{field} ", f"network.{field} ", f"StrategyConfig: {field} "):
        if field != "name" and sentence.startswith(of_config):
            option = f"--{field.lower().replace('_', '-')}"
            return f"{option} {sentence.removeprefix(of_config)}"
    return sentence


def _check(option: str, value: float, right: bool, sentence: str) -> None:
    if not right:
        raise rejected(f"--{option} is {value}; {sentence}.", option, value)


def _table(prediction: StrategyPrediction, target: float) -> Table:
    from mimokit.tables import rich_table
    from mimokit.units import bytes_text, counted, seconds_text

    nodes = counted(prediction.nodes, "node")

    none = "none: strategies that exchange in each step have no H"
    if prediction.H > 1 or prediction.smallest_h is not None:
        none = "none" if prediction.smallest_h is None else f"{prediction.smallest_h:,}"
    rows = [
        ("parameters", f"{prediction.parameters:,} on each of {nodes}"),
        ("steps of a round", f"{prediction.H:,}"),
        ("a node gives to collectives, per round", bytes_text(round(prediction.payload_bytes))),
        ("a node sends, per round", bytes_text(round(prediction.sent_bytes))),
        ("exchange, per round", seconds_text(prediction.exchange_seconds)),
        ("waiting for the slowest node, per round", seconds_text(prediction.waiting_seconds)),
        ("round", seconds_text(prediction.round_seconds)),
        ("compute utilisation", f"{prediction.compute_utilisation:.1%}"),
        (counted(prediction.steps, "step"), seconds_text(prediction.wall_seconds)),
        (f"smallest H for {target:.0%} utilisation", none),
    ]
    return rich_table(f"{prediction.name} on {nodes}", ("what", "how much"), rows)


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
    from mimokit.prediction.network.network import Link
    from mimokit.units import counted, seconds_of, shown

    with refusals(), _named_as_typed():
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
