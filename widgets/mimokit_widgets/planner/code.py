"""A config as a command line."""

import shlex

from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan

WIDTH = 88


def as_torchrun(config: ExperimentConfig, plan: LayoutPlan, ranks_per_node: int, file: str) -> str:
    """Return the command that trains the layout, once the config is in a file.

    torchrun wants as many processes on every node: the most that are at most `ranks_per_node`.
    """
    here = next(n for n in range(ranks_per_node, 0, -1) if plan.world_size % n == 0)
    if plan.world_size <= ranks_per_node:
        here = plan.world_size
    nodes = plan.world_size // here
    several = "" if nodes == 1 else f" --nnodes {nodes} --rdzv-backend c10d"
    several += "" if nodes == 1 else " --rdzv-endpoint FIRST_NODE:29500"
    module = "-m mimokit.experiment"
    return f"torchrun{several} --nproc-per-node {here} {module} {shlex.quote(file)}"
