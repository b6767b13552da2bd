"""SigLIP's pooling head: what makes one row of an item behind the layers of its encoder."""

from dataclasses import dataclass

from mimokit.architecture.tensor_cut import Shape
from mimokit.architecture.tensor_rows import End, Tensors, uncut
from mimokit.architecture.transformer import Transformer


@dataclass(frozen=True)
class RowHead:
    """A learned query that attends to all positions, and a feed-forward layer; ranks share none."""

    net: Transformer
    name = "pooling head"
    products = 7.0
    """Query, keys with values, scores, their values, output, two of the feed-forward layer."""

    @property
    def work(self) -> tuple[float, float]:
        """Numbers in its matrices, with scores and values: per position, and per item."""
        width = self.net.hidden
        return 2.0 * width * (width + 1), 2.0 * width * (width + self.net.ffn)

    def rows(self, prefix: str) -> Tensors:
        """Yield its tensors, which files call the same."""
        width, inside = self.net.hidden, self.net.ffn
        weights: dict[str, Shape] = {
            "attention.in_proj_": (3 * width, width),
            "attention.out_proj.": (width, width),
            "layernorm.": (width,),
            "mlp.fc1.": (inside, width),
            "mlp.fc2.": (width, inside),
        }
        yield uncut(f"{prefix}head.probe", End.LAST, 1, 1, width)
        for part, shape in weights.items():
            yield uncut(f"{prefix}head.{part}weight", End.LAST, *shape)
            yield uncut(f"{prefix}head.{part}bias", End.LAST, shape[0])
