"""`verify` from Python and from the command line."""

import io
import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
from rich.console import Console

from mimokit.config import ModalityPresence
from mimokit.engine.verify.compare import _norm_difference
from mimokit.experiment import VerificationReport, compute_oracle, verify
from tests import seams
from tests.cli.call import call
from tests.invariance import oracle_of
from tests.layouts import digits_config
from tests.layouts_multimodal import multimodal_config

# Only the keys that every config has: no image sizes, no optimizer.
PLAIN = """
model:
  module_architectures:
    images: {num_layers: 1, hidden_size: 32, num_attention_heads: 4, seq_length: 6, vocab_size: 0}
    language_module:
      {num_layers: 1, hidden_size: 32, num_attention_heads: 4, seq_length: 32, vocab_size: 64}
  module_parallelisms:
    images: {tensor_parallel: 1, pipeline_parallel: 1, data_parallel: 2}
    language_module: {tensor_parallel: 2, pipeline_parallel: 1, data_parallel: 1}
  special_token_ids: {images: 64}
  llm_module_name: language_module
  encoder_module_name: images
  llm_rank_offset: 0
data:
  base_batch_size: 4
  num_microbatches: 2
  seq_length: 32
  image_seq_length: 12
  vocab_size: 64
  image_special_token_id: 64
  dataset_size: 64
  num_workers: 0
  prefetch_factor: 2
runtime:
  num_iterations: 2
  warmup_iterations: 0
  log_interval: 1
  enable_performance_monitoring: true
  pipeline_schedule: colocated
"""


@pytest.fixture
def plain_file(tmp_path):
    file = tmp_path / "plain.yaml"
    file.write_text(PLAIN)
    return file


@pytest.fixture
def command(cluster, monkeypatch):
    """A command on the engines of the tests."""
    monkeypatch.setattr(seams.ENGINE_CLUSTER, lambda *_, **__: nullcontext(cluster))
    return call


def test_the_command_prints_json_and_succeeds(plain_file, command):
    result = command("verify", plain_file, "--json", "--steps", "2")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["data"] == "synthetic"
    assert len(report["losses"]) == len(report["oracle_losses"]) == 2
    assert len(set(report["losses"])) == 2
    for name in ("loss", "gradient", "weight"):
        assert 0 <= report[f"max_{name}_difference"] <= 1e-5


def test_the_command_fails_above_the_tolerance(plain_file, command):
    result = command("verify", plain_file, "--tolerance", "1e-12", "--steps", "2")
    assert result.exit_code == 1
    assert "does NOT compute" in result.stdout
    assert "Traceback" not in result.output


def test_a_report_shows_every_step_and_module(cluster):
    config = digits_config((1, 2), (2, 1))
    report = verify(cluster, config, steps=2, oracle=oracle_of(cluster, config))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(report)
    text = console.export_text()
    html = report._repr_html_()
    for shown in (text, html):
        assert shown.count("language_module") >= 2
        assert f"{report.losses[1]:.6f}" in shown
        assert "computes what one process computes" in " ".join(shown.split())
    assert report.to_json()["passed"] is True


def test_layouts_of_a_model_share_an_oracle(cluster):
    oracle = compute_oracle(cluster, digits_config((1, 2), (1, 2)), steps=2)
    config = digits_config((1, 2), (2, 1))
    assert verify(cluster, config, steps=1, oracle=oracle) == verify(cluster, config, steps=1)
    assert oracle.is_for(config)
    for other in (
        digits_config((1, 2), (2, 1), num_microbatches=2),
        digits_config((1, 2), (2, 1), samples_per_microbatch=4),
        digits_config((1, 2), (2, 1), learning_rate=1e-2),
    ):
        assert not oracle.is_for(other)
        with pytest.raises(ValueError, match="The oracle differs from 'tp1dp2_tp2dp1' in its mod"):
            verify(cluster, other, steps=1, oracle=oracle)
    with pytest.raises(ValueError, match="The oracle has 2 steps; 5 are to be compared"):
        verify(cluster, config, oracle=oracle)
    assert not oracle.is_for(config, digits)


