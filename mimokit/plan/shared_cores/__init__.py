"""How long a step takes where ranks share the cores of one machine: mimokit's own engine, here."""

from mimokit.plan.shared_cores.costs import CoreCosts
from mimokit.plan.shared_cores.sharing import Span, run_shared

__all__ = ["CoreCosts", "Span", "run_shared"]
