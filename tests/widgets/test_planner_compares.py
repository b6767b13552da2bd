"""The planner compares layouts that do the same work on the same GPUs, and no others."""

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.config_files import load_preset
from mimokit.prediction.verdict import MEASURES, Verdict
from mimokit_widgets.planner.background_search import SearchState
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.outcome import resolved_config
from mimokit_widgets.planner.verdicts import Verdicts
from tests.rows import rows
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver

PRESETS = ("llava_7b_colocated", "llava_7b_homogeneous", "llava_7b_heterogeneous")
EDITED = (
    *((module + f"{axis}_parallel", ("1", "2", "4", "8", "3"))
      for module in (LANGUAGE, IMAGES) for axis in ("tensor", "data", "pipeline", "context")),
    ("data.num_microbatches", ("4", "8", "x")),
    ("data.base_batch_size", ("2", "4", "8")),
    ("model.module_architectures.language_module.num_layers", ("16", "32")),
    ("prediction.gpu", ("h100", "h200")),
    ("prediction.price_per_gpu_hour", ("2", "3.5")),
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


@rows(
    "message, why",
    ({"kind": "preset", "name": "llava_7b_heterogeneous"}, "24 GPUs instead of 8"),
    ({"kind": "preset", "name": "three_encoders_7b_heterogeneous"}, "another model"),
    ({"kind": "network", "name": "language_module", "published": "qwen2.5-72b"},
     "another model"),
    ({"kind": "gpu", "name": "h200"}, "h200 instead of h100"),
    ({"kind": "edit", "path": ["data", "num_microbatches"], "text": "16"},
     "128 samples per step instead of 64"),
    ({"kind": "edit", "path": ["data", "seq_length"], "text": "2048"},
     "sequence length 2,048 instead of 4,096"),
)  # fmt: skip
def test_other_work_is_not_compared(message: dict[str, Any], why: str) -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.send(**message)
    assert driver.sentences == []
    assert {line["change"] for line in changes(driver).values()} == {""}
    said = driver.screen["verdict"]["against"]
    assert said == f"Not compared with the layout before the last edit: {why}."


ACTIONS = st.one_of(
    *(st.tuples(st.just("edit"), st.just(path), st.sampled_from(texts)) for path, texts in EDITED),
    st.tuples(st.just("preset"), st.sampled_from(PRESETS)),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("pin")),
    st.tuples(st.just("unpin")),
    st.tuples(st.just("take_found"), st.integers(0, 7)),
    st.tuples(st.sampled_from(["undo", "redo"])),
)


@given(st.sampled_from(PRESETS), st.lists(ACTIONS, min_size=4, max_size=12))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_difference_is_that_of_two_predictions_with_one_batch(
    preset: str, actions: list[tuple[Any, ...]]
) -> None:
    driver = Driver(f"preset:{preset}")
    driver.session.search.state = found()
    for kind, *values in actions:
        if kind == "edit":
            driver.type(*values)
            driver.send("settle")
        else:
            names = {"preset": "name", "hold": "on", "take_found": "index"}
            driver.send(kind, **dict(zip([names.get(kind, "")], values, strict=False)))
        check(driver)
        if driver.sentences:
            driver.send("undo")


@cache
def found() -> SearchState:
    config = load_preset(PRESETS[0])
    result = mimokit.search(resolved_config(config, mimokit.plan(config)), gpus=8)
    return SearchState("done", 1.0, result.evaluated, result=result, searched=config)


def test_the_check_finds_a_batch_that_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verdicts, "unlike", lambda *_: "")
    driver = Driver("preset:llava_7b_colocated")
    driver.type("data.num_microbatches", "16")
    with pytest.raises(AssertionError):
        check(driver)
    driver.send("undo")
    driver.send("pin")
    driver.send("preset", name="llava_7b_heterogeneous")
    with pytest.raises(AssertionError):
        check_columns(driver)


def test_a_row_of_a_search_is_compared_as_an_edit_is() -> None:
    driver = Driver(f"preset:{PRESETS[0]}")
    driver.session.search.state = found()
    compared = 0
    for index in range(3):
        driver.send("take_found", index=index)
        compared += check(driver)
    assert compared
    driver.send("pin")
    driver.send("take_found", index=0)
    assert check(driver)
    assert check_columns(driver)


def check(driver: Driver) -> bool:
    """Check what is shown against two predictions; return whether anything is compared."""
    session = driver.session
    told = {key: line["change"] for key, line in changes(driver).items() if line["change"]}
    if session.tab == "compare":
        check_columns(driver)
    if not told:
        return False
    before = session.pinned[0][0] if session.pins else session.before
    assert before is not None
    assert session.valid_draft is not None
    check_pair(before, session.valid_draft, told)
    better = changes(driver)["tokens"]["better"]
    if "tokens" in told:
        assert better == ("+" in told["tokens"])
    return True


def check_columns(driver: Driver) -> int:
    """Check each column of *Compare* against its first; return how many are compared."""
    session, picture = driver.session, driver.screen["compare"]
    drafts = [*(draft for draft, _ in session.pinned), session.valid_draft]
    keys = {measure.label: measure.key for measure in MEASURES}
    compared = 0
    for at, draft in enumerate(drafts[1:], start=1):
        told = {
            keys[line["label"]]: line["values"][at]
            for line in picture["verdicts"]
            if "(" in line["values"][at]
        }
        if told:
            check_pair(drafts[0], draft, told)
        compared += bool(told)
    return compared


def check_pair(before: Draft, now: Draft, told: dict[str, str]) -> None:
    (was, *work), (is_now, *work_now) = map(predicted, (before, now))
    assert work == work_now
    for measure in MEASURES:
        one, other = measure.number(was), measure.number(is_now)
        if one is None or other is None or measure.key not in told:
            continue
        assert measure.text(other) in told[measure.key]
        share = re.search(r"([+−])([\d.]+) %\)", told[measure.key])
        if share is not None:
            sign = 1 if share[1] == "+" else -1
            assert sign * float(share[2]) == pytest.approx(100 * (other / one - 1), abs=0.51)


def predicted(draft: Draft) -> tuple[Verdict, int, int]:
    from mimokit.config_files import config_from_mapping

    config = config_from_mapping(draft.content)
    plan = mimokit.plan(config)
    made = mimokit.predict(config)
    return made.verdict, plan.batch.global_batch_size, plan.world_size


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
