"""Who talks to whom, as a matrix of ranks, nodes or groups of nodes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mimokit.prediction.traffic import Traffic
from mimokit.units import bytes_text, counted

MOST_BLOCKS = 128
MOST_RANKS = 128

EXPLAINED = {
    "bridge": "outputs of one module on their way to the next, gradients on their way back",
    "pipeline": "activations to the next stage of the same module, gradients back",
    "tensor": "four all-reduces per layer and micro-batch within a tensor-parallel group",
    "context": "keys and values round a context-parallel group",
    "expert": "tokens to the experts that they visit and back, gradients likewise",
    "data": "the all-reduce of gradients over replicas, once per step",
}
ALL = "all"


def traffic_blocks(
    traffic: Traffic, ranks_per_node: int, kind: str = ALL, *, by_node: bool = False
) -> tuple[dict[str, Any], bytes]:
    """Return the matrix of one kind of traffic, or of all.

    Args:
        kind: one of `mimokit.prediction.traffic.KINDS`, or "all".
        by_node: sum over the ranks of a node, also where single ranks would fit.

    Returns:
        The labels of the matrix, and its bytes per step as 32-bit floats, row by row: a row
        per sender, a column per receiver.
    """
    chosen = kind if kind in traffic.flows else ALL
    block, noun = _block(traffic.world_size, ranks_per_node, by_node)
    blocks = -(-traffic.world_size // block)
    kinds = traffic.flows if chosen == ALL else (chosen,)
    matrix = sum((traffic.matrix(each, block) for each in kinds), np.zeros((blocks, blocks)))
    largest = float(matrix.max(initial=0.0))
    picture = {
        "blocks": blocks,
        "noun": noun,
        "kind": chosen,
        "by_node": noun != "rank",
        "can_choose": traffic.world_size <= MOST_RANKS and ranks_per_node < traffic.world_size,
        "kinds": [
            {"name": name, "total": bytes_text(round(total)), "explained": EXPLAINED[name]}
            for name, total in traffic.total.items()
        ],
        "largest": largest,
        "words": _in_words(traffic, chosen, matrix, noun),
    }
    return picture, matrix.astype(np.float32).tobytes()


def blocks_of_kinds(
    traffic: Traffic, ranks_per_node: int
) -> Iterator[tuple[str, bool, tuple[dict[str, Any], bytes]]]:
    """Yield every matrix that the view can ask for: by kind, between ranks and between nodes."""
    for kind in (ALL, *traffic.flows):
        for by_node in (False, True):
            yield kind, by_node, traffic_blocks(traffic, ranks_per_node, kind, by_node=by_node)


def _block(world: int, ranks_per_node: int, by_node: bool) -> tuple[int, str]:
    if world <= MOST_RANKS and not by_node:
        return 1, "rank"
    nodes = -(-world // ranks_per_node)
    several = -(-nodes // MOST_BLOCKS)
    return (
        ranks_per_node * several,
        "node" if several == 1 else f"block of {counted(several, 'node')}",
    )


def _in_words(traffic: Traffic, kind: str, matrix: Any, noun: str) -> str:
    if not traffic.flows:
        return "Traffic: no rank sends anything."
    totals = "; ".join(f"{name} {bytes_text(round(n))}" for name, n in traffic.total.items())
    sender, receiver = np.unravel_index(int(np.argmax(matrix)), matrix.shape)
    what = "All traffic" if kind == ALL else f"{kind.capitalize()} traffic"
    return (
        f"Traffic per step: {totals}. {what}: most from {noun} {sender:,} to {noun} "
        f"{receiver:,}, {bytes_text(round(float(matrix.max())))}."
    )
