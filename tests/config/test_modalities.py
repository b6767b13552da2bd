"""Several encoders, frozen modules and tied embeddings: what is right, and each way to be wrong."""

import itertools
from typing import Any

import pytest

from mimokit.config import ConfigError, ExperimentConfig, ModalityPresence, ProjectorArchitecture
from tests.config.sections import (
    load,
    only,
    problems,
    put,
    sections,
    text_head,
    three_encoders,
)
from tests.layouts_apart import apart_config, decoded_config, with_adapter
from tests.layouts_multimodal import LANGUAGE, multimodal_config
from tests.rows import rows


def test_three_encoders_are_right() -> None:
    config = load(three_encoders())
    kinds = {n: config.model.get_architecture(n).modality for n in ("clip", "dino", "audio")}
    assert kinds == {"clip": "vision", "dino": "vision", "audio": "audio"}
    assert config.data.modality_seq_length("dino") == 32
    assert load(sections()).data.modality_seq_length("images") == 16, "image_seq_length holds"


def test_a_pattern_counts_round() -> None:
    presence = ModalityPresence(microbatches=[True, False], samples=[True, True, False])
    assert [presence.at(m, 0) for m in range(4)] == [True, False, True, False]
    assert [presence.at(2, s) for s in range(6)] == [True, True, False] * 2
    assert [presence.has_any(m, 1) for m in range(4)] == [True, False, True, False]
    late = ModalityPresence(microbatches=[False, True], samples=[False, True])
    assert [late.has_any(1, samples) for samples in (1, 2, 10**9)] == [False, True, True]
    assert (presence.first_microbatch, late.first_microbatch) == (0, 1)
    assert ModalityPresence(microbatches=[False]).first_microbatch == 0


def test_absence_from_a_whole_micro_batch_is_known_before_a_run() -> None:
    data = load(three_encoders()).data
    assert data.num_microbatches == 2
    assert data.absent_microbatches(32) == {("audio", 1)}
    assert data.is_present("clip", 1, 5)
    assert not data.is_present("dino", 0, 5)
    # A batch of one sample never reaches the third entry.
    assert data.absent_microbatches(1) == {("audio", 1)}


def test_a_gradient_passes_where_something_before_is_trained() -> None:
    content = three_encoders()
    put(content, "model.module_architectures.clip.frozen", True)
    put(content, f"model.module_architectures.{LANGUAGE}.frozen", True)
    model = load(content).model
    assert model.frozen_modules == {"clip", LANGUAGE}
    assert model.is_frozen("clip")
    assert not model.has_backward("clip")
    assert model.has_backward(LANGUAGE), "gradients go through it to the other encoders"


@rows(
    "module, field, value",
    (LANGUAGE, "mel_bins", 80),
    (LANGUAGE, "class_token", True),
    ("clip", "tied_embeddings", True),
    ("audio", "class_token", True),
    (LANGUAGE, "keep_class_token", True),
    ("audio", "keep_class_token", True),
    ("audio", "patch_size", 4),
    ("audio", "merge_size", 5),
    ("dino", "num_registers", -1),
    (LANGUAGE, "any_image_size", True),
    (LANGUAGE, "mrope_section", [1, 1, 1]),
    (LANGUAGE, "mrope_section", [1, 1]),
    ("dino", "mrope_section", [2, 3, 3]),
    ("audio", "any_image_size", True),
    ("dino", "frozen", "yes"),
)
def test_wrong_fields_of_networks(module: str, field: str, value: object) -> None:
    is_refused(f"model.module_architectures.{module}.{field}", value, module, field)


@rows(
    "path, value, module, field",
    ("modality_seq_lengths.sound", 4, "sound", "modality_seq_lengths"),
    (f"modality_seq_lengths.{LANGUAGE}", 4, LANGUAGE, "modality_seq_lengths"),
    ("modality_presence.sound", {}, "sound", "modality_presence"),
    ("modality_presence.audio.samples", [], "audio", "samples"),
    ("modality_presence.audio.when", [True], "audio", "when"),
    ("modality_frames.sound", [1], "sound", "modality_frames"),
    ("modality_frames.audio", [1], "audio", "modality_frames"),
    ("modality_frames.clip", [], "clip", "modality_frames"),
    ("modality_frames.clip", [4, -1], "clip", "modality_frames"),
    ("modality_seq_lengths.audio", 100, "data", "modality_seq_lengths"),
)
def test_wrong_fields_of_data(path: str, value: object, module: str, field: str) -> None:
    is_refused(f"data.{path}", value, module, field)


def is_refused(path: str, value: object, module: str, field: str) -> None:
    problem = only(problems(put(three_encoders(), path, value)))
    assert (problem.module, problem.field) == (module, field)
    assert field in problem.sentence
    assert module in problem.sentence
    assert problem.sentence.endswith((".", "?"))


def test_frequencies_are_those_of_the_width_that_a_head_has() -> None:
    content = put(three_encoders(), f"model.module_architectures.{LANGUAGE}.kv_channels", 16)
    path = f"model.module_architectures.{LANGUAGE}.mrope_section"
    assert not problems(put(content, path, [2, 3, 3]))
    wrong = only(problems(put(content, path, [2, 1, 1])))
    assert "[2, 1, 1], 4 together, but a head of 16 numbers has 8 frequencies" in wrong.sentence
    put(content, path.replace("section", "interleaved"), True)
    assert not problems(put(content, path, [3, 3, 2]))
    wrong = only(problems(put(content, path, [2, 3, 3])))
    assert "height has at most 3 and width 2; give time more" in wrong.sentence


