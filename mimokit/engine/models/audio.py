"""The audio encoder: log-mel frames, two convolutions, Megatron's `TransformerBlock`, a projector.

The front is Whisper's (Radford et al. 2022, arXiv 2212.04356, section 2.2): two convolutions of
width 3 with GELU, the second with a stride of 2, and sinusoidal positions. Recordings are padded
to the longest one. Attention masks the padding, and no tokens are made of it.
"""

import torch

from mimokit.architecture.tokens import AudioGeometry, audio_geometry
from mimokit.engine import megatron
from mimokit.engine.models.encoder import Encoder, EncoderKind, OuterNorms, places_in_row
from mimokit.engine.models.patches import ITEM_TOKENS
from mimokit.engine.models.transformer import StagePart
from mimokit.engine.rotary import RotaryPositions

_KERNEL = 3


class AudioTransformer(Encoder):
    """Whisper's encoder over recordings of different lengths.

    Args:
        table: rows of the table of learned positions, of which the first are used; 0: positions are
            rotary.
    """

    geometry: AudioGeometry

    def __init__(
        self,
        config: megatron.TransformerConfig,
        layer_spec: megatron.ModuleSpec,
        geometry: AudioGeometry,
        table: int,
        rotary: RotaryPositions,
        outer_norms: OuterNorms,
        part: StagePart,
        pg_collection: megatron.ProcessGroupCollection,
    ) -> None:
        super().__init__(config, part)
        self.geometry = geometry
        self._turning = None if table else rotary
        if part.first:
            width = config.hidden_size
            self.frames = torch.nn.Conv1d(geometry.mel_bins, width, _KERNEL, padding=1)
            self.positions = torch.nn.Conv1d(width, width, _KERNEL, stride=2, padding=1)
            if table:  # Whisper fixes its sinusoids; here they initialize learned positions.
                self.position_embedding = torch.nn.Parameter(sinusoids(table, width))
        self._build_layers(layer_spec, outer_norms, pg_collection)

    def embed(self, input_features: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Recordings to [positions, recordings, hidden]; on the first stage.

        Args:
            input_features: [recordings, mel bands, frames], log-mel, all padded to the longest
                recording that the geometry allows.

        Raises:
            ValueError: if the number of bands or frames differs.
        """
        expected = (self.geometry.mel_bins, self.geometry.frames)
        if tuple(input_features.shape[1:]) != expected:
            raise ValueError(
                f"The encoder takes recordings of {expected} (mel bands, frames), not of "
                f"{tuple(input_features.shape[1:])}."
            )
        gelu = torch.nn.functional.gelu
        hidden = gelu(self.positions(gelu(self.frames(input_features))))
        embedded: torch.Tensor = hidden.permute(2, 0, 1)
        if self._turning is None:
            embedded = embedded + self.position_embedding[: len(embedded), None]
        return embedded.contiguous()

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 recordings."""
        return no_recordings(self.geometry, self.frames.weight.device)

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, recordings, hidden] to [tokens, merge_size * hidden], without padding.

        Raises:
            ValueError: if the number of tokens of a recording in the batch is out of range.
        """
        shape = self.geometry
        tokens = hidden.transpose(0, 1).reshape(
            hidden.shape[1], shape.tokens, shape.merge_size * hidden.shape[-1]
        )
        if sizes is None:
            return tokens.flatten(0, 1)
        if bool(((sizes < 1) | (sizes > shape.tokens)).any()):
            raise ValueError(
                f"The batch says that recordings become {sizes.tolist()} tokens, but the encoder "
                f"makes 1 to {shape.tokens} of each."
            )
        counted = torch.arange(shape.tokens, device=hidden.device)
        return tokens[counted < sizes[:, None]]

    def _lengths(self, sizes: torch.Tensor | None, items: int) -> list[int]:
        if sizes is None:
            return super()._lengths(sizes, items)
        lengths: list[int] = (sizes * self.geometry.merge_size).tolist()
        return lengths

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        return None if self._turning is None else self._rotary_in_row(self._turning)

    def _mask(self, sizes: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(self.geometry.positions, device=sizes.device)
        heard = positions < (sizes * self.geometry.merge_size)[:, None]
        return ~heard[:, None, None]


def no_recordings(geometry: AudioGeometry, device: torch.device) -> dict[str, torch.Tensor]:
    """Return 0 recordings, as encoders take them."""
    return {
        "input_features": torch.zeros(0, geometry.mel_bins, geometry.frames, device=device),
        ITEM_TOKENS: torch.zeros(0, dtype=torch.int64, device=device),
    }


def sinusoids(positions: int, width: int) -> torch.Tensor:
    """Return sinusoidal positions (Vaswani et al. 2017, arXiv 1706.03762): [positions, width].

    The first half is sines, the second cosines, as in Whisper; wavelengths from 2 pi to
    10,000 x 2 pi.
    """
    half = width // 2
    scale = torch.arange(half, dtype=torch.float64) / max(half - 1, 1)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * 10_000.0**-scale
    table = torch.zeros(positions, width, dtype=torch.float64)
    table[:, :half], table[:, half : 2 * half] = angles.sin(), angles.cos()
    return table.float()


AUDIO = EncoderKind(
    name="whisper_encoder",
    encoder=AudioTransformer,
    submodules=megatron.AudioModalitySubmodules,
    mask_type=megatron.AttnMaskType.padding,
    parameters=lambda architecture: {
        "geometry": audio_geometry(architecture),
        **places_in_row(architecture, architecture.seq_length),
    },
    merged=lambda architecture: architecture.merge_size,
    sizes="tokens_per_item",
    sides=lambda before: ((before + 1) // 2, before // 2),
)
