"""Keeps what a rank records: sketches of every seam, and whole tensors of those in question."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.verify.seams.code import line_of_call
from mimokit.engine.verify.seams.places import ONE_ROW, RowPlaces, places_of_rows
from mimokit.engine.verify.seams.signs import (
    all_columns,
    all_columns_number,
    column_number,
    column_signs,
    salt_of,
)
from mimokit.planning.seams import SIGNS, Recording, Seam, SeamPhase, SeamPiece, Sketches

CHUNK = 2**16
"""Entries of a parameter that get signs at once: 8 MiB of them."""


class Recorder:
    """Records tensors of the step at hand.

    Attributes:
        step: the optimizer steps before this one.
        lengths: sample of this step -> its tokens without padding, as in `Recording`.

    Args:
        wholes: seams of which tensors are kept, too.
        language: the language model, whose rows are hidden states of tokens.
    """

    def __init__(self, wholes: Collection[Seam] = (), language: str = "") -> None:
        self.step = 0
        self.lengths: Mapping[int, int] = {}
        self.recording = Recording()
        self._wholes, self._language = frozenset(wholes), language
        self._numbers = 0

    def tensor(
        self,
        module: str,
        operation: str,
        phase: SeamPhase,
        tensor: torch.Tensor,
        places: RowPlaces,
        columns: NDArray[np.int64] | None = None,
        share: str = "",
    ) -> None:
        """Record a tensor of samples.

        Args:
            tensor: its rows, however many dimensions they are, are those of the places.
            columns: place of every column in the whole tensor; None: the rank has all columns.
            share: of a sum that is not complete; see `Sketches`.
        """
        samples, index = places.numbered
        if not tensor.numel() or not samples:  # no sample of this rank has an item, or a token here
            return
        rows = tensor.detach().reshape(len(places.rows), -1).to("cpu", torch.float64)
        seam = Seam(self.step, module, operation, phase)
        salt, width = salt_of(seam), rows.shape[1]
        signs = all_columns(width, salt) if columns is None else column_signs(columns, salt)
        if columns is not None:  # what is padding may be infinite
            rows = rows.masked_fill(torch.from_numpy(columns < 0)[None], 0.0)
        if places.padding is not None:
            rows = rows.masked_fill(places.padding, 0.0)
        sketches = self._of(seam, share)
        if samples[0] in sketches.samples:
            return  # recomputed
        values = places.signs(salt) * (rows @ signs)
        own = torch.zeros(len(samples), dtype=torch.int64).index_add(0, index, places.numbers)
        own *= all_columns_number(width) if columns is None else column_number(columns)
        zeros = torch.zeros(len(samples), SIGNS, dtype=torch.float64)
        self._add(
            sketches,
            samples,
            zeros.index_add(0, index, values),
            own,
            zeros[:, 0].index_add(0, index, rows.square().sum(1)),
        )
        if seam in self._wholes:
            kept, real = np.arange(width) if columns is None else columns, places.rows >= 0
            piece = SeamPiece(
                share, places.samples[real], places.rows[real], kept, rows.numpy()[real]
            )
            self.recording.wholes.setdefault(seam, []).append(piece)

    def rows(
        self, module: str, operation: str, phase: SeamPhase, tensor: torch.Tensor,
        samples: Sequence[int], counts: Sequence[int], columns: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """Record rows [rows, columns], so many of every sample one after another; see `tensor`."""
        if sum(counts) != len(tensor) or len(counts) != len(samples):
            return
        places = places_of_rows(samples, counts)
        if module == self._language:
            places = places.without_padding(self.lengths)
        self.tensor(module, operation, phase, tensor, places, columns)

    def parameter(
        self,
        module: str,
        name: str,
        phase: SeamPhase,
        parameter: torch.nn.Parameter,
        tensor: torch.Tensor,
        share: str = "",
    ) -> None:
        """Record a tensor like a parameter, of which the rank has the shard that it is marked as.

        Args:
            share: of a sum that is not complete yet; see `Sketches`.
        """
        shard = shard_of(parameter)
        whole = np.arange(int(np.prod(shard.cut.whole)), dtype=np.int64).reshape(shard.cut.whole)
        places = shard.of(whole, padding=-1).astype(np.int64)
        columns = places.reshape(-1)
        flat = tensor.detach().reshape(-1).to("cpu", torch.float64)
        flat = flat.masked_fill(torch.from_numpy(columns < 0), 0.0)
        seam = Seam(self.step, module, name, phase)
        salt = salt_of(seam)
        values = torch.zeros(1, SIGNS, dtype=torch.float64)
        for start in range(0, len(flat), CHUNK):
            signs = column_signs(columns[start : start + CHUNK], salt)
            values += flat[start : start + CHUNK] @ signs
        scalar = ONE_ROW
        own = scalar.numbers * column_number(columns)
        self._add(self._of(seam, share), [0], values, own, flat.square().sum()[None])
        if seam in self._wholes:
            piece = _matrix(share, places, flat.numpy(), shard.cut.whole)
            self.recording.wholes.setdefault(seam, []).append(piece)

    def note_line(self, module: str, operation: str) -> None:
        """Note which line calls an operation, when it is first called."""
        if (module, operation) not in self.recording.code:
            self.recording.code[module, operation] = line_of_call()

    def number(self, module: str, name: str, phase: SeamPhase, value: float) -> None:
        """Record a number that all ranks have."""
        tensor = torch.tensor([[value]], dtype=torch.float64)
        self.tensor(module, name, phase, tensor, ONE_ROW)

    def _of(self, seam: Seam, share: str) -> Sketches:
        sketches = self.recording.sketches.get(seam)
        if sketches is None:
            self._numbers += 1
            sketches = self.recording.sketches[seam] = Sketches(share, self._numbers)
        return sketches

    @staticmethod
    def _add(
        sketches: Sketches,
        samples: Sequence[int],
        values: torch.Tensor,
        places: torch.Tensor,
        squares: torch.Tensor,
    ) -> None:
        sketches.samples += samples
        sketches.values += list(values.numpy())
        sketches.places += places.tolist()
        sketches.squares += squares.tolist()


def _matrix(
    share: str, places: NDArray[np.int64], values: NDArray[np.float64], whole: Sequence[int]
) -> SeamPiece:
    """Return a part of a parameter as rows and columns: its first dimension, and all others.

    Args:
        places: of its entries in the flat whole tensor; negative: padding.
    """
    if len(whole) < 2 or not places.size:
        row = ONE_ROW
        return SeamPiece(share, row.samples, row.rows, places.reshape(-1), values[None].copy())
    flat, width = places.reshape(len(places), -1), int(np.prod(whole[1:]))
    rows, columns = flat.max(1) // width, flat.max(0)
    columns = np.where(columns < 0, -1, columns % width)
    real = rows >= 0
    samples = np.zeros(int(real.sum()), np.int64)
    return SeamPiece(share, samples, rows[real], columns, values.reshape(flat.shape)[real])
