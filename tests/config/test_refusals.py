"""Every refusal is one sentence that names the module, the field, the value and what is right."""

from __future__ import annotations

from typing import Any

import pytest

from mimokit.config import ConfigError
from tests.config.sections import load, network, only, problems, put, sections

LANGUAGE = "language_module"


def refusal(content: dict[str, Any], world_size: int | None = None) -> tuple[str, str, object, str]:
    """Return module, field, value and sentence of the only problem; the sentence names them."""
    problem = only(problems(content, world_size))
    sentence = problem.sentence
    assert problem.module in sentence.lower()
    assert problem.field in sentence
    if problem.value is not None and not isinstance(problem.value, dict | list | bool):
        assert str(problem.value) in sentence
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return problem.module, problem.field, problem.value, sentence


def test_the_small_config_is_right() -> None:
    assert problems(sections()) == ()


def test_a_world_of_another_size() -> None:
    content = sections({"data_parallel": 4}, {"data_parallel": 4}, "homogeneous")
    module, field, value, sentence = refusal(content, 6)
    assert (module, field, value) == (LANGUAGE, "data_parallel", 4)
    assert "world has 6" in sentence
    assert "set data_parallel to 6" in sentence


def test_homogeneous_sizes_are_identical() -> None:
    content = sections(
        {"tensor_parallel": 2, "data_parallel": 2},
        {"tensor_parallel": 2, "context_parallel": 2, "data_parallel": 2},
        "homogeneous",
    )
    assert refusal(content)[:3] == ("images", "context_parallel", 1)


def test_homogeneous_ranks_begin_at_zero() -> None:
    sizes = {"data_parallel": 2, "rank_offset": 2}
    found = problems(sections({"data_parallel": 2}, sizes, "homogeneous"))
    assert [(p.module, p.field, p.value) for p in found] == [(LANGUAGE, "rank_offset", 2)]


def test_colocated_has_no_pipeline() -> None:
    content = sections(
        {"data_parallel": 4}, {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 1}
    )
    assert refusal(content)[:3] == (LANGUAGE, "pipeline_parallel", 2)
    fix = only(problems(content)).fix
    assert fix == {"path": "runtime.pipeline_schedule", "value": "three_phase"}
    assert problems(put(content, fix["path"], fix["value"])) == ()
    found = problems(put(content, "model.deployment_mode", "heterogeneous"))
    assert ("runtime", "pipeline_schedule") in [(each.module, each.field) for each in found]


def test_colocated_ranks_are_as_many() -> None:
    content = sections({"data_parallel": 2}, {"tensor_parallel": 4, "data_parallel": 1})
    module, field, value, sentence = refusal(content)
    assert (module, field, value) == ("images", "data_parallel", 2)
    assert "set data_parallel to 4" in sentence


def test_colocated_ranks_begin_at_zero() -> None:
    content = sections({"data_parallel": 4, "rank_offset": 4})
    assert refusal(content)[:3] == ("images", "rank_offset", 4)


@pytest.mark.parametrize("schedule", ["colocated", "1f1b"])
def test_replicas_divide_each_other(schedule: str) -> None:
    # Trap T30: DP 3 against 2.
    images: dict[str, Any] = {"tensor_parallel": 2, "data_parallel": 3}
    language = {"tensor_parallel": 3, "data_parallel": 2}
    if schedule == "1f1b":
        images["rank_offset"] = 6
    content = put(sections(images, language, schedule), "data.base_batch_size", 6)
    for name in ("images", LANGUAGE):
        put(content, f"model.module_architectures.{name}.hidden_size", 48)
        put(content, f"model.module_architectures.{name}.num_attention_heads", 6)
    put(content, f"model.module_architectures.{LANGUAGE}.vocab_size", 1026)
    module, field, value, sentence = refusal(content)
    assert (module, field, value) == ("images", "data_parallel", 3)
    assert "must divide" in sentence


def test_colocated_encoders_divide_each_other_too() -> None:
    # Their replicas are cut from the same samples that a rank reads once.
    content = sections(
        {"tensor_parallel": 4, "data_parallel": 3}, {"tensor_parallel": 1, "data_parallel": 12}
    )
    content["model"]["module_parallelisms"]["audio"] = {"tensor_parallel": 6, "data_parallel": 2}
    content["model"]["module_architectures"]["audio"] = network(
        hidden_size=96, num_attention_heads=6, projector={"hidden_sizes": [96]}
    )
    content["model"]["special_token_ids"]["audio"] = 1025
    assert refusal(content)[:3] == ("audio", "data_parallel", 2)


def heterogeneous(language_offset: int, images_ranks: int = 4) -> dict[str, Any]:
    return sections(
        {"tensor_parallel": images_ranks, "data_parallel": 1},
        {"tensor_parallel": 4, "data_parallel": 1, "rank_offset": language_offset},
        "1f1b",
    )


