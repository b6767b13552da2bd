import json
import pickle
from collections import defaultdict

import pytest

import mimokit
from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from tests.planning.layouts import layout, sizes
from tests.rows import rows

WIDE = {"tp": 4, "dp": 2, "pp": 2, "offset": 8}


def big_and_small() -> ExperimentConfig:
    """Return vision TP2 PP2 DP2 on ranks 0 to 7 and language TP4 PP2 DP2 on ranks 8 to 23."""
    return layout("heterogeneous", sizes(**WIDE), 4, 8, images=sizes(tp=2, dp=2, pp=2))


def two_encoders() -> ExperimentConfig:
    return layout(
        "heterogeneous",
        sizes(tp=2, pp=2, offset=4),
        2,
        8,
        images=sizes(),
        audio=sizes(pp=3, offset=1),
    )


def behind() -> ExperimentConfig:
    """Return images into language, and a generator of two stages behind it."""
    config = layout(
        "heterogeneous",
        sizes(pp=2, offset=1),
        2,
        4,
        images=sizes(),
        generator=sizes(pp=2, dp=2, offset=3),
    )
    content = config.to_mapping()
    content["model"]["topology"] = {"images": ["language"], "language": ["generator"]}
    content["model"]["module_architectures"]["generator"]["modal_type"] = "text"
    del content["model"]["special_token_ids"]["generator"]
    return config_from_mapping(content)


def found(config: ExperimentConfig) -> dict:
    return json.loads(json.dumps(mimokit.plan(config).to_json()))


def test_json_of_24_ranks() -> None:
    plan = found(big_and_small())
    (bridge,) = plan["bridges"]
    assert bridge["leader_edges"] == [[5, 8], [7, 12]]
    assert bridge["transfers"][1] == {
        "source_rank": 7, "destination_rank": 12, "start": 4, "stop": 8
    }  # fmt: skip
    assert bridge["transfers_backward"][0]["stop"] == 4
    assert bridge["gather_groups"][1] == [12, 13, 14, 15]
    assert [bridge["slices"][str(rank)] for rank in range(12, 16)] == [
        [0, 4], [0, 0], [0, 0], [0, 0]
    ]  # fmt: skip
    assert (bridge["form"], bridge["form_backward"]) == ("leader", "leader")
    assert bridge["bytes_forward"] == bridge["bytes_backward"] == 8 * 16 * 5040 * 4
    pipeline = plan["pipeline"]
    assert pipeline["total_stages"] == 4
    expected = [0] * 4 + [1] * 4 + [2] * 8 + [3] * 8
    assert pipeline["stage"] == {str(rank): stage for rank, stage in enumerate(expected)}
    assert pipeline["warmup"] == {str(rank): 3 - stage for rank, stage in enumerate(expected)}
    assert pipeline["in_flight"]["0"] == 4
    assert set(pipeline["bubble"].values()) == {3 / 11}
    assert pipeline["makespan"] == 33
    assert pipeline["unit_times"] == {"forward": 1, "backward": 2, "transfer": 0}


def test_json_of_two_encoders() -> None:
    # Trap T31: encoders of 1 and 3 stages, a language module of 2.
    pipeline = found(two_encoders())["pipeline"]
    assert pipeline["total_stages"] == 5
    assert pipeline["warmup"] == {
        "0": 4, "1": 4, "2": 3, "3": 2, "4": 1, "5": 1, "6": 0, "7": 0
    }  # fmt: skip
    assert pipeline["stage"]["0"] == 0


def test_encoders_may_come_after_the_language_model() -> None:
    config = layout("heterogeneous", sizes(tp=2, pp=2), 2, 8, images=sizes(pp=2, offset=4))
    pipeline = found(config)["pipeline"]
    assert pipeline["stage"] == {"0": 2, "1": 2, "2": 3, "3": 3, "4": 0, "5": 1}


def test_more_stages_than_microbatches() -> None:
    config = layout("heterogeneous", sizes(pp=4, offset=1), 2, 2, images=sizes())
    assert list(found(config)["pipeline"]["warmup"].values()) == [2, 2, 2, 1, 0]


