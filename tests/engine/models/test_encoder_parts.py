"""An encoder cut into pipeline stages is the encoder: same weights, same rows."""

from __future__ import annotations

import pytest
import torch

import mimokit
from mimokit.config import ExperimentConfig, MimoParallelismConfig, ModuleParallelismConfig
from tests.layouts_multimodal import LANGUAGE, SPECIAL_TOKENS, multimodal_config

SEED = 7


def _cut(module, stages):
    """Return a config of one encoder in stages, on ranks before those of the language model."""
    base = multimodal_config({module: (1, 1), LANGUAGE: (1, 1)}, "homogeneous")
    networks = dict(base.model.module_architectures)
    networks[module] = networks[module].model_copy(update={"num_layers": 2})
    model = MimoParallelismConfig(
        llm_module_name=LANGUAGE,
        deployment_mode="heterogeneous",
        module_parallelisms={
            module: ModuleParallelismConfig(pipeline_parallel=stages, data_parallel=1),
            LANGUAGE: ModuleParallelismConfig(data_parallel=1, rank_offset=stages),
        },
        special_token_ids={module: SPECIAL_TOKENS[module]},
        module_architectures=networks,
    ).finalize()
    runtime = base.runtime.model_copy(update={"pipeline_schedule": "1f1b"})
    return ExperimentConfig(model=model, data=base.data, runtime=runtime)


def _rows(plan, config, module, inputs):
    """Send hidden states from stage to stage; return the rows, projected, on the last."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.megatron import ensure_memory_buffer
    from mimokit.engine.models.provider import inject_process_groups
    from mimokit.engine.models.rng import module_seed, random_state_of, seed_modules
    from mimokit.engine.models.specs import encoder_spec
    from mimokit.engine.models.transformer import module_builds
    from mimokit.engine.parallel.grids import create_grids

    ensure_memory_buffer()
    _, groups = create_grids(plan)
    if module not in groups:
        return None
    own = groups[module]
    place, stages = own.pp.rank(), own.pp.size()
    seed_modules(SEED, {module: 0})
    torch.manual_seed(module_seed(SEED, module))
    spec = encoder_spec(module_builds(config.model, plan, SEED)[module])
    submodule = spec.module.from_spec(inject_process_groups(spec, own))
    (encoder,) = submodule.encoders.values()
    tokens = inputs.get("tokens_per_item")
    with torch.no_grad(), random_state_of(module):
        if place == 0:
            hidden = encoder.embed(**{k: v for k, v in inputs.items() if k != "tokens_per_item"})
        else:
            geometry = encoder.geometry
            items = len(next(iter(inputs.values())))
            hidden = torch.empty(geometry.positions, items, encoder.config.hidden_size)
            dist.recv(hidden, dist.get_rank() - 1)
        hidden = encoder.run_layers(hidden, tokens)
        if place < stages - 1:
            dist.send(hidden.contiguous(), dist.get_rank() + 1)
            return None
        return submodule.project_embeddings([encoder.finish(hidden, tokens)])


@pytest.mark.parametrize("module", ["clip", "dino", "audio"])
def test_two_stages_give_the_rows_of_one(cluster, module):
    generator = torch.Generator().manual_seed(2)
    inputs = {
        "clip": {"pixel_values": torch.rand(3, 1, 8, 8, generator=generator)},
        "dino": {"pixel_values": torch.rand(3, 1, 16, 16, generator=generator)},
        "audio": {
            "input_features": torch.randn(3, 20, 48, generator=generator),
            "tokens_per_item": torch.tensor([6, 1, 4]),
        },
    }[module]
    whole, cut = _cut(module, 1), _cut(module, 2)
    expected = cluster.run(_rows, mimokit.plan(whole), whole, module, inputs, world_size=2)[0]
    first, rows, language = cluster.run(_rows, mimokit.plan(cut), cut, module, inputs, world_size=3)
    assert first is None
    assert language is None
    assert len(rows) == {"clip": 12, "dino": 12, "audio": 11}[module]
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=0)
