"""What the samples of a mix are to the modules of a model: items of full size, and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.encoders import AudioEncoder, VisionEncoder
from mimokit.architecture.modules import EncoderBranch, Model
from mimokit.prediction.workload import EncoderInput, Workload, branches_of
from mimokit.units import listed
from mimokit.workload.mix import TEXT, SampleMix, bad_mix

Floats = NDArray[np.float64]
POSITIONS_PER_SECOND = 50
"""Of a recording in an encoder: two log-mel frames of 10 ms each."""


@dataclass(frozen=True)
class SampleLoads:
    """What each sample of a mix is to the modules of a model.

    Attributes:
        items: encoder -> [samples], items of full size that it computes.
        tokens: [samples], of the language model, those of all encoders included.
    """

    items: Mapping[str, Floats] = field(repr=False)
    tokens: Floats = field(repr=False)
    text_only: NDArray[np.bool_] = field(repr=False)

    @property
    def without_text(self) -> SampleLoads:
        """Those of samples that have more than text."""
        kept = ~self.text_only
        items = {name: column[kept] for name, column in self.items.items()}
        return SampleLoads(items, self.tokens[kept], self.text_only[kept])


def loads_of(mix: SampleMix, model: Model, workload: Workload) -> SampleLoads:
    """Return what the samples of a mix are to a model.

    A modality of the mix is that of the encoder of its name, or else of the only vision or audio
    encoder.

    Raises:
        ConfigError: a modality has no encoder, or an encoder none; a sample is longer than the
            sequence.
    """
    branches = _encoders_of(mix, model)
    items, tokens = {}, mix.columns[TEXT].copy()
    for name, branch in branches.items():
        length = workload.input_of(branch).length
        items[branch.name], of_sample = _of_encoder(mix, name, branch, length)
        tokens = tokens + of_sample
    _check_lengths(tokens, workload.seq_length, mix, "the sequence")
    empty = np.all([column == 0 for column in items.values()], axis=0) if items else tokens >= 0
    return SampleLoads(items, tokens, empty)


def _encoders_of(mix: SampleMix, model: Model) -> dict[str, EncoderBranch]:
    """Return modality of the mix -> the encoder that it is of."""
    branches = {branch.name: branch for branch in branches_of(model)}
    kinds = {"vision": VisionEncoder, "audio": AudioEncoder}
    known = {}
    for name in mix.modalities:
        of_kind = [
            each for each in branches.values() if isinstance(each.encoder, kinds.get(name, ()))
        ]
        branch = branches.get(name) or (of_kind[0] if len(of_kind) == 1 else None)
        if branch is None:
            there = listed(list(branches)) or "none"
            raise bad_mix(
                mix.source,
                f"it has inputs of {name!r}, which is not an encoder of the model ({there}) nor "
                "the kind, vision or audio, of only one of them; name its columns so",
            )
        known[name] = branch
    read = {branch.name for branch in known.values()}
    for name, branch in branches.items():
        if name not in read and isinstance(branch.encoder, VisionEncoder | AudioEncoder):
            raise bad_mix(
                mix.source,
                f"it has no column of the encoder {name!r} of the model; add '{name}.items', 0 "
                "where a sample has none",
            )
    return known


def _of_encoder(
    mix: SampleMix, name: str, branch: EncoderBranch, length: int
) -> tuple[Floats, Floats]:
    """Return items of full size, and tokens, of each sample."""
    encoder, items = branch.encoder, mix.items(name)
    seconds, size = mix.get(name, "seconds"), mix.get(name, "size")
    if isinstance(encoder, AudioEncoder):
        row = branch.positions_of_a_row
        if seconds is None:
            return items, items * encoder.tokens() / row
        stated = mix.get(name, "items")
        windows = _pieces(seconds, length)
        items = windows if stated is None else np.maximum(stated, windows)
        return items, _pieces(seconds, row)
    if size is not None:
        items = items * size / length
    return items, items * encoder.tokens()


def _pieces(seconds: Floats, positions: int) -> Floats:
    """Return the pieces of so many positions of which recordings are made, the last one padded."""
    # Rounded, as 0.56 s are 28.000000000000004 positions.
    return np.asarray(np.ceil(np.round(seconds * POSITIONS_PER_SECOND / positions, 6)))


def _check_lengths(tokens: Floats, most: int, mix: SampleMix, of: str) -> None:
    longer = tokens > most
    if longer.any():
        longest = int(np.argmax(tokens))
        raise bad_mix(
            mix.source,
            f"{int(longer.sum()):,} of {len(tokens):,} samples have more than the {most:,} tokens "
            f"of {of}, most of all sample {longest:,} with {tokens[longest]:,.0f}; make it "
            "longer, or leave them out",
            "seq_length",
        )


def with_means(workload: Workload, mix: SampleMix, model: Model) -> Workload:
    """Return a workload whose encoders have as many items in every sample as a mix on average."""
    loads = loads_of(mix, model, workload)
    inputs = dict(workload.inputs)
    for branch in branches_of(model):
        if branch.name in loads.items:
            length = workload.input_of(branch).length
            inputs[branch.name] = EncoderInput(length, float(loads.items[branch.name].mean()))
    return replace(workload, inputs=inputs, mix=mix)


def check_row(packing: object, loads: SampleLoads, mix: SampleMix) -> None:
    """Refuse rows that are shorter than a sample."""
    if isinstance(packing, int):
        _check_lengths(loads.tokens, packing, mix, "a packed row")
