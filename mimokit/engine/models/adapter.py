"""An adapter: layers over the rows of an item that another encoder has made.

It lies between an encoder and the language model. The encoder's projector ends in its width, its
own in the width of the next module. All rows of an item attend to each other; each becomes one.
Items are padded to the largest. Attention masks the padding, and no rows are made of it.
"""

import torch

from mimokit.architecture.tokens import RowGeometry
from mimokit.engine.megatron import (
    AttnMaskType,
    AudioModalitySubmodules,
    ModuleSpec,
    ProcessGroupCollection,
    TransformerConfig,
)
from mimokit.engine.models.encoder import Encoder, EncoderKind, OuterNorms, places_in_row
from mimokit.engine.models.patches import GRID
from mimokit.engine.models.transformer import StagePart
from mimokit.engine.rotary import RotaryPositions
from mimokit.units import counted


class RowTransformer(Encoder):
    """Layers over the rows of every item.

    Args:
        table: rows of the table of learned positions, of which the first are used; 0: positions are
            rotary.
        inputs: width of the rows, which a matrix brings to that of the layers; 0: it is the same.
    """

    geometry: RowGeometry

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        geometry: RowGeometry,
        table: int,
        rotary: RotaryPositions,
        outer_norms: OuterNorms,
        part: StagePart,
        pg_collection: ProcessGroupCollection,
        inputs: int = 0,
    ) -> None:
        super().__init__(config, part)
        self.input_size = inputs or config.hidden_size
        if part.first and inputs:
            self.projection = torch.nn.Parameter(torch.empty(config.hidden_size, inputs))
            config.init_method(self.projection)
        self.geometry = geometry
        self._turning = None if table else rotary
        if part.first and table:
            self.position_embedding = self._vectors(table)
        self._build_layers(layer_spec, outer_norms, pg_collection)

    def forward(
        self, tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Encode items on a rank that has the whole adapter: [rows of all items, hidden]."""
        grid = inputs[GRID]
        return self.features(self.run_layers(self.embed(**inputs), grid), grid)

    def embed(  # type: ignore[override]
        self, rows: torch.Tensor, grid_thw: torch.Tensor
    ) -> torch.Tensor:
        """Rows to [rows of the largest item, items, hidden]; on the first stage.

        Args:
            rows: [rows of all items, input_size], items in order.
            grid_thw: [items, 3], whose product is the number of rows of an item.

        Raises:
            ValueError: an item has more rows than the largest one, or they are not as many in all.
        """
        most, width = self.geometry.positions, self.input_size
        each = grid_thw.prod(1)
        if bool((each > most).any()) or int(each.sum()) != len(rows) or rows.shape[1] != width:
            raise ValueError(
                f"The adapter takes up to {counted(most, 'row')} of {width} numbers of every item, "
                f"not {list(rows.shape)} of items of {each.tolist()}."
            )
        if hasattr(self, "projection"):
            rows = torch.nn.functional.linear(rows, self.projection)
        empty = rows.new_zeros(len(each), most, self.config.hidden_size)
        embedded = empty.masked_scatter(self._seen(grid_thw)[..., None], rows).transpose(0, 1)
        if self._turning is None:
            embedded = embedded + self.position_embedding[:most, None]
        return embedded.contiguous()

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the rows of 0 items."""
        return no_rows(self.input_size, next(self.parameters()).device)

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, items, hidden] to [rows of all items, hidden], without padding."""
        assert sizes is not None
        return hidden.transpose(0, 1)[self._seen(sizes)]

    def token_grids(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the grids as they are: each row becomes one."""
        return sizes

    def _seen(self, grid: torch.Tensor) -> torch.Tensor:
        """Return [items, rows of the largest], True where an item has a row."""
        return torch.arange(self.geometry.positions, device=grid.device) < grid.prod(1)[:, None]

    def _mask(self, sizes: torch.Tensor) -> torch.Tensor | None:
        seen = self._seen(sizes)
        return None if bool(seen.all()) else ~seen[:, None, None]

    def _lengths(self, sizes: torch.Tensor | None, items: int) -> list[int]:
        return super()._lengths(sizes, items) if sizes is None else sizes.prod(1).tolist()

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        return None if self._turning is None else self._rotary_in_row(self._turning)


def no_rows(width: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the rows of 0 items, as adapters take them."""
    grid = torch.zeros(0, 3, dtype=torch.int64, device=device)
    return {"rows": torch.zeros(0, width, device=device), GRID: grid}


ROWS = EncoderKind(
    name="row_encoder",
    encoder=RowTransformer,
    submodules=AudioModalitySubmodules,  # Megatron has none for rows; this one adds nothing
    mask_type=AttnMaskType.padding,
    parameters=lambda architecture: {
        "geometry": RowGeometry(architecture.seq_length),
        **places_in_row(architecture, architecture.seq_length),
    },
    merged=lambda architecture: 1,
    sizes=GRID,
    size_shape=(3,),
    sides=lambda before: ((before + 1) // 2, before // 2),
)
