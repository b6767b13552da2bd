"""`mimokit.watch` in loops of one's own, and `mimokit.compare` of what they leave."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mimokit
from mimokit.extras.foreign_loops.recording import PHASES
from tests.engine.user_loop.test_documents_loop import CONSTANT
from tests.extras.foreign_loops.loops import RANKS, Network, train, without_digests
from tests.layouts import digits_config

COUNTED, MISCOUNTED, BY = "routed", "padded", "2.6e+00"
"""The loops in which a router scales its loss by the tokens of all ranks, and by others."""
if version("megatron-core").startswith("0.16."):
    COUNTED, MISCOUNTED, BY = "padded", "routed", "6.6e-01"


def _record(folder: Path, kind: str) -> Path:
    loops = [sys.executable, "-m", "tests.extras.foreign_loops.loops", str(folder), kind]
    run = subprocess.Popen(loops, start_new_session=True)
    try:
        train("one", folder / "one", 0, 1)
        assert run.wait(timeout=600) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record loops in one process, and in four ranks at the same time."""
    return _record(tmp_path_factory.mktemp("recordings"), "others")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record loops with experts, which the suite takes alone."""
    return _record(tmp_path_factory.mktemp("experts"), "experts")


@pytest.mark.parametrize("kind", ["ddp", "dtensor"])
def test_ranks_compute_what_one_process_computes(recorded: Path, kind: str) -> None:
    found = mimokit.compare(recorded / "one", recorded / kind)
    assert found.passed, found.verdict
    assert found.unlike == ((), ())
    assert not found.untold
    assert "is allowed." in found.verdict
    assert {one.key[2] for one in found.compared} == set(PHASES)
    assert {one.key[0] for one in found.compared} == {0, 1}


@pytest.mark.parametrize("layout", ["gpt", "stages", "contexts"])
def test_megatrons_own_loop_computes_what_one_process_computes(recorded: Path, layout: str) -> None:
    one, roundings = recorded / "gpt of one", [recorded / "rounding 1", recorded / "rounding 2"]
    found = mimokit.compare(one, recorded / layout, roundings)
    assert found.passed, found.verdict
    assert found.untold == ()
    unlike = [name for names in found.unlike for name in names]
    inside = [name for name in unlike if ".core_attention." in name and layout == "contexts"]
    assert unlike == inside, "attention of mimokit has no modules"
    assert {one.key[1] for one in found.compared} == {0, 1}, "both micro-batches"
    if layout == "gpt":
        guessed = mimokit.compare(one, recorded / layout)
        assert guessed.passed, guessed.verdict
        assert "linear_qkv.bias" in guessed.verdict, "Adam divides a gradient of rounding noise"


def test_a_fault_in_a_later_stage_of_megatrons_own_loop_is_named(recorded: Path) -> None:
    one, roundings = recorded / "gpt of one", [recorded / "rounding 1", recorded / "rounding 2"]
    wrong = mimokit.compare(one, recorded / "wrong gpt", roundings)
    assert "is the output of decoder.layers.1.mlp.linear_fc2 on ranks 2, 3, by 1.0e+00; a " in (
        wrong.verdict
    )


def test_experts_are_compared_whole_and_gradients_over_another_group_are_named(
    experts: Path,
) -> None:
    one = experts / "experts of one"
    right = mimokit.compare(one, experts / "experts")
    assert right.passed, right.verdict
    assert right.unlike == ((), ())
    assert all(".mlp.experts" in name for name in right.untold), "tokens in another order"
    known = {found.key[3] for found in right.compared if found.key[2] == "gradient"}
    second = {name for name in known if name.endswith("linear_fc2.weight")}
    assert len(second) == 8, "four of each layer"
    assert "decoder.layers.1.mlp.router" in {found.key[3] for found in right.compared}
    wrong = mimokit.compare(one, experts / "wrong experts")
    assert (
        "is the gradient of decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight on "
        "ranks 0, 2, by"
    ) in wrong.verdict


def test_chunks_of_a_sequence_in_another_order_are_named(recorded: Path) -> None:
    wrong = mimokit.compare(recorded / "gpt of one", recorded / "wrong contexts")
    assert "is the output of decoder.layers.1.self_attention.core_attention on ranks 2, 3, by" in (
        wrong.verdict
    )
    right = mimokit.compare(recorded / "contexts", recorded / "stages")
    assert right.passed, right.verdict


@pytest.mark.parametrize(
    ("one", "two", "named"),
    [
        ("gpt of one", "gathered", "is the gradient from output_layer on ranks 0, 1, 2, 3, by "),
        ("smooth of one", "smooth", "is the gradient from output_layer on ranks 0, 1, 2, 3, by "),
        ("positions of one", "positions", "is the gradient from norm on ranks 0, 1, 2, 3, by 2."),
        (
            f"{MISCOUNTED} of one",
            MISCOUNTED,
            f"is the gradient of router.weight on ranks 0, 1, 2, 3, by {BY}",
        ),
    ],
    ids=["gathered logits", "smoothed labels", "positions that count", "positions to route"],
)
def test_published_bugs_of_megatron_are_named(
    recorded: Path, one: str, two: str, named: str
) -> None:
    assert named in mimokit.compare(recorded / one, recorded / two).verdict


def test_tokens_further_ahead_that_each_replica_counts_are_named(recorded: Path) -> None:
    """Finding 3: 0.16.1 adds up, 0.19.2 divides by what a replica has."""
    found = mimokit.compare(recorded / "ahead of one", recorded / "ahead")
    if version("megatron-core").startswith("0.16."):
        assert found.passed, found.verdict
    else:
        named = "is the gradient from mtp.layers.0.final_layernorm on ranks 0, 1, 2, 3, by 7.4e-02"
        assert named in found.verdict


def test_a_mask_of_padding_over_another_group_is_named(recorded: Path) -> None:
    """Finding 5, where the groups of a model are not those of Megatron's global state."""
    right = mimokit.compare(recorded / "mask of one", recorded / "mask")
    assert right.passed, right.verdict
    wrong = mimokit.compare(recorded / "mask of one", recorded / "mask of others")
    named = "is the gradient from decoder.layers.0.mlp.router on ranks 0, 1, 2, 3, by 1.8e+00"
    assert named in wrong.verdict


