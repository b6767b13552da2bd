"""What `make test` takes of the tests: `pytest --suite`. `make test-all` takes all of them.

Rooms that compute without engines are in the suite. Of the rooms with engines it has the claims
(`tests/test_claims.py`), what runs without the shared engines, and the tests that are named here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE_ROOMS = ("tests/engine/", "tests/cluster/", "tests/experiment/")
PAGE_ROOMS = ("tests/browser/", "tests/notebooks/")
CLUSTERS = {"cluster", "shared_cluster"}

TAKEN: tuple[str, ...] = (
    "tests/engine/checkpoints/test_damage.py",
    "tests/engine/checkpoints/test_layouts.py::test_a_checkpoint_of_one_layout_is_that_of_another"
    "[frozen to one process]",
    "tests/engine/checkpoints/test_layouts.py::test_a_checkpoint_of_one_layout_is_that_of_another"
    "[bf16 to one process]",
    "tests/engine/checkpoints/test_resume.py::test_every_fault_of_a_resume_is_named",
    "tests/engine/checkpoints/test_resume.py"
    "::test_a_killed_rank_costs_the_steps_since_the_last_checkpoint",
    "tests/engine/colocated/test_bridge.py::test_differing_tensor_parallel_replicas_are_refused",
    "tests/engine/colocated/test_bridge.py::test_rows_and_gradients_are_those_of_megatrons_bridge",
    "tests/engine/data/test_bad_data.py",
    "tests/engine/inference/test_sampling_on_ranks.py",
    "tests/engine/models/test_latent.py::test_latent_attention_is_that_of_hugging_face",
    "tests/engine/models/test_llava.py",
    "tests/engine/models/test_token_prediction.py::test_one_process_is_megatrons_own_model",
    "tests/engine/models/test_windows.py"
    "::test_patches_attend_inside_squares_of_an_image_of_any_size",
    "tests/engine/parallel/test_gradients.py",
    "tests/engine/pipeline/test_heterogeneous.py::test_steps_run_in_the_order_of_the_plan",
    "tests/engine/training/test_measures.py::test_parts_of_a_step_add_up_on_every_rank",
    "tests/engine/training/test_measures.py"
    "::test_the_validation_loss_is_that_of_one_process_in_every_layout",
    "tests/engine/training/test_saving.py::test_every_layout_leaves_what_one_process_leaves",
    "tests/engine/training/test_trace.py::test_a_traced_run_leaves_every_step_of_every_rank",
    "tests/engine/user_loop/test_documents_loop.py",
    "tests/engine/user_loop/test_user_loop.py",
    "tests/engine/verify/test_layout_invariance.py::test_the_oracle_takes_real_steps",
    "tests/engine/verify/test_layout_invariance.py"
    "::test_large_gradients_are_no_false_alarm_and_hide_no_fault",
    "tests/experiment/culprit/test_explain.py"
    "::test_a_right_layout_has_no_culprit_and_planted_ones_are_named",
    "tests/experiment/culprit/test_recordings.py"
    "::test_experts_are_compared_whole_and_gradients_over_another_group_are_named",
    "tests/experiment/test_own_data.py::test_layouts_train_on_it_and_are_proven",
    "tests/experiment/test_own_loss.py::test_it_is_what_a_layout_trains",
    "tests/experiment/test_own_modules.py::test_it_computes_what_one_process_computes",
    "tests/experiment/test_restarts.py"
    "::test_a_run_goes_on_from_the_last_checkpoint_and_is_heard_once",
    "tests/experiment/test_runs.py",
    "tests/experiment/test_stepper.py::test_stepping_computes_what_training_does_and_nothing_differs"
    "[fan_out]",
    "tests/experiment/test_stepper.py::test_rows_of_the_wrong_samples_are_found",
    "tests/experiment/test_stepper.py"
    "::test_an_edit_is_what_the_next_step_reads_and_the_step_before_is_restored",
    "tests/experiment/test_verify.py",
    "tests/experiment/sweeps/test_sweep.py",
    "tests/experiment/inference/test_sharded_model.py"
    "::test_logits_and_greedy_tokens_are_those_of_hugging_face",
    "tests/experiment/fits/test_nodes.py::test_strategies_of_the_document_train",
    "tests/cluster/test_running.py",
    "tests/cluster/test_failures.py",
    "tests/cluster/test_streaming.py",
    "tests/browser/test_harness.py",
    "tests/browser/test_planner.py",
    "tests/browser/test_stepper.py",
    "tests/browser/test_monitor.py",
    "tests/browser/test_saved_views.py",
    "tests/notebooks/test_start.py",
    "tests/notebooks/test_plan_a_layout.py",
    "tests/notebooks/test_first_light.py",
    "tests/notebooks/test_headless.py",
    "tests/notebooks/test_words.py",
)
"""Files and tests of rooms with engines and pages that are in the suite."""
LEFT_OUT: tuple[str, ...] = (
    "tests/cluster/test_hosts.py",
    "tests/experiment/test_soak.py",
    "tests/experiment/test_torchrun.py",
    "tests/experiment/test_reconnecting.py",
    "tests/planning/test_shrinking.py::test_no_kind_of_a_large_layout_is_lost[60]",
    "tests/planning/test_shrinking.py::test_nor_of_one_that_runs_and_the_small_one_runs_too[60]",
)
"""Files and tests that would be in the suite by the rule above, and cost more than they add."""


def in_the_suite(test: str, fixtures: frozenset[str] = frozenset()) -> bool:
    """Return whether a test is in the suite.

    Args:
        test: its node id.
        fixtures: the names of those that it asks for.
    """
    if _named(test, LEFT_OUT):
        return False
    if _named(test, TAKEN):
        return True
    if test.startswith(ENGINE_ROOMS):
        return CLUSTERS.isdisjoint(fixtures)
    return not test.startswith(PAGE_ROOMS)


def is_left_out(file: str) -> bool:
    """Return whether no test of a file is in the suite, so that it need not be imported."""
    if any(name.startswith(file) for name in TAKEN):
        return False
    return file in LEFT_OUT or file.startswith(PAGE_ROOMS)


def _named(test: str, names: tuple[str, ...]) -> bool:
    """Return whether a test is named, or its file, its folder or its test without parameters."""
    return any(
        test == name
        or test.startswith((f"{name}[", f"{name}::"))
        or (name.endswith("/") and test.startswith(name))
        for name in names
    )


class SuitePlugin:
    """Deselects what is not in the suite, where the suite is asked for."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Do not import files of which nothing is in the suite."""
        if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
            return None
        return is_left_out(collection_path.relative_to(ROOT).as_posix()) or None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave the others out."""
        taken, others = [], []
        for item in items:
            fixtures = frozenset(getattr(item, "fixturenames", ()))
            (taken if in_the_suite(item.nodeid, fixtures) else others).append(item)
        items[:] = taken
        config.hook.pytest_deselected(items=others)
