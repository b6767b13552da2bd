"""What runs here has exactly the parameters that its description says."""

from __future__ import annotations

import pytest

from mimokit.architecture.from_config import model_of_config
from mimokit.config import ModuleArchitecture
from mimokit.planning import plan
from tests.layouts import digits_config


def _counts(config, layout):
    """Build the modules of a config as training does; return module -> parameters."""
    from mimokit.engine.models.language import language_model_spec
    from mimokit.engine.models.provider import MimoModelProvider
    from mimokit.engine.models.specs import encoder_submodule_spec

    model = config.model
    name = model.llm_module_name
    language = model.get_architecture(name)
    encoders = {
        encoder: encoder_submodule_spec(
            model.get_architecture(encoder), language, layout.modules[encoder]
        )
        for encoder in model.encoder_module_names
    }
    provider = MimoModelProvider(
        language_model_spec(language, layout.modules[name]),
        encoders,
        model.special_token_ids,
        model,
    )
    built = provider.provide(layout, wrap=False).model
    counts = {name: sum(p.numel() for p in built.language_model.parameters())}
    for encoder, submodule in built.modality_submodules.items():
        counts[encoder] = sum(p.numel() for p in submodule.parameters())
    return counts


@pytest.mark.parametrize(
    ("image", "merge", "ffn"), [(8, 1, None), (8, 2, 96), (16, 2, 160)], ids=str
)
def test_exactly_the_modules_of_megatron(cluster, image, merge, ffn) -> None:
    config = digits_config()
    architectures = config.model.module_architectures
    architectures["images"] = ModuleArchitecture(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=8,
        seq_length=(image // 4) ** 2,
        vocab_size=0,
        image_size=image,
        patch_size=4,
        merge_size=merge,
    )
    architectures["language_module"].ffn_hidden_size = ffn
    described = model_of_config(config.model)
    tokens = (image // 4 // merge) ** 2
    config.data.image_seq_length = tokens
    config.data.seq_length = 16 + tokens
    architectures["language_module"].seq_length = 16 + tokens
    (counts,) = cluster.run(_counts, config, plan(config), world_size=1)
    assert counts["language_module"] == described.language.parameters
    assert counts["images"] == described.branches[0].parameters
