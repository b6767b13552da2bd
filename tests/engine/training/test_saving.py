"""What was trained in a layout leaves the run as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import mimokit
from mimokit.experiment import ShardedModel
from tests.hugging_face_weights import checkpoint
from tests.layouts_weights import STD, weights_config
from tests.llava import VISION, llava_checkpoint, llava_config

ONE = {"data_parallel": 1}


def _train(plan, config):
    from mimokit.engine.training.loop import train_on_rank

    train_on_rank(plan, config, lambda sample: None, lambda: False)


def _saved(cluster, target: Path, mode, words, ranks):
    from safetensors.torch import load_file

    config = weights_config("qwen2", "clip_tower", mode, ONE, words)
    if ranks > 1:
        config.model.get_architecture("language_module").make_vocab_size_divisible_by = 8
    config.runtime.save_hf = str(target)
    cluster.run(_train, mimokit.plan(config), config, world_size=ranks)
    assert not list(target.parent.glob(".*")), "no file of a rank is left"
    return load_file(target / "model.safetensors")


def test_every_layout_leaves_what_one_process_leaves(cluster, tmp_path):
    from safetensors.torch import load_file

    words = {"tensor_parallel": 2, "pipeline_parallel": 2, "rank_offset": 1, **ONE}
    found = _saved(cluster, tmp_path / "four", "heterogeneous", words, 5)
    alone = _saved(cluster, tmp_path / "one", "homogeneous", ONE, 1)
    before = load_file(checkpoint("qwen2", STD) / "model.safetensors")
    assert set(found) == set(alone) == set(before)
    for name, value in found.items():
        assert float((value - alone[name]).abs().max()) <= 1e-5
    assert max(float((found[name] - before[name]).abs().max()) for name in found) > 1e-4
    config = (checkpoint("qwen2", STD) / "config.json").read_text()
    assert (tmp_path / "four" / "config.json").read_text() == config


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
