"""What README.md and docs/limits.md say in sentences, and the tests that prove it.

The tables of claims prove themselves. Of all else each sentence, row or item has the beginning that
it is known by here, and the tests that fail where it is not true.
"""

import re
from collections.abc import Iterator, Mapping

_CLAIMS = "tests/test_claims.py"
_ENGINE = "tests/engine"
_FP8 = f"{_ENGINE}/test_fp8.py"
_RUNS = "tests/experiment"
_PLANNER = "tests/browser/test_planner.py"
_COMBINATIONS = "tests/test_combinations.py"
_PAYS = "tests/notebooks/test_plan_a_layout.py::test_the_readme_says_what_the_map_says"

PROVED: Mapping[str, tuple[str, ...]] = {
    # README.md
    "Plan, prove and watch": (
        f"{_PLANNER}::test_tp_is_edited_with_the_keyboard_and_the_rank_map_follows",
        "tests/notebooks/test_first_light.py::test_the_layout_is_verified",
        "tests/notebooks/test_first_light.py::test_the_picture_of_the_run_stays",
    ),
    "*Plan: type a size": (
        f"{_PLANNER}::test_a_size_keeps_gpus_and_batch_and_says_what_gave_way",
        f"{_PLANNER}::test_tp_is_edited_with_the_keyboard_and_the_rank_map_follows",
    ),
    "*Step: every digit": (
        "tests/browser/test_stepper.py::test_play_follows_the_samples_and_stops_at_a_breakpoint",
        "tests/browser/test_stepper.py::test_the_view_alone_finds_and_names_a_planted_fault",
    ),
    "A layout gives each module": (f"{_CLAIMS}::test_a_layout_computes_what_one_process_computes",),
    "Predicted for a language model": (_PAYS,),
    "is as fast with": (_PAYS,),
    "takes 7 to 20 %": (_PAYS,),
    "fits in no layout with": (
        _PAYS,
        "tests/notebooks/test_plan_a_layout.py"
        "::test_its_conclusions_are_computed_and_their_directions_hold",
    ),
    "**Plans** which rank": (
        "tests/planning/proof/test_proof.py::test_right_plans_are_right",
        "tests/planning/proof/test_proof.py::test_no_planted_fault_of_a_plan_is_missed",
    ),
    "**Predicts** seconds": (
        "tests/prediction/test_recipe.py::test_what_is_unknown_widens_the_band_and_says_so",
    ),
    "**Searches** millions": (
        "tests/layout_search/test_oracle.py"
        "::test_the_winner_and_the_counts_are_those_of_brute_force",
        "tests/layout_search/test_answers.py::test_why_not_names_the_rule",
    ),
    "**Runs** that very plan": (
        f"{_ENGINE}/pipeline/test_heterogeneous.py::test_steps_run_in_the_order_of_the_plan",
        f"{_ENGINE}/models/test_token_prediction.py::test_one_process_is_megatrons_own_model",
    ),
    "**Proves** that loss": (
        f"{_CLAIMS}::test_its_fault_is_found",
        f"{_RUNS}/culprit/test_explain.py::test_a_planted_fault_is_named",
    ),
    "**Shows** it live": (
        "tests/browser/test_monitor.py::test_it_moves_freezes_and_follows_again",
        "tests/browser/test_stepper.py::test_clicking_through_steps",
        "tests/browser/test_timeline.py"
        "::test_the_timeline_is_drawn_zoomed_and_told_and_opens_in_perfetto",
    ),
    # docs/limits.md
    "`mimokit plan FILE` answers": (
        "tests/config/test_checked_once.py::test_what_is_planned_only_is_rejected_after_a_change",
        f"{_COMBINATIONS}::test_plan_planner_and_search_say_the_same",
    ),
    "Tests train its layouts": (
        f"{_CLAIMS}::test_a_layout_computes_what_one_process_computes",
        f"{_CLAIMS}::test_the_page_claims_what_is_proved_and_nothing_else",
    ),
    "With the fault planted": (
        f"{_CLAIMS}::test_its_fault_is_found",
        f"{_CLAIMS}::test_a_fault_that_changes_nothing_is_not_taken_for_one",
    ),
    "An empty cell says": (
        f"{_COMBINATIONS}::test_every_pair_is_proved_or_refused",
        f"{_ENGINE}/verify/test_drawn_layouts.py"
        "::test_a_drawn_layout_computes_what_one_process_computes",
    ),
    "| fp32 |": (
        f"{_RUNS}/test_verify.py::test_rounding_explains_twice_what_it_does_to_one_process",
        f"{_ENGINE}/verify/test_layout_invariance.py"
        "::test_large_gradients_are_no_false_alarm_and_hide_no_fault",
    ),
    "| bf16, fp16, fp8 |": (
        f"{_ENGINE}/verify/test_precision_invariance.py"
        "::test_each_step_is_judged_by_the_roundings_until_then",
        f"{_ENGINE}/verify/test_precision_invariance.py"
        "::test_a_process_that_happens_to_be_near_fp32_is_not_the_only_yardstick",
    ),
    '"One rank": the module': (f"{_CLAIMS}::test_the_page_claims_what_is_proved_and_nothing_else",),
    "Pipelines run 1F1B unless": (
        f"{_ENGINE}/pipeline/test_heterogeneous.py::test_steps_run_in_the_order_of_the_plan",
    ),
    "In homogeneous mode encoders": (
        "tests/planning/test_execution.py"
        "::test_homogeneous_encoders_are_executed_as_the_first_stage_that_they_lie_in",
        "tests/config/test_refusals.py::test_modules_that_do_not_fit_are_refused_in_sentences",
    ),
    "Checkpoints go on bit for bit": (
        f"{_ENGINE}/checkpoints/test_resume.py::test_every_fault_of_a_resume_is_named",
        f"{_ENGINE}/checkpoints/test_resume.py"
        "::test_a_run_goes_on_under_other_layouts_as_if_it_had_not_stopped",
    ),
    "`Trainer` fits a torch model": (
        "tests/extras/strategies/fits/test_nodes.py::test_strategies_of_the_document_train",
    ),
    "Frames are balanced for": (
        f"{_ENGINE}/frames/test_huggingface.py::test_towers_compute_the_same_on_shared_frames",
        f"{_ENGINE}/frames/test_dispatch.py::test_outputs_and_gradients_are_those_without_dispatch",
    ),
    "Your own encoder": (
        f"{_RUNS}/test_own_modules.py::test_it_computes_what_one_process_computes",
        f"{_RUNS}/test_own_modules.py::test_an_adapter_gets_the_rows_of_items_and_their_grids",
        f"{_RUNS}/test_own_modules.py::test_a_language_model_computes_what_one_process_computes",
        f"{_RUNS}/test_own_loss.py::test_it_is_what_a_layout_trains",
        f"{_RUNS}/test_own_forward_step.py::test_it_is_what_a_layout_trains",
        f"{_RUNS}/test_own_data.py::test_layouts_train_on_it_and_are_proven",
    ),
    "Combinations are closed": (
        f"{_COMBINATIONS}::test_every_pair_is_proved_or_refused",
        f"{_COMBINATIONS}::test_a_row_that_is_planted_or_lost_is_found",
    ),
    "| mxfp8, nvfp4 in a run": (
        "tests/config/test_planned.py::test_a_plan_says_what_runs_reject",
        "tests/config/test_checked_once.py::test_what_is_planned_only_is_rejected_after_a_change",
    ),
    "| ranks without a module": (
        f"{_ENGINE}/pipeline/test_idle_ranks.py::test_ranks_without_a_module_change_nothing",
        "tests/config/test_refusals.py::test_is_refused_in_a_sentence",
    ),
    "| `explain` of replicas": (
        f"{_RUNS}/culprit/test_explain.py::test_what_is_not_recorded_is_not_explained",
    ),
    "| a checkpoint of replicas": (
        "tests/planning/test_checkpoints.py"
        "::test_replicas_go_on_with_their_layout_and_strategy_alone",
    ),
    "What is rounded:": (
        f"{_FP8}::test_numbers_of_8_bits_are_the_nearest",
        f"{_FP8}::test_layer_multiplies_rounded_matrices_forward_and_backward",
    ),
    "Tensor- and context-parallel ranks share": (
        f"{_FP8}::test_ranks_that_share_matrices_have_the_scales_of_one_process",
    ),
    "Embeddings, logits, routers": (f"{_FP8}::test_what_is_no_layer_of_megatron_stays_in_bf16",),
    "Elsewhere the same 8-bit numbers": (
        f"{_FP8}::test_layer_multiplies_rounded_matrices_forward_and_backward",
    ),
    "What `verify` finds:": (f"{_CLAIMS}::test_its_fault_is_found",),
    "Where one process in fp8": (
        f"{_ENGINE}/verify/test_precision_invariance.py"
        "::test_a_later_step_that_says_little_is_named_and_the_first_is_still_judged",
    ),
    "Ranks take a GPU each": (
        "tests/cluster/test_devices.py"
        "::test_ranks_with_a_gpu_each_use_nccl_and_ranks_without_any_gloo",
        "tests/cluster/test_devices.py"
        "::test_a_rank_joins_and_computes_on_the_gpu_that_its_backend_was_chosen_for",
    ),
    "Predictions and search of image": (
        "tests/interop/test_configs.py::test_decoders_of_images_are_not_predicted",
        "tests/prediction/test_module_graph.py::test_shared_ranks_are_refused",
    ),
    "Export of adapters": (
        "tests/interop/test_lossless.py::test_adapters_and_decoders_are_written_with_their_graph",
    ),
    "`check` and `import` of a Qwen-VL": (
        "tests/extras/generation/test_commands.py::test_a_qwen_vl_is_not_checked",
        f"{_ENGINE}/models/test_qwen_vl.py::test_it_computes_and_trains_as_hugging_face_does",
    ),
}
"""Beginning of a sentence -> the tests that fail where it is not true."""
NO_CLAIM = (
    # README.md: what a reader does, knows, or finds elsewhere; what is downloaded.
    "A multimodal model has", "Tests run on CPUs, and one", "`pip install .` downloads",
    "`make demo` downloads", "Start · tutorials",
    # docs/limits.md: headings of tables, advice, what was not tried and what is not there.
    "Does my layout run?", "This page says", "Each row is a claim.", "| precision |", "| refused |",
    "Where it runs: as `torch._scaled_mm`", "Verify the layout in bf16", "Training on several GPUs",
    "Tests run on CPUs with gloo", "Proof of experts in bf16",
    "Encoders, or language models, of your own", "Data parallel sizes of two modules",
    "Generation through", "Experts in Qwen3-VL.", "Videos: an encoder", "Tokenizers and data",
    "Serving, reinforcement",
)  # fmt: skip
"""Beginnings of sentences that no test on CPUs could prove, or that claim nothing of mimokit."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences, rows and items of a page, without code, pictures and generated rows."""
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```|<img[^>]*>|!\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=- |\| )", text):
        said = " ".join(block.split())
        if said.startswith("|"):
            yield from [said] if re.search(r"\w", said) else []
        elif said and not said.startswith("#"):
            yield from re.split(r"(?<=[.?!]) (?=[A-Z*`\"]|docs/)", said.removeprefix("- "))


def known_by(sentence: str) -> list[str]:
    """Return the beginnings that a sentence has."""
    return [one for one in (*PROVED, *NO_CLAIM) if sentence.startswith(one)]
