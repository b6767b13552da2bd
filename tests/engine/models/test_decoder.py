"""Text decoders behind the language model, on ranks of their own."""

import pytest
import torch

import mimokit
from mimokit.engine.data.batch import targets_of
from mimokit.experiment import train
from tests.evaluations import QUICK
from tests.layouts_apart import decoded_config
from tests.layouts_multimodal import LANGUAGE


def _config(images, language, writer, *options, **runtime):
    sizes = {"images": images, LANGUAGE: language, "writer": writer}
    return decoded_config(sizes, *options, **runtime)


def test_nothing_goes_back_into_a_model_of_which_nothing_is_trained():
    config = _config((1, 1, 1), (1, 2, 1), (1, 1, 1), 2)
    for name in ("images", LANGUAGE):
        config.model.get_architecture(name).frozen = True
    backward = {a.stage for s in range(4) for a in _actions(config, s) if a.kind == "backward"}
    assert backward == {3}


def _actions(config, stage):
    return mimokit.plan(config).pipeline.schedule.actions(stage)


def test_it_trains_is_tested_and_counted(cluster, tmp_path):
    config = _config((1, 1, 1), (1, 1, 2), (1, 1, 1), 2, num_iterations=3)
    result = train(cluster, config, evaluations=QUICK, directory=tmp_path).result()
    assert result.steps.groupby("iteration")["loss"].nunique().tolist() == [1] * 3
    assert result.evaluations["samples"].tolist() == [8]
    one = result.steps.iloc[0]
    assert one["writer_tokens_per_sec"] == one["language_module_tokens_per_sec"] > 0


def test_the_token_after_the_next():
    batch = {"labels": torch.tensor([[5, 6, 7, 10]]), "loss_mask": torch.tensor([[0.0, 1, 1, 1]])}
    labels, loss_mask = targets_of(batch, "writer")
    assert labels.tolist() == [[6, 7, 10, 0]]
    assert loss_mask.tolist() == [[1, 1, 1, 0]]


def test_targets_that_a_batch_names():
    own = {"labels": torch.tensor([[1, 2]]), "loss_mask": torch.ones(1, 2)}
    batch = {"input_ids": torch.zeros(1, 2), "targets": {"writer": own}}
    assert targets_of(batch, "writer")[0] is own["labels"]
    own["loss_mask"] = torch.ones(1, 3)
    with pytest.raises(ValueError, match=r"loss_mask of module 'writer' .* shape \(1, 3\), but"):
        targets_of(batch, "writer")
