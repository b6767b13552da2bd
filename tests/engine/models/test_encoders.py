"""The encoders, each in one process: what sees what, and what becomes a token."""

import pytest
import torch

import mimokit
from mimokit.architecture.from_config import model_of_config
from mimokit.cluster import RankError
from tests.layouts_multimodal import LANGUAGE, multimodal_config

ALONE = {"clip": (1, 1), "dino": (1, 1), "audio": (1, 1), LANGUAGE: (1, 1)}


def _on_one_rank(cluster, function, *arguments):
    config = multimodal_config(ALONE, "homogeneous")
    return cluster.run(function, mimokit.plan(config), config, *arguments, world_size=1)[0]


def _encoder(plan, config, module):
    from mimokit.engine.models.specs import multimodal_provider

    provided = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False)
    (encoder,) = provided.model.modality_submodules[module].encoders.values()
    return encoder.eval()


def _hear(plan, config, features, tokens):
    import torch

    encoder = _encoder(plan, config, "audio")
    with torch.no_grad():
        return encoder(input_features=features, tokens_per_item=tokens)


def test_a_pooling_head_is_that_of_siglip():
    from transformers import SiglipVisionConfig
    from transformers.models.siglip import modeling_siglip

    from mimokit.engine.megatron import TransformerConfig
    from mimokit.engine.models.row_head import PoolingHead

    sizes = {"hidden_size": 32, "num_attention_heads": 4}
    config = SiglipVisionConfig(**sizes, intermediate_size=48, hidden_act="gelu")
    theirs = modeling_siglip.SiglipMultiheadAttentionPoolingHead(config)
    torch.nn.init.normal_(theirs.probe)
    ours = PoolingHead(
        TransformerConfig(
            **sizes, num_layers=1, ffn_hidden_size=48, layernorm_epsilon=config.layer_norm_eps,
            activation_func=torch.nn.functional.gelu,
        )
    )  # fmt: skip
    ours.load_state_dict(theirs.state_dict())
    hidden = torch.randn(5, 7, 32, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(ours(hidden.transpose(0, 1)), theirs(hidden))
    padding = torch.arange(7) >= torch.tensor([7, 3, 5, 1, 7])[:, None]
    found = ours(hidden.transpose(0, 1), padding)
    torch.testing.assert_close(found[1:2], theirs(hidden[1:2, :3]))
    assert not torch.allclose(found[1:2], theirs(hidden[1:2]))


def _recordings(*lengths):
    generator = torch.Generator().manual_seed(3)
    features = torch.zeros(len(lengths), 20, 48)
    for place, length in enumerate(lengths):
        features[place, :, :length] = torch.randn(20, length, generator=generator)
    return features


def test_a_recording_becomes_its_own_tokens_whatever_is_beside_it(cluster):
    features, tokens = _recordings(16, 48, 24), torch.tensor([2, 6, 3])
    together = _on_one_rank(cluster, _hear, features, tokens)
    assert together.shape == (11, 4 * 32)
    alone = [_on_one_rank(cluster, _hear, features[i : i + 1], tokens[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


def test_padding_has_no_effect(cluster):
    features, tokens = _recordings(16), torch.tensor([2])
    heard = _on_one_rank(cluster, _hear, features, tokens)
    loud = features.clone()
    loud[:, :, 18:] = 100.0  # the two convolutions reach a frame and a half beyond the last token
    torch.testing.assert_close(_on_one_rank(cluster, _hear, loud, tokens), heard, atol=0, rtol=0)
    loud[:, :, 15] = 100.0
    assert (_on_one_rank(cluster, _hear, loud, tokens) - heard).abs().max() > 1e-2


def _see(plan, config, module, pixels, changed):
    """Return the output, and the largest change of it when a parameter is changed."""
    import torch

    encoder = _encoder(plan, config, module)
    with torch.no_grad():
        before = encoder(pixel_values=pixels)
        getattr(encoder, changed).neg_().add_(torch.randn(32))
        return before, float((encoder(pixel_values=pixels) - before).abs().max())


@pytest.mark.parametrize(
    ("module", "size", "rows", "changed"),
    [
        ("clip", 8, 2 * 4, "class_token"),
        ("dino", 16, 2 * 4, "class_token"),
        ("dino", 16, 2 * 4, "registers"),
    ],
)
def test_patches_see_what_is_in_front_of_them_and_only_patches_become_tokens(
    cluster, module, size, rows, changed
):
    pixels = torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(1))
    before, change = _on_one_rank(cluster, _see, module, pixels, changed)
    assert len(before) == rows
    assert change > 1e-4


@pytest.mark.parametrize(
    ("shape", "tokens", "sentence"),
    [
        ((1, 20, 40), [1], r"recordings of \(20, 48\) \(mel bands, frames\), not of \(20, 40\)"),
        ((1, 20, 48), [7], r"become \[7\] tokens, but the encoder makes 1 to 6"),
        ((2, 20, 48), [2, 0], r"become \[2, 0\] tokens, but the encoder makes 1 to 6"),
    ],
)
def test_recordings_that_do_not_fit_are_refused(cluster, shape, tokens, sentence):
    with pytest.raises(RankError, match=sentence):
        _on_one_rank(cluster, _hear, torch.zeros(shape), torch.tensor(tokens))


def _look(plan, config, pixels, tokens):
    return _encoder(plan, config, "clip")(pixel_values=pixels, tokens_per_item=tokens)


@pytest.mark.parametrize(
    ("size", "tokens", "sentence"),
    [
        (16, 4, r"images of \(1, 8, 8\) \(channels, height, width\), not of \(1, 16, 16\)"),
        (8, 5, r"images become \[5\] tokens, but the encoder makes 4 of each"),
    ],
)
def test_images_that_do_not_fit_are_refused(cluster, size, tokens, sentence):
    with pytest.raises(RankError, match=sentence):
        _on_one_rank(cluster, _look, torch.zeros(1, 1, size, size), torch.tensor([tokens]))


def _count(plan, config):
    from mimokit.engine.models.specs import multimodal_provider

    model = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False).model
    modules = {**model.modality_submodules, LANGUAGE: model.language_model}
    return {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}


@pytest.mark.parametrize("tied", [False, True])
def test_the_plan_counts_the_parameters_of_the_engine(cluster, tied):
    config = multimodal_config(ALONE, "homogeneous", tied=tied)
    counted = cluster.run(_count, mimokit.plan(config), config, world_size=1)[0]
    described = model_of_config(config.model)
    planned = {branch.name: branch.parameters for branch in described.branches}
    planned[LANGUAGE] = described.language.parameters
    assert counted == planned
