"""What the samples of a data set are made of, as columns of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.workload.files import read_mix as read_mix
    from mimokit.workload.files import write_mix as write_mix
    from mimokit.workload.mix import SampleMix as SampleMix
    from mimokit.workload.mix import mix_of as mix_of
    from mimokit.workload.presets import mix_names as mix_names
    from mimokit.workload.presets import named_mix as named_mix
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
