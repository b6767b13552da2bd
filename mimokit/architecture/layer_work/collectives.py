"""Collectives of a layer, and of what stands before and behind the layers, in one pass.

| per layer | forward | backward |
|---|---|---|
| tensor parallel | 2 all-reduces | 2 all-reduces |
| with sequence parallelism | 2 all-gathers, 2 reduce-scatters | 4 all-gathers, 2 reduce-scatters |
| fewer key and value heads than ranks | 1 all-gather more | 1 reduce-scatter more |
| context parallel | 1 ring of keys and values | 2 rings: with their gradients |
| expert parallel | 2 all-to-alls | 2 all-to-alls |

Each of a dense layer is around attention or around the feed-forward layer. Routed experts have no
tensor-parallel collectives, because dispatch reaches them. Backward, sequence parallelism gathers
the inputs of the first matrices again, instead of keeping them (arXiv 2205.05198, sec. 4.2.2).
Layers that are recomputed whole have the collectives of the forward pass in the backward pass, too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mimokit.architecture.feed_forward import DENSE, MixtureOfExperts
from mimokit.architecture.transformer import Transformer
from mimokit.axes import Axis
from mimokit.config.sizes import RECOMPUTE_FULL, Numbers, ParallelSizes

Way = Literal["forward", "backward"]
WAYS: tuple[Way, Way] = ("forward", "backward")
Kind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ring"]
End = Literal["embedding", "output", "projector"]


@dataclass(frozen=True)
class LayerCollective:
    """A collective of a pass.

    Attributes:
        kind: a ring passes the parts of all ranks once around, neighbour to neighbour.
        numbers: of the whole tensor, per token of a rank. An all-to-all: those of the rank, each
            token once, however many experts it visits.
        count: times that it runs in the pass; 0 in a group of one rank.
        projected: it gathers queries, keys and values, because heads are fewer than ranks.
    """

    kind: Kind
    axis: Axis
    numbers: Numbers
    count: Numbers = 1
    projected: bool = False

    @property
    def gathers(self) -> Numbers:
        """All-gathers that move as much: an all-reduce is a reduce-scatter and an all-gather."""
        return self.count * (2 if self.kind == "all-reduce" else 1)


def layer_collectives(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes, way: Way
) -> tuple[LayerCollective, ...]:
    """Return the collectives of a layer in one direction."""
    collectives = tuple(_layer(net, moe, sizes, way))
    if way == "forward":
        return collectives
    again = (sizes.recompute == RECOMPUTE_FULL) * 1
    ahead = _layer(net, moe, sizes, "forward")
    return (*collectives, *(replace(each, count=each.count * again) for each in ahead))


def end_collectives(
    end: End, width: Numbers, sizes: ParallelSizes, way: Way
) -> tuple[LayerCollective, ...]:
    """Return the tensor-parallel collectives of an end of a module.

    The output layer stands for the loss, too, which needs the largest logit of a token, and then
    the sum over all and the logit of the label.

    Args:
        end: of the module. The input and output of a projector are whole on every rank.
        width: numbers of a token that the end writes (forward) or has read (backward).
    """
    cut = bool(sizes.sequence_parallel) and end != "projector"
    kinds: dict[tuple[End, Way], tuple[Kind, ...]] = {
        ("embedding", "forward"): ("reduce-scatter",) if cut else ("all-reduce",),
        ("embedding", "backward"): ("all-gather",) if cut else (),
        ("output", "forward"): ("all-gather",) if cut else (),
        ("output", "backward"): ("all-gather", "reduce-scatter") if cut else ("all-reduce",),
    }
    moved = [(kind, width) for kind in kinds.get((end, way), ("all-reduce",))]
    if (end, way) == ("output", "forward"):
        moved += [("all-reduce", 1), ("all-reduce", 2)]
    several = (sizes.tensor > 1) * 1
    return tuple(LayerCollective(kind, Axis.TENSOR, numbers, several) for kind, numbers in moved)


def tensor_calls(collectives: Iterable[LayerCollective]) -> int:
    """Return how often ranks of a tensor-parallel group meet in a pass of one layout."""
    return int(sum(each.count for each in collectives if each.axis == Axis.TENSOR))


def _layer(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes, way: Way
) -> Iterator[LayerCollective]:
    twice = 2 if way == "backward" else 1
    around = (sizes.tensor > 1) * (1 + (moe or DENSE).tensor_meetings)
    cut = sizes.sequence_parallel * 1
    yield LayerCollective("all-reduce", Axis.TENSOR, net.hidden, around * (1 - cut))
    yield LayerCollective("all-gather", Axis.TENSOR, net.hidden, around * cut * twice)
    yield LayerCollective("reduce-scatter", Axis.TENSOR, net.hidden, around * cut)
    keys = net.kv_heads * (net.qk_dim + net.v_dim)
    kind: Kind = "all-gather" if way == "forward" else "reduce-scatter"
    few, wide = (sizes.tensor > net.kv_heads) * 1, net.heads * net.qk_dim + keys
    if net.kv_heads < net.heads:
        yield LayerCollective(kind, Axis.TENSOR, wide, few, projected=True)
    rings = (sizes.context > 1) * twice
    yield LayerCollective("ring", Axis.CONTEXT, keys / sizes.tensor * sizes.context, rings)
    if moe is not None:
        yield LayerCollective(
            "all-to-all", Axis.EXPERT, net.hidden / sizes.tensor, (sizes.expert > 1) * 2
        )
