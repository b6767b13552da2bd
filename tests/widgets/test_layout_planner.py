"""The planner's traits: what code in other cells sees, and what the browser is sent."""

import os
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.config import ConfigError, ModuleArchitecture, ModuleParallelismConfig
from mimokit.config.field_docs import field_docs
from mimokit.config_files import load_preset
from mimokit_widgets import LayoutPlanner, layout_planner
from mimokit_widgets._widget import Answers, state_of
from mimokit_widgets.planner.session import Session
from tests import seams
from tests.commands import run_to_end
from tests.widgets.planner_sessions import LANGUAGE

HETEROGENEOUS = "preset:llava_7b_heterogeneous"


def free(planner: LayoutPlanner) -> None:
    """Let an edit of a size change GPUs and batch."""
    planner._on_message(None, {"type": "hold", "on": False}, [])


def edit(planner: LayoutPlanner, path: str, text: str) -> None:
    planner._on_message(None, {"type": "edit", "path": path.split("."), "text": text}, [])


def test_it_opens_with_a_sensible_start() -> None:
    planner = LayoutPlanner()
    assert planner.problems == ()
    assert planner.plan == mimokit.plan("preset:llava_7b_colocated")
    assert planner.config == load_preset("llava_7b_colocated")


def test_it_opens_files_mappings_configs_and_presets(tmp_path: Path) -> None:
    config = load_preset("llava_7b_heterogeneous")
    path = tmp_path / "plan.yaml"
    config.save(path)
    for source in (path, str(path), config, config.to_mapping(), HETEROGENEOUS):
        assert LayoutPlanner(source).plan == mimokit.plan(config)


