"""Which claim each planted fault belongs to: `python -m tests.claims.plants` lists them.

A fault is planted by a test that calls `planted`, or that says in its name that it catches
something, or stands in the list of those that `explain` must name.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.claims import CLAIMS
from tests.claims.sentences import PROVED
from tests.experiment.culprit.faults import FAULTS

TESTS = Path(__file__).parents[1]
CATCHES = re.compile(r"catch|caught")
MAY_PLANT = re.compile(r"planted|FAULTS|catch|caught")
PLANTERS = {
    ("tests.planted", "planted"),
    ("tests.planning.proof.plans", "planted"),
    ("tests.experiment.culprit.faults", "FAULTS"),
}

PAGE = "With the fault planted"
RUNS, PROVES, SHOWS = "**Runs** that very plan", "**Proves** that loss", "**Shows** it live"
PLANS, SEARCHES = "**Plans** which rank", "**Searches** millions"
CHECKPOINTS, FEWER_BITS, FP32 = "Checkpoints go on bit for bit", "| bf16, fp16, fp8 |", "| fp32 |"
WEIGHTS = "`check` and `import` of a Qwen-VL"
TRAINER = "`Trainer` fits a torch model"

OWNERS: Mapping[str, str] = {
    "architecture/test_gpt_of_megatron.py": RUNS,
    "browser/test_stepper.py": SHOWS,
    "cli/test_proofs.py": PROVES,
    "engine/checkpoints/test_damage.py": CHECKPOINTS,
    "engine/checkpoints/test_resume.py": CHECKPOINTS,
    "engine/frames/test_runs.py": "balanced frames",
    "engine/models/test_adapter.py": "adapters",
    "engine/models/test_adapter_on_shared_ranks.py": "adapters",
    "engine/models/test_fusions.py": PROVES,
    "engine/models/test_inner_layers.py": "inner layers of encoders (deepstack)",
    "engine/models/test_llava.py": PROVES,
    "engine/models/test_mimo.py": "multi-token prediction",
    "engine/models/test_qwen_vl.py": WEIGHTS,
    "engine/parallel/test_overlap.py": "reduction during the backward pass",
    "engine/parallel/test_ownership.py": "context parallelism",
    "engine/pipeline/test_any_size.py": "images of any size, positions of three axes",
    "engine/pipeline/test_devices.py": "Ranks take a GPU each",
    "engine/pipeline/test_heterogeneous.py": RUNS,
    "engine/pipeline/test_refusals.py": RUNS,
    "engine/test_fp8.py": "Tensor- and context-parallel ranks share",
    "engine/training/test_measures.py": SHOWS,
    "engine/verify/test_expert_invariance.py": "expert parallelism",
    "engine/verify/test_layout_invariance.py": FP32,
    "engine/verify/test_multimodal_invariance.py": "frozen modules",
    "engine/verify/test_precision_invariance.py": FEWER_BITS,
    "experiment/culprit/test_explain.py": PROVES,
    "experiment/health/test_report.py": SHOWS,
    "experiment/test_stepper.py": SHOWS,
    "extras/generation/test_commands.py": WEIGHTS,
    "extras/generation/test_sharded_model.py": RUNS,
    "extras/strategies/nodes/test_oracle.py": TRAINER,
    "extras/strategies/replicas/test_killed.py": "diloco",
    "layout_search/test_oracle.py": SEARCHES,
    "layout_search/test_sieve.py": SEARCHES,
    "planning/proof/test_proof.py": PLANS,
    "prediction/test_activations_of_megatron.py": SEARCHES,
    "test_claims.py": PAGE,
    "test_shared_cluster.py": PAGE,
}
"""File below tests/ -> the title of a claim, or the beginning of a sentence of the pages."""


def planting_tests(source: str) -> Iterator[str]:
    """Yield the tests of a file that plant a fault, themselves or by functions of the file."""
    nodes = ast.parse(source).body
    plant = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module, alias.name) in PLANTERS
    }
    functions = {
        node.name: {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    }
    for _ in functions:  # as deep as functions may call each other
        plant |= {name for name, used in functions.items() if used & plant}
    for name in functions:
        if name.startswith("test_") and (name in plant or CATCHES.search(name)):
            yield name


@functools.cache
def planted_by_tests() -> dict[str, list[str]]:
    """Return the tests of each file that plant a fault."""
    files = {file: file.read_text(encoding="utf-8") for file in sorted(TESTS.rglob("test_*.py"))}
    found = {
        str(file.relative_to(TESTS)): [*planting_tests(text)]
        for file, text in files.items()
        if MAY_PLANT.search(text)
    }
    return {file: names for file, names in found.items() if names}


def faults() -> Iterator[tuple[str, str]]:
    """Yield each fault, and the claim that it belongs to; empty: none."""
    for claim in CLAIMS:
        yield f"{claim.name}: {claim.fault.target.rpartition('.')[2]}", claim.title
    used = {(claim.fault.target, claim.fault.make): claim.title for claim in CLAIMS}
    for fault in FAULTS:
        yield fault.name, used.get((fault.target, fault.make), PROVES)
    for file, names in planted_by_tests().items():
        yield from ((f"{file}::{name}", OWNERS.get(file, "")) for name in names)


def claimed() -> set[str]:
    """Return the titles of claims, and the beginnings of sentences that tests prove."""
    return {claim.title for claim in CLAIMS} | {*PROVED}


if __name__ == "__main__":
    for fault, claim in faults():
        print(f"{fault} | {claim}")
