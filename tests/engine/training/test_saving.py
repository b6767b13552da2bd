"""What was trained in a layout leaves the run as a Hugging Face directory."""

from pathlib import Path

import pytest

import mimokit
from mimokit.config import StrategyConfig
from mimokit.experiment import ShardedModel, compute_oracle
from mimokit.experiment.verification_report import ADAM_EPSILON
from mimokit.planning.weights.modules import saved_modules
from tests.evaluations import QUICK
from tests.hugging_face_weights import checkpoint
from tests.layouts_weights import STD, weights_config
from tests.llava import VISION, llava_checkpoint, llava_config
from tests.mimo import mimo_config
from tests.qwen_vl import qwen_config
from tests.rank_steps import state_of
from tests.whole_runs import pooled_weights

ONE = {"data_parallel": 1}


def _train(plan, config):
    from mimokit.engine.run_of_rank import in_replica
    from mimokit.engine.training.loop import train_on_rank

    with in_replica(plan, config) as run:
        train_on_rank(run, lambda sample: None, lambda: False, evaluations=QUICK)


def _tensors(directory: Path):
    """Return the tensors of a language model, and those of an encoder inside."""
    from safetensors.torch import load_file

    found = load_file(directory / "model.safetensors")
    return found | load_file(directory / "images" / "model.safetensors")


def _saved(cluster, target: Path, mode, words, ranks):
    config = pooled_weights(mode, ONE, words)
    if ranks > 1:
        config.model.get_architecture("language_module").make_vocab_size_divisible_by = 8
    config.runtime.save_hf = str(target)
    cluster.run(_train, mimokit.plan(config), config, world_size=ranks)
    assert not list(target.parent.glob(".*")), "no file of a rank is left"
    return _tensors(target)


def test_every_layout_leaves_what_one_process_leaves(cluster, tmp_path):
    from safetensors.torch import load_file

    words = {"tensor_parallel": 2, "pipeline_parallel": 2, "rank_offset": 1, **ONE}
    found = _saved(cluster, tmp_path / "four", "heterogeneous", words, 5)
    alone = _saved(cluster, tmp_path / "one", "homogeneous", ONE, 1)
    started = {"": checkpoint("qwen2", STD), "images": checkpoint("siglip_tower", STD)}
    before = {
        name: value
        for directory in started.values()
        for name, value in load_file(directory / "model.safetensors").items()
    }
    assert set(found) == set(alone) == set(before)
    for name, value in found.items():
        assert float((value - alone[name]).abs().max()) <= 1e-5
    assert max(float((found[name] - before[name]).abs().max()) for name in found) > 1e-4
    head = [name for name in found if "head.probe" in name or "head.mlp" in name]
    assert all(float((found[name] - before[name]).abs().max()) > 1e-4 for name in head), head
    for folder, directory in started.items():
        config = (directory / "config.json").read_text()
        assert (tmp_path / "four" / folder / "config.json").read_text() == config


def _written(plan, config):
    from mimokit.engine.training.saving import save_hf

    with state_of(plan, config) as state:
        save_hf(state.model, config.model, config.runtime.save_hf)


def _pooled():
    behind = {"tensor_parallel": 2, "pipeline_parallel": 2, **ONE}
    return pooled_weights("heterogeneous", behind, {**ONE, "rank_offset": 4})


def _qwen():
    images = {"tensor_parallel": 2, "pipeline_parallel": 2, **ONE}
    words = {"tensor_parallel": 2, "pipeline_parallel": 2, "rank_offset": 4, **ONE}
    return qwen_config("qwen3_vl", "heterogeneous", images, words)


