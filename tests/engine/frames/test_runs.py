"""Runs whose replicas share images compute what one process computes, in all three modes."""

from __future__ import annotations

import pytest

from mimokit.config import ConfigError, ModalityPresence, check_runnable
from mimokit.config.runtime import BALANCED, FRAME_PARALLEL
from mimokit.experiment import verify
from tests.invariance import FEW_STEPS, assert_computes_the_same, oracle_of
from tests.layouts import digits_config
from tests.layouts_apart import apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.planted import planted

SHARED = {"patch_type": [FRAME_PARALLEL]}
ORDERED = {"sample_order": BALANCED}
SOME = {"qwen": ModalityPresence(samples=[True, False, True, True, False, False, False, False])}
"""Whole replicas are without images."""
QWEN = {"num_microbatches": 2, "three_axes": True, "presence": SOME, **SHARED}


def _fan_in():
    return multimodal_config({"qwen": (1, 4), LANGUAGE: (2, 2)}, "colocated", **QWEN)


def _strips():
    """Return strips of 0 to 8 scans; one replica has none."""
    config = digits_config((1, 4), (1, 4), **SHARED)
    config.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}
    return config


LAYOUTS = {
    "strips of known lengths": _strips,
    "homogeneous": lambda: multimodal_config(
        {"qwen": (2, 2), LANGUAGE: (2, 2)}, "homogeneous", **QWEN
    ),
    "samples in another order": lambda: multimodal_config(
        {"qwen": (1, 4), LANGUAGE: (1, 4)}, "homogeneous", **{**QWEN, "patch_type": [], **ORDERED}
    ),
    "fan-in": _fan_in,
    "heterogeneous, samples in another order": lambda: apart_multimodal_config(
        {"qwen": (1, 1, 4), LANGUAGE: (1, 2, 2)}, **QWEN, **ORDERED
    ),
    "fan-out, images of one size": lambda: multimodal_config(
        {"clip": (1, 4), "dino": (2, 2), LANGUAGE: (1, 4)},
        "colocated",
        presence=PRESENCE,
        **SHARED,
        **ORDERED,
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_runs_compute_what_one_process_does(cluster, layout):
    assert_computes_the_same(cluster, LAYOUTS[layout]())


def _backwards(original):
    return lambda *given: original(*given).flip(0)


def test_verification_sees_rows_in_a_wrong_order(cluster):
    config = _fan_in()
    oracle = oracle_of(cluster, config)
    place = "mimokit.engine.frames.dispatch._in_own_order"
    with planted(cluster, place, _backwards, world_size=4):
        report = verify(cluster, config, steps=FEW_STEPS, oracle=oracle)
    assert not report.passed


def _first_sample_twice(original):
    return lambda works: (original(works)[1], *original(works)[1:])


def test_verification_sees_a_sample_that_is_read_twice(cluster):
    config = LAYOUTS["samples in another order"]()
    oracle = oracle_of(cluster, config)
    place = "mimokit.engine.data.order.order_samples"
    with planted(cluster, place, _first_sample_twice, world_size=4):
        report = verify(cluster, config, steps=FEW_STEPS, oracle=oracle)
    assert not report.passed


def test_what_cannot_share_images():
    config = apart_multimodal_config({"qwen": (1, 2, 2), LANGUAGE: (1, 1, 2)}, **SHARED)
    with pytest.raises(ConfigError, match="Module 'qwen': pipeline_parallel is 2, but vit_frame_p"):
        check_runnable(config)
    config = multimodal_config({"audio": (1, 2), LANGUAGE: (1, 2)}, "homogeneous", **SHARED)
    with pytest.raises(ConfigError, match="patch_type has vit_frame_parallel, but no module enc"):
        check_runnable(config)
    with pytest.raises(ConfigError, match="patch_type"):
        config.runtime.patch_type = ["frames"]
