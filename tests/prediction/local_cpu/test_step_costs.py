"""Programs of layouts: with planted costs their sums are counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.prediction.local_cpu.cost_model import CoreCosts, SharedCosts
from mimokit.prediction.local_cpu.prediction import predict_shared
from tests import seams
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_pipelines import shared_pipeline
from tests.rows import rows

PIECES = {
    "load": ("batch", "sample"),
    "step": ("step",),
    "update": ("step", "module", "tensor", "number"),
    **{
        f"{module} {way}": ("ends", "layer", "element", "operation")
        for module in ("language", "encoder")
        for way in ("forward", "backward")
    },
}
KINDS = ("all-reduce", "all-gather", "broadcast", "send")


def planted(
    piece: str = "", term: str = "", collective: str = "", ranks: int = 0, everything: float = 0.0
) -> SharedCosts:
    """Return costs that are zero but for one constant of 1, however many ranks are at work."""
    pieces = {
        name: {one: 1.0 if (name, one) == (piece, term) else everything for one in terms}
        for name, terms in PIECES.items()
    }
    groups = {
        kind: {
            n: {"call": 1.0 if (kind, n) == (collective, ranks) else everything, "byte": 0.0}
            for n in (2, 4, 8)
        }
        for kind in KINDS
    }
    return SharedCosts({8: CoreCosts(pieces, groups)})


TOGETHER = digits_config((1, 8), (4, 2), num_microbatches=3)
APART = apart_config((2, 1, 2), (1, 2, 2), 4)
STAGES = {"tensor_parallel": 1, "pipeline_parallel": 2, "data_parallel": 2}
INSIDE = APART.with_layout("homogeneous", images=STAGES, language_module=STAGES)
AROUND = APART.with_layout(
    "colocated",
    images={"tensor_parallel": 2, "pipeline_parallel": 1, "data_parallel": 2},
    language_module=STAGES,
)


CHUNKED = shared_pipeline(
    "colocated", (1, 2, 2), {"clip": (1, 2)}, 3, ("clip",), encoder_chunks=2, layers=4, chunks=2
)

ADAPTER, DECODER = (
    load_experiment_config(f"configs/digits_{name}.yaml") for name in ("adapter", "decoder")
)


@rows(
    "config, costs, total",
    # 8 ranks read 3 micro-batches; of each its two replicas read 4 samples.
    (TOGETHER, planted("load", "batch"), 8 * 3),
    (TOGETHER, planted("load", "sample"), 8 * 3 * 4),
    (TOGETHER, planted("language forward", "layer"), 8 * 3 * 2),
    (TOGETHER, planted("encoder backward", "layer"), 8 * 3 * 1),
    (TOGETHER, planted("language backward", "ends"), 8 * 3),
    (TOGETHER, planted("step", "step"), 8),
    # One optimizer for all modules of a rank.
    (TOGETHER, planted("update", "step"), 8),
    (TOGETHER, planted("update", "module"), 8 * 2),
    # Count of tokens, norm and report over the world; the encoder's gradients too.
    (TOGETHER, planted(collective="all-reduce", ranks=8), 8 * (3 + 1)),
    # Two per layer and pass; embedding and two of the loss ahead, logits on the way back.
    (TOGETHER, planted(collective="all-reduce", ranks=4), 8 * 3 * (2 * 2 * 2 + 3 + 1)),
    (TOGETHER, planted(collective="all-reduce", ranks=2), 8),
    # The rows of four replicas of the encoder are gathered.
    (TOGETHER, planted(collective="all-gather", ranks=4), 8 * 3),
    # Encoder: 4 ranks, 2 layers; language model: 4 ranks, 2 of its 4 layers each.
    (APART, planted("encoder forward", "layer"), 4 * 4 * 2),
    (APART, planted("language backward", "layer"), 4 * 4 * 2),
    # A pass costs its beginning and end in every stage.
    (APART, planted("language forward", "ends"), 4 * 4),
    # Encoder and first and last stage read; every rank of them for itself.
    (APART, planted("load", "batch"), 8 * 4),
    # Between stages 2 messages each way; over the bridge 2 forward, 2 back: both ends pay.
    (APART, planted(collective="send", ranks=2), 2 * 4 * (2 + 2 + 2 + 2)),
    # The two tensor-parallel ranks of an encoder: counts of the leader, then the rows.
    (APART, planted(collective="broadcast", ranks=2), 4 * 4 * 2),
    (APART, planted("update", "module"), 8),
    # Encoders on the first of two stages; both read, words or labels.
    (INSIDE, planted("encoder forward", "layer"), 2 * 4 * 2),
    (INSIDE, planted("load", "batch"), 4 * 4),
    (INSIDE, planted(collective="send", ranks=2), 2 * 4 * (2 + 2)),
    # Encoders on both stages. One of two replicas keeps its rows; both leaders get gradients.
    (AROUND, planted("encoder forward", "layer"), 4 * 4 * 2),
    (AROUND, planted("load", "batch"), 4 * 4),
    (AROUND, planted(collective="send", ranks=2), 2 * 4 * (2 + 2 + 1 + 2)),
    # Four ranks, of which each has 2 of the 4 layers of both; and two chunks of a layer.
    # An encoder of one layer on 2 ranks, an adapter of two on 2, a language model on 4.
    (ADAPTER, planted("encoder forward", "layer"), 4 * (2 * 1 + 2 * 2)),
    (ADAPTER, planted("load", "batch"), 4 * (2 + 4)),
    # Of each bridge and between stages 2 messages each way; both ends pay.
    (ADAPTER, planted(collective="send", ranks=2), 2 * 4 * (2 + 2 + 2) * 2),
    # Behind 4 ranks with 2 layers each a decoder of one layer on 2, which reads labels.
    (DECODER, planted("language backward", "layer"), 4 * (4 * 2 + 2 * 1)),
    (DECODER, planted("language forward", "ends"), 4 * (4 + 2)),
    (DECODER, planted("load", "batch"), 4 * (2 + 4 + 2)),
    (CHUNKED, planted("encoder forward", "layer"), 4 * 3 * 2),
    (CHUNKED, planted("language backward", "layer"), 4 * 3 * 2),
    (CHUNKED, planted("language forward", "ends"), 4 * 3 * 2),
)
def test_planted_costs_are_counted(config, costs: SharedCosts, total: float) -> None:
    found = predict_shared(config, costs, cores=8)
    assert sum(found.cpu_seconds) == pytest.approx(total)
    assert sum(found.parts.values()) == pytest.approx(total)


@given(
    shared=st.sampled_from([None, INSIDE, AROUND]),
    encoder=st.sampled_from([(1, 1, 2), (2, 1, 1), (1, 2, 1), (1, 1, 1)]),
    language=st.sampled_from([(1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 4)]),
    microbatches=st.integers(1, 4),
    cores=st.floats(0.5, 8),
)
@settings(max_examples=20)
def test_no_layout_waits_for_ever(
    shared: ExperimentConfig | None,
    encoder: tuple[int, int, int],
    language: tuple[int, int, int],
    microbatches: int,
    cores: float,
) -> None:
    config = shared or apart_config(encoder, language, microbatches)
    found = predict_shared(config, planted(everything=1e-3), cores)
    assert found.seconds >= found.bound * (1 - 1e-9)
    ends = dict.fromkeys(range(len(found.cpu_seconds)), 0.0)
    for span in found.spans:
        assert span.start >= ends[span.rank] - 1e-12
        ends[span.rank] = span.stop
    assert max(ends.values()) == pytest.approx(found.seconds)


def test_more_cores_are_never_slower() -> None:
    costs = planted(everything=1e-3)
    times = [predict_shared(APART, costs, cores).seconds for cores in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(sum(predict_shared(APART, costs, 1).cpu_seconds))
    assert times[-1] == pytest.approx(predict_shared(APART, costs, 8).critical_path)


@pytest.mark.parametrize(
    ("encoder", "gathers"),
    [
        # Both ranks of one replica count all samples: the rows alone, in either direction.
        ((2, 1, 1), 2 * 4 * (1 + 1)),
        # Two replicas count the samples that they hold: counts and rows; nothing on the way back.
        ((1, 1, 2), 2 * 4 * 2),
        ((4, 1, 1), 2 * 4),
    ],
)
def test_ranks_that_received_a_part_gather_counts_before_rows(
    monkeypatch: pytest.MonkeyPatch, encoder: tuple[int, int, int], gathers: int
) -> None:
    monkeypatch.setattr(seams.LEAST_SHARD_BYTES, 0)
    config = apart_config(encoder, (2, 1, 1), 4)
    found = predict_shared(config, planted(collective="all-gather", ranks=2), 8)
    assert sum(found.cpu_seconds) == pytest.approx(gathers)


def test_few_numbers_are_fewer_segments_to_send() -> None:
    laws = {"all-reduce": {8: {"call": 1.0, "segment": 0.5, "byte": 0.0}}}
    costs = CoreCosts({}, laws)
    found = [costs.collective("all-reduce", 8, 4 * numbers) for numbers in (1, 5, 16, 1000)]
    assert found == [1.5, 3.5, 9.0, 9.0]


def test_a_layout_costs_what_so_many_ranks_at_work_do() -> None:
    few, many = planted(everything=1e-3).at(8), planted(everything=3e-3).at(8)
    costs = SharedCosts({4: few, 8: many})
    on_four, on_eight = digits_config((1, 4), (2, 2)), digits_config((1, 8), (4, 2))
    for config, alone in ((on_four, few), (on_eight, many)):
        found = predict_shared(config, costs, 2).seconds
        assert found == pytest.approx(predict_shared(config, SharedCosts({8: alone}), 2).seconds)


def test_cores_that_rest_at_handovers_make_a_step_longer() -> None:
    costs = planted(everything=1e-3)
    rested = SharedCosts({8: replace(costs.at(8), busy=0.5)})
    assert predict_shared(TOGETHER, rested, 2).seconds == pytest.approx(
        predict_shared(TOGETHER, costs, 1).seconds
    )


LATENT = {
    "multi_latent_attention": True, "kv_lora_rank": 8, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
}  # fmt: skip


@rows(
    "name, fields, what",
    ("images", {"frozen": True}, "frozen"),
    ("language_module", {"num_moe_experts": 4}, "a mixture of experts"),
    ("language_module", LATENT, "of multi-latent attention"),
)
def test_what_was_not_calibrated_is_refused(name: str, fields: dict[str, Any], what: str) -> None:
    config = digits_config((1, 4), (1, 4))
    networks = config.model.module_architectures
    networks[name] = networks[name].model_copy(update=fields)
    sentence = (
        f"Module '{name}' is {what}, whose CPU time is not calibrated; predict_shared supports "
        "trained vision encoders, adapters, language models and text decoders."
    )
    with pytest.raises(ConfigError) as refused:
        predict_shared(config, planted(), 2)
    assert str(refused.value) == sentence


def test_a_calibration_without_a_piece_is_refused() -> None:
    without = SharedCosts({8: CoreCosts({}, {})})
    with pytest.raises(ConfigError, match=r"it has no piece 'load'; run mimokit\.calibrate"):
        predict_shared(digits_config((1, 4), (2, 2)), without, 2)
    (measured,) = planted().at_work.values()
    no_term = SharedCosts({8: replace(measured, pieces={**measured.pieces, "load": {}})})
    with pytest.raises(ConfigError, match="it has no term 'batch' of a piece"):
        predict_shared(digits_config((1, 4), (2, 2)), no_term, 2)
