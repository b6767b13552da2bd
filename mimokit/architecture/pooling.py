"""SigLIP's pooling head: one attention and one feed-forward layer that make one row of an item."""

from mimokit.architecture.tensor_rows import End, Tensors, norm, uncut
from mimokit.architecture.transformer import Transformer


def pooling_rows(net: Transformer, name: str) -> Tensors:
    """Yield the tensors of the head behind the layers of an encoder; ranks share none."""
    yield uncut(f"{name}probe", End.LAST, 1, 1, net.hidden)
    yield from norm(f"{name}layernorm", "LayerNorm", net.hidden, End.LAST)
    matrices = {
        "attention.in_proj_": (3 * net.hidden, net.hidden),
        "attention.out_proj.": (net.hidden, net.hidden),
        "mlp.fc1.": (net.ffn, net.hidden),
        "mlp.fc2.": (net.hidden, net.ffn),
    }
    for matrix, shape in matrices.items():
        yield uncut(f"{name}{matrix}weight", End.LAST, *shape)
        yield uncut(f"{name}{matrix}bias", End.LAST, shape[0])


def pooling_work(net: Transformer) -> tuple[float, float]:
    """Return the numbers in the matrices of the head, with scores and values.

    Returns:
        Those of keys and values, per position; those of the one query, per item.
    """
    width = net.hidden
    return 2.0 * width * (width + 1), 2.0 * width * (width + net.ffn)
