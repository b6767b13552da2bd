"""Every graph of modules that is refused, one sentence at a time."""

from typing import Any

import pytest

from mimokit.config import ConfigError
from tests.config.sections import load, network, put, sections

LANGUAGE = "language_module"


def graph(topology: Any, *more: str) -> dict[str, Any]:
    """Return the small config with a topology, in heterogeneous mode, and with more modules."""
    content = sections({"data_parallel": 2}, {"data_parallel": 2, "rank_offset": 2}, "1f1b")
    for number, name in enumerate(more):
        sizes = {"data_parallel": 2, "rank_offset": 4 + 2 * number}
        content["model"]["module_parallelisms"][name] = sizes
        rows = {"modal_type": "rows"} if name == "resampler" else {}
        content["model"]["module_architectures"][name] = network(**rows)
    content["model"]["topology"] = topology
    return content


def test_the_default_graph() -> None:
    config = load(sections())
    assert config.model.topology is None
    assert config.model.module_topology == {"images": (LANGUAGE,), LANGUAGE: ()}
    written = graph({"images": [LANGUAGE]})
    assert load(written).model.module_topology == config.model.module_topology
    assert load(put(sections(), "model.topology", {"images": [LANGUAGE]}))


def test_modules_before_encoders_and_behind_the_language_module() -> None:
    topology = {
        "images": ["resampler"], "resampler": [LANGUAGE], LANGUAGE: ["generator", "generator"]
    }  # fmt: skip
    content = graph(topology, "resampler", "generator")
    content["model"]["special_token_ids"] = {"resampler": 1024}
    model = load(content).model
    assert model.encoder_module_names == ("images", "resampler")
    assert model.module_topology[LANGUAGE] == ("generator",)
    assert load(load(content).to_mapping()).model == model


def test_who_feeds_the_language_module_has_a_token() -> None:
    config = load(graph({"images": ["resampler"], "resampler": [LANGUAGE]}, "resampler"))
    assert config.model.special_token_ids == {"images": 1024, "resampler": 1025}
    config.model.special_token_ids = {"images": 1024}
    with pytest.raises(ConfigError, match="Module 'resampler': it has no entry in special_token"):
        config.finalize()
