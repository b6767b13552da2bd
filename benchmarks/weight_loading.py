"""Loading 1 GB on 4 ranks at once: `python -m benchmarks.weight_loading`.

Every rank is a process. Its private memory (`RssAnon`) is read every millisecond while it loads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.table import show
from tests.sparse_weights import LLAMA_70B, sparse_checkpoint

RANKS = 4
PAIRS = 3
CONFIG = {
    **LLAMA_70B, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip
"""0.49e9 parameters, 0.98 GB in bf16."""


def rows() -> list[dict[str, Any]]:
    """Load the planned slices, and in turn load the whole file and slice it."""
    with tempfile.TemporaryDirectory() as folder:
        directory = random_checkpoint(Path(folder))
        pairs = [(_load(directory, "slices"), _load(directory, "whole")) for _ in range(PAIRS)]
    ratios = sorted(_seconds(slices) / _seconds(whole) for slices, whole in pairs)
    most = max(_beyond(rank) for slices, _ in pairs for rank in slices)
    seconds = min(_seconds(slices) for slices, _ in pairs)
    name = "loading 1 GB at TP 4"
    return [
        {
            "name": f"{name}: growth of private memory beyond 1.15 x the shard, most of any rank",
            "measured": most / 1e6, "target": 64.0, "unit": "MB", "ok": most <= 64e6,
        },
        {
            "name": f"{name}: slowest rank",
            "measured": seconds, "target": None, "unit": "s", "ok": True,
        },
        {
            "name": f"{name} against loading all and slicing, median of {PAIRS} pairs",
            "measured": ratios[PAIRS // 2], "target": 0.5, "unit": "",
            "ok": ratios[PAIRS // 2] <= 0.5,
        },
    ]  # fmt: skip


def random_checkpoint(folder: Path) -> Path:
    """Write random bytes into the holes of a sparse file."""
    import numpy as np

    directory = sparse_checkpoint(folder / "llama", CONFIG)
    file = directory / "model.safetensors"
    with file.open("rb") as handle:
        header = 8 + int.from_bytes(handle.read(8), "little")
    left = file.stat().st_size - header
    generator = np.random.default_rng(0)
    with file.open("r+b") as handle:
        handle.seek(header)
        while left:
            left -= handle.write(generator.bytes(min(left, 2**26)))
    return directory


def _seconds(ranks: list[dict[str, float]]) -> float:
    return max(rank["seconds"] for rank in ranks)


def _beyond(rank: dict[str, float]) -> float:
    return rank["growth"] - 1.15 * rank["shard"]


def _load(directory: Path, how: str) -> list[dict[str, float]]:
    """Start the ranks, let them load at once, and return what each has measured."""
    command = [sys.executable, "-m", "benchmarks.weight_loading", how, str(directory)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    for one in ranks:
        assert one.stdout is not None
        one.stdout.readline()  # it has imported what it needs
    found = []
    for one in ranks:
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
    for one in ranks:
        out, _ = one.communicate()
        found.append(json.loads(out))
    return found


def _rank(how: str, directory: str, rank: int) -> None:
    import torch
    from safetensors.torch import load_file

    from mimokit.engine.weights.reading import fill
    from mimokit.engine.weights.shard import read_shard
    from mimokit.planning.weights import WeightPlanner

    class Loaded:
        def __init__(self) -> None:
            mapped = load_file(f"{directory}/model.safetensors")
            self.tensors = {name: one.clone() for name, one in mapped.items()}

        def block(self, tensor: str, rows: Any, columns: Any) -> torch.Tensor:
            taken = self.tensors[tensor][slice(*rows)]
            return taken if columns is None else taken[:, slice(*columns)]

    torch.set_num_threads(1)
    print("ready", flush=True)
    sys.stdin.readline()
    with PrivateMemory() as memory:
        begin = time.perf_counter()
        if how == "slices":
            shard = read_shard(directory, tensor_parallel=RANKS, tensor_rank=rank)
        else:
            planned = WeightPlanner(directory, RANKS).rank(rank)
            shard = {
                name: torch.empty(one.shape, dtype=torch.bfloat16)
                for name, one in planned.parameters.items()
            }
            fill(shard, planned, Loaded())
        seconds = time.perf_counter() - begin
    held = sum(one.nbytes for one in shard.values())
    found = {"seconds": seconds, "growth": memory.growth, "shard": held}
    print(json.dumps(found), flush=True)


class PrivateMemory:
    """Reads the private memory of this process every millisecond.

    Attributes:
        growth: bytes by which it grew at most.
    """

    def __enter__(self) -> PrivateMemory:
        self._before, self.growth = _private(), 0
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()
        self._take()

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self._take()

    def _take(self) -> None:
        self.growth = max(self.growth, _private() - self._before)


def _private() -> int:
    """Return the bytes of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _rank(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        show("Loading weights", rows())
