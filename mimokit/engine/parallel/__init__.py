"""Process groups of a rank, and reductions over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.engine.parallel.chunks import chunks_of_rank as chunks_of_rank
    from mimokit.engine.parallel.marks import cut_by_marks as cut_by_marks
    from mimokit.engine.parallel.marks import is_cut as is_cut
    from mimokit.engine.parallel.marks import is_expert as is_expert
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
