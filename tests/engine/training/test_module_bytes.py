"""The bytes that a rank holds: of states, and of what autograd keeps until it forgets it."""

import json

import pytest
import torch

from mimokit.analysis import load_runs
from mimokit.analysis.memory_rows import held_section
from mimokit.engine.steps import Step
from mimokit.engine.training.module_bytes import KeptBytes
from mimokit.experiment import train
from mimokit.step_kinds import StepKind
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_config


def test_what_autograd_keeps_is_counted_once_and_until_it_is_forgotten() -> None:
    linear = torch.nn.Linear(8, 16, bias=False)
    kept = KeptBytes({"first": linear, "second": torch.nn.Identity()})
    rows = torch.randn(4, 8)
    with kept.watching():
        linear(rows)  # is forgotten at once
        assert kept.most == {"first": 4 * 8 * 4, "second": 0}
        out = linear(rows)
        both = out.tanh() + linear(rows)  # the input again, and what tanh gives
        assert kept.most["first"] == 4 * (4 * 8 + 4 * 16)
        kept.observe(Step(StepKind.FORWARD, "second", 0))
        both.sigmoid().sum().backward()
        assert kept.most["second"] == 4 * 4 * 16
        del out, both
        for _ in range(3):
            linear(rows).tanh().sum().backward()
    assert kept.most["first"] == 4 * (4 * 8 + 4 * 16)
    assert kept.most["second"] == 4 * (4 * 8 + 4 * 16), "who keeps a tensor first has it"


@pytest.mark.parametrize(
    "config",
    [
        digits_config((2, 2), (2, 2), num_iterations=1),
        apart_config((1, 1, 1), (1, 2, 1), 2, num_iterations=1),
    ],
    ids=["homogeneous", "language model in stages"],
)
def test_states_take_what_was_predicted(cluster, tmp_path, config) -> None:
    config.model.get_architecture("language_module").make_vocab_size_divisible_by = 16
    train(cluster, config, evaluations=QUICK, directory=tmp_path).result()
    held = json.loads((tmp_path / "health.json").read_text())["held"]
    assert {one["module"] for one in held} == {"images", "language_module"}
    for one in held:
        measured, predicted = one["measured"], one["predicted"]
        for part in ("weights", "gradients", "optimizer"):
            assert measured[part] == pytest.approx(predicted[part], rel=0.01), one["module"]


def test_a_run_reports_what_modules_held_next_to_what_was_predicted(cluster, tmp_path) -> None:
    config = digits_config((1, 2), (2, 1), num_iterations=1)
    images = config.model.get_parallelism("images")
    config.model.get_architecture("language_module").make_vocab_size_divisible_by = 16
    images.use_distributed_optimizer = True
    run = train(cluster, config, evaluations=QUICK, directory=tmp_path)
    run.result()
    saved = {
        one["module"]: one for one in json.loads((tmp_path / "health.json").read_text())["held"]
    }
    for module, one in saved.items():
        measured, predicted = one["measured"], one["predicted"]
        for part in ("weights", "gradients"):
            assert measured[part] == predicted[part], module
        assert measured["optimizer"] == pytest.approx(predicted["optimizer"], rel=0.01)
        # A projector, the ends of a model and statistics of norms are not predicted.
        assert 0.6 < predicted["activations"] / measured["activations"] < 1.1
    assert saved["images"]["measured"]["optimizer"] < 2 * saved["images"]["measured"]["weights"]
    assert any("Module 'images' holds most on rank" in note for note in run.health().notes)
    held = load_runs([str(tmp_path)]).held
    assert set(held["part"]) == {"weights", "gradients", "optimizer", "activations"}
    assert len(held_section(held).rows) == len(held) == 8
