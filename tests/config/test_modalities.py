"""Several encoders, frozen modules and tied embeddings: what is right, and each way to be wrong."""

import itertools

import pytest

from mimokit.config import ConfigError, ExperimentConfig, ModalityPresence
from tests.config.sections import load, only, put, sections, text_head, three_encoders
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


def test_an_encoder_that_says_so_is_a_text_head() -> None:
    content = text_head()
    put(content, "model.module_architectures.clip.vocab_size", 7)  # says nothing of what it reads
    model = load(content).model
    kinds = {name: model.get_architecture(name).modality for name in ("clip", "dino", "audio")}
    assert kinds == {"clip": "vision", "dino": "text", "audio": "audio"}


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
    **dict.fromkeys(("pooling_head", "any_image_size", "class_token"), (True, "a vision encoder")),
    "keep_class_token": (True, "a vision encoder"),
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