def test_a_router_that_counts_rightly_computes_what_one_process_computes(recorded: Path) -> None:
    found = mimokit.compare(recorded / f"{COUNTED} of one", recorded / COUNTED)
    assert found.passed, found.verdict


def test_a_loop_of_the_source_document_is_compared(cluster, tmp_path: Path) -> None:
    for name, tensor_parallel in (("one", 1), ("two", 2)):
        config = digits_config((tensor_parallel, 1), (tensor_parallel, 1), 2, **CONSTANT)
        plan = mimokit.plan(config)
        cluster.run(_document_loop, plan, config, tmp_path / name, world_size=plan.world_size)
    found = mimokit.compare(tmp_path / "one", tmp_path / "two")
    assert found.passed, found.verdict
    assert found.untold == ()
    assert len(found.compared) > 100


def _document_loop(plan: Any, config: Any, folder: Path) -> None:
    from mimokit import engine
    from tests.engine.user_loop.test_documents_loop import _mended, homogeneous

    count = config.data.num_microbatches
    model, grids, run = homogeneous(plan, config, engine.default_data(config), count)
    optimizer = engine.MainGradAdamW(model.parameters(), lr=1e-3, eps=1e-4)
    modules = engine.get_module_to_grid_tuple(model, grids)
    groups = {"tp": grids["images"].get_pg("tp")}
    with mimokit.watch(model, folder, optimizer=optimizer, groups=groups):
        run(forward_only=False)
        _mended(modules, 0, count, optimizer)
    model.release()


