"""Seconds of a step of this tree against another: `python -m benchmarks.steps_against TAG`.

Both trees hold their ranks ready at once and take blocks of steps in turn, so that a machine whose
speed drifts, or that others use, slows both alike. CPU seconds are those of all ranks and all their
threads. TAG is a commit, which is checked out under `build/against`, or the folder of a tree.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping, load_experiment_config

ROOT = Path(__file__).parents[1]
STEPS, WARMUP, PAIRS = 4, 6, 12
LEAST = 0.97
TWO = {"images": {"tensor_parallel": 1, "data_parallel": 2}}
TWO["language_module"] = TWO["images"]
LAYOUTS: dict[str, tuple[str, dict[str, dict[str, int]]]] = {
    "colocated": ("digits_colocated", {}),
    "heterogeneous": ("digits_heterogeneous", {}),
    "homogeneous": ("digits_homogeneous", {}),
    "two ranks": ("digits_homogeneous", TWO),
}
"""Name -> a file of `configs/`, and the sizes of its modules that differ."""


def config_of(name: str, tree: Path) -> ExperimentConfig:
    """Return the config of a layout, from the files of a tree."""
    file, sizes = LAYOUTS[name]
    mapping = load_experiment_config(tree / "configs" / f"{file}.yaml").to_mapping()
    for module, own in sizes.items():
        mapping["model"]["module_parallelisms"][module].update(own)
    return config_from_mapping(mapping)


def work(name: str) -> None:
    """Be a rank: for each line that rank 0 reads, run a block and print its seconds of a step."""
    import time

    import torch
    import torch.distributed as dist

    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    config = config_of(name, Path.cwd())
    dist.init_process_group("gloo")
    config.finalize(dist.get_world_size())
    todo, used = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    with prepared(*_run_of(config)) as state:
        state.checks = state.model.check_replicas_rarely()
        while True:
            if dist.get_rank() == 0:
                todo[0] = int(sys.stdin.readline() or 0)
            dist.broadcast(todo, 0)
            if not todo:
                return
            begin, before = time.perf_counter(), time.process_time()
            for _ in range(int(todo)):
                exhaust(training_step(state))
            used[0] = time.process_time() - before
            dist.all_reduce(used)
            if dist.get_rank() == 0:
                wall = time.perf_counter() - begin
                print(json.dumps([wall / int(todo), float(used) / int(todo)]), flush=True)


def _run_of(config: ExperimentConfig) -> tuple[Any, ...]:
    """Return what `prepared` takes; in a tree before `RunOfRank` its parts."""
    from mimokit.planning import plan_layout

    try:
        from mimokit.engine.run_of_rank import RunOfRank
    except ImportError:
        from mimokit.engine.data.sources import default_data

        return plan_layout(config), config, default_data
    return (RunOfRank(plan_layout(config), config),)


class Ranks:
    """The ranks of a tree that wait for blocks of steps."""

    def __init__(self, tree: Path, name: str, world_size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = {
            "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'widgets'}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--work", name]
        self._processes = [
            subprocess.Popen(
                command,
                cwd=tree,
                env={**os.environ, **own, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(world_size)
        ]

    def run(self, steps: int) -> list[float]:
        """Return the seconds of a step by the clock, and its CPU seconds."""
        first = self._processes[0]
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write(f"{steps}\n")
        first.stdin.flush()
        line = first.stdout.readline()
        if not line:
            raise RuntimeError(f"The ranks of {first.args!r} ended before a block of steps did.")
        seconds: list[float] = json.loads(line)
        return seconds

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()


def measure(trees: tuple[Path, Path], name: str) -> list[dict[str, Any]]:
    """Return the rows of a layout."""
    world_size = mimokit.plan(config_of(name, ROOT)).world_size
    with ExitStack() as running:
        both = []
        for tree in trees:
            both.append(Ranks(tree, name, world_size))
            running.callback(both[-1].end)
        for ranks in both:
            ranks.run(WARMUP)
        turns = []
        for number in range(PAIRS):
            order = (0, 1) if number % 2 else (1, 0)
            turn = {which: both[which].run(STEPS) for which in order}
            turns.append((turn[0], turn[1]))
    return [row for kind in (0, 1) for row in _rows(name, turns, kind)]


def _rows(name: str, turns: list[tuple[list[float], list[float]]], kind: int) -> list[Any]:
    what = ("by the clock", "of CPU")[kind]
    ratios = [theirs[kind] / ours[kind] for ours, theirs in turns]
    ratio, spread = statistics.median(ratios), statistics.quantiles(ratios, n=4)
    seconds = [1e3 * statistics.median(turn[side][kind] for turn in turns) for side in (0, 1)]
    text = f"{name}: step {what}, {seconds[1]:.0f} → {seconds[0]:.0f} ms"
    return [
        {
            "name": f"{text}; speed, quartiles {spread[0]:.3f} to {spread[2]:.3f}",
            "measured": ratio,
            "target": f"at least {LEAST}",
            "unit": "",
            "ok": ratio >= LEAST,
        }
    ]


@contextmanager
def tree_of(tag: str) -> Iterator[Path]:
    """Yield the folder of a tree, checked out where `tag` is a commit."""
    if Path(tag).is_dir():
        yield Path(tag).resolve()
        return
    folder = ROOT / "build" / "against" / tag
    git = ["git", "-C", str(ROOT), "worktree"]
    done = subprocess.run(
        [*git, "add", "--detach", str(folder), tag], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{tag!r} is neither a folder nor a commit of this tree: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def main() -> None:
    """Print the table, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", nargs="?", help="commit or folder to compare with")
    parser.add_argument("layouts", nargs="*", default=[], help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return
    with tree_of(given.tag) as tree:
        rows = [row for name in given.layouts or LAYOUTS for row in measure((ROOT, tree), name)]
    show(f"Steps against {given.tag}", rows)


if __name__ == "__main__":
    main()
