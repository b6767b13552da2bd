"""Encoders that feed several modules: adapters, and the language model directly."""

import pytest
import torch

from mimokit.config import ConfigError
from mimokit.config.checked_code import checked_code
from mimokit.engine.data.multimodal import MultimodalCollate, MultimodalSample, encoder_inputs
from mimokit.engine.data.sources import synthetic_data
from tests.layouts_apart import apart_multimodal_config, with_adapter, with_edge
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import direct_rows

ALONE = (1, 1, 1)


def _both(**fields):
    sizes = {"clip": ALONE, "dino": ALONE, LANGUAGE: ALONE}
    config = with_adapter(apart_multimodal_config(sizes), ALONE, "clip", others=("dino",), **fields)
    return with_edge(config, "dino")


def test_every_path_to_the_language_model_has_its_places():
    config = _both()
    model = config.model
    assert model.ends_of("dino") == {"dino": 1, "adapter": 1}
    assert [model.paths_of_items(name) for name in ("clip", "dino", "adapter")] == [1, 1, 2]
    clip, dino = encoder_inputs(config)
    own, adapted = (model.special_token_ids[name] for name in ("dino", "adapter"))
    assert (clip.placeholders, dino.placeholders) == ((adapted,), (own, adapted))
    sample = MultimodalSample(
        items={name: torch.zeros(1, 1, 8, 8) for name in ("clip", "dino")},
        tokens={"clip": torch.tensor([2]), "dino": torch.tensor([3])},
        grids={},
        words=torch.tensor([1, 2]),
        learned=torch.ones(2),
    )
    batch = MultimodalCollate((clip, dino), 12, 0)([sample])
    assert batch["input_ids"][0].tolist() == [adapted] * 2 + [own] * 3 + [adapted] * 3 + [
        1,
        2,
        0,
        0,
    ]
    data = synthetic_data(config)
    data.collate_fn([data.train[number] for number in range(20)])  # all have room


def test_a_whole_modality_has_one_projector():
    class Modality:
        module, params, submodules = object, {}, {"encoders": {}}

    config = direct_rows(ALONE, ALONE, ALONE)
    with pytest.raises(ConfigError, match=r"whole modality\) is refused with topology \(several"):
        checked_code(config, modules={"images": Modality})
