"""The answers of searches: each mode alone and together, every objective, each form of a model."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mimokit
from mimokit.layout_search import Constraints, SearchResult
from mimokit.prediction import EncoderInput, Prediction, Workload
from tests.frozen.answers import Answer, digest, rounded
from tests.layout_search.small import graph_model, model

SEARCHES = Path(__file__).with_name("searches.json")

CASES: Mapping[str, Mapping[str, Any]] = {
    "all modes": {
        "model": "llava-1.5-7b", "gpus": 1024, "hardware": "h100", "workload": Workload(4096, 512),
    },
    "homogeneous": {
        "model": "qwen2.5-vl-72b", "gpus": 128, "hardware": "b200",
        "workload": Workload(8192, 256), "constraints": Constraints(modes=("homogeneous",)),
        "objective": "cost",
    },
    "colocated, in passes": {
        "model": "qwen2.5-vl-7b", "gpus": 32, "hardware": "a100",
        "workload": Workload(4096, 256, inputs={"images": EncoderInput(1024, 12)}),
        "constraints": Constraints(modes=("colocated",), memory_share=0.8),
    },
    "heterogeneous graph": {
        "model": graph_model(), "gpus": 10, "hardware": "h100", "objective": "memory",
        "workload": Workload(2048, 12, pipeline_order="zb-h1", frozen=frozenset({"images"})),
        "constraints": Constraints(
            sizes={"*": {"virtual_pipeline": (1,), "optimizer_instances": (1,),
                         "recompute": ("none",), "tensor_parallel": (1, 2)}}
        ),
    },
    "two encoders": {
        "model": model(encoders=2), "gpus": 8, "hardware": "h100",
        "workload": Workload(2048, 16, pipeline_order="gpipe"),
        "constraints": Constraints(
            most_seconds=0.3, least_gpus=4,
            sizes={"*": {"optimizer_instances": (1,), "recompute": ("none", "full")}},
        ),
    },
    "experts": {
        "model": "qwen3-30b-a3b", "gpus": 256, "hardware": "h100",
        "workload": Workload(4096, 512), "price_per_gpu_hour": 2.0,
    },
}  # fmt: skip
"""Name -> the arguments of `mimokit.search`."""


def searched(case: str) -> dict[str, Answer]:
    """Return every layout that a search names, with its figures, and all that it counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mimokit.search(**CASES[case])
    return rounded(_whole(found))  # type: ignore[no-any-return]


def _whole(found: SearchResult) -> dict[str, Answer]:
    return {
        "finalists": [_row(each) for each in found.finalists],
        "per mode": {mode: _row(each) for mode, each in found.per_mode.items()},
        "front": [_row(each) for each in found.pareto],
        "dropped": dict(sorted(found.dropped.items())),
        "counts": [found.evaluated, found.fitting],
        "cut": list(found.cut),
    }


def _row(found: Prediction) -> list[Answer]:
    return [str(found.layout), found.seconds, found.peak_memory]


def as_kept(given: dict[str, Answer]) -> dict[str, Answer]:
    """Return what the fixture keeps: digests, but the best layout and the counts whole."""
    kept = {key: digest(of) for key, of in given.items()}
    return {**kept, "best": given["finalists"][0], "counts": given["counts"]}
