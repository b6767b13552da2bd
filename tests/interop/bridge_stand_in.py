"""Megatron-Bridge's two classes with the checks of its `finalize`, written from its rules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from types import ModuleType
from typing import Any

from mimokit.prediction import Layout
from mimokit.prediction.layout import rank_offsets

HOME = "megatron.bridge.models.megatron_mimo.megatron_mimo_config"


@dataclass
class ModuleParallelismConfig:
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    data_parallel_size: int | None = None
    rank_offset: int = 0

    @property
    def stage(self) -> int:
        assert self.data_parallel_size
        return (
            self.tensor_model_parallel_size * self.context_parallel_size * self.data_parallel_size
        )

    @property
    def end(self) -> int:
        return self.rank_offset + self.stage * self.pipeline_model_parallel_size


@dataclass
class MegatronMIMOParallelismConfig:
    module_parallelisms: dict[str, ModuleParallelismConfig]
    special_token_ids: dict[str, int] = field(default_factory=dict)

    def finalize(self, world_size: int) -> None:
        assert "language" in self.module_parallelisms
        begin = 0
        for one in sorted(self.module_parallelisms.values(), key=lambda one: one.rank_offset):
            assert one.rank_offset == begin, "ranks tile the world"
            begin = one.end
            assert one.stage % one.expert_model_parallel_size == 0
            assert one.tensor_model_parallel_size.bit_count() == 1
        assert begin == world_size
        for name, one in self.module_parallelisms.items():
            assert name == "language" or one.expert_model_parallel_size == 1
        for one, two in combinations(self.module_parallelisms.values(), 2):
            a, b = one.data_parallel_size or 1, two.data_parallel_size or 1
            assert max(a, b) % min(a, b) == 0


def _installed() -> bool:
    try:
        return find_spec(HOME) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def stand_in() -> Iterator[None]:
    """Let generated code import the classes above, where Bridge itself is not installed."""
    if _installed():
        yield
        return
    module = ModuleType(HOME)
    vars(module).update(
        ModuleParallelismConfig=ModuleParallelismConfig,
        MegatronMIMOParallelismConfig=MegatronMIMOParallelismConfig,
    )
    names = [HOME.rsplit(".", drop)[0] for drop in range(HOME.count(".") + 1)]
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: ModuleType(name) for name in names[1:]})
    sys.modules[HOME] = module
    try:
        yield
    finally:
        for name, old in before.items():
            sys.modules.pop(name)
            if old is not None:
                sys.modules[name] = old


def names_in(source: str) -> dict[str, Any]:
    """Run generated code and return its names."""
    with stand_in():
        names: dict[str, Any] = {}
        exec(compile(source, "generated.py", "exec"), names)
        return names


def built(source: str) -> Any:
    """Run generated code and return its finalized config."""
    return names_in(source)["parallelism_config"]()


def finalized(layout: Layout) -> Any:
    """Return the config of a layout, made without generated code.

    Raises:
        AssertionError, ValueError: Bridge refuses it.
    """
    with stand_in():
        home = import_module(HOME)
        offsets = rank_offsets(layout)
        modules = {
            name: home.ModuleParallelismConfig(
                tensor_model_parallel_size=sizes.tensor,
                pipeline_model_parallel_size=sizes.pipeline,
                context_parallel_size=sizes.context,
                expert_model_parallel_size=sizes.expert,
                data_parallel_size=sizes.data,
                rank_offset=offsets[name],
            )
            for name, sizes in layout.modules.items()
        }
        config = home.MegatronMIMOParallelismConfig(module_parallelisms=modules)
        config.finalize(layout.gpus)
        return config
