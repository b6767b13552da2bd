"""Context parallelism computes what one process computes, and the check of it catches faults."""

from hypothesis import given
from hypothesis import strategies as st

from mimokit.engine.megatron.versions import OLDEST, installed_version


@given(st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
def test_every_position_is_on_one_rank_and_sees_its_keys(ranks, sizes, causal):
    from mimokit.engine.parallel.context import (
        chunks_of_rank,
        order_of_row,
        positions_of_rank,
        spans_of_rank,
    )

    lengths = tuple(size * ranks * len(chunks_of_rank(ranks, 0, causal)) for size in sizes)
    held = [positions_of_rank(lengths, ranks, rank, causal).tolist() for rank in range(ranks)]
    in_order = [place for of_rank in held for place in of_rank]
    order = order_of_row(lengths, ranks, causal).tolist()
    assert [in_order[place] for place in order] == list(range(sum(lengths)))
    # Place in the row -> the keys that it sees: those of its own sequence, if causal up to itself.
    right = {}
    for length in lengths:
        begin = len(right)
        for place in range(begin, begin + length):
            right[place] = (begin, place + 1 if causal else begin + length)
    work = []
    for rank in range(ranks):
        seen = {}
        for span in spans_of_rank(lengths, ranks, rank, causal):
            queries = held[rank][slice(*span.queries)]
            for back, query in enumerate(reversed(queries)):
                seen[query] = (span.keys[0], span.keys[1] - back * causal)
        assert seen == {place: right[place] for place in held[rank]}
        work.append(sum(stop - start for start, stop in seen.values()))
    assert max(work) == min(work), "all ranks attend to equally many keys"


def _gradient_in_strides() -> tuple[list[list[float]], list[list[float]]]:
    """Return the gradient of a tensor that is used transposed, by our function and Megatron's."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.megatron import tensor_parallel
    from mimokit.engine.parallel.context import for_all_ranks

    found = []
    theirs = tensor_parallel.copy_to_tensor_model_parallel_region
    for share in (for_all_ranks, lambda tensor, group: theirs(tensor, group=group)):
        tensor = torch.ones(2, 3, requires_grad=True)
        gradient = torch.arange(6.0).reshape(3, 2).t()
        share(tensor, dist.group.WORLD).backward(gradient)
        found.append(tensor.grad.tolist())
    return found[0], found[1]


def test_gradients_in_strides_are_summed(cluster):
    whole = [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]
    for ours, theirs in cluster.run(_gradient_in_strides, world_size=2):
        assert ours == whole
        is_oldest = installed_version() == OLDEST
        assert (theirs != whole) == is_oldest, (
            "once no version loses it, Megatron's function will do"
        )