def test_heterogeneous_ranks_do_not_overlap() -> None:
    module, field, value, sentence = refusal(heterogeneous(3), 7)
    assert (module, field, value) == (LANGUAGE, "rank_offset", 3)
    assert "begin it at rank 4" in sentence


def test_heterogeneous_ranks_have_no_gap() -> None:
    # Trap T30: ranges (0..4), (5..9).
    module, field, value, sentence = refusal(heterogeneous(5), 9)
    assert (module, field, value) == (LANGUAGE, "rank_offset", 5)
    assert "end at 4" in sentence


def test_a_gap_can_be_only_warned_of() -> None:
    content = put(heterogeneous(5), "model.allow_rank_gaps", True)
    with pytest.warns(UserWarning, match="rank 4 has no module"):
        load(content, 9)


def test_the_gap_of_two_encoders_is_reported() -> None:
    # Trap T36 with the replicas written down: ranks 10 and 11 are left over.
    content = sections(
        {"tensor_parallel": 2, "data_parallel": 1, "rank_offset": 8},
        {"tensor_parallel": 8, "data_parallel": 1},
        "1f1b",
    )
    model = content["model"]
    model["module_parallelisms"]["dino"] = {
        "tensor_parallel": 4,
        "data_parallel": 1,
        "rank_offset": 12,
    }
    model["module_architectures"]["dino"] = network()
    model["special_token_ids"]["dino"] = 1025
    problem = only(problems(content, 16))
    assert (problem.module, problem.field, problem.value) == ("dino", "rank_offset", 12)
    assert "ranks 10 to 11" in problem.sentence
    assert problem.fix == {"path": "model.module_parallelisms.images.data_parallel", "value": 2}


def test_heterogeneous_modules_fill_the_world() -> None:
    module, field, value, sentence = refusal(heterogeneous(4), 10)
    assert (module, field, value) == (LANGUAGE, "data_parallel", 1)
    assert "world has 10" in sentence


def test_a_module_without_replicas_needs_a_world() -> None:
    content = sections({"tensor_parallel": 1}, {"tensor_parallel": 4})
    found = problems(content)
    assert [p.module for p in found] == ["images", LANGUAGE]
    assert all("--world-size" in p.sentence for p in found)
    assert problems(content, 8) == ()


def test_replicas_that_do_not_come_out_even() -> None:
    content = sections({"data_parallel": 6}, {"tensor_parallel": 4})
    assert refusal(content, 6)[:3] == (LANGUAGE, "data_parallel", None)


@pytest.mark.parametrize("world_size", [0, -8, True, 2.0, "8", 2**40])
def test_a_world_size_is_a_sensible_whole_number(world_size: Any) -> None:
    assert only(problems(sections(), world_size)).field == "world_size"


def test_a_module_without_an_architecture() -> None:
    content = sections()
    del content["model"]["module_architectures"]["images"]
    assert refusal(content)[:2] == ("images", "module_architectures")


def test_an_architecture_without_a_module() -> None:
    content = sections()
    content["model"]["module_architectures"]["image"] = network()
    assert "did you mean 'images'?" in refusal(content)[3]


def test_the_batch_is_dealt_out_evenly() -> None:
    # Trap T18: base 3 with language DP 2 and encoder DP 4 is a batch of 6.
    content = sections({"data_parallel": 4}, {"tensor_parallel": 2, "data_parallel": 2})
    put(content, "data.base_batch_size", 3)
    problem = only(problems(content))
    assert (problem.module, problem.field, problem.value) == ("images", "data_parallel", 4)
    assert "the 6 samples of a micro-batch" in problem.sentence
    assert problem.fix == {"path": "data.base_batch_size", "value": 4}


def test_an_example_whose_batch_is_too_small() -> None:
    # Trap T35: encoder TP1 DP8, language TP8 DP1, base 4 is a batch of 4 for 8 replicas.
    content = sections({"data_parallel": 8}, {"tensor_parallel": 8, "data_parallel": 1})
    put(content, "data.base_batch_size", 4)
    assert refusal(content)[:3] == ("images", "data_parallel", 8)


@pytest.mark.parametrize(
    ("module", "field", "value"),
    [
        (LANGUAGE, "num_attention_heads", 2),
        (LANGUAGE, "ffn_hidden_size", 66),
        (LANGUAGE, "vocab_size", 1026),
    ],
)
def test_networks_are_cut_evenly(module: str, field: str, value: int) -> None:
    content = put(sections(), f"model.module_architectures.{module}.{field}", value)
    assert refusal(content)[:3] == (module, field, value)


