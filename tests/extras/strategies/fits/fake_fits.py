"""Folders of fits, written from plans: what nodes would exchange is what they are planned to."""

import json
import math
from pathlib import Path
from typing import Any

from mimokit.analysis import FitFolder, read_fit
from mimokit.config import StrategyConfig
from mimokit.planning import StrategyPlan, plan_strategy
from mimokit.prediction import Network, predict_strategy
from mimokit.result_files import FIT_COLUMNS, FitFile, write_table

NODES = 4
NETWORK = Network("100 Mbit/s", "5 ms")
COMPUTE_SECONDS = 0.005
EVERY = 5
"""Steps between validations, and between measurements of the drift."""
RULES: dict[str, dict[str, Any]] = {
    "SimpleReduce": {"name": "simple_reduce"},
    "DiLoCo": {"name": "diloco", "H": 10},
    "Islands": {"name": "fedavg", "H": 4, "island_size": 2},
    "Streaming": {"name": "streaming_diloco", "H": 10, "fragments": 2, "overlap_steps": 1},
    "NoLoCo": {"name": "noloco", "H": 10},
    "DeMo": {"name": "demo"},
    "SparseLoCo": {"name": "sparse_loco", "H": 10},
}


def plan(name: str) -> StrategyPlan:
    shapes = {"layers.0.weight": (64, 64), "layers.1.weight": (64, 10)}
    return plan_strategy(StrategyConfig(**RULES[name]), shapes, NODES)


def write_fit(folder: Path, name: str, steps: int = 20, network: Network | None = NETWORK) -> Path:
    """Write the folder of a fit on four nodes."""
    own = plan(name)
    folder.mkdir(parents=True)
    rows: dict[FitFile, list[dict[str, Any]]] = {file: [] for file in FIT_COLUMNS}
    for step in range(steps + 1):
        loss = 2.3 * math.exp(-step / 10)
        time = {}
        if network is not None:
            found = predict_strategy(own, network, COMPUTE_SECONDS, steps=step)
            time = {"predicted_seconds": found.wall_seconds}
        if step:
            row = {"step": step, "examples_trained": 64 * step, "train_loss": loss, "lr": 1e-3}
            rows[FitFile.TRAIN].append(row | time)
        if step % EVERY == 0:
            row = {"step": step, "local_loss": loss + 0.2, "global_loss": loss}
            rows[FitFile.VALIDATION].append(row | time)
            drift = {"mean_correlation": 1 - step / 1000, "largest_distance": step / 10}
            rows[FitFile.DRIFT].append({"step": step, **drift})
    about = {"operation": "all_reduce", "payload_bytes": 18944, "sent_bytes": 28416}
    for purpose, step in (("start", 0), ("evaluation", 5)):
        place = {"step": step, "purpose": purpose}
        rows[FitFile.COMMUNICATION] += [{**place, **about, "node": node} for node in range(NODES)]
    planned = [row | {"purpose": "strategy"} for row in own.rows(steps)]
    rows[FitFile.COMMUNICATION] += planned
    for file, columns in FIT_COLUMNS.items():
        write_table(folder / file, rows[file], columns)
    (folder / FitFile.CONFIG).write_text(json.dumps({"strategy": RULES[name]["name"]}))
    return folder


def fake_fits(folder: Path, **options: Any) -> dict[str, FitFolder]:
    """Return one fit per rule, read from their folders."""
    return {name: read_fit(write_fit(folder / name, name, **options)) for name in RULES}
