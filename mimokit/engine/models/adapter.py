"""An adapter: layers over the rows of an item that another encoder has made, on separate ranks.

It lies between an encoder and the language model. The encoder's projector ends in its width, its
own in the width of the next module. All rows of an item attend to each other; each becomes one.
"""

from __future__ import annotations

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
from mimokit.engine.models.transformer import StagePart
from mimokit.engine.rotary import RotaryPositions
from mimokit.units import counted


class RowTransformer(Encoder):
    """Layers over the rows of every item.

    Args:
        table: rows of the table of learned positions, of which the first are used; 0: positions are
            rotary.
        rotary: how heads turn with positions that are rotary.
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

    def embed(self, rows: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Rows to [positions, items, hidden]; on the first stage.

        Args:
            rows: [positions of all items, input_size], items in order.

        Raises:
            ValueError: they are not those of whole items.
        """
        positions, width = self.geometry.positions, self.input_size
        if len(rows) % positions or rows.shape[1] != width:
            raise ValueError(
                f"The adapter takes {counted(positions, 'row')} of {width} numbers of every item, "
                f"not rows of {list(rows.shape)}."
            )
        if hasattr(self, "projection"):
            rows = torch.nn.functional.linear(rows, self.projection)
        embedded = rows.reshape(-1, positions, self.config.hidden_size).transpose(0, 1)
        if self._turning is None:
            embedded = embedded + self.position_embedding[:positions, None]
        return embedded.contiguous()

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the rows of 0 items."""
        return {"rows": next(self.parameters()).new_zeros(0, self.input_size)}

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, items, hidden] to [positions of all items, hidden]."""
        return hidden.transpose(0, 1).flatten(0, 1)

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        return None if self._turning is None else self._rotary_in_row(self._turning)


ROWS = EncoderKind(
    name="row_encoder",
    encoder=RowTransformer,
    submodules=AudioModalitySubmodules,  # Megatron has none for rows; this one adds nothing
    mask_type=AttnMaskType.no_mask,
    parameters=lambda architecture: {
        "geometry": RowGeometry(architecture.seq_length),
        **places_in_row(architecture, architecture.seq_length),
    },
    merged=lambda architecture: 1,
    sides=lambda before: ((before + 1) // 2, before // 2),
)