def test_layers_are_cut_evenly() -> None:
    sizes = {"pipeline_parallel": 3, "data_parallel": 1}
    found = problems(sections(dict(sizes), {**sizes, "rank_offset": 3}, "1f1b"))
    assert [(p.module, p.field, p.value) for p in found] == [
        ("images", "num_layers", 4),
        (LANGUAGE, "num_layers", 4),
    ]


def test_an_encoder_in_a_first_stage_is_not_cut() -> None:
    sizes = {"pipeline_parallel": 3, "data_parallel": 1}
    found = problems(sections(dict(sizes), dict(sizes), "homogeneous"))
    assert [(p.module, p.field, p.value) for p in found] == [(LANGUAGE, "num_layers", 4)]


def test_experts_divide_a_stage() -> None:
    content = sections({"data_parallel": 4, "expert_parallel": 3})
    assert refusal(content)[:3] == ("images", "expert_parallel", 3)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"image_size": 8}, "patch_size"),
        ({"patch_size": 2}, "image_size"),
        ({"image_size": 8, "patch_size": 3}, "image_size"),
        ({"image_size": 8, "patch_size": 2, "merge_size": 3}, "merge_size"),
    ],
)
def test_images_are_cut_into_whole_patches(fields: dict[str, int], field: str) -> None:
    content = sections()
    content["model"]["module_architectures"]["images"] = network(**fields)
    assert refusal(content)[1] == field


def _one_token_of_two_modules() -> dict[str, Any]:
    content = sections()
    content["model"]["module_parallelisms"]["audio"] = {"data_parallel": 4}
    content["model"]["module_architectures"]["audio"] = network()
    content["model"]["special_token_ids"]["audio"] = 1024
    return content


def test_a_special_token_of_two_modules() -> None:
    module, field, value, sentence = refusal(_one_token_of_two_modules())
    assert (module, field, value) == ("audio", "special_token_ids", 1024)
    assert "'images'" in sentence


def test_a_special_token_within_the_vocabulary_of_a_tokenizer() -> None:
    content = put(sections(), "model.special_token_ids.images", 1023)
    put(content, "data.image_special_token_id", 1023)
    config = load(content)
    assert config.model.special_token_ids == {"images": 1023}
    assert config.data.vocab_size == 1024


def test_model_and_data_agree_about_the_image_token() -> None:
    content = put(sections(), "data.image_special_token_id", 1025)
    assert refusal(content)[:3] == ("data", "image_special_token_id", 1025)


def test_a_negative_special_token() -> None:
    content = put(sections(), "model.special_token_ids.images", -1)
    assert refusal(content)[:3] == ("images", "special_token_ids", -1)


def test_an_encoder_without_a_special_token() -> None:
    config = load(sections())
    config.model.special_token_ids = {}
    with pytest.raises(ConfigError, match="Module 'images': it has no entry in special_token_ids"):
        config.finalize()


@pytest.mark.parametrize(
    ("path", "value", "module", "field"),
    [
        ("data.image_seq_length", 128, "data", "image_seq_length"),
        ("data.seq_length", 256, "data", "seq_length"),
        ("data.vocab_size", 0, "data", "vocab_size"),
        ("data.base_batch_size", -1, "data", "base_batch_size"),
        ("data.num_microbatches", 0, "data", "num_microbatches"),
        ("model.llm_module_name", "language", "model", "llm_module_name"),
        ("model.encoder_module_name", "image", "model", "encoder_module_name"),
        ("model.encoder_module_name", LANGUAGE, "model", "encoder_module_name"),
        ("model.module_parallelisms.images.tensor_parallel", "1", "images", "tensor_parallel"),
        ("model.module_architectures.images.hidden_size", 0, "images", "hidden_size"),
        ("model.module_architectures.images.hiddensize", 8, "images", "hiddensize"),
        ("runtime.num_iterations", "10", "runtime", "num_iterations"),
        ("runtime.enable_profiling", "true", "runtime", "enable_profiling"),
        ("runtime.pipeline_schedule", "2f2b", "runtime", "pipeline_schedule"),
        ("model.deployment_mode", "homogeneous", None, None),
        ("data", None, "config", "data"),
        ("dta", {}, "config", "dta"),
    ],
)
def test_wrong_values(path: str, value: object, module: str | None, field: str | None) -> None:
    content = put(sections(), path, value)
    if module is not None:
        assert refusal(content)[:2] == (module, field)
    else:
        assert ("runtime", "pipeline_schedule", "colocated") in [
            (p.module, p.field, p.value) for p in problems(content)
        ]


