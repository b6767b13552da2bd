"""Step times: what must hold whatever the constants are, and the three modes against each other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mimokit.architecture.encoders import Encoder, RowEncoder
from mimokit.architecture.flops import forward_flops
from mimokit.architecture.from_config import encoder_of_config
from mimokit.architecture.modules import EncoderBranch, Projector
from mimokit.config import ModuleParallelismConfig
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import RECOMPUTE_FULL, ParallelSizes, sizes_of
from mimokit.prediction import (
    EncoderInput,
    Layout,
    Workload,
    costs_of,
    layout_cost,
    predict,
    step_flops,
)
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import ModuleInput, System, load_software, module_step
from mimokit.prediction.step_time.collectives import gather, ring, send
from mimokit.prediction.step_time.stage import end_terms
from tests.networks import network
from tests.prediction.shipped import language_model, llava
from tests.rows import rows

H100 = load_hardware("h100")
BRIDGE = load_software("megatron-bridge")
WORKLOAD = Workload(seq_length=2048, global_batch_size=64)


def layout(mode: DeploymentMode, encoder: ParallelSizes, own: ParallelSizes) -> Layout:
    return Layout(mode, {"images": encoder, llava().language.name: own})


def system_of(workload: Workload) -> System:
    return System(H100, BRIDGE, workload.precision)


def closed_form(chosen: Layout, workload: Workload = WORKLOAD) -> float:
    own, encoders = costs_of(llava(), chosen, workload, system_of(workload))
    return float(layout_cost(chosen.mode, own, encoders, workload, system_of(workload)).seconds)


def test_flops_of_a_step_are_six_per_parameter_and_the_causal_half_of_attention() -> None:
    model = language_model("llama-3-8b")
    tokens = WORKLOAD.tokens
    visited = model.parameters - model.vocab * model.net.hidden  # no embedding look-up
    norms = (2 * model.net.layers + 1) * model.net.hidden
    attention = 12 * model.net.layers * model.net.heads * model.net.head_dim * 2048 / 2
    expected = tokens * (6 * (visited - norms) + attention)
    assert step_flops(model, WORKLOAD) == pytest.approx(expected, rel=1e-4)


def test_no_prediction_is_faster_than_the_peak() -> None:
    for name in ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"):
        model = language_model(name)
        sizes = ParallelSizes(4, 4, expert=8 if model.net.moe else 1, data=2, micro_batch=1)
        found = predict(model, Layout("homogeneous", {name: sizes}), WORKLOAD)
        assert 0 < found.utilisation < 1


def test_an_array_of_layouts_is_each_of_them() -> None:
    model = language_model("qwen3-30b-a3b")
    many = ParallelSizes(
        tensor=np.array([1, 2, 4]), pipeline=np.array([4, 2, 1]), virtual=np.array([2, 1, 1]),
        context=np.array([1, 2, 1]), expert=np.array([4, 8, 8]), data=8, micro_batch=1,
        recompute=np.array([0, 1, 2]),
    )  # fmt: skip
    system = System(H100, BRIDGE, "fp8")
    together = module_step(model, many, ModuleInput(4096, 1), system, 16).total
    for index in range(3):
        alone = module_step(model, many.take(index), ModuleInput(4096, 1), system, 16).total
        assert float(together[index]) == pytest.approx(float(alone))


def test_recomputing_costs_another_forward_pass() -> None:
    model, system = language_model("llama-3-8b"), System(H100, BRIDGE, "bf16")
    sizes = ParallelSizes(data=8)
    plain = module_step(model, sizes, ModuleInput(4096, 1), system, 8)
    again = module_step(
        model, replace(sizes, recompute=RECOMPUTE_FULL), ModuleInput(4096, 1), system, 8
    )
    longer = float(again.total - plain.total) / float(plain.forward)
    assert 0.8 < longer < 1  # of the forward pass, logits are not computed again


def test_each_micro_batch_on_its_way_is_begun_once() -> None:
    model, sizes = language_model("llama-2-7b"), ParallelSizes(pipeline=4, data=2)
    at_once = replace(BRIDGE, host_micro_batch=0.0)
    begun = replace(BRIDGE, host_micro_batch=0.01)
    plain, longer = (
        module_step(model, sizes, ModuleInput(4096, 1), System(H100, one), 16).passes
        for one in (at_once, begun)
    )
    assert float(longer - plain) == pytest.approx((16 + 3) * 0.01)


def test_equal_stages_wait_as_narayanan_says() -> None:
    """(p - 1) / m of the ideal time, a v-th of it with v chunks (arXiv 2104.04473, sec. 2.2)."""
    model = replace(language_model("llama-2-7b"), vocab=128)
    system = System(H100, BRIDGE, "bf16")
    for chunks in (1, 2):
        sizes = ParallelSizes(pipeline=4, virtual=chunks, data=2)
        step = module_step(model, sizes, ModuleInput(4096, 1), system, 16)
        share = float(step.bubble / step.work.total)
        assert share == pytest.approx(3 / 16 / chunks, rel=0.05)


@rows(
    "chosen",
    layout("homogeneous", ParallelSizes(2, data=2), ParallelSizes(2, 4, data=2)),
    layout("heterogeneous", ParallelSizes(data=2), ParallelSizes(2, 2, data=2)),
    layout("heterogeneous", ParallelSizes(data=4), ParallelSizes(1, 4, data=2)),
    layout("heterogeneous", ParallelSizes(1, 4, data=2), ParallelSizes(1, 4, data=2)),
    layout("heterogeneous", ParallelSizes(1, 2, virtual=2), ParallelSizes(2, 4, virtual=2, data=2)),
)
def test_the_closed_form_is_close_to_the_simulation(chosen: Layout) -> None:
    simulated = predict(llava(), chosen, WORKLOAD).seconds
    assert closed_form(chosen) == pytest.approx(simulated, rel=0.05)


def test_a_colocated_step_is_three_phases_in_turn() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(2, 2, data=2))
    own, (encoder,) = costs_of(llava(), chosen, WORKLOAD, system_of(WORKLOAD))
    found = layout_cost("colocated", own, [encoder], WORKLOAD, system_of(WORKLOAD))
    phases = encoder.seconds + float(found.bridge) + own.step.passes + float(found.update)
    assert float(found.seconds) == pytest.approx(float(phases))
    assert float(found.encoder) == pytest.approx(float(encoder.forward + encoder.backward))


def test_uneven_frames_make_the_encoder_phase_longer() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(2, 2, data=2))
    even = replace(WORKLOAD, inputs={"images": EncoderInput(577, 256.0)})
    uneven = replace(WORKLOAD, inputs={"images": EncoderInput(577, 256.0, imbalance=1.5)})
    (first,), (second,) = (
        costs_of(llava(), chosen, one, system_of(one))[1] for one in (even, uneven)
    )
    longer = float(second.seconds / first.seconds)
    assert 1.3 < longer < 1.5  # starting kernels takes as long as before
    assert closed_form(chosen, uneven) > closed_form(chosen, even)


def test_context_ranks_repeat_an_encoder_that_shares_their_pipeline() -> None:
    """Cutting the sequence does not cut its images: a rank encodes as much as without."""
    whole = layout("homogeneous", ParallelSizes(2, data=2), ParallelSizes(2, data=2))
    cut = ParallelSizes(2, context=4, data=2)
    plain, repeated, apart = (
        costs_of(llava(), chosen, WORKLOAD, system_of(WORKLOAD))[1][0]
        for chosen in (whole, layout("homogeneous", cut, cut), layout("colocated", cut, cut))
    )
    assert float(repeated.seconds) == pytest.approx(float(plain.seconds))
    assert float(repeated.activations) == 4 * float(apart.activations)


def test_an_encoder_on_all_stages_unbalances_none() -> None:
    own = ParallelSizes(2, 4, data=2)
    first = closed_form(layout("homogeneous", ParallelSizes(2, data=2), own))
    spread = closed_form(layout("homogeneous", ParallelSizes(2, 4, data=2), own))
    assert spread < first


def test_a_frozen_encoder_has_no_backward() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(2, 2, data=2))
    frozen = replace(WORKLOAD, frozen=frozenset({"images"}))
    _, (encoder,) = costs_of(llava(), chosen, frozen, system_of(frozen))
    assert float(encoder.backward) == pytest.approx(0, abs=1e-4)
    assert float(encoder.forward) > 0


def test_collectives_of_one_rank_take_no_time_and_rings_end_at_a_port() -> None:
    assert float(gather(H100, 1e9, 1, 1)) == 0
    assert float(ring(H100, 1e9, 1, 1).seconds) == 0
    port = H100.network.bandwidth * H100.efficiency.network
    assert float(ring(H100, 1e9, 16, 1).seconds) > 1e9 * 15 / 16 / port
    assert float(gather(H100, 1e9, 16, 1)) < float(ring(H100, 1e9, 16, 1).seconds)
    assert float(send(H100, 1e9, 1)) < float(send(H100, 1e9, 8))


def test_a_slower_network_slows_every_collective_between_domains() -> None:
    slower = replace(BRIDGE, network_share=0.5, overlaps_data=False)
    steps = [
        module_step(
            language_model("llama-3-8b"), ParallelSizes(4, data=16), ModuleInput(2048, 1), system, 4
        )
        for system in (System(H100, replace(BRIDGE, overlaps_data=False)), System(H100, slower))
    ]
    assert float(steps[1].data) == pytest.approx(2 * float(steps[0].data), rel=0.01)
    assert float(steps[1].work.total) == float(steps[0].work.total)  # in a domain nothing changes


def test_reductions_are_exposed_where_a_module_leaves_them_behind() -> None:
    exposed = {
        (overlaps, behind): float(
            module_step(
                language_model("llama-3-8b"),
                ParallelSizes(4, data=16, distributed_optimizer=False, reduces_behind=behind),
                ModuleInput(2048, 1),
                System(H100, replace(BRIDGE, overlaps_data=overlaps)),
                4,
            ).data
        )
        for overlaps in (True, False)
        for behind in (True, False)
    }
    assert exposed[True, True] == exposed[False, True] == exposed[False, False]
    assert exposed[True, True] > exposed[True, False]
    stated = (
        sizes_of(ModuleParallelismConfig(overlap_grad_reduce=value), 1, 1)
        for value in (None, True, False)
    )
    assert [sizes.reduces_behind for sizes in stated] == [False, False, True]


def test_sends_of_chunks_wait_where_the_schedule_does_not_overlap_them() -> None:
    sizes, inputs = ParallelSizes(8, 4, virtual=4, data=2), ModuleInput(2048, 1)
    beside, waiting = (
        float(
            module_step(
                language_model("llama-3-8b"), sizes, inputs, System(H100, stack), 32
            ).pipeline
        )
        for stack in (BRIDGE, replace(BRIDGE, overlaps_sends=False))
    )
    hops = beside / (2 * 3)  # the last micro-batch's way out and back
    assert waiting - beside == pytest.approx(2 * hops * 4 * 32)


@rows("sharded", False, True)
def test_what_is_frozen_reduces_no_gradients_and_has_no_optimizer(sharded: bool) -> None:
    sizes = ParallelSizes(2, data=4, fully_sharded=sharded)
    chosen = layout("colocated", ParallelSizes(data=8, fully_sharded=sharded), sizes)
    name = llava().language.name
    trained, adapted, frozen = (
        predict(llava(), chosen, replace(WORKLOAD, frozen=frozenset(names)))
        for names in ((), ("images",), ("images", name))
    )
    updates = {row.what for row in adapted.explain().of("images") if row.way == "step"}
    assert "optimizer" in {row.what for row in trained.explain().of("images")}
    assert "optimizer" not in updates
    assert "optimizer" in {row.what for row in adapted.explain().of(name)}
    assert trained.parts["update"] > adapted.parts["update"] > frozen.parts["update"]
    kept = frozen.parts["update"]  # full shards of weights are gathered by each pass
    assert kept >= 0 if sharded else kept == 0


def test_frozen_shards_are_gathered_and_no_gradient_is_sent() -> None:
    slow = replace(H100, domain=replace(H100.domain, bandwidth=1e8))
    system, model = System(slow, BRIDGE), language_model("llama-3-8b")
    sizes = ParallelSizes(data=8, fully_sharded=True)
    data = [
        float(module_step(model, sizes, ModuleInput(2048, 1, *flags), system, 4).data)
        for flags in ((True, True), (False, True), (False, False))
    ]
    once = float(gather(slow, 2 * model.parameters, 8, 1))
    assert data[2] == pytest.approx(4 * once, rel=0.05)
    assert data[1] == pytest.approx(2 * data[2], rel=0.05)
    assert data[0] == pytest.approx(3 * data[2], rel=0.05)


ITEMS, POSITIONS, WIDTH = 5, 9, 32


def tower(**fields: Any) -> Encoder:
    fields = {"seq_length": POSITIONS, **fields}
    return encoder_of_config("tower", network(2, WIDTH, 4, 4, 8, 48, gated=False, **fields))


PIXELS = {"image_size": 12, "patch_size": 4, "num_channels": 3}


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    """Operations of a forward pass in the parts of Hugging Face's encoders, as torch counts."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import SiglipVisionConfig, SiglipVisionModel, WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    images = SiglipVisionConfig(
        hidden_size=WIDTH, intermediate_size=48, num_attention_heads=4, num_hidden_layers=2,
        image_size=12, patch_size=4,
    )  # fmt: skip
    sound = WhisperConfig(
        d_model=WIDTH, encoder_ffn_dim=48, encoder_attention_heads=4, encoder_layers=2,
        num_mel_bins=8, max_source_positions=POSITIONS,
    )  # fmt: skip
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        SiglipVisionModel(images)(torch.empty(ITEMS, 3, 12, 12))
        WhisperEncoder(sound)(torch.empty(ITEMS, 8, 2 * POSITIONS))
    parts = counter.get_flop_counts()
    return {name: sum(part.values()) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("encoder", "before", "head"),
    [
        (
            tower(**PIXELS, pooling_head=True),
            ["SiglipVisionModel.embeddings"],
            ["SiglipVisionModel.head"],
        ),
        (tower(**PIXELS), ["SiglipVisionModel.embeddings"], []),
        (tower(mel_bins=8), ["WhisperEncoder.conv1", "WhisperEncoder.conv2"], []),
        (tower(modal_type="text", vocab=512), [], []),
    ],
    ids=["siglip", "patches", "whisper", "words"],
)
def test_work_outside_the_layers_of_encoders_is_what_torch_counts(
    counted: dict[str, int], encoder: Encoder, before: list[str], head: list[str]
) -> None:
    branch, ranks = EncoderBranch("items", encoder, Projector((WIDTH, 64))), ParallelSizes(tensor=4)
    tokens, system = ITEMS * POSITIONS, system_of(WORKLOAD)
    terms = {t.name: float(t.operations) for t in end_terms(branch, ranks, tokens, system, 0)}
    first, pooled = (sum(counted[name] for name in names) for names in (before, head))
    projected = 2 * WIDTH * 64 * (ITEMS if head else tokens)
    assert terms["patches or convolutions"] == first
    assert terms["projector"] == projected / 4, "ranks share it"
    assert terms.get("pooling head", 0) == pooled, "each rank has all of it"
    flops = forward_flops(branch, POSITIONS, ITEMS)
    assert (flops.first, flops.last) == (first, pytest.approx(pooled + projected))


def test_an_adapter_multiplies_what_it_reads_once() -> None:
    rows = tower(modal_type="rows")
    assert isinstance(rows, RowEncoder)
    adapter = EncoderBranch("rows", replace(rows, inputs=16), Projector((WIDTH, 64)))
    terms = end_terms(adapter, ParallelSizes(), POSITIONS, system_of(WORKLOAD), 0)
    assert terms[-1].operations == forward_flops(adapter, POSITIONS, 1).first == 2 * 9 * 16 * WIDTH