def test_an_encoder_that_says_so_is_a_text_head() -> None:
    content = text_head()
    put(content, "model.module_architectures.clip.vocab_size", 7)  # says nothing of what it reads
    model = load(content).model
    kinds = {name: model.get_architecture(name).modality for name in ("clip", "dino", "audio")}
    assert kinds == {"clip": "vision", "dino": "text", "audio": "audio"}


@rows(
    "path, value, module, field, sentence",
    ("dino.class_token", True, "dino", "class_token", "is a text head (modal_type text); only a"),
    ("dino.mel_bins", 80, "dino", "mel_bins", "only a module of sound has it"),
    ("dino.vocab_size", 0, "dino", "vocab_size", "give the rows of its token embedding"),
    ("dino.vocab_size", 1000, "data", "vocab_size", "more than the 1000 of module 'dino'"),
)
def test_what_a_text_head_cannot_have(
    path: str, value: object, module: str, field: str, sentence: str
) -> None:
    problem = only(problems(put(text_head(), f"model.module_architectures.{path}", value)))
    assert (problem.module, problem.field) == (module, field)
    assert sentence in problem.sentence


def test_images_of_any_size_have_a_longest_side() -> None:
    content = three_encoders()
    put(content, "model.module_architectures.dino.any_image_size", True)
    assert load(content).model.get_architecture("dino").any_image_size
    for field in ("image_size", "patch_size"):
        del content["model"]["module_architectures"]["dino"][field]
    problem = only(problems(content))
    assert (problem.module, problem.field) == ("dino", "any_image_size")
    assert "image_size is missing" in problem.sentence


@rows(
    "changed, sentence",
    ({"optimizer": {"lr": 0.0}}, "optimizer.lr is 0.0; it must be greater than 0.0."),
    ({"optimizer": {"lr": -1e-3}}, "optimizer.lr is -0.001; it must be greater than 0.0."),
    (
        {"optimizer": {"weight_decay": -0.1}},
        "optimizer.weight_decay is -0.1; it must be at least 0.0.",
    ),
)
def test_a_module_that_cannot_be_stepped_so(changed: dict[str, Any], sentence: str) -> None:
    content = three_encoders()
    content["model"]["module_architectures"]["clip"].update(changed)
    assert only(problems(content)).sentence == f"Module 'clip': {sentence}"


def test_a_part_that_is_trained_can_be_stepped_by_itself() -> None:
    content = three_encoders()
    content["model"]["module_architectures"]["clip"].update(
        {"optimizer": {"lr": 1e-3}, "frozen": ["encoder"]}
    )
    assert load(content).model.get_architecture("clip").optimizer.lr == 1e-3


ALL = multimodal_config(dict.fromkeys(("dino", "audio", "words", LANGUAGE), (1, 1)), "colocated")
BEHIND = decoded_config({"images": (1, 1, 1), LANGUAGE: (1, 1, 1), "writer": (1, 1, 1)}, 1)
BEFORE = with_adapter(apart_config((1, 1, 1), (1, 1, 1)), (1, 1, 1))
OF_OTHERS = {
    **dict.fromkeys(("pooling_head", "any_image_size"), (True, "a vision encoder")),
    **dict.fromkeys(("temporal_patch_size", "outer_norms"), (2, "a vision encoder")),
    **dict.fromkeys(("patch_bias", "post_layer_norm"), (False, "a vision encoder")),
    "num_channels": (3, "a module of images"), "reconstructs": ("audio", "a decoder of items"),
}  # fmt: skip
WITHOUT_IMAGES = {
    "audio": ALL, "words": ALL, LANGUAGE: ALL, "writer": BEHIND, "adapter": BEFORE
}  # fmt: skip


def _refused(config: ExperimentConfig, module: str, field: str, value: object) -> str:
    changed = config.model_copy(deep=True)
    setattr(changed.model.module_architectures[module], field, value)
    with pytest.raises(ConfigError) as refused:
        changed.finalize()
    problem = only(refused.value.problems)
    assert (problem.module, problem.field) == (module, field)
    return problem.sentence


@rows("module, field", *itertools.product(WITHOUT_IMAGES, OF_OTHERS))
def test_fields_of_other_modules_are_refused(module: str, field: str) -> None:
    value, owner = OF_OTHERS[field]
    found = _refused(WITHOUT_IMAGES[module], module, field, value)
    assert f"; only {owner} has it, leave it out." in found


def test_fields_of_encoders_are_refused_elsewhere() -> None:
    assert "decoder of items has it" in _refused(ALL, LANGUAGE, "merge_size", 2)
    for module, config in {LANGUAGE: ALL, "writer": BEHIND}.items():
        projector = ProjectorArchitecture(hidden_sizes=[])
        assert "only an encoder has it" in _refused(config, module, "projector", projector)


def test_a_table_of_positions_needs_no_rows_for_registers() -> None:
    content = three_encoders()
    dino = content["model"]["module_architectures"]["dino"]
    dino |= {"position_embedding_type": "learned_absolute", "max_position_embeddings": 17}
    load(content)  # 16 patches and the class token
    dino["max_position_embeddings"] = 16
    assert "fewer than the 17 positions" in only(problems(content)).sentence
