"""Rank map, batch split and traffic map as widgets of their own."""

import re

import numpy as np
import pytest
from anywidget import AnyWidget
from traitlets import TraitError

import mimokit
from mimokit.config import ConfigError, ModuleParallelismConfig
from mimokit.config_files import load_preset
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.traffic import traffic_of_plan
from mimokit_widgets import BatchSplit, LayoutPlanner, RankMap, TrafficMap
from mimokit_widgets.view_models.rank_cells import MOST_CELLS, rank_cells
from mimokit_widgets.view_models.rank_details import rank_details
from mimokit_widgets.view_models.sample_walk import sample_walk
from tests import seams
from tests.rows import rows

COLOCATED, HETEROGENEOUS = "preset:llava_7b_colocated", "preset:llava_7b_heterogeneous"
PLANS = {name: mimokit.plan(f"preset:llava_7b_{name}") for name in (
    "homogeneous", "colocated", "heterogeneous"
)}  # fmt: skip


@rows("view", RankMap, BatchSplit, TrafficMap)
def test_a_view_takes_what_makes_a_plan(view: type) -> None:
    config = load_preset("llava_7b_colocated")
    for source in (config, config.to_mapping(), COLOCATED):
        assert view(source).plan == mimokit.plan(config)
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        view("absent.yaml")


def test_traffic_needs_to_know_how_large_modules_are() -> None:
    with pytest.raises(TypeError, match="takes a config"):
        TrafficMap(PLANS["colocated"])
    view = TrafficMap(COLOCATED)
    with pytest.raises(TypeError, match="takes a config"):
        view.plan = PLANS["colocated"]


def test_another_plan_is_drawn_at_once() -> None:
    view = RankMap(COLOCATED)
    assert "8 ranks on 1 node " in view._picture["words"]
    view.plan = PLANS["heterogeneous"]
    assert "24 ranks on 3 nodes" in view._picture["words"]
    view.ranks_per_node = 4
    assert "24 ranks on 6 nodes" in view._picture["words"]
    with pytest.raises(TraitError):
        view.ranks_per_node = 0


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_cells_hold_the_coordinates_of_every_rank(plan: LayoutPlan) -> None:
    picture, cells = rank_cells(plan, 8)
    numbers = np.frombuffer(cells, dtype="<u2")
    at = 0
    for module in picture["modules"]:
        ranks = plan.modules[module["name"]]
        for dimension in picture["dimensions"]:
            own = numbers[at : at + module["count"]]
            at += module["count"]
            assert own.tolist() == [ranks.coordinates(rank)[dimension] for rank in ranks.ranks]
    assert at == len(numbers)


