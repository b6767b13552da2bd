"""What `make test` takes of the tests: `pytest --suite`. `make test-all` takes all of them.

Rooms that compute without engines are in the suite. Of the rooms with engines it has the claims
(`tests/test_claims.py`), what runs without the shared engines, and the tests that are named here.
"""

import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE_ROOMS = ("tests/engine/", "tests/cluster/", "tests/experiment/", "tests/extras/")
PAGE_ROOMS = ("tests/browser/", "tests/notebooks/")
CLUSTERS = {"cluster", "shared_cluster"}

TAKEN_OF_ROOMS: dict[str, tuple[str, ...]] = {
    "tests/browser/": (
        "test_harness.py::test_what_leaves_the_machine",
        "test_harness.py::test_without_chromium_there_is_one_sentence",
        "test_monitor.py::test_it_moves_freezes_and_follows_again",
        "test_monitor.py::test_elapsed_time_is_read_in_whole_minutes",
        "test_planner.py::test_a_size_keeps_gpus_and_batch_and_says_what_gave_way",
        "test_planner.py::test_tp_is_edited_with_the_keyboard_and_the_rank_map_follows",
        "test_planner.py::test_what_follows_stands_next_to_the_fields_unless_narrow",
        "test_saved_views.py::test_plan_views_and_the_planner_stay_alive",
        "test_stepper.py::test_all_columns_fit_a_narrow_cell",
        "test_stepper.py::test_clicking_through_steps",
    ),
    "tests/cluster/": ("test_failures.py", "test_running.py", "test_streaming.py"),
    "tests/engine/": (
        "bridges/test_colocated.py::test_rows_and_gradients_are_those_of_megatrons_bridge",
        "checkpoints/test_damage.py",
        "checkpoints/test_layouts.py::test_a_checkpoint_of_one_layout_is_that_of_another"
        "[frozen to one process]",
        "checkpoints/test_layouts.py::test_a_checkpoint_of_one_layout_is_that_of_another"
        "[bf16 to one process]",
        "checkpoints/test_resume.py::test_every_fault_of_a_resume_is_named",
        "checkpoints/test_resume.py::test_a_killed_rank_costs_the_steps_since_the_last_checkpoint",
        "data/test_bad_data.py",
        "models/test_encoders.py::test_padding_has_no_effect",
        "models/test_latent.py::test_latent_attention_is_that_of_hugging_face",
        "models/test_llava.py::test_it_computes_and_trains_as_hugging_face_does[colocated]",
        "models/test_llava.py::test_it_computes_and_trains_as_hugging_face_does[class token]",
        "models/test_llava.py::test_a_class_token_in_place_of_a_patch_is_found",
        "models/test_token_prediction.py::test_one_process_is_megatrons_own_model",
        "models/test_token_prediction.py::test_a_run_reports_the_loss_of_further_tokens",
        "models/test_windows.py::test_patches_attend_inside_squares_of_an_image_of_any_size",
        "parallel/test_gradients.py",
        "pipeline/test_heterogeneous.py::test_steps_run_in_the_order_of_the_plan",
        "training/test_measures.py::test_parts_of_a_step_add_up_on_every_rank",
        "training/test_measures.py"
        "::test_the_validation_loss_is_that_of_one_process_in_every_layout",
        "training/test_saving.py::test_every_layout_leaves_what_one_process_leaves",
        "training/test_trace.py::test_a_traced_run_leaves_every_step_of_every_rank[colocated]",
        *(
            f"user_loop/test_documents_loop.py::test_the_documents_loop_trains_what_mimokit_trains[{name}]"
            for name in (
                "homogeneous",
                "colocated, replicas without items",
                "heterogeneous, two stages each",
            )
        ),
        "user_loop/test_documents_loop.py"
        "::test_a_mistake_of_the_document_is_answered_in_a_sentence",
        "user_loop/test_documents_loop.py::test_the_forward_alone_leaves_no_gradients"
        "[heterogeneous, fan-in]",
        "user_loop/test_documents_loop.py::test_the_loop_on_the_page_of_names_trains",
        "user_loop/test_user_loop.py",
        "verify/test_layout_invariance.py::test_the_oracle_takes_real_steps",
        "verify/test_layout_invariance.py"
        "::test_large_gradients_are_no_false_alarm_and_hide_no_fault",
    ),
    "tests/experiment/": (
        "culprit/test_explain.py::test_a_right_layout_has_no_culprit",
        "culprit/test_explain.py::test_a_planted_fault_is_named"
        "[attention of a wrong scale on one rank]",
        "sweeps/test_sweep.py",
        "test_own_data.py::test_layouts_train_on_it_and_are_proven",
        "test_own_loss.py::test_it_is_what_a_layout_trains",
        "test_own_modules.py::test_it_computes_what_one_process_computes",
        "test_restarts.py::test_a_run_goes_on_from_the_last_checkpoint_and_is_heard_once",
        "test_runs.py",
        "test_stepper.py::test_an_edit_is_what_the_next_step_reads_and_the_step_before_is_restored",
        "test_stepper.py::test_rows_of_the_wrong_samples_are_found",
        "test_stepper.py::test_stepping_computes_what_training_does_and_nothing_differs[fan_out]",
        "test_verify.py",
    ),
    "tests/extras/": (
        "generation/test_sampling_on_ranks.py",
        "generation/test_sharded_model.py::test_logits_and_greedy_tokens_are_those_of_hugging_face",
        "generation/test_weight_check.py::test_a_module_computes_what_its_weights_compute",
        "strategies/fits/test_nodes.py::test_strategies_of_the_document_train",
    ),
    "tests/notebooks/": (
        "test_first_light.py",
        "test_headless.py",
        "test_plan_a_layout.py",
        "test_start.py",
        "test_words.py",
    ),
}
"""Folder -> files and tests of rooms with engines and pages that are in the suite."""
LEFT_OUT_OF_ROOMS: dict[str, tuple[str, ...]] = {
    "tests/test_benchmarks.py": ("::test_every_benchmark_is_imported",),
    "tests/interop/": (
        "test_lossless.py::test_layouts_that_a_search_found[llava-1.5-7b-16-h100-heterogeneous]",
        "test_lossless.py::test_layouts_that_a_search_found[deepseek-v3-512-b200-homogeneous]",
    ),
    "tests/widgets/": (
        "test_execute.py::test_a_good_notebook_leaves_a_page_with_the_picture_of_its_run",
    ),
    "tests/cli/": ("test_run.py::test_training_goes_on_from_the_newest_run_of_a_folder",),
    "tests/cluster/": (
        "test_hosts.py",
        "test_lifetime.py"
        "::test_a_process_that_all_engines_need_dies_while_nothing_runs_and_is_started_again"
        "[ipyparallel controller]",
        "test_lifetime.py::test_connect_to_a_running_cluster",
        "test_lifetime.py::test_plain_engines",
        "test_notebook.py",
        "test_safe_path.py::test_a_run_finds_the_loss_of_its_config_alone",
        "test_safe_path.py::test_engines_find_modules_of_the_user_alone",
        "test_safe_path.py::test_verify_searches_the_working_directory_for_nothing",
    ),
    "tests/engine/": (
        "data/test_bad_data.py::test_whole_microbatches_without[no image]",
        "data/test_bad_data.py::test_whole_microbatches_without[nothing to learn]",
    ),
    "tests/experiment/": (
        "sweeps/test_sweep.py::test_an_interrupted_sweep_is_aborted_at_a_second_interrupt",
        "test_calibrate.py",
        "test_reconnecting.py",
        "test_soak.py",
        "test_job.py",
        "test_runs.py::test_a_user_brings_a_data_set_of_their_own",
        "test_runs.py::test_the_model_learns",
        "test_verify.py::test_a_layout_whose_gradients_rounding_changes_is_no_false_alarm",
    ),
    "tests/extras/": (
        "foreign_loops/test_recordings.py",
        "shrinking/test_shrinking.py::test_no_kind_of_a_large_layout_is_lost[60]",
        "shrinking/test_shrinking.py::test_nor_of_one_that_runs_and_the_small_one_runs_too[60]",
        "test_deleted.py::test_the_core_plans_and_proves_without_any",
    ),
}
"""Folder -> those that would be in the suite by the rule above, and cost more than they add."""
TAKEN = tuple(folder + name for folder, names in TAKEN_OF_ROOMS.items() for name in names)
LEFT_OUT = tuple(folder + name for folder, names in LEFT_OUT_OF_ROOMS.items() for name in names)


