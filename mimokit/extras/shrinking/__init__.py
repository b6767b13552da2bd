"""Finds the smallest layout that has each kind of group, bridge and schedule pattern of another."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.extras.shrinking.kinds import kinds_of as kinds_of
    from mimokit.extras.shrinking.layout import MOST_RANKS as MOST_RANKS
    from mimokit.extras.shrinking.layout import shrunk as shrunk
    from mimokit.extras.shrinking.report import ShrunkReport as ShrunkReport
    from mimokit.extras.shrinking.report import explain_shrunk as explain_shrunk
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