def test_more_ranks_than_are_drawn_are_said() -> None:
    config = load_preset("llava_7b_colocated")
    ranks = 2 * MOST_CELLS
    config.model.module_parallelisms = {
        "images": ModuleParallelismConfig(data_parallel=ranks),
        "language_module": ModuleParallelismConfig(tensor_parallel=8, data_parallel=ranks // 8),
    }
    picture, cells = rank_cells(mimokit.plan(config), 8)
    assert picture["shown"] == MOST_CELLS
    assert len(cells) == 2 * 4 * 2 * MOST_CELLS
    assert "The first 16,384 ranks are drawn." in picture["words"]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_rank_is_told_its_groups_samples_and_peers(plan: LayoutPlan) -> None:
    for rank in range(plan.world_size):
        details = rank_details(plan, rank, 8)
        assert details["node"] == rank // 8
        for module in details["modules"]:
            ranks = plan.modules[module["name"]]
            place = dict(re.findall(r"([a-z]+)(\d+)", module["place"]))
            sizes = dict(zip(ranks.dimensions, ranks.shape, strict=True))
            coordinates = ranks.coordinates(rank).items()
            assert place == {name: str(at) for name, at in coordinates if sizes[name] > 1}
            for group in module["groups"]:
                members = [
                    first + place * step
                    for first, step, count in group["members"]
                    for place in range(count)
                ]
                assert rank in members
                if group["dimension"] != "ep":
                    assert tuple(members) == ranks.group_of(rank, group["dimension"])
            start, stop = plan.batch.modules[module["name"]].samples[rank]
            assert f"{start}–{stop - 1}" in module["work"] or f"sample {start}" in module["work"]


@rows("plan", PLANS["heterogeneous"])
def test_peers_are_those_of_the_bridges(plan: LayoutPlan) -> None:
    (bridge,) = plan.disjoint_bridges
    for transfer in bridge.forward.transfers:
        sender, receiver = (
            " ".join(rank_details(plan, rank, 8)["peers"])
            for rank in (transfer.source_rank, transfer.destination_rank)
        )
        assert f"to rank {transfer.destination_rank}." in sender
        assert f"from rank {transfer.source_rank}." in receiver


def test_a_selected_rank_is_let_go_when_it_is_gone() -> None:
    view = RankMap(HETEROGENEOUS)
    view.selected = 23
    assert view._looked_at["rank"] == 23
    assert "layers 16–31 of 32" in view._looked_at["modules"][0]["shard"]
    view.plan = PLANS["colocated"]
    assert view.selected is None
    assert view._looked_at == {}
    view.selected = 10**6
    assert view._looked_at == {}


def test_a_click_selects() -> None:
    view = RankMap(HETEROGENEOUS)
    view._on_message(None, {"type": "select", "rank": 5}, [])
    assert view.selected == 5
    view._on_message(None, {"type": "select", "rank": None}, [])
    assert view.selected is None


def test_batch_lanes_are_the_replicas_and_their_samples() -> None:
    view = BatchSplit(COLOCATED)
    lanes = {lane["module"]: lane for lane in view._picture["lanes"]}
    assert (lanes["images"]["replicas"], lanes["images"]["each"]) == (8, 1)
    assert (lanes["language_module"]["replicas"], lanes["language_module"]["each"]) == (1, 8)
    assert lanes["images"]["ranks"][3] == "rank 3"
    assert lanes["language_module"]["ranks"] == ["ranks 0–7"]
    assert "fan-in" in view._picture["words"]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_sample_is_on_the_replica_that_computes_it(plan: LayoutPlan) -> None:
    for sample in range(plan.batch.samples_per_microbatch):
        for backward in (False, True):
            walk = sample_walk(plan, sample, backward=backward)
            assert walk["steps"]
            for name, replica in walk["replicas"].items():
                width = plan.batch.modules[name].micro_batch_size
                assert replica * width <= sample < (replica + 1) * width
    with pytest.raises(ValueError, match="sample 8 is not one of 0 to 7"):
        sample_walk(plan, 8)


def test_the_walk_of_a_sample_follows_the_bridge() -> None:
    fan_in = sample_walk(PLANS["colocated"], 3)["steps"]
    assert fan_in[0] == "ranks 0–7 read it"
    assert any("the output is gathered: piece 4 of 8" in step for step in fan_in)
    back = sample_walk(PLANS["colocated"], 3, backward=True)["steps"]
    assert any("its gradient is cut" in step for step in back)
    apart = sample_walk(PLANS["heterogeneous"], 5)["steps"]
    (bridge,) = PLANS["heterogeneous"].disjoint_bridges
    message = next(t for t in bridge.forward.transfers if t.start <= 5 < t.stop)
    assert any(f"rank {message.source_rank} → {message.destination_rank}" in s for s in apart)


def test_stepping_stays_within_the_batch() -> None:
    view = BatchSplit(COLOCATED)
    for asked, stands in ((-5, 0), (99, 7), (3, 3)):
        view._on_message(None, {"type": "sample", "sample": asked, "backward": True}, [])
        assert (view.sample, view.backward) == (stands, True)
        assert view._looked_at["sample"] == stands
    view._on_message(None, {"type": "sample", "sample": None, "backward": True}, [])
    assert view._looked_at == {}


def test_the_traffic_matrix_is_that_of_the_plan() -> None:
    view = TrafficMap(HETEROGENEOUS)
    found = traffic_of_plan(load_preset("llava_7b_heterogeneous"), PLANS["heterogeneous"])
    whole = sum(found.matrix(kind) for kind in found.flows)
    shown = np.frombuffer(view._picture["numbers"], dtype="<f4").reshape(24, 24)
    np.testing.assert_allclose(shown, whole, rtol=1e-6)
    view._on_message(None, {"type": "traffic", "kind": "bridge", "by_node": True}, [])
    assert view._picture["noun"] == "node"
    shown = np.frombuffer(view._picture["numbers"], dtype="<f4").reshape(3, 3)
    np.testing.assert_allclose(shown, found.matrix("bridge", 8), rtol=1e-6)
    view.kind = "no such kind"
    assert view._picture["kind"] == "all"


def test_the_browser_never_sees_a_view_without_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def opens(widget: AnyWidget) -> None:
        state = widget.get_state()
        opened.append(type(widget).__name__)
        assert state.get("_picture") or state["_state"]["tabs"]

    monkeypatch.setattr(AnyWidget, "open", opens)
    monkeypatch.setattr(seams.SHELL_CHOICE, bool)
    for view in (RankMap, BatchSplit, TrafficMap, LayoutPlanner):
        view(COLOCATED)
    assert opened == ["RankMap", "BatchSplit", "TrafficMap", "LayoutPlanner"]