@pytest.mark.parametrize(
    ("runtime", "field", "said"),
    [
        (
            {"num_iterations": 5, "enable_profiling": True},
            "profile_end_step",
            "profile_end_step is 8, but the run has 5 iterations (num_iterations)",
        ),
        (
            {"enable_profiling": True, "profile_start_step": 12, "profile_end_step": 14},
            "profile_end_step",
            "profile steps before 10 alone, or raise num_iterations",
        ),
        (
            {"use_pytorch_profiler": True},
            "enable_profiling",
            "use_pytorch_profiler is true, but enable_profiling is false",
        ),
        (
            {"validation": {"interval": 11}},
            "interval",
            "validation.interval is 11, but the run has 10 iterations",
        ),
        ({"validation": {"interval": 0}}, "interval", "interval is 0; it must be at least 1"),
        ({"validation": {}}, "interval", "interval is missing"),
        (
            {"validation": {"interval": 2, "samples": 0}},
            "samples",
            "samples is 0; it must be at least 1",
        ),
        ({"validation": {"intervall": 2}}, "intervall", "did you mean interval?"),
    ],
)
def test_what_a_run_cannot_measure(runtime: dict[str, object], field: str, said: str) -> None:
    content = sections()
    content["runtime"] = {**content.get("runtime", {}), "num_iterations": 10, **runtime}
    found = [problem for problem in problems(content) if problem.field == field]
    assert [problem.module for problem in found] == ["runtime"]
    assert said in found[0].sentence


def test_steps_beyond_the_last_are_no_problem_if_nothing_is_profiled() -> None:
    assert load(put(sections(), "runtime.num_iterations", 2)).runtime.profile_end_step == 8


def test_an_unknown_key_gets_its_nearest_name() -> None:
    content = put(sections(), "data.num_microbatch", 2)
    assert "did you mean num_microbatches?" in refusal(content)[3]


def test_a_number_as_text_can_be_fixed() -> None:
    path = "model.module_parallelisms.images.data_parallel"
    assert only(problems(put(sections(), path, "4"))).fix == {"path": path, "value": 4}


def test_llm_rank_offset_is_the_language_modules() -> None:
    content = heterogeneous(4)
    del content["model"]["module_parallelisms"][LANGUAGE]["rank_offset"]
    config = load(put(content, "model.llm_rank_offset", 4))
    assert config.model.get_parallelism(LANGUAGE).rank_offset == 4
    found = only(problems(put(heterogeneous(4), "model.llm_rank_offset", 5)))
    assert "llm_rank_offset is 5" in found.sentence


def test_all_problems_come_at_once() -> None:
    content = sections()
    put(content, "model.module_parallelisms.images.tensor_parallel", "1")
    put(content, f"model.module_architectures.{LANGUAGE}.num_attention_heads", 2)
    put(content, "data.image_special_token_id", 5)
    put(content, "data.workers", 5)
    put(content, "runtime.num_iterations", 0)
    found = {(p.module, p.field) for p in problems(content)}
    assert found == {
        ("images", "tensor_parallel"),
        (LANGUAGE, "num_attention_heads"),
        ("data", "image_special_token_id"),
        ("data", "workers"),
        ("runtime", "num_iterations"),
    }


def test_an_error_reads_one_sentence_a_line() -> None:
    content = put(put(sections(), "data.workers", 5), "runtime.num_iterations", 0)
    with pytest.raises(ConfigError) as caught:
        load(content)
    assert str(caught.value).splitlines() == [p.sentence for p in caught.value.problems]
    assert len(caught.value.problems) == 2


def test_a_refused_value_hides_what_depends_on_it() -> None:
    # The size of images is unknown, so nothing is said about ranks or the batch.
    content = put(sections(), "model.module_parallelisms.images.data_parallel", 0)
    assert refusal(content)[:2] == ("images", "data_parallel")
    content = put(sections(), "model.module_parallelisms.images", 5)
    assert refusal(content)[:2] == ("images", "module_parallelisms")


def test_names_of_modules_are_plain() -> None:
    content = sections()
    content["model"]["module_parallelisms"]["a.b"] = {"data_parallel": 4}
    with pytest.raises(ConfigError, match="letters, digits"):
        load(content)


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("model.module_parallelisms.images.data_parallel", lambda: sections({"data_parallel": 2})),
        ("data.base_batch_size", lambda: put(sections(), "data.base_batch_size", 3)),
        ("model.module_parallelisms.images.rank_offset",
         lambda: sections({"data_parallel": 4, "rank_offset": 4})),
        ("model.special_token_ids.audio", _one_token_of_two_modules),
        ("data.image_special_token_id",
         lambda: put(sections(), "model.special_token_ids.images", 5)),
    ],
)  # fmt: skip
def test_fixes_fix(path: str, make: Any) -> None:
    content = make()
    fixes = [problem.fix for problem in problems(content) if problem.fix]
    fix = next(fix for fix in fixes if fix["path"] == path)
    assert problems(put(content, fix["path"], fix["value"])) == ()
