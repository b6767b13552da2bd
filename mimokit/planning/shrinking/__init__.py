"""Finds the smallest layout that has each kind of group, bridge and schedule pattern of another."""

from mimokit.planning.shrinking.kinds import kinds_of
from mimokit.planning.shrinking.layout import MOST_RANKS, shrunk

__all__ = ["MOST_RANKS", "kinds_of", "shrunk"]