def test_a_homogeneous_pipeline() -> None:
    same = sizes(tp=2, pp=4)
    plan = mimokit.plan(layout("homogeneous", same, 4, 8, images=dict(same)))
    assert plan.pipeline is not None
    assert [stage.module for stage in plan.pipeline.graph.stages] == ["language"] * 4
    pipeline = plan.to_json()["pipeline"]
    assert pipeline["stage"] == {str(rank): rank // 2 for rank in range(8)}
    assert pipeline["bubble"]["0"] == 3 / 11
    # The encoder is in the first stage, which reads; the last one reads labels.
    loads = [
        sum(action.kind == "load" for action in plan.pipeline.actions(rank)) for rank in (0, 2, 6)
    ]
    assert loads == [8, 0, 8]


@rows("mode", "homogeneous", "colocated")
def test_nothing_cut_into_stages(mode: str) -> None:
    plan = mimokit.plan(layout(mode, sizes(dp=2), 4, images=sizes(dp=2)))
    assert plan.pipeline is None
    assert "pipeline" not in plan.to_json()


def test_a_module_behind_the_language_module() -> None:
    plan = mimokit.plan(behind())
    assert plan.topology == {
        "images": ("language",), "generator": (), "language": ("generator",)
    }  # fmt: skip
    assert [(b.source, b.destination) for b in plan.bridges] == [
        ("images", "language"),
        ("language", "generator"),
    ]
    # Every token of the language module crosses, not only those of images.
    assert plan.disjoint_bridges[1].forward.bytes_between == 2 * 48 * 5040 * 4
    assert plan.pipeline is not None
    assert plan.pipeline.graph.total_stages == 5
    assert plan.pipeline.stages_of(6)[0].position == 4
    assert plan.batch.modules["generator"].loads == (5, 6)
    assert plan.batch.modules["images"].loads == (0,)


def test_plans_with_pipelines_travel() -> None:
    plan = mimokit.plan(big_and_small())
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert mimokit.plan(big_and_small()) == plan
    assert len(pickle.dumps(plan)) < 20_000


@rows("config", big_and_small, two_encoders, behind)
def test_ranks_agree_about_every_message(config) -> None:
    """Follow every rank through its actions: per pair, sent and received in the same order."""
    plan = mimokit.plan(config())
    assert plan.pipeline is not None
    sent, received = defaultdict(list), defaultdict(list)
    for rank, stage in plan.pipeline.by_rank():
        assert plan.pipeline.stages_of(rank) == (stage,)
        for action in plan.pipeline.actions(rank):
            if action.edge is None:
                continue
            edge = plan.pipeline.graph.edges[action.edge]
            sends, way = action.kind.split("-")
            traffic = sent if sends == "send" else received
            for t in plan.edge_transfers(edge, backward=way == "backward"):
                if rank == (t.source_rank if sends == "send" else t.destination_rank):
                    traffic[t.ends].append((way, action.microbatch, t))
    assert sent == received
    assert sum(map(len, sent.values())) > 8


def test_stages_of_a_module_send_rank_to_rank() -> None:
    plan = mimokit.plan(big_and_small())
    assert plan.pipeline is not None
    inside = next(e for e in plan.pipeline.graph.edges if (e.source, e.destination) == (0, 1))
    ends = [
        (t.source_rank, t.destination_rank, t.start, t.stop)
        for t in plan.edge_transfers(inside, backward=True)
    ]
    assert ends == [(4, 0, 0, 4), (5, 1, 0, 4), (6, 2, 4, 8), (7, 3, 4, 8)]
    without = mimokit.plan(layout("colocated", sizes(dp=2), 4, images=sizes(dp=2)))
    with pytest.raises(ValueError, match="no pipeline"):
        without.edge_transfers(inside, backward=False)
    with pytest.raises(KeyError, match="rank 24"):
        plan.pipeline.stages_of(24)


@rows("config", big_and_small(), two_encoders(), behind())
def test_the_peer_of_a_rank_has_its_coordinates_in_the_other_stage(config) -> None:
    plan = mimokit.plan(config)
    stages = plan.pipeline.graph.stages
    within = [
        edge
        for edge in plan.pipeline.graph.edges
        if stages[edge.source].module == stages[edge.destination].module
    ]
    assert within
    for edge in within:
        ranks = plan.modules[edge.modality]
        ends = edge.source, edge.destination
        for here, there in (ends, reversed(ends)):
            for rank in plan.pipeline.ranks[here]:
                place = {**ranks.coordinates(rank), "pp": stages[there].place}
                assert plan.pipeline.peer(rank, edge) == ranks.rank(**place)
    with pytest.raises(ValueError, match="neither stage"):
        plan.pipeline.peer(plan.world_size, within[0])


def test_the_text() -> None:
    text = str(mimokit.plan(big_and_small()))
    assert "Pipeline: 1F1B over 4 stages, 8 micro-batches, makespan 33" in text
    assert "0123······0◂41◂52◂63◂74◂·5◂·6◂·7◂" in text
    assert "27.3%" in text
    assert "Cheapest route: one rank of a replica receives and broadcasts, " in text


def test_the_notebook_picture() -> None:
    plan = mimokit.plan(big_and_small())
    picture = plan._repr_html_()
    assert "0123······0◂41◂52◂63◂74◂·5◂·6◂·7◂" in picture
    assert len(picture) < 40_000
    assert "the first" not in picture
    many = layout("heterogeneous", sizes(pp=20, offset=20), 1, 512, images=sizes(pp=20))
    long = mimokit.plan(many)
    assert "the first 84 of 1,653 units" in long._repr_html_()
    assert len(long._repr_html_()) < 120_000
    assert len(str(long).splitlines()) < 130
