"""Ranks that read samples in an order in which all have about the same work."""

import itertools

import pytest

import mimokit
from mimokit.config.runtime import ValidationConfig
from mimokit.engine.data.digits import DigitStrips
from mimokit.engine.data.iterators import (
    PlannedBatches,
    PlannedIndex,
    StatesSizes,
    order_of,
    place_of,
)
from mimokit.engine.data.sources import default_data, synthetic_data
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.rows import rows

BALANCED = {"sample_order": "balanced"}


def _multimodal():
    sizes = {"dino": (1, 2), "audio": (1, 2), LANGUAGE: (1, 2)}
    return multimodal_config(sizes, "homogeneous", presence=PRESENCE, **BALANCED)


@rows("config", digits_config((1, 4), (1, 4), **BALANCED), _multimodal())
def test_digits_state_the_sizes_of_what_they_return(config):
    data = default_data(config).train
    assert isinstance(data, StatesSizes)
    for number in range(12):
        index = PlannedIndex(3 * number, 0, number % 8)
        stated, sample = data.sample_sizes(index).items, data[index]
        given = sample.get("items", {"images": sample.get("images")})
        assert {name: stated.get(name, 0) for name in given} == {
            name: len(items) for name, items in given.items()
        }


def test_ranks_share_every_micro_batch_evenly():
    config = digits_config((1, 4), (1, 4), **BALANCED)
    plan, data = mimokit.plan(config), DigitStrips(size=64)
    order = order_of(config, plan, data)
    drawn = list(itertools.islice(PlannedBatches(64, 8, (0, 8), seed=3), 6))
    shares = [
        list(itertools.islice(PlannedBatches(64, 8, (2 * r, 2 * r + 2), 3, order=order), 6))
        for r in range(4)
    ]

    def scans(indices):
        return sum(data.sample_sizes(index).items["images"] for index in indices)

    most = [0, 0]
    for number, whole in enumerate(drawn):
        parts = [share[number] for share in shares]
        read = sorted(index for part in parts for index in part)
        assert read == sorted(whole), "every sample once"
        places = {int(index): place_of(index) for part in parts for index in part}
        assert places == {int(index): place_of(index) for index in whole}
        most[0] += max(scans(whole[2 * r : 2 * r + 2]) for r in range(4))
        most[1] += max(scans(part) for part in parts)
    assert most[1] < 0.9 * most[0]


def test_data_that_states_no_sizes():
    config = digits_config((1, 2), (1, 2), **BALANCED)
    with pytest.raises(ValueError, match="the data set list does not state the sizes of its samp"):
        order_of(config, mimokit.plan(config), [1, 2])
    assert order_of(digits_config(), mimokit.plan(digits_config()), [1, 2]) is None


def test_noise_states_its_sizes_and_has_held_out_samples_where_they_are_asked_for():
    config = digits_config((1, 2), (1, 2))
    assert synthetic_data(config).test is None
    config.runtime.validation = ValidationConfig(interval=1, samples=8)
    data = synthetic_data(config)
    for number in range(20):
        items = data.train[number]["items"]["images"]
        assert data.train.sample_sizes(number).items == {"images": len(items)}
    assert data.test[0]["words"].tolist() != data.train[0]["words"].tolist()
