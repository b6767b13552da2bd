"""The answers of a config: its plan, its predictions, and which other sizes are refused."""

import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mimokit
from mimokit.config import ConfigError
from tests.large_presets import LARGE_PRESETS

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).with_name("shipped.json")
GPUS = ("h100", "b200", "a100")
SIZES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
OTHERS = (2, 3, 8)
"""Sizes that each module is tried with, one field at a time."""
DIGITS = 9
"""Significant digits of a number: what processors agree on."""

Answer = Any  # JSON


def sources() -> tuple[str, ...]:
    """Return the shipped configs, by their paths below the root, and the presets."""
    files = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("configs/**/*.yaml"))
    return (*files, *(f"preset:{name}" for name in LARGE_PRESETS))


def answers(source: str) -> dict[str, Answer]:
    """Return the plan, the prediction on each GPU and the refused sizes of a config."""
    path = source if source.startswith("preset:") else str(ROOT / source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = rounded(mimokit.plan(path).to_json())
        predicted = {gpu: _predicted(path, gpu) for gpu in GPUS}
        return {"plan": plan, **predicted, "refused": list(_refused(path))}


def _predicted(path: str, gpu: str) -> Answer:
    try:
        return rounded(mimokit.predict(path, gpu=gpu).to_json())
    except ConfigError as problem:
        return str(problem)


def _refused(path: str) -> Iterator[str]:
    if path.startswith("preset:"):
        config = mimokit.load_preset(path.removeprefix("preset:"))
    else:
        config = mimokit.load_experiment_config(path)
    written = config.model_dump(exclude_unset=True)
    for module, sizes in written["model"]["module_parallelisms"].items():
        for field in SIZES:
            for value in OTHERS:
                changed = json.loads(json.dumps(written, default=str))
                changed["model"]["module_parallelisms"][module] = {**sizes, field: value}
                changed["model"]["module_parallelisms"][module].pop("data_parallel", None)
                try:
                    mimokit.plan(changed)
                except ConfigError:
                    yield f"{module}.{field}={value}"


def rounded(value: Answer) -> Answer:
    """Return JSON with its numbers rounded to what processors agree on."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(of) for key, of in value.items()}
    return [rounded(of) for of in value] if isinstance(value, list | tuple) else value


def digest(answer: Answer) -> str:
    """Return a short digest of an answer."""
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:16]


def as_frozen(given: dict[str, Answer]) -> dict[str, Answer]:
    """Return what the fixture keeps: digests, but the list of refused sizes whole."""
    return {key: of if key == "refused" else digest(of) for key, of in given.items()}
