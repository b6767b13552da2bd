"""Parameters of models equal the published ones, and what runs here equals Megatron's modules."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mimokit.architecture import (
    AudioEncoder,
    LanguageModel,
    MultimodalModel,
    VisionEncoder,
    from_hf,
    load_model,
    model_facts,
    model_names,
)
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import Model
from mimokit.config import ConfigError
from mimokit.config_files import load_preset
from tests.rows import rows

PUBLISHED = [name for name in model_names() if "parameters" in model_facts(name)]


def _parameters(model: Model) -> int:
    return model.parameters


def test_presets_are_many_and_have_sources() -> None:
    assert len(model_names()) >= 20
    assert all(model_facts(name)["source"] for name in model_names())


@rows("name", *PUBLISHED)
def test_published_totals(name: str) -> None:
    assert _parameters(load_model(name)) == model_facts(name)["parameters"]


def test_whisper_with_its_decoder_is_the_published_total() -> None:
    """1,543,490,560 parameters: huggingface.co/openai/whisper-large-v3."""
    encoder = load_model("whisper-large-v3")
    assert isinstance(encoder, AudioEncoder)
    width, ffn = encoder.net.hidden, encoder.net.ffn
    attention = 4 * width**2 + 3 * width
    layer = 2 * attention + 2 * width * ffn + ffn + width + 3 * 2 * width
    decoder = (51866 + 448) * width + 32 * layer + 2 * width
    assert encoder.parameters + decoder == 1_543_490_560


def test_gpt3_is_narayanans_equation_2() -> None:
    """arXiv 2104.04473, eq. 2: 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)), and a last norm."""
    model = load_model("gpt3-175b")
    assert isinstance(model, LanguageModel)
    layers, hidden = model.net.layers, model.net.hidden
    equation = 12 * layers * hidden**2 + 13 * layers * hidden + (50257 + 2048) * hidden
    assert model.parameters == equation + 2 * hidden


def test_padded_vocabulary() -> None:
    gpt2 = load_model("gpt2")
    assert isinstance(gpt2, LanguageModel)
    assert (gpt2.padded_vocab(1), gpt2.padded_vocab(8)) == (50304, 51200)


def test_image_tokens() -> None:
    clip, qwen = load_model("clip-vit-l-14-336"), load_model("qwen2.5-vl-7b")
    assert isinstance(clip, VisionEncoder)
    assert clip.tokens() == 576
    assert isinstance(qwen, MultimodalModel)
    encoder = qwen.branches[0].encoder
    assert isinstance(encoder, VisionEncoder)
    large = replace(encoder.images, rows=32, columns=48)
    assert large.patches == 32 * 48
    assert large.tokens == 16 * 24


def test_reading_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model_facts("llama-3-8b")["config"]))
    model = from_hf(folder)
    assert (model.name, _parameters(model)) == ("my-llama", 8_030_261_248)
    assert from_hf(folder / "config.json", name="x").name == "x"


def test_clip_and_siglip_of_both_towers() -> None:
    config = model_facts("clip-vit-l-14-336")["config"]
    both = from_hf({"model_type": "clip", "vision_config": {**config, "projection_dim": 768}})
    assert _parameters(both) == 303_507_456


def test_newer_files_keep_the_text_apart() -> None:
    config = dict(model_facts("qwen2.5-vl-7b")["config"])
    vision = config.pop("vision_config")
    nested = {"model_type": "qwen2_5_vl", "vision_config": vision, "text_config": config}
    assert _parameters(from_hf(nested)) == 8_292_166_656


def test_qwen2_vl_as_older_files_have_it() -> None:
    """The count is that of the weights of https://huggingface.co/Qwen/Qwen2-VL-2B-Instruct."""
    vision = {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
        "hidden_size": 1536, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    text = {
        "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
        "num_hidden_layers": 28, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "vocab_size": 151936, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    }  # fmt: skip
    config = {"model_type": "qwen2_vl", "vision_config": vision, **text}
    model = from_hf(config)
    assert _parameters(model) == 2_208_985_600
    assert isinstance(model, MultimodalModel)
    assert model.language.network.mrope_section == [16, 24, 24]
    del vision["patch_size"]
    with pytest.raises(ConfigError) as caught:
        from_hf(config)
    (missing,) = caught.value.problems
    assert "patch_size is missing; give it a value" in missing.sentence


def test_text_sections_inherit_whether_embeddings_are_tied() -> None:
    config = dict(model_facts("qwen3-vl-8b")["config"])
    text = {k: v for k, v in config["text_config"].items() if k != "tie_word_embeddings"}
    for tied in (True, False):
        model = from_hf({**config, "text_config": text, "tie_word_embeddings": tied})
        assert isinstance(model, MultimodalModel)
        assert model.language.tied is tied
    said = from_hf({**config, "tie_word_embeddings": True})
    assert isinstance(said, MultimodalModel)
    assert not said.language.tied  # what the section says itself holds


def test_first_layers_without_experts() -> None:
    config = dict(model_facts("qwen3-30b-a3b")["config"])
    whole, dense = from_hf(config), from_hf({**config, "mlp_only_layers": [1, 0]})
    assert isinstance(dense, LanguageModel)
    assert dense.net.moe is not None
    assert dense.net.moe.dense_layers == 2
    net = dense.net
    experts = net.moe.experts * (3 * net.moe.ffn + 1) * net.hidden
    assert _parameters(whole) - _parameters(dense) == 2 * (experts - 3 * net.ffn * net.hidden)


def _with(name: str, section: str, **values: object) -> dict[str, object]:
    config = dict(model_facts(name)["config"])
    return {**config, section: {**config[section], **values}} if section else {**config, **values}


def _without(name: str, field: str) -> dict[str, object]:
    config = dict(model_facts(name)["config"])
    del config[field]
    return config


@rows(
    "config, words",
    (_without("llama-3-8b", "hidden_size"), "hidden_size is missing"),
    (_without("llama-3-8b", "model_type"), "model_type is missing"),
    ({**model_facts("llama-3-8b")["config"], "num_attention_heads": 30}, "contradicts"),
    ({**model_facts("llama-3-8b")["config"], "num_key_value_heads": 5}, "contradicts"),
    ({**model_facts("llama-3-8b")["config"], "vocab_size": "many"}, "vocab_size is 'many'"),
    ({**model_facts("mixtral-8x7b")["config"], "num_experts_per_tok": 9}, "only 8 experts"),
    ({"model_type": "lama"}, "did you mean"),
    (_without("llava-1.5-7b", "vision_config"), "vision_config is missing"),
    (_with("llava-1.5-7b", "", vision_feature_layer=[-2, -5]), "only one can run"),
    (_with("llava-1.5-7b", "", vision_feature_layer=-25), "the tower has 24 layers; write -24"),
    (_with("llava-1.5-7b", "", vision_feature_layer=0), "the tower has 24 layers"),
    (_with("llava-1.5-7b", "", vision_feature_layer="last"), "write one number"),
    (_with("llava-1.5-7b", "", vision_feature_select_strategy="cls"), "write default or full"),
    (_with("llava-1.5-7b", "", projector_hidden_act="silu"), "a projector can run with gelu"),
    (_with("llava-1.5-7b", "vision_config", model_type="siglip_vision_model"),
     "default drops the first patch of a tower without a class token; write full"),
    (_with("qwen3-30b-a3b", "", decoder_sparse_step=2), "decoder_sparse_step is 2"),
    (_with("qwen3-30b-a3b", "", mlp_only_layers=[5]), "only the first layers can be without"),
    (_with("qwen3-30b-a3b", "", mlp_only_layers="no"), "mlp_only_layers is 'no'; write a list"),
    (_with("deepseek-v3", "", moe_layer_freq=2), "moe_layer_freq is 2"),
    (_with("clip-vit-l-14-336", "", patch_size=400), "contradicts image_size 336"),
    (_with("qwen2.5-vl-7b", "vision_config", window_size=27),
     "window_size is 27; it contradicts a token of 28 pixels"),
    (_with("qwen2.5-vl-7b", "vision_config", fullatt_block_indexes=[7, 32]),
     "there are only 32 layers, counted from 0"),
    (_with("qwen3-vl-8b", "vision_config", deepstack_visual_indexes=[27]),
     "there are only 27 layers, counted from 0"),
    (_with("qwen3-vl-8b", "vision_config", deepstack_visual_indexes=[8, 2]),
     "write ascending numbers, each once"),
    (_with("qwen3-vl-8b", "vision_config", deepstack_visual_indexes=None),
     "deepstack_visual_indexes is missing; give it a value"),
    (_with("qwen3-vl-8b", "vision_config", num_position_embeddings=2303),
     "the table must be a square"),
    (_with("qwen3-vl-8b", "vision_config", rope_parameters={"rope_theta": 5e5}),
     "rope_theta is 500000.0; an encoder of images can run with 10000"),
    (_with("qwen3-vl-8b", "text_config", rope_scaling={"mrope_section": [24, 40]}),
     "write three whole numbers: those of time, height and width"),
    ({**model_facts("qwen2.5-vl-7b")["config"], "hidden_size": 7168},
     "contradicts hidden_size 7168"),
)  # fmt: skip
def test_bad_configs(config: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_hf(config)


@rows("text", None, "{", "[]")
def test_bad_files(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        from_hf(file)


@rows("source", None, 3)
def test_what_is_no_path(source: object) -> None:
    with pytest.raises(ConfigError, match=f"'{source}': it is not a path; give a config.json"):
        from_hf(source)  # type: ignore[arg-type]


def test_unknown_models_offer_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean llama-3-70b"):
        load_model("llama3-70b")


def test_the_config_of_llava_has_the_published_language_width() -> None:
    model = model_of_config(load_preset("llava_7b_colocated").model)
    assert [branch.name for branch in model.branches] == ["images"]
    encoder = model.branches[0].encoder
    assert isinstance(encoder, VisionEncoder)
    assert encoder.tokens() == 576