def digits(config):
    from mimokit.engine.data.sources import default_data

    return default_data(config)


def test_what_is_not_finite_is_never_equal():
    layout, inf, nan = {"images": "TP1 DP1"}, float("inf"), float("nan")
    right = VerificationReport(
        "a", "digits", layout, 1e-5, (2.0, 1.0), (2.0, 1.0), ({"images": 0.0},), ({},), {}
    )
    assert right.passed
    assert not replace(right, weight_differences=({"images": nan},)).passed
    for lost in (inf, nan):
        both = replace(right, losses=(2.0, lost), oracle_losses=(2.0, lost))
        assert not both.passed
        assert f"The loss of step 2 is {lost}, and {lost} in one process" in both.verdict
        assert _norm_difference(lost, lost) == inf


def test_rounding_explains_twice_what_it_does_to_one_process():
    near = VerificationReport(
        "a", "digits", {"images": "TP1 DP1"}, 1e-5, (2.0,), (2.0,),
        ({"images": 1.5e-5},), ({"images": 0.0},), {},
    )  # fmt: skip
    assert near.is_near
    assert not near.passed
    measured = replace(near, weight_rounding=({"images": 1.0},))
    for rounding, passes, said in (
        (8e-6, True, "differ by 1.5e-05 after step 1, by rounding alone: "),
        (7e-6, False, "differ by 1.5e-05 after step 1, more than rounding explains: "),
    ):
        found = replace(measured, gradient_rounding=({"images": rounding},))
        assert found.passed == passes
        assert said in found.verdict
    measured = replace(measured, gradient_rounding=({"images": 1.0},))
    far = replace(measured, weight_differences=({"images": 2e-4},))
    assert not far.passed
    assert not far.is_near


def test_a_layout_whose_gradients_rounding_changes_is_no_false_alarm(cluster):
    """Its gradients differ by up to 1.5e-5: sums over tokens that cancel, after large steps."""
    sizes = {"qwen": (4, 1), "audio": (4, 1), "words": (4, 1), "language_module": (4, 1)}
    learning = {"seed": 507560, "learning_rate": 1e-2}
    config = multimodal_config(
        sizes, "homogeneous", num_microbatches=3, three_axes=True, **learning
    )
    language = {"vocab_size": 17, "make_vocab_size_divisible_by": 8, "init_std": 0.2}
    networks = config.model.module_architectures
    networks["language_module"] = networks["language_module"].model_copy(update=language)
    report = verify(cluster, config)
    assert report.passed, report.verdict


def test_a_verdict_says_for_what_nothing_was_proved(cluster):
    sizes = {"clip": (1, 2), "dino": (1, 2), "audio": (1, 2), "language_module": (1, 2)}
    absent = {"audio": ModalityPresence(microbatches=[False])}
    config = multimodal_config(sizes, "homogeneous", frozen=["dino"], presence=absent)
    config.model.get_architecture("language_module").frozen = True
    report = verify(cluster, config, steps=1)
    assert report.passed
    assert report.unproved == {
        "dino": "it is frozen",
        "audio": "it saw no sample",
        "language_module": "it is frozen",
    }
    assert report.to_json()["unproved"] == report.unproved
    assert "Nothing was proved for the computation of module 'audio': it saw" in report.verdict
    assert "computes what one process computes" in report.verdict
    nothing = replace(report, unproved=dict.fromkeys(sizes, "it is frozen"))
    assert "has the loss of one process, and nothing was trained" in nothing.verdict


def test_a_file_with_ranks_apart_is_proven_too(cluster, tmp_path, plain_file):
    text = plain_file.read_text().replace("pipeline_schedule: colocated", "pipeline_schedule: 1f1b")
    text = text.replace("llm_rank_offset: 0", "llm_rank_offset: 2")
    file = tmp_path / "apart.yaml"
    file.write_text(text)
    assert verify(cluster, file).passed
