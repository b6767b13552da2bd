"""Measures what the samples of a data set are made of, for `mimokit.measure`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mimokit.config import ExperimentConfig
from mimokit.planning.layout import checked_config, plan_checked
from mimokit.progress import shown
from mimokit.units import counted
from mimokit.workload.files import SUFFIXES, read_mix
from mimokit.workload.mix import EMPTY, MOST_ROWS, TEXT, SampleMix, bad_mix, from_rows
from mimokit.workload.presets import mix_names

if TYPE_CHECKING:
    from mimokit.engine.data.sources import TrainingData

FRAMES_PER_SECOND = 100
"""Log-mel frames of a recording."""
Row = Mapping[str, float]


def measure(
    dataset: Any,
    samples: int = MOST_ROWS,
    *,
    seed: int = 0,
    data: Callable[[ExperimentConfig], TrainingData] | None = None,
) -> SampleMix:
    """Return what samples are made of, for predictions and searches over samples.

    Args:
        dataset: a .parquet, .csv or .jsonl file, or a name of `mix_names` (see `read_mix`); an
            experiment (config, mapping, YAML file or preset:NAME), whose training data is read; or
            a data set whose samples, or whose `sample_sizes(index)`, are mappings such as
            {"text": 200, "images.items": 3}.
        samples: of a data set so many are read, drawn evenly; of a file so many rows are kept.
        data: makes the data of the experiment, in place of what it names.

    Raises:
        ConfigError: there are no samples, a sample cannot be read, or a value is refused.
    """
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        why = f"samples is {samples!r}; it must be a whole number of at least 1"
        raise bad_mix(str(dataset), why, "samples")
    if isinstance(dataset, str | os.PathLike):
        name = os.fspath(dataset)
        if name in mix_names() or Path(name).suffix in SUFFIXES:
            return read_mix(name, samples, seed=seed)
    if isinstance(dataset, ExperimentConfig | Mapping | str | os.PathLike):
        reader: _Stated | _Collated = _Collated.of(checked_config(dataset), data)
    else:
        reader = _Stated(dataset, type(dataset).__name__)
    return from_rows(list(_rows(reader, samples, seed)), reader.name)


def _rows(reader: _Stated | _Collated, samples: int, seed: int) -> Iterator[Row]:
    if not isinstance(reader.dataset, Sized):
        raise bad_mix(reader.name, "it has no length; give it __len__ and __getitem__")
    size = len(reader.dataset)
    if not size:
        raise bad_mix(reader.name, EMPTY)
    drawn = range(size)
    if samples < size:
        chosen = np.random.default_rng(seed).choice(size, samples, replace=False)
        drawn = sorted(chosen.tolist())  # type: ignore[assignment]
    with shown(f"Measuring {counted(len(drawn), 'sample')}", total=len(drawn)) as bar:
        for number, index in enumerate(drawn):
            try:
                row = reader.row(index)
            except Exception as error:
                why = f"sample {index:,} raised {type(error).__name__}: {error}"
                right = "mend it, or leave it out of the data set"
                raise bad_mix(reader.name, f"{why.rstrip('.')}; {right}") from error
            yield row
            bar.update(number + 1)


@dataclass(frozen=True)
class _Stated:
    """A data set that says what its samples are made of."""

    dataset: Any
    name: str

    def row(self, index: int) -> Row:
        stated = getattr(self.dataset, "sample_sizes", self.dataset.__getitem__)(index)
        if not isinstance(stated, Mapping):
            raise TypeError(
                f"it is a {type(stated).__name__}, not a mapping such as {{'text': 200, "
                "'images.items': 3}; or give the experiment, whose collate_fn says what it is"
            )
        return stated


@dataclass(frozen=True)
class _Collated:
    """The training data of an experiment, of which each sample becomes a batch."""

    config: ExperimentConfig
    training: TrainingData

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        data: Callable[[ExperimentConfig], TrainingData] | None,
    ) -> _Collated:
        from mimokit.engine.data.sources import default_data

        return cls(config, (data or default_data)(config))

    @property
    def name(self) -> str:
        return self.training.name

    @property
    def dataset(self) -> Any:
        return self.training.train

    def row(self, index: int) -> Row:
        from mimokit.engine.data.batch import rows_per_sample, sample_lengths
        from mimokit.engine.data.iterators import PlannedIndex

        model, data = self.config.model, self.config.data
        step, place = divmod(index, plan_checked(self.config).batch.samples_per_microbatch)
        planned = PlannedIndex(index, step % data.num_microbatches, place)
        batch = self.training.collate_fn([self.dataset[planned]])
        ids = model.input_token_ids
        length = sample_lengths(batch, [token for tokens in ids.values() for token in tokens])[0]
        row: dict[str, float] = {}
        for name, inputs in (batch.get("modality_inputs") or {}).items():
            sizes = _Sizes.of(self.config, name, inputs)
            rows = int(rows_per_sample(inputs, 1, sizes.tokens)[0])
            length -= rows * len(ids[name])
            row |= {f"{name}.items": sizes.items, f"{name}.size": sizes.size}
            if sizes.frames_per_token:
                row[f"{name}.seconds"] = rows * sizes.frames_per_token / FRAMES_PER_SECOND
        return {TEXT: length, **row}


@dataclass(frozen=True)
class _Sizes:
    items: int
    size: float
    tokens: int
    frames_per_token: int

    @classmethod
    def of(cls, config: ExperimentConfig, name: str, inputs: Mapping[str, Any]) -> _Sizes:
        from mimokit.architecture.tokens import AudioGeometry, geometry_of

        geometry = geometry_of(config.model.get_architecture(name))
        items = int(inputs["items_per_sample"][0])
        per_token = geometry.frames_per_token if isinstance(geometry, AudioGeometry) else 0
        grids = next((t["grid_thw"] for t in inputs.values() if _has_grid(t)), None)
        patches = items * geometry.positions if grids is None else int(grids.prod(1).sum())
        return cls(items, patches / items if items else 0.0, geometry.tokens, per_token)


def _has_grid(tensors: Any) -> bool:
    return isinstance(tensors, Mapping) and "grid_thw" in tensors
