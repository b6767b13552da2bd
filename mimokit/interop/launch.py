"""Commands and scripts that start a layout on its hosts."""

import shlex
from collections.abc import Sequence

from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction import Layout
from mimokit.prediction.validity import check_counts
from mimokit.units import counted

PORT = 29500

_SLURM = """#!/bin/bash
#SBATCH --job-name=mimokit
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --time=24:00:00
#SBATCH --exclusive

# {layout}
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR

srun --kill-on-bad-exit=1 bash -c '
torchrun --nnodes={nodes} --nproc-per-node={gpus} --node-rank="$SLURM_NODEID" \\
  --master-addr="$MASTER_ADDR" --master-port={port} {command}
'
"""


def to_torchrun(
    layout: Layout, script: str, *, hosts: Sequence[str] = ("localhost",), gpus_per_node: int = 8
) -> str:
    """Return one torchrun command per host, each under a comment that names its host.

    Ranks follow the order of the hosts, so that the ranks of a module are adjacent.

    Raises:
        ConfigError: the hosts have more or fewer GPUs than the layout takes.
    """
    nodes, each = nodes_of(layout, gpus_per_node)
    sentence = (
        f"the layout takes {counted(layout.gpus, 'GPU')}, {each} on each of "
        f"{counted(nodes, 'host')}, and {len(hosts)} "
        f"{'host is' if len(hosts) == 1 else 'hosts are'} named; name {nodes} different ones "
        "(--host NAME, once for each)."
    )
    _check(nodes == len(set(hosts)) == len(hosts), "hosts", list(hosts), sentence)
    lines = []
    for number, host in enumerate(hosts):
        lines.append(f"# on {host}")
        lines.append(
            f"torchrun --nnodes={nodes} --nproc-per-node={each} --node-rank={number} "
            f"--master-addr={shlex.quote(hosts[0])} --master-port={PORT} {shlex.quote(script)}"
        )
    return "\n".join(lines) + "\n"


def to_slurm(layout: Layout, script: str, *, gpus_per_node: int = 8) -> str:
    """Return a batch script for Slurm, of 24 hours, that starts one torchrun per node."""
    nodes, each = nodes_of(layout, gpus_per_node)
    return _SLURM.format(
        nodes=nodes,
        gpus=each,
        layout=str(layout).replace("\n", " "),
        port=PORT,
        command=shlex.quote(script).replace("'", "'\\''"),
    )


def nodes_of(layout: Layout, gpus_per_node: int) -> tuple[int, int]:
    """Return the nodes of a layout, which has to fill them, and the GPUs that it takes on each."""
    sentence = f"gpus_per_node is {gpus_per_node}; it must be a whole number of at least 1."
    _check(gpus_per_node >= 1, "gpus_per_node", gpus_per_node, sentence)
    check_counts(layout)
    if layout.gpus <= gpus_per_node:
        return 1, layout.gpus
    sentence = (
        f"the layout takes {counted(layout.gpus, 'GPU')}, which is not a whole number of nodes "
        f"with {gpus_per_node} each; choose a layout whose GPUs are a multiple of {gpus_per_node}."
    )
    _check(layout.gpus % gpus_per_node == 0, "gpus_per_node", gpus_per_node, sentence)
    return layout.gpus // gpus_per_node, gpus_per_node


def _check(right: bool, field: str, value: object, sentence: str) -> None:
    if not right:
        raise ConfigError([Problem("launch", field, value, f"Launch: {sentence}")])
