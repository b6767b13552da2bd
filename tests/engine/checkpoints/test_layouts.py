"""Checkpoints that are saved under one layout and loaded under another, bit for bit."""

from collections.abc import Callable
from functools import partial

import pytest

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import resume_check, resume_proof
from mimokit.experiment.reference import single_rank
from tests.layouts import digits_config
from tests.layouts_apart import apart_config, decoded_config
from tests.layouts_experts import experts_config
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import (
    BIASED,
    _changed,
    _longer,
    adapted_on_shared_ranks,
    apart_in_chunks,
    encoder_in_chunks,
    learned_positions_in_slices,
    on_contexts,
)

Make = Callable[[], ExperimentConfig]


def _on_one(make: Make) -> Make:
    return lambda: single_rank(make())


def _tied(stages: int) -> ExperimentConfig:
    """Return a language model with tied embeddings, on the first and the last of its stages."""
    config = apart_config((1, 1, 1), (1, stages, 1), 2)
    return _changed(config, LANGUAGE, tied_embeddings=True, num_layers=2)


def _further(tied: bool) -> ExperimentConfig:
    """Return the same that predicts two tokens further on."""
    return _changed(_tied(2), LANGUAGE, tied_embeddings=tied, mtp_num_layers=2)


def _frozen(make: Make) -> ExperimentConfig:
    return _changed(make(), "images", frozen=["encoder"])


def _contexts() -> ExperimentConfig:
    config = _longer(digits_config((1, 4), (1, 4)))
    return on_contexts(config, images=2, language_module=2)


def _sharded(make: Make, module: str, how: str) -> ExperimentConfig:
    config = make()
    setattr(config.model.module_parallelisms[module], how, True)
    return config


_experts = partial(experts_config, (1, 1, 4), (2, 1, 2))
_experts_apart = partial(experts_config, (1, 1, 1), (1, 1, 2), apart=True)
_chunks = partial(apart_in_chunks, 2)
_encoder_chunks = partial(encoder_in_chunks, use_megatron_fsdp=True)
_encoder_stages = partial(encoder_in_chunks, virtual_pipeline_model_parallel_size=None)
_decoder = partial(
    decoded_config, {"images": (1, 1, 1), LANGUAGE: (1, 1, 2), "writer": (1, 1, 1)}, 2
)
_slices = learned_positions_in_slices
_cut_decoder = partial(
    decoded_config, {"images": (1, 1, 1), LANGUAGE: (2, 1, 1), "writer": (1, 1, 1)}, 2
)
_adapter = partial(adapted_on_shared_ranks, (4, 1, 1), (1, 1, 4), (2, 2, 1))
_frozen_apart = partial(_frozen, partial(apart_config, (1, 1, 1), (2, 1, 1)))
_in_bf16 = partial(digits_config, (2, 1), (1, 2), precision="bf16")
_experts_fsdp = partial(
    _sharded, partial(experts_config, (1, 1, 4), (1, 1, 4), **BIASED), LANGUAGE, "use_megatron_fsdp"
)
_fsdp = partial(_sharded, partial(digits_config, (1, 2), (1, 2)), LANGUAGE, "use_megatron_fsdp")

PAIRS: dict[str, tuple[Make, Make]] = {
    "experts to one process": (_experts, _on_one(_experts)),
    "one process to experts": (_on_one(_experts_apart), _experts_apart),
    "context parallel to one process": (_contexts, _on_one(_contexts)),
    "one process to context parallel": (_on_one(_contexts), _contexts),
    "interleaved chunks to one process": (_chunks, _on_one(_chunks)),
    "chunks of an encoder to stages": (_encoder_chunks, _encoder_stages),
    "tied on stages to one process": (partial(_tied, 2), _on_one(partial(_tied, 2))),
    "further tokens on stages to one process": (
        partial(_further, False),
        _on_one(partial(_further, False)),
    ),
    "one process to further tokens, tied": (
        _on_one(partial(_further, True)),
        partial(_further, True),
    ),
    "one process to padded, tied slices": (_on_one(_slices), _slices),
    "a decoder behind to another": (_decoder, _cut_decoder),
    "an adapter around stages to one process": (_adapter, _on_one(_adapter)),
    "frozen to one process": (_frozen_apart, _on_one(_frozen_apart)),
    "bf16 to one process": (_in_bf16, _on_one(_in_bf16)),
    "full shards to one process": (_fsdp, _on_one(_fsdp)),
    "one process to full shards": (_on_one(_fsdp), _fsdp),
    "experts in full shards to one process": (_experts_fsdp, _on_one(_experts_fsdp)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_checkpoint_of_one_layout_is_that_of_another(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch, pair: str
) -> None:
    monkeypatch.setattr(resume_proof, "BEFORE", 1)
    monkeypatch.setattr(resume_proof, "AFTER", 1)
    saved, resumed = (make() for make in PAIRS[pair])
    report = resume_check(cluster, saved, into=resumed)
    assert report.saved_layout != report.layout
    assert report.passed, report.findings
