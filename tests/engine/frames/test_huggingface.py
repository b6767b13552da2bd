"""Small vision towers of transformers compute the same with frames shared by four ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from mimokit.engine.frames import FrameParallel, apply_patch

SMALL = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 4}
FEATURES = 3 * 2 * 4 * 4
"""Of a patch: channels x two frames in time x a square of pixels."""
GRIDS = ([[1, 4, 8], [3, 4, 4], [1, 8, 6]], [], [[1, 2, 2]], [[2, 6, 4], [1, 4, 2]])
SHARDED = "qwen2_5_vl, sharded"
TOWERS = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", SHARDED)


def _tower(model: str) -> Any:
    torch.manual_seed(3)
    if model == "qwen2_5_vl":
        from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as file
        from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

        config = Qwen2_5_VLVisionConfig(
            **SMALL, out_hidden_size=24, window_size=16, fullatt_block_indexes=[1]
        )
        tower = file.Qwen2_5_VisionTransformerPretrainedModel(config)
    elif model == "qwen3_vl":
        from transformers.models.qwen3_vl import modeling_qwen3_vl as file
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

        config = Qwen3VLVisionConfig(
            **SMALL, out_hidden_size=24, num_position_embeddings=64, deepstack_visual_indexes=[0]
        )
        tower = file.Qwen3VLVisionModel(config)
    else:
        from transformers.models.qwen3_5 import modeling_qwen3_5 as file
        from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig

        config = Qwen3_5VisionConfig(**SMALL, out_hidden_size=24, num_position_embeddings=64)
        tower = file.Qwen3_5VisionModel(config)
    config._attn_implementation = "eager"
    return tower.double()


def _computed(model: str, how: FrameParallel | None) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the outputs of this rank, and the gradients of all ranks."""
    name = model.split(",")[0]
    tower = _tower(name)
    if model == SHARDED:
        from torch.distributed.fsdp import fully_shard

        for block in tower.blocks:
            fully_shard(block)
        fully_shard(tower)
    if how is not None:
        apply_patch(name, tower, how)
    rank = dist.get_rank()
    grid = torch.tensor(GRIDS[rank], dtype=torch.int64).reshape(-1, 3)
    if how is None and not len(grid):
        grid = torch.tensor([[1, 2, 2]])  # the tower cannot run on nothing: not counted below
    patches = torch.randn(
        int(grid.prod(1).sum()),
        FEATURES,
        generator=torch.Generator().manual_seed(rank),
        dtype=torch.float64,
    )
    found = tower(patches, grid_thw=grid)
    outputs = [
        tensor
        for value in found.values()
        for tensor in ([value] if isinstance(value, torch.Tensor) else value)
    ]
    if not GRIDS[rank]:
        outputs = [output[:0] for output in outputs]
    sum((output**2).sum() * (1.0 + rank) for output in outputs).backward()
    gradients = []
    for parameter in tower.parameters():
        gradient = parameter.grad
        if model == SHARDED:
            gradients.append(gradient.full_tensor().flatten() * dist.get_world_size())
        else:
            gradients.append(
                (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
            )
    flat = torch.cat(gradients)
    if model != SHARDED:
        dist.all_reduce(flat)
    return [output.detach() for output in outputs], flat


def _differences() -> dict[str, tuple[float, float, int]]:
    """Return outputs' and gradients' largest differences, and the number of outputs."""
    found = {}
    torch.set_num_threads(1)
    for model in TOWERS:
        plain, gradients = _computed(model, None)
        shared, shared_gradients = _computed(model, FrameParallel(dist.group.WORLD))
        assert [one.shape for one in plain] == [one.shape for one in shared]
        apart = [
            (one - other).abs().max() for one, other in zip(plain, shared, strict=True) if len(one)
        ]
        scale = float(gradients.abs().max())
        assert scale > 0
        found[model] = (
            float(max(apart, default=torch.tensor(0.0))),
            float((gradients - shared_gradients).abs().max()) / scale,
            len(plain),
        )
    return found


def test_towers_compute_the_same_on_shared_frames(cluster):
    for found in cluster.run(_differences, world_size=4):
        assert set(found) == set(TOWERS)
        assert found["qwen3_vl"][2] == 3, "hidden states, tokens and one deepstack feature"
        for outputs, gradients, _ in found.values():
            assert outputs <= 1e-9
            assert gradients <= 1e-9


def test_a_model_without_a_patch():
    with pytest.raises(ValueError, match=r"'clip' has no patch 'vit_frame_parallel'; .* qwen3_vl"):
        apply_patch("clip", torch.nn.Identity(), None)