def test_a_file_that_is_no_yaml_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        LayoutPlanner(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [1, 2")
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        LayoutPlanner(broken)


def test_a_config_with_problems_opens_and_shows_them() -> None:
    sections = load_preset("llava_7b_colocated").to_mapping()
    sections["model"]["module_parallelisms"]["images"]["data_parallel"] = 3
    planner = LayoutPlanner(sections)
    assert planner.plan is None
    assert planner.config is None
    assert planner.problems
    assert planner._state["problems"]


def test_code_is_told_of_every_new_plan_with_its_config_in_place() -> None:
    planner = LayoutPlanner(HETEROGENEOUS)
    heard: list[tuple[int, int]] = []

    def hear(change: Any) -> None:
        assert planner.plan is change["new"]
        sizes = planner.config.model.module_parallelisms["language_module"]
        heard.append((change["new"].world_size, sizes.data_parallel))

    planner.observe(hear, "plan")
    free(planner)
    edit(planner, LANGUAGE + "data_parallel", "4")
    edit(planner, LANGUAGE + "data_parallel", "x")
    assert planner.problems
    edit(planner, LANGUAGE + "data_parallel", "8")
    planner.undo()
    assert heard == [(40, 4), (72, 8), (24, 2)]


def test_a_message_that_fails_is_answered_so_that_the_browser_sends_the_next() -> None:
    planner = LayoutPlanner()
    with pytest.raises(ValueError, match="five"):
        planner._on_message(None, {"type": "select", "rank": "five", "serial": "a-1"}, [])
    assert planner._state["serial"] == "a-1"


def test_a_config_set_from_code_is_shown() -> None:
    planner = LayoutPlanner()
    planner.config = HETEROGENEOUS
    assert planner.plan == mimokit.plan(HETEROGENEOUS)
    assert planner._state["fields"]["mode"] == "heterogeneous"
    assert planner.config == load_preset("llava_7b_heterogeneous")
    planner.undo()
    assert planner._state["fields"]["mode"] == "colocated"


def test_a_wrong_config_set_from_code_is_shown_and_raises_nothing() -> None:
    planner = LayoutPlanner()
    before = planner.plan
    sections = load_preset("llava_7b_colocated").to_mapping()
    sections["data"]["base_batch_size"] = "many"
    planner.config = sections
    assert planner.plan is before
    assert planner.config == load_preset("llava_7b_colocated")
    assert "base_batch_size is the text 'many'" in planner.problems[0].sentence
    assert planner._state["fields"]["data"]["base_batch_size"] == "many"
    assert not planner._state["valid"]


def test_plan_and_problems_are_not_for_setting() -> None:
    planner = LayoutPlanner()
    for name in ("plan", "problems"):
        with pytest.raises(Exception, match="read-only"):
            setattr(planner, name, None)


def test_two_planners_know_nothing_of_each_other() -> None:
    one, other = LayoutPlanner(HETEROGENEOUS), LayoutPlanner(HETEROGENEOUS)
    free(one)
    edit(one, LANGUAGE + "data_parallel", "4")
    one.select(3)
    one.show("batch")
    assert other.plan.world_size == 24
    assert other._state["tab"] == "ranks"
    assert other.picked is None
    assert one.picked == 3
    other.undo()
    assert one.plan.world_size == 40


def test_it_compares_with_another_and_refuses_what_has_problems() -> None:
    planner = LayoutPlanner(HETEROGENEOUS)
    planner.compare_with("preset:llava_7b_colocated")
    assert planner._state["compare"]["names"] == [
        "colocated on 8 ranks",
        "heterogeneous on 24 ranks",
    ]
    assert planner._state["compare"]["unlike"] == ["", "24 GPUs instead of 8"]
    assert any(line["differs"] for line in planner._state["compare"]["lines"])
    with pytest.raises(ConfigError, match="base_batch_size"):
        planner.compare_with({"model": {}, "data": {}})


def test_it_saves_beside_the_notebook_or_where_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planner = LayoutPlanner(HETEROGENEOUS)
    assert planner.save() == Path("llava_7b_heterogeneous.yaml")
    assert mimokit.plan("llava_7b_heterogeneous.yaml") == planner.plan
    with pytest.raises(OSError, match="already"):
        LayoutPlanner().save("llava_7b_heterogeneous.yaml", replace=False)
    edit(planner, LANGUAGE + "data_parallel", "0")
    with pytest.raises(ConfigError):
        planner.save(tmp_path / "other.yaml")


def test_the_cells_of_the_rank_map_travel_as_numbers() -> None:
    planner = LayoutPlanner(HETEROGENEOUS)
    assert len(planner._state["numbers"]) == 24 * 4 * 2  # ranks x dimensions x two bytes
    assert "24 ranks on 3 nodes" in planner._state["ranks"]["words"]


def test_without_a_kernel_the_last_plan_stays() -> None:
    planner = LayoutPlanner(HETEROGENEOUS)
    page = planner._in_html()
    assert "heterogeneous on 24 ranks" in page
    free(planner)
    edit(planner, LANGUAGE + "data_parallel", "4")
    assert "heterogeneous on 40 ranks" in planner._in_html()
    edit(planner, LANGUAGE + "data_parallel", "x")
    assert "heterogeneous on 40 ranks" in planner._in_html()


def test_an_edit_does_not_wait_for_what_a_saved_notebook_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = LayoutPlanner("preset:llava_7b_colocated")
    edited, asked = threading.Event(), threading.Event()

    def slow(session: Session) -> Answers:
        asked.set()
        assert edited.wait(60)
        assert session.draft is not planner._session.draft  # the edit has not reached it
        return {}

    monkeypatch.setattr(seams.SAVED_ANSWERS, slow)
    with ThreadPoolExecutor(1) as threads:
        page = threads.submit(planner._in_html)
        assert asked.wait(60)
        edit(planner, LANGUAGE + "data_parallel", "4")
        edited.set()
        assert "llava_7b_colocated" in page.result()


def test_frames_of_sixteen_thousand_ranks_need_no_matrix_of_them() -> None:
    config = load_preset("llava_7b_colocated")
    config.data.modality_frames = {"images": [1]}
    for sizes in config.model.module_parallelisms.values():
        sizes.data_parallel = 16_384 // sizes.tensor_parallel
    tracemalloc.start()
    frames = LayoutPlanner(config)._session.look_at_frames()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert frames is not None
    assert str(frames.problem) == "There are 16,384 ranks; the view draws 128."
    assert most < 0.2e9  # a number for each pair of ranks would be 2.1 GB


def test_importing_the_widgets_needs_no_torch_and_no_altair() -> None:
    script = (
        "import sys; from mimokit_widgets import LayoutPlanner, RankMap, BatchSplit, TrafficMap;"
        "LayoutPlanner()._in_html(); heavy = ['torch', 'megatron', 'altair', 'pandas'];"
        "print([n for n in heavy if n in sys.modules]); from mimokit_widgets import LiveMonitor;"
        "heavy = ['torch', 'altair', 'ipyparallel', 'matplotlib', 'scipy'];"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = run_to_end([sys.executable, "-c", script], env=os.environ)
    assert done.stdout.split() == ["[]", "[]"], done.stderr


def test_tooltips_are_the_descriptions_of_the_config_fields() -> None:
    sent = LayoutPlanner()._inputs
    tensor = next(one for one in sent["sizes"] if one["key"] == "tensor_parallel")
    described = field_docs(ModuleParallelismConfig)["tensor_parallel"]
    assert tensor == {
        "key": "tensor_parallel",
        "label": "TP",
        "hint": f"tensor parallel: {described}",
        "empty": "1",
        "options": (),
    }
    assert all(one["hint"] for section in ("sizes", "network", "data") for one in sent[section])
    assert {one["key"] for one in sent["network"]} <= set(ModuleArchitecture.model_fields)


def test_public_traits_follow_in_one_message() -> None:
    planner = LayoutPlanner()
    sent: list[set[str]] = []
    planner.comm.send = lambda data, **_: sent.append(set(data["state"]))  # type: ignore[method-assign]
    heard: list[tuple[int, float]] = []
    planner.observe(
        lambda _: heard.append((planner.plan.world_size, planner.prediction["tokens_per_gpu"])),
        ["config", "plan", "prediction"],
    )
    planner._on_message(
        planner,
        {"type": "edit", "path": [*LANGUAGE[:-1].split("."), "tensor_parallel"], "text": "4"},
        [],
    )
    assert sent == [{"_state", "config", "prediction"}]
    assert {heard[0]} == set(heard)
    assert round(heard[0][1]) == 12615
    planner.picked = 5
    assert planner._state["details"]["rank"] == 5
    planner._on_message(planner, {"type": "select", "rank": 2}, [])
    assert planner.picked == 2
    assert planner.get_state(["config"])["config"]["model"]["deployment_mode"] == "colocated"


def test_a_saved_page_shows_and_answers_one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: an edit comes while a page is drawn."""
    planner = LayoutPlanner("preset:llava_7b_colocated")
    edit = threading.Thread(target=lambda: setattr(planner, "config", HETEROGENEOUS))

    def meanwhile(widget: LayoutPlanner) -> dict[str, object]:
        edit.start()
        edit.join(0.5)
        return state_of(widget)

    monkeypatch.setattr(layout_planner, "state_of", meanwhile)
    drawn = planner._in_html()
    edit.join()
    assert planner.plan.world_size == 24
    assert "colocated on 8 ranks" in drawn
    assert "on 24 ranks" not in drawn
