"""Old and new files of one model have one plan."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mimokit.planning.weights import plan_weights
from tests.hugging_face_weights import checkpoint
from tests.rows import rows

FILE = "model.safetensors"


def changed(
    name: str,
    directory: Path,
    rename: Callable[[str], str] = str,
    config: Callable[[dict[str, Any]], Any] = dict,
    added: dict[str, Any] | None = None,
) -> Path:
    """Copy a checkpoint with other names, another config and more tensors."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint(name), directory)
    tensors = {rename(key): value for key, value in load_file(directory / FILE).items()}
    save_file({**tensors, **(added or {})}, directory / FILE, {"format": "pt"})
    file = directory / "config.json"
    file.write_text(json.dumps(config(json.loads(file.read_text()))))
    return directory


def looks(directory: Path) -> dict[str, Any]:
    """Return everything of a plan except the names of the tensors."""
    found = plan_weights(directory, 2, 2).to_json()
    for rank in found["ranks"].values():
        for parameter in rank["parameters"].values():
            for piece in parameter["pieces"]:
                del piece["tensor"]
    return found


def test_an_old_llama_has_rope_scaling_torch_dtype_and_buffers(tmp_path: Path) -> None:
    import torch

    def old(config: dict[str, Any]) -> dict[str, Any]:
        config |= {"torch_dtype": config.pop("dtype"), "rope_scaling": None, "rope_theta": 1e4}
        del config["rope_parameters"], config["head_dim"], config["attention_bias"]
        return config

    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    assert looks(changed("llama", tmp_path / "old", config=old, added=buffer)) == looks(
        checkpoint("llama")
    )


def test_an_old_gpt2_has_no_prefix_and_keeps_masks(tmp_path: Path) -> None:
    import torch

    masks = {
        "h.0.attn.bias": torch.ones(1, 1, 24, 24, dtype=torch.bool),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    old = changed(
        "gpt2", tmp_path / "old", lambda name: name.removeprefix("transformer."), added=masks
    )
    assert looks(old) == looks(checkpoint("gpt2"))


@rows("name", "clip_tower", "siglip_tower")
def test_a_tower_of_the_hub_has_a_prefix_and_counts_positions(tmp_path: Path, name: str) -> None:
    import torch

    ids = {"vision_model.embeddings.position_ids": torch.arange(5)[None]}
    old = changed(name, tmp_path / "old", lambda one: f"vision_model.{one}", added=ids)
    assert looks(old) == looks(checkpoint(name))


def test_a_tower_has_one_plan_alone_and_inside_a_whole_model() -> None:
    for name in ("clip", "siglip"):
        whole, alone = looks(checkpoint(name)), looks(checkpoint(f"{name}_tower"))
        assert whole["ranks"] == alone["ranks"]


def test_a_llava_may_have_its_parts_inside_of_model(tmp_path: Path) -> None:
    def newer(name: str) -> str:
        if "lm_head" in name:
            return "lm_head.weight"
        return "model." + name.replace("language_model.model.", "language_model.")

    assert looks(changed("llava", tmp_path / "new", newer)) == looks(checkpoint("llava"))


def test_a_tied_head_in_the_file_is_passed_over(tmp_path: Path) -> None:
    import torch

    head = {"lm_head.weight": torch.zeros(101, 32)}
    assert looks(changed("qwen2", tmp_path / "tied", added=head)) == looks(checkpoint("qwen2"))