def in_the_suite(test: str, fixtures: frozenset[str] = frozenset()) -> bool:
    """Return whether a test is in the suite: what names it most closely decides.

    Args:
        test: its node id.
        fixtures: the names of those that it asks for.
    """
    taken, left = _named(test, TAKEN), _named(test, LEFT_OUT)
    if taken or left:
        return taken > left
    if test.startswith(ENGINE_ROOMS):
        return CLUSTERS.isdisjoint(fixtures)
    return not test.startswith(PAGE_ROOMS)


def is_left_out(file: str) -> bool:
    """Return whether no test of a file is in the suite, so that it need not be imported."""
    if any(name.startswith(file) for name in TAKEN):
        return False
    return file in LEFT_OUT or file.startswith(PAGE_ROOMS)


def _named(test: str, names: tuple[str, ...]) -> int:
    """Return the length of the longest name of a test, its file, its folder or all its cases."""
    return max(
        (
            len(name)
            for name in _of_file(test.partition("::")[0], names)
            if test == name
            or test.startswith((f"{name}[", f"{name}::"))
            or (name.endswith("/") and test.startswith(name))
        ),
        default=0,
    )


@functools.cache
def _of_file(file: str, names: tuple[str, ...]) -> list[str]:
    """Return the names of a file, of its tests and of folders that it is in."""
    return [name for name in names if name.startswith(file) or file.startswith(name)]


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