def _mimo():
    return mimo_config({"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2})


@pytest.mark.parametrize("make", [_pooled, _qwen, _mimo])
def test_what_was_not_trained_is_written_back_bit_for_bit(cluster, tmp_path, make):
    config = make()
    config.runtime.save_hf = str(tmp_path / "saved")
    cluster.run(_written, plan := mimokit.plan(config), config, world_size=plan.world_size)
    for name, folder in saved_modules(config.model).items():
        source = Path(config.model.get_architecture(name).weights)
        for file in source.iterdir():
            saved = tmp_path / "saved" / folder / file.name
            assert saved.read_bytes() == file.read_bytes(), saved


def test_a_whole_llava_is_written_back(cluster, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import LlavaForConditionalGeneration

    found = []
    images = {"tensor_parallel": 2, "pipeline_parallel": 1, **ONE}
    words = {"tensor_parallel": 2, "pipeline_parallel": 2, "rank_offset": 2, **ONE}
    for mode, sizes, ranks in (
        ("heterogeneous", (images, words), 6), ("homogeneous", (ONE, ONE), 1)
    ):  # fmt: skip
        config = llava_config("clip", mode, *sizes)
        config.runtime.save_hf = str(tmp_path / mode)
        cluster.run(_train, mimokit.plan(config), config, world_size=ranks)
        found.append(load_file(tmp_path / mode / "model.safetensors"))
    before = load_file(llava_checkpoint("clip") / "model.safetensors")
    assert set(before) == set(found[0])
    last = f"vision_tower.encoder.layers.{VISION['num_hidden_layers'] - 1}."
    for name, value in before.items():
        assert float((found[0][name] - found[1][name]).abs().max()) <= 1e-5, name
        unread = name.startswith((last, "vision_tower.post_layernorm"))
        assert torch.equal(found[0][name], value) is unread, name
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path / "heterogeneous")
    trained = model.model.multi_modal_projector.linear_1.weight
    assert torch.equal(trained, found[0]["multi_modal_projector.linear_1.weight"])
    prompt = torch.tensor([[1, 2, 3]])
    how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    wanted = model.generate(input_ids=prompt, **how)[:, 3:].tolist()
    with ShardedModel(cluster, tmp_path / "heterogeneous", tensor_parallel=2) as trained_in_two:
        assert trained_in_two.generate(prompt, 6, stop_tokens=[]).tokens == wanted


@pytest.mark.parametrize("strategy", ["fedavg", "simple_reduce"])
def test_replicas_leave_the_mean_of_their_weights(cluster, tmp_path, strategy):
    """FedAvg's are apart, since no exchange is due; under simple_reduce they are alike."""
    import numpy as np

    from mimokit.engine.weights import read_shard

    words = {"pipeline_parallel": 2, "rank_offset": 1, **ONE}
    config = weights_config("qwen2", "clip_tower", "heterogeneous", ONE, words)
    steps = {"H": 100} if strategy == "fedavg" else {}
    config.strategy = StrategyConfig(name=strategy, replicas=2, **steps)
    config.runtime.num_iterations, config.runtime.adam_epsilon = 2, ADAM_EPSILON
    config.runtime.save_hf = str(tmp_path / "mean")
    cluster.run(_train, mimokit.plan(config), config, world_size=6)
    assert [one.name for one in tmp_path.iterdir()] == ["mean"]
    trained = [
        steps[-1].weights["language_module"]
        for steps in compute_oracle(cluster, config, steps=2).replicas
    ]
    apart = max(float(np.abs(one - trained[1][name]).max()) for name, one in trained[0].items())
    assert (apart > 1e-4) == (strategy == "fedavg")
    found = read_shard(tmp_path / "mean")
    for name, one in trained[0].items():
        mean = (one + trained[1][name]) / 2
        assert float(np.abs(found[name].numpy() - mean).max()) <= 1e-5, name


def test_main_weights_are_saved(cluster, tmp_path):
    """Those of two replicas, which have a half each, in the fp32 of the weights at the start."""
    from safetensors.torch import load_file

    sizes = {"data_parallel": 2, "use_distributed_optimizer": True}
    config = weights_config("qwen2", "clip_tower", "homogeneous", sizes, sizes)
    config.runtime.precision, config.runtime.save_hf = "bf16", str(tmp_path / "saved")
    cluster.run(_train, mimokit.plan(config), config, world_size=2)
    found = load_file(tmp_path / "saved" / "model.safetensors")
    before = load_file(checkpoint("qwen2", STD) / "model.safetensors")
    for name, value in before.items():
        change = (found[name] - value.bfloat16().float()).abs()
        assert 0 < float(change.max()) < 0.01, name
        assert not found[name].equal(found[name].bfloat16().float()), name
