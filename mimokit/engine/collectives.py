"""Collectives over what has another size on every rank: tensors, and values as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

MOST_JSON = 2**28
"""Bytes of a value of one rank: so much is more than any has, and can be allocated."""


def gather_json(value: Any) -> list[Any]:
    """Return the value of every rank of the world, in rank order. Collective.

    Connections between ranks are not authenticated, and reading a pickle, as torch's collectives of
    objects do, runs what is in it. So values travel as JSON.

    Raises:
        RuntimeError: a rank announces a length that no value has.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    # A world with NCCL alone takes no tensors of the CPU.
    piece = text if "cpu:" in dist.get_backend_config() else text.cuda()
    length = torch.tensor([len(piece)], device=piece.device)
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    sizes = torch.cat(lengths).tolist()
    if wrong := [rank for rank, size in enumerate(sizes) if not 0 < size <= MOST_JSON]:
        raise RuntimeError(
            f"rank {wrong[0]} announces {sizes[wrong[0]]:,} bytes of JSON, where 1 to "
            f"{MOST_JSON:,} are possible: this is not what a rank of this world sends"
        )
    world = dist.group.WORLD
    assert world is not None
    whole = gather_uneven(piece, sizes, world).cpu()
    return [json.loads(bytes(part.tolist())) for part in torch.split(whole, sizes)]


def gather_uneven(
    piece: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Concatenate the pieces of a group: [own size, …] -> [sum of sizes, …].

    Args:
        sizes: first dimension of the piece of every rank of the group, in its order.
    """
    whole = piece.new_empty((sum(sizes), *piece.shape[1:]))
    torch.split(whole, list(sizes))[group.rank()].copy_(piece)
    gather_in_place(whole, sizes, group)
    return whole


def gather_in_place(whole: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> None:
    """Fill a contiguous tensor that contains the piece of this rank with the pieces of the others.

    Every rank sends its piece to all others, which receive it in place: without padding, without
    copies, and without waiting for other ranks' turns. Sizes are those of `gather_uneven`.
    """
    places = torch.split(whole, list(sizes))
    rank = group.rank()
    operations = []
    for step in range(1, len(sizes)):
        to, source = (rank + step) % len(sizes), (rank - step) % len(sizes)
        if sizes[rank]:
            operations.append(dist.P2POp(dist.isend, places[rank], group=group, group_peer=to))
        if sizes[source]:
            operations.append(
                dist.P2POp(dist.irecv, places[source], group=group, group_peer=source)
            )
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
