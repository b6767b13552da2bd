"""Process groups of a rank, and reductions over them."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.parallel.chunks import chunks_of_rank as chunks_of_rank
    from mimokit.engine.parallel.data_parallel import ModuleDataParallel as ModuleDataParallel
    from mimokit.engine.parallel.main_weights import is_held_in_part as is_held_in_part
    from mimokit.engine.parallel.main_weights import main_value as main_value
    from mimokit.engine.parallel.main_weights import main_weight as main_weight
    from mimokit.engine.parallel.main_weights import state_shard as state_shard
    from mimokit.engine.parallel.marks import cut_by_marks as cut_by_marks
    from mimokit.engine.parallel.marks import is_cut as is_cut
    from mimokit.engine.parallel.marks import is_expert as is_expert
    from mimokit.engine.parallel.marks import shard_of as shard_of
    from mimokit.engine.parallel.update import MainGradUpdate as MainGradUpdate
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