def test_the_first_wrong_tensor_of_a_loop_is_named(recorded: Path) -> None:
    found = mimokit.compare(recorded / "one", recorded / "wrong")
    assert found.verdict.startswith("Step 1, call 1: the first tensor of ")
    assert "is the output of down on rank 1, by " in found.verdict
    assert not found.passed


def test_what_is_no_whole_recording_is_said(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no recording, or one that was cut off"):
        mimokit.compare(recorded / "one", tmp_path)
    for name in ("rank-0.json", "rank-0.safetensors"):
        (tmp_path / name).write_bytes((recorded / "ddp" / name).read_bytes())
    with pytest.raises(ValueError, match="rank 1 of 4 has left no whole recording"):
        mimokit.compare(recorded / "one", tmp_path)
    (tmp_path / "rank-0.safetensors").write_bytes(b"cut")
    about = without_digests(tmp_path / "rank-0.json")
    (tmp_path / "rank-0.json").write_text(json.dumps({**about, "world_size": 1}))
    with pytest.raises(ValueError, match=r"rank-0\.safetensors cannot be read"):
        mimokit.compare(recorded / "one", tmp_path)
    (tmp_path / "rank-0.json").write_text(json.dumps({**about, "world_size": 1, "steps": 1}))
    (tmp_path / "rank-0.safetensors").write_bytes(
        (recorded / "ddp" / "rank-0.safetensors").read_bytes()
    )
    with pytest.raises(ValueError, match=r"has 2 steps, .* has 1 step; record as many"):
        mimokit.compare(recorded / "one", tmp_path)


def test_recordings_of_different_models_are_listed(recorded: Path, tmp_path: Path) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(other.parameters())
    with mimokit.watch(other, tmp_path, optimizer=optimizer, steps=2):
        for _ in range(2):
            other(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    with pytest.raises(ValueError, match=r"have no tensor in common: the first has down.*0\.bias"):
        mimokit.compare(recorded / "one", tmp_path)


def test_a_cut_that_cannot_be_told_is_named_and_the_rest_compared(
    recorded: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    for rank in range(RANKS):
        name = f"rank-{rank}.json"
        index = without_digests(recorded / "ddp" / name)
        (tmp_path / name).write_text(json.dumps(index))
        tensors = load_file(recorded / "ddp" / f"rank-{rank}.safetensors")
        about = {"recording": index["recording"]}
        changed = {**tensors, "0": tensors["0"][:1]}
        save_file(changed, tmp_path / f"rank-{rank}.safetensors", about)
    found = mimokit.compare(recorded / "one", tmp_path)
    assert "How ranks share up.weight cannot be told; not compared." in found.verdict
    assert found.passed


def test_other_seeds_and_dropout_are_said_first(tmp_path: Path) -> None:
    for seed in (3, 4):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters())
        with mimokit.watch(model, tmp_path / str(seed), optimizer=optimizer):
            model(torch.ones(64, 2)).sum().backward()
            optimizer.step()
    verdict = mimokit.compare(tmp_path / "3", tmp_path / "4").verdict
    assert verdict.startswith("The first was seeded with 3, the second with 4. Activations are ")
    assert "dropped at random in 1, and" in verdict
    assert "is before the first step the weight 0.weight, by" in verdict


def test_a_model_that_is_never_run_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="Network was not called inside the block"),
        mimokit.watch(Network(), tmp_path),
    ):
        pass


def test_context_parallel_ranks_without_their_group_are_said(tmp_path: Path) -> None:
    model = torch.nn.Sequential(Network())
    model.config = SimpleNamespace(context_parallel_size=2)  # type: ignore[assignment]
    with (
        pytest.raises(ValueError, match=r"the model is built for 2 .*; pass groups=.\"cp\": their"),
        mimokit.watch(model, tmp_path),
    ):
        pass
