"""The planner compares layouts that do the same work on the same GPUs, and no others."""

import random
import re
from typing import Any

import pytest

import mimokit
from mimokit.config_files import load_preset
from mimokit.prediction.verdict import MEASURES, Verdict, verdict_of
from mimokit_widgets.planner.draft import Draft
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver

PRESETS = ("llava_7b_colocated", "llava_7b_homogeneous", "llava_7b_heterogeneous")
EDITED = (
    *((module + f"{axis}_parallel", ("1", "2", "4", "8", "3"))
      for module in (LANGUAGE, IMAGES) for axis in ("tensor", "data", "pipeline", "context")),
    ("data.num_microbatches", ("4", "8", "x")),
    ("data.base_batch_size", ("2", "4", "8")),
    ("model.module_architectures.language_module.num_layers", ("16", "32")),
    ("prediction.gpu", ("h100", "h200")),
    ("model.deployment_mode", ("colocated", "heterogeneous", "homogeneous")),
    ("runtime.precision", ("bf16", "fp8")),
)  # fmt: skip


def changes(driver: Driver) -> dict[str, dict[str, Any]]:
    return {line["key"]: line for line in driver.screen["verdict"]["lines"]}


def test_half_the_tensor_parallel_size_on_the_same_gpus_is_a_tenth_faster() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.type(LANGUAGE + "tensor_parallel", "4")
    assert driver.sentences == []
    told = changes(driver)
    assert told["seconds"]["change"] == "2.87 → 2.60 s (−10 %)"
    assert told["tokens"]["change"] == "11,415 → 12,615 (+11 %)"
    assert told["memory"]["change"] == "29.5 → 31.9 GiB (+8 %)"
    assert {key: line["better"] for key, line in told.items()} == {
        "seconds": None, "tokens": True, "memory": None, "idle": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"kind": "preset", "name": "llava_7b_heterogeneous"}, "24 GPUs instead of 8"),
        ({"kind": "preset", "name": "three_encoders_7b_heterogeneous"}, "another model"),
        ({"kind": "network", "name": "language_module", "published": "qwen2.5-72b"},
         "another model"),
        ({"kind": "gpu", "name": "h200"}, "h200 instead of h100"),
        ({"kind": "edit", "path": ["data", "num_microbatches"], "text": "16"},
         "128 samples per step instead of 64"),
        ({"kind": "edit", "path": ["data", "seq_length"], "text": "2048"},
         "sequence length 2,048 instead of 4,096"),
    ],
)  # fmt: skip
def test_other_work_is_not_compared(message: dict[str, Any], why: str) -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.send(**message)
    assert driver.sentences == []
    assert {line["change"] for line in changes(driver).values()} == {""}
    said = driver.screen["verdict"]["against"]
    assert said == f"Not compared with the layout before the last edit: {why}."


@pytest.mark.parametrize("seed", range(3))
def test_a_difference_is_that_of_two_predictions_with_one_batch(seed: int) -> None:
    drawn = random.Random(seed)
    driver = Driver(f"preset:{PRESETS[seed % 3]}")
    compared = 0
    for _ in range(16):
        if drawn.random() < 0.15:
            driver.send("preset", name=drawn.choice(PRESETS))
        elif drawn.random() < 0.15:
            driver.send("hold", on=drawn.random() < 0.5)
        else:
            path, texts = drawn.choice(EDITED)
            driver.type(path, drawn.choice(texts))
            driver.send("settle")
        compared += check(driver)
        if driver.sentences:
            driver.send("undo")
    assert compared


def check(driver: Driver) -> bool:
    """Check what is shown against two predictions; return whether anything is compared."""
    told = {key: line for key, line in changes(driver).items() if line["change"]}
    before, now = driver.session.before, driver.session.valid_draft
    if not told:
        return False
    assert before is not None
    assert now is not None
    (was, samples, gpus), (is_now, samples_now, gpus_now) = map(predicted, (before, now))
    assert (samples, gpus) == (samples_now, gpus_now)
    for measure in MEASURES:
        one, other = measure.number(was), measure.number(is_now)
        if one is None or other is None or measure.key not in told:
            continue
        change = told[measure.key]["change"]
        assert measure.text(other) in change
        assert change.startswith(measure.text(one).partition(" ")[0])
        if (share := re.search(r"([+−])([\d.]+) %\)", change)) is not None:
            sign = 1 if share[1] == "+" else -1
            assert sign * float(share[2]) == pytest.approx(100 * (other / one - 1), abs=0.51)
        if measure.key == "tokens":
            assert told["tokens"]["better"] == (other > one)
    return True


def predicted(draft: Draft) -> tuple[Verdict, int, int]:
    from mimokit.config_files import config_from_mapping

    config = config_from_mapping(draft.content)
    plan = mimokit.plan(config)
    found = mimokit.predict(config)
    return verdict_of(found), plan.batch.global_batch_size, plan.world_size


def test_a_pinned_layout_keeps_its_batch_while_sizes_trade() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.send("pin")
    driver.type(LANGUAGE + "tensor_parallel", "4")
    assert changes(driver)["seconds"]["change"] == "2.87 → 2.60 s (−10 %)"
    driver.type("data.num_microbatches", "16")
    lines = {line["label"]: line["values"] for line in driver.screen["compare"]["lines"]}
    assert lines["samples per step"] == ("128", "128")
    driver.send("unpin")
    driver.send("pin", name="llava_7b_heterogeneous")
    verdicts = driver.screen["compare"]["verdicts"]
    assert "%" not in "".join(verdicts[0]["values"])
    assert load_preset("llava_7b_heterogeneous").data.num_microbatches == 8
