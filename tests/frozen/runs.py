"""A run of each mode, whose results and checkpoint stay readable: `python -m tests.frozen.runs`."""

import json
import shutil
from pathlib import Path

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import train
from tests.claims.layouts import COLOCATED, DP2, HETEROGENEOUS, HOMOGENEOUS, TP2, two
from tests.evaluations import QUICK

FOLDER = Path(__file__).parents[1] / "fixtures" / "frozen_runs"
SAVED, LAST = 2, 4
LAYOUTS = {
    HOMOGENEOUS: two(HOMOGENEOUS, TP2, TP2),
    COLOCATED: two(COLOCATED, DP2, TP2),
    HETEROGENEOUS: two(HETEROGENEOUS),
}


def frozen_config(mode: str) -> ExperimentConfig:
    """Return a layout on two ranks, of the mode."""
    config = LAYOUTS[mode]()
    for network in config.model.module_architectures.values():
        network.hidden_size, network.num_attention_heads, network.num_layers = 16, 2, 1
    config.runtime.num_iterations = LAST
    config.runtime.precision = "bf16" if mode == COLOCATED else "fp32"
    return config.finalize()


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    with EngineCluster(2) as cluster:
        for name in LAYOUTS:
            config = frozen_config(name)
            run = train(
                cluster,
                config,
                directory=FOLDER / name,
                checkpoints=SAVED,
                trace=True,
                evaluations=QUICK,
            )
            run.result()
            (last,) = (FOLDER / name / "checkpoints").glob(f"*{LAST}")
            shutil.rmtree(last)
            information = FOLDER / name / "experiment_info.json"
            known = json.loads(information.read_text())
            known |= {"hosts": ["host"], "git": {"revision": known["git"]["revision"]}}
            information.write_text(json.dumps(known, indent=2))
