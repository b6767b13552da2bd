"""Every graph of modules that is refused, one sentence at a time."""

from typing import Any

import pytest

from mimokit.config import ConfigError
from tests.config.sections import load, network, only, problems, put, sections

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


def test_a_topology_lists_names() -> None:
    assert "topology is the text 'language_module'; write a list of names." in (
        only(problems(graph({"images": LANGUAGE}))).sentence
    )


@pytest.mark.parametrize("mode", ["homogeneous", "colocated"])
def test_other_graphs_need_ranks_of_their_own(mode: str) -> None:
    content = sections({"data_parallel": 2}, {"data_parallel": 2}, mode)
    content["model"]["module_parallelisms"]["probe"] = {"data_parallel": 2}
    right = f"is refused with deployment_mode {mode}; change one of them."
    for kind, topology, tokens, sentence in (
        (
            None,
            {"images": [LANGUAGE], LANGUAGE: ["probe"]},
            {"images": 1024},
            f"Module 'probe': topology (behind the language module) {right}",
        ),
        (
            "rows",
            {"images": ["probe", LANGUAGE], "probe": [LANGUAGE]},
            {"images": 1024, "probe": 1025},
            f"Module 'images': topology (several receivers) {right}",
        ),
    ):
        content["model"] |= {"topology": topology, "special_token_ids": tokens}
        content["model"]["module_architectures"]["probe"] = network(modal_type=kind)
        assert only(problems(content)).sentence == sentence
    adapted = {"images": ["probe"], "probe": [LANGUAGE]}
    content["model"] |= {"topology": adapted, "special_token_ids": {"probe": 1024}}
    assert not problems(content)


def test_an_adapter_has_stages_where_its_encoder_has_some() -> None:
    staged = {"pipeline_parallel": 2, "data_parallel": 1}
    content = sections(staged, staged, "three_phase")
    content["model"]["module_parallelisms"]["probe"] = {"data_parallel": 2}
    content["model"]["module_architectures"]["probe"] = network(modal_type="rows")
    adapted = {"images": ["probe"], "probe": [LANGUAGE]}
    content["model"] |= {"topology": adapted, "special_token_ids": {"probe": 1024}}
    assert only(problems(content)).sentence == (
        "Module 'probe': pipeline_parallel is 1, but 'images', which feeds it, has 2 stages on the "
        "same ranks; set it to 2, or that of 'images' to 1."
    )
    content["model"]["module_parallelisms"]["probe"] = staged
    assert not problems(content)


def test_sizes_divide_along_every_edge() -> None:
    content = graph({"images": [LANGUAGE], LANGUAGE: ["generator"]}, "generator")
    content["model"]["module_parallelisms"]["generator"]["data_parallel"] = 3
    content["data"]["base_batch_size"] = 3
    problem = only(problems(content))
    assert (problem.module, problem.field, problem.value) == ("generator", "data_parallel", 3)
