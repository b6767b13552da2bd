"""The positions and tokens of an image, a recording or a text in an encoder."""

import math
from dataclasses import dataclass

from mimokit.config import ModuleArchitecture
from mimokit.units import counted

DEFAULT_PATCH_SIZE = 4
FRAMES_PER_POSITION = 2
"""Whisper's second convolution has a stride of 2."""


@dataclass(frozen=True)
class ImageGeometry:
    """The patches of an image; of the largest image if an encoder takes images of any size.

    Attributes:
        merge_size: merge_size x merge_size patches become one token.
        class_token: a learned position before the patches; it becomes no token, unless
            keeps_class_token is set.
        registers: further such positions, which become none.
        frames_per_patch: frames of a patch; an image stands for so many equal ones.
        one_row: all positions become one token.
        any_size: an image may have fewer rows and columns, and comes with their number.
    """

    rows: int
    columns: int
    patch_size: int
    num_channels: int
    merge_size: int
    class_token: bool = False
    keeps_class_token: bool = False
    registers: int = 0
    any_size: bool = False
    frames_per_patch: int = 1
    one_row: bool = False

    @property
    def features(self) -> int:
        """Numbers of a patch, which the first layer takes."""
        return self.num_channels * self.frames_per_patch * self.patch_size**2

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return self.rows * self.patch_size

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return self.columns * self.patch_size

    @property
    def patches(self) -> int:
        """Patches per image."""
        return self.rows * self.columns

    @property
    def extra_positions(self) -> int:
        """Learned positions before the patches: class token and registers."""
        return self.class_token + self.registers

    @property
    def positions(self) -> int:
        """The encoder's sequence length: extra positions and patches."""
        return self.extra_positions + self.patches

    @property
    def tokens(self) -> int:
        """Tokens per image in the language model."""
        return 1 if self.one_row else self.patches // self.merge_size**2 + self.keeps_class_token


def image_geometry(architecture: ModuleArchitecture) -> ImageGeometry:
    """Return how an encoder splits its images into patches.

    With an image_size, images (the largest of them) are square. Without, an image has `seq_length`
    patches, in the grid nearest to a square whose sides the merge size divides.

    Raises:
        ValueError: if image, patch and merge size do not divide each other.
    """
    patch = architecture.patch_size or DEFAULT_PATCH_SIZE
    merge = architecture.merge_size
    if architecture.image_size is not None:
        if architecture.image_size % (patch * merge):
            raise ValueError(
                f"image_size {architecture.image_size} must be a multiple of patch_size {patch} "
                f"times merge_size {merge}, that is of {patch * merge}."
            )
        rows = columns = architecture.image_size // patch
    else:
        rows, columns = _grid_of(architecture.seq_length, merge)
    return ImageGeometry(
        rows,
        columns,
        patch,
        architecture.num_channels,
        merge,
        class_token=architecture.class_token,
        keeps_class_token=architecture.keep_class_token,
        registers=architecture.num_registers,
        any_size=architecture.any_image_size,
        frames_per_patch=architecture.frames_per_patch,
        one_row=architecture.one_row,
    )


def rows_of_table(architecture: ModuleArchitecture) -> int:
    """Return the rows of the table of positions of images; 0 where they are rotary."""
    interpolated = architecture.position_embedding_type == "interpolated"
    if not (interpolated or architecture.has_learned_positions(by_default=True)):
        return 0
    # Of the extra positions only the class token has a position embedding.
    usual = image_geometry(architecture).patches + architecture.class_token
    return architecture.max_position_embeddings or usual


def _grid_of(patches: int, merge: int) -> tuple[int, int]:
    squares = patches // merge**2
    if squares * merge**2 != patches:
        raise ValueError(
            f"seq_length {patches} must be a multiple of merge_size {merge} squared, "
            f"that is of {merge**2}."
        )
    rows = next(r for r in range(math.isqrt(squares), 0, -1) if squares % r == 0)
    return rows * merge, squares // rows * merge


@dataclass(frozen=True)
class AudioGeometry:
    """The positions of a recording: two log-mel frames become one position.

    Attributes:
        positions: of the longest recording, the encoder's sequence length.
        merge_size: successive positions that become one token.
    """

    positions: int
    mel_bins: int
    merge_size: int

    @property
    def frames(self) -> int:
        """Frames of the longest recording; shorter ones are padded to it."""
        return self.positions * FRAMES_PER_POSITION

    @property
    def frames_per_token(self) -> int:
        """Frames that become one token."""
        return FRAMES_PER_POSITION * self.merge_size

    @property
    def tokens(self) -> int:
        """Tokens of the longest recording."""
        return self.positions // self.merge_size

    @property
    def features(self) -> int:
        """Numbers of the frames of a token."""
        return self.frames_per_token * self.mel_bins

    def tokens_of(self, frames: int) -> int:
        """Return the tokens of a recording up to the longest; the last may contain padding."""
        if not 0 < frames <= self.frames:
            raise ValueError(
                f"A recording has {counted(frames, 'frame')}; the encoder takes 1 to {self.frames}."
            )
        return -(-frames // self.frames_per_token)


def audio_geometry(architecture: ModuleArchitecture) -> AudioGeometry:
    """Return how an audio encoder splits its recordings into positions.

    Raises:
        ValueError: the module has no mel_bins, or its merge size does not divide its positions.
    """
    positions, merge = architecture.seq_length, architecture.merge_size
    if architecture.mel_bins is None:
        raise ValueError("An audio encoder needs mel_bins, the frequency bands of a frame.")
    if positions % merge:
        raise ValueError(f"seq_length {positions} must be a multiple of merge_size {merge}.")
    return AudioGeometry(positions, architecture.mel_bins, merge)


@dataclass(frozen=True)
class _Unmerged:
    """The positions of an item of a module's sequence length, each of which becomes a token."""

    positions: int
    merge_size: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of the largest item."""
        return self.positions


class TextGeometry(_Unmerged):
    """The words of the longest text in a text head; shorter ones are padded to it."""


class RowGeometry(_Unmerged):
    """The rows of the largest item in an adapter, the tokens that an encoder before makes of it."""


Geometry = ImageGeometry | AudioGeometry | TextGeometry | RowGeometry


def geometry_of(architecture: ModuleArchitecture) -> Geometry:
    """Return the geometry of one image, the longest recording or text, or the rows of an item."""
    match architecture.modality:
        case "audio":
            return audio_geometry(architecture)
        case "text":
            return TextGeometry(architecture.seq_length)
        case "rows":
            return RowGeometry(architecture.seq_length)
        case "vision":
            return image_geometry(architecture)


def row_features(decoder: ModuleArchitecture) -> int:
    """Return the numbers that a decoder of images or sound makes of a row."""
    if decoder.modality == "audio":
        return audio_geometry(decoder).features
    return image_geometry(decoder).features


def tokens_per_item(architecture: ModuleArchitecture) -> int:
    """Return the tokens that one image (the largest), recording or text (the longest) becomes."""
    return geometry_of(architecture).tokens
