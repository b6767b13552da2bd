"""Into which chunks context parallelism cuts a sequence."""


def chunks_of_rank(ranks: int, rank: int, causal: bool) -> tuple[int, ...]:
    """Return the chunks of a sequence that a rank computes, in its order."""
    return (rank, 2 * ranks - 1 - rank) if causal and ranks > 1 else (rank,)
