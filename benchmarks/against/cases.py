"""What is measured: all that a user waits for."""

from __future__ import annotations

from pathlib import Path

from benchmarks.against.measuring import Case

HERE = Path(__file__).parent
DIGITS = "configs/digits_colocated.yaml"
COMMANDS = (
    "plan", "config", "predict", "search", "import", "export", "run", "verify", "clusters",
    "checkpoints", "frames", "analyze", "weights", "convert", "memory", "advise", "calibrate",
)  # fmt: skip
PACKAGES = ("mimokit", "mimokit.config.experiment", "mimokit.prediction.planned", "mimokit_widgets",
            "mimokit.engine.training.loop")  # fmt: skip

CASES = (
    Case("mimokit --version", ("-m", "mimokit", "--version"), 7),
    Case("mimokit --help", ("-m", "mimokit", "--help"), 7),
    *(Case(f"mimokit {verb} --help", ("-m", "mimokit", verb, "--help"), 3) for verb in COMMANDS),
    *(Case(f"import {name}", ("-c", f"import {name}"), 5) for name in PACKAGES),
    Case(f"mimokit plan {DIGITS}", ("-m", "mimokit", "plan", DIGITS), 7),
    Case("plan, predict, search, edit", (str(HERE / "planning.py"),), 3, prints=True),
    Case("cluster, verify, steps", (str(HERE / "engines.py"),), 2, prints=True),
    Case("make demo", (str(HERE / "demo.py"),), 1),
)
