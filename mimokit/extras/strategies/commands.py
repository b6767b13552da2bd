"""`mimokit strategy`: what exchange over given links takes, without a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.cli.shared import Json, console, named_as_typed, rejected
from mimokit.experiment.refusals import refusals

if TYPE_CHECKING:
    from mimokit.extras.strategies.network import StrategyPrediction
    from mimokit.tables import Section

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
    with refusals(), named_as_typed():
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
    from mimokit.extras.strategies.exchanges import plan_of_size
    from mimokit.extras.strategies.network import Network, predict_strategy

    config = StrategyConfig(name=name.replace("-", "_"), **fields)  # type: ignore[arg-type]
    plan = plan_of_size(config, *size)
    return predict_strategy(plan, Network(*line), compute_seconds, **options)


def _check(option: str, value: float, right: bool, sentence: str) -> None:
    if not right:
        raise rejected(f"--{option} is {value}; {sentence}.", option, value)


def _table(prediction: StrategyPrediction, target: float) -> Section:
    from mimokit.tables import Section
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
    return Section(f"{prediction.name} on {nodes}", ("what", "how much"), rows)
