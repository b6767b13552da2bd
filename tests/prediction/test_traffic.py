"""Bytes between ranks, against collectives played message by message."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

import mimokit
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.config import ConfigError, ExperimentConfig, ModuleParallelismConfig
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_preset
from mimokit.prediction.traffic import KINDS, Traffic, traffic_of_plan
from tests.layouts_experts import experts_config
from tests.rows import rows

Sent = Counter[tuple[int, int]]
BYTES, GRADIENT_BYTES = 2, 4
"""The preset trains in bf16 and reduces gradients in fp32."""


def ring_all_reduce(members: Sequence[int], size: float, turns: int = 2) -> Sent:
    """Play a ring all-reduce: reduce-scatter, then all-gather, a piece a round; or one of them."""
    sent: Sent = Counter()
    count = len(members)
    for _ in range(turns * (count - 1)):
        for place, member in enumerate(members):
            sent[member, members[(place + 1) % count]] += size / count
    return sent


def found_in(traffic_found: Traffic, kind: str) -> Sent:
    matrix = traffic_found.matrix(kind)
    return Counter(
        {(int(row), int(column)): float(matrix[row, column]) for row, column in np.argwhere(matrix)}
    )


def assert_same(found: Sent, expected: Iterable[Sent]) -> None:
    whole: Sent = Counter()
    for each in expected:
        for pair, size in each.items():
            whole[pair] += size
    assert set(found) == set(whole)
    for pair, size in whole.items():
        assert found[pair] == pytest.approx(size, rel=1e-9)


def heterogeneous(
    images: dict[str, int] | None = None, language: dict[str, int] | None = None
) -> ExperimentConfig:
    config = load_preset("llava_7b_heterogeneous")
    first = ModuleParallelismConfig(**(images or {"data_parallel": 2}))
    second = ModuleParallelismConfig(
        **(language or {"data_parallel": 2}), rank_offset=first.total_ranks
    )
    config.model.module_parallelisms = {"images": first, "language_module": second}
    return config


@rows(
    "groups, recompute, all_reduces, gathers",
    (None, None, 4, 0),
    (None, "full", 6, 0),  # the forward pass again
    (None, "selective", 4, 0),
    (4, None, 4, 0),
    (2, None, 4, 2),  # a gather forward, a scatter backward
    (2, "full", 6, 3),
)
def test_tensor_parallel_traffic_of_a_layer(
    groups: int | None, recompute: str | None, all_reduces: int, gathers: int
) -> None:
    """32 heads of 128 dimensions; ranks with a part of a group gather queries, keys and values."""
    config = heterogeneous(language={"tensor_parallel": 4, "data_parallel": 2})
    network = config.model.get_architecture("language_module")
    config.model.module_architectures["language_module"] = network.model_copy(
        update={"num_query_groups": groups}
    )
    language = config.model.get_parallelism("language_module")
    config.model.module_parallelisms["language_module"] = language.model_copy(
        update={"recompute_granularity": recompute}
    )
    plan = mimokit.plan(config)
    samples = plan.batch.modules["language_module"].micro_batch_size
    row = samples * config.data.seq_length * BYTES
    layers = 32 * config.data.num_microbatches
    played = [
        Counter({pair: layers * times * size for pair, size in sent.items()})
        for group in plan.modules["language_module"].groups("tp")
        for times, sent in (
            (all_reduces, ring_all_reduce(group, row * 4096)),
            (gathers, ring_all_reduce(group, row * (4096 + 2 * (groups or 32) * 128), turns=1)),
        )
    ]
    assert_same(found_in(traffic_of_plan(config, plan), "tensor"), played)


def test_gradients_are_all_reduced_once_over_replicas() -> None:
    config = heterogeneous({"data_parallel": 1}, {"data_parallel": 4})
    plan = mimokit.plan(config)
    found = found_in(traffic_of_plan(config, plan), "data")
    language = config.model.get_architecture("language_module")
    hidden, ffn = language.hidden_size, language.ffn
    layer = 4 * hidden**2 + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    parameters = language.num_layers * layer + 2 * language.vocab_size * hidden + 2 * hidden
    group = plan.modules["language_module"].groups("dp")[0]
    assert_same(found, [ring_all_reduce(group, parameters * GRADIENT_BYTES)])


def test_stages_hand_activations_on_and_gradients_back() -> None:
    config = heterogeneous(language={"pipeline_parallel": 2, "data_parallel": 2})
    plan = mimokit.plan(config)
    found = found_in(traffic_of_plan(config, plan), "pipeline")
    samples = plan.batch.modules["language_module"].micro_batch_size
    size = samples * config.data.num_microbatches * config.data.seq_length * 4096 * BYTES
    assert found == {(2, 4): size, (4, 2): size, (3, 5): size, (5, 3): size}


@rows("recompute, rings", (None, 3), ("full", 4))
def test_context_parallel_sends_keys_and_values_round_the_ring(
    recompute: str | None, rings: int
) -> None:
    config = heterogeneous(language={"context_parallel": 4, "data_parallel": 2})
    language = config.model.get_parallelism("language_module")
    config.model.module_parallelisms["language_module"] = language.model_copy(
        update={"recompute_granularity": recompute}
    )
    plan = mimokit.plan(config)
    found = found_in(traffic_of_plan(config, plan), "context")
    samples = plan.batch.modules["language_module"].micro_batch_size
    local = samples * config.data.num_microbatches * config.data.seq_length // 4 * 4096 * BYTES
    # Forward a ring of 3 hops; backward keys, values and the gradients of both: twice as much.
    expected = 3 * rings * 2 * local * 32
    assert set(found.values()) == {float(expected)}
    assert len(found) == 8


SIZES = st.sampled_from([1, 2, 4])


@settings(max_examples=60)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES)
def test_what_the_bridges_move_is_all_there(
    itp: int, ipp: int, idp: int, ltp: int, lpp: int, ldp: int
) -> None:
    config = heterogeneous(
        {"tensor_parallel": itp, "pipeline_parallel": ipp, "data_parallel": idp},
        {"tensor_parallel": ltp, "pipeline_parallel": lpp, "data_parallel": ldp},
    )
    plan = mimokit.plan(config)
    found = traffic_of_plan(config, plan)
    (bridge,) = plan.disjoint_bridges
    routes = (bridge.forward, bridge.backward)
    whole = sum(route.bytes_between + route.bytes_within for route in routes)
    assert found.total["bridge"] == pytest.approx(whole * config.data.num_microbatches)
    between = {(t.source_rank, t.destination_rank) for route in routes for t in route.transfers}
    pairs = set(found_in(found, "bridge"))
    assert between <= pairs
    within = {frozenset(group) for route in routes for group in route.groups}
    for pair in pairs - between:
        assert any(set(pair) <= group for group in within)


@rows("replicas", (8, 1), (8, 2), (1, 8), (4, 4))
def test_colocated_bridges_gather_within_their_groups(replicas: tuple[int, int]) -> None:
    config = load_preset("llava_7b_colocated")
    images, language = replicas
    config.model.module_parallelisms = {
        "images": ModuleParallelismConfig(tensor_parallel=8 // images, data_parallel=images),
        "language_module": ModuleParallelismConfig(
            tensor_parallel=8 // language, data_parallel=language
        ),
    }
    plan = mimokit.plan(config)
    found = traffic_of_plan(config, plan)
    (bridge,) = plan.colocated_bridges
    whole = (bridge.bytes_forward + bridge.bytes_backward) * config.data.num_microbatches
    assert found.total.get("bridge", 0.0) == pytest.approx(whole)
    if bridge.direction == "equal":
        assert "bridge" not in found.flows
        return
    for pair in found_in(found, "bridge"):
        assert any(set(pair) <= set(group) for group in bridge.gather_groups)


@rows("block", 1, 3, 8, 24, 100)
def test_blocks_sum_over_their_ranks(block: int) -> None:
    config = load_preset("llava_7b_heterogeneous")
    found = traffic_of_plan(config, mimokit.plan(config))
    for kind in found.flows:
        fine, coarse = found.matrix(kind), found.matrix(kind, block)
        for row in range(coarse.shape[0]):
            for column in range(coarse.shape[1]):
                rows = slice(row * block, (row + 1) * block)
                columns = slice(column * block, (column + 1) * block)
                assert coarse[row, column] == pytest.approx(fine[rows, columns].sum())


def test_no_rank_sends_to_itself_and_every_kind_is_known() -> None:
    for name in ("llava_7b_homogeneous", "llava_7b_colocated", "llava_7b_heterogeneous"):
        config = load_preset(name)
        found = traffic_of_plan(config, mimokit.plan(config))
        assert set(found.flows) <= set(KINDS)
        for kind in found.flows:
            assert np.trace(found.matrix(kind)) == 0


def test_experts_get_tokens_and_share_gradients_with_their_replicas() -> None:
    """EP2 of DP4: ranks 0 and 1 exchange tokens, ranks 0 and 2 hold the same experts."""
    config = experts_config((1, 1, 4), (1, 1, 4), count=3, first_k_dense_replace=1)
    found = traffic_of_plan(config, mimokit.plan(config))
    tokens, width, experts, inner = 3 * 2 * 42, 64, 4, 24
    half = tokens * 2 * width * 4 / 2  # of what two experts per token get, as fp32
    assert found.matrix("expert")[0].tolist() == [0, 4 * half, 0, 0]  # there and back, twice
    of_experts = experts * 3 * width * inner // 2
    assert found.matrix("data")[0, 2] == pytest.approx(of_experts * 4)
    model = model_of_config(config.model)
    others = rank_parameters(model.language, ParallelSizes(expert=2), 0).ordinary
    encoder = rank_parameters(model.branches[0], ParallelSizes(), 0).ordinary
    assert found.matrix("data")[0, 1] == pytest.approx(2 * 3 / 4 * 4 * float(others + encoder))


def test_a_single_rank_sends_nothing() -> None:
    config = load_preset("llava_7b_colocated")
    config.model.module_parallelisms = {
        name: ModuleParallelismConfig(data_parallel=1) for name in config.model.module_parallelisms
    }
    assert traffic_of_plan(config, mimokit.plan(config)).flows == {}


def test_what_is_frozen_reduces_no_gradients_and_is_sent_none() -> None:
    sizes = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2}
    config = heterogeneous(sizes, {"data_parallel": 2})
    trained = traffic_of_plan(config, mimokit.plan(config))
    config.model.module_architectures["images"].frozen = True
    frozen = traffic_of_plan(config, mimokit.plan(config))
    images = range(8)

    def sent_by_images(found: Traffic, kind: str) -> float:
        return sum(size for (rank, _), size in found_in(found, kind).items() if rank in images)

    assert sent_by_images(frozen, "data") == 0 < sent_by_images(trained, "data")
    for kind in ("tensor", "pipeline"):
        assert sent_by_images(frozen, kind) == pytest.approx(sent_by_images(trained, kind) / 2)
    back = [pair for pair in found_in(frozen, "bridge") if pair[0] not in images]
    assert all(pair[1] not in images for pair in back)


def test_traffic_takes_what_plan_takes(tmp_path: Path) -> None:
    config = load_preset("llava_7b_heterogeneous")
    expected = traffic_of_plan(config, mimokit.plan(config))
    file = tmp_path / "layout.yaml"
    mapping = config.to_mapping()
    with file.open("w") as stream:
        YAML().dump(mapping, stream)
    for source in (config, mapping, file, str(file), "preset:llava_7b_heterogeneous"):
        found = mimokit.traffic(source)
        assert found.total == expected.total
        assert found.world_size == expected.world_size
    with pytest.raises(ConfigError, match="ranks"):
        mimokit.traffic(config, 3)
