"""The planner's search, and `ParetoView`, without a browser."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import mimokit
from mimokit.config import PredictionConfig
from mimokit.config_files import load_preset
from mimokit.interop import layout_of_config
from mimokit.layout_search import SearchProgress, SearchResult
from mimokit_widgets import LayoutPlanner, ParetoView
from mimokit_widgets.planner import background_search, paths
from mimokit_widgets.planner.outcome import resolved_config
from mimokit_widgets.view_models.found_layouts import ROWS, found_layouts, layouts_shown
from tests import seams
from tests.rows import rows
from tests.widgets.planner_sessions import LANGUAGE, Driver

SECONDS = 180
HETEROGENEOUS = "preset:llava_7b_heterogeneous"


def searched(driver: Driver, gpus: str = "") -> Driver:
    driver.send("tab", name="search")
    driver.send("search", gpus=gpus)
    driver.session.search.wait(SECONDS)
    return driver


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return mimokit.search(load_preset("llava_7b_colocated"), gpus=8)


@pytest.fixture(autouse=True, scope="module")
def _each_search_once() -> Iterator[None]:
    """Keep what searches with the same arguments found: most tests search one preset."""
    import mimokit.layout_search as room

    own, found = room.search, dict[str, SearchResult]()

    def search(config: Any, *, progress: Any = None, cancelled: Any = None, **more: Any) -> Any:
        if cancelled is not None and cancelled():
            return own(config, progress=progress, cancelled=cancelled, **more)
        key = f"{config.to_yaml()} {sorted(more.items())}"
        if key not in found:
            found[key] = own(config, progress=progress, cancelled=cancelled, **more)
        elif progress is not None:
            progress(SearchProgress(1.0, found[key].evaluated, 0.0))
        return found[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(room, "search", search)
        yield


def slow(monkeypatch: pytest.MonkeyPatch, until: threading.Event) -> None:
    """Let a search report one half and go on until it is cancelled, as a large one would."""
    import mimokit.layout_search as room

    own = room.search

    def search(
        config: Any, *, progress: Callable[[Any], Any], cancelled: Callable[[], bool], **more: Any
    ) -> SearchResult:
        progress(SearchProgress(0.5, 1234, 1.0))
        until.set()
        deadline = time.monotonic() + SECONDS
        while not cancelled() and time.monotonic() < deadline:
            time.sleep(0.005)
        return own(config, progress=progress, cancelled=lambda: False, **more)

    monkeypatch.setattr(room, "search", search)


def test_a_search_finds_what_mimokit_search_finds() -> None:
    driver = searched(Driver())
    state = driver.session.search.state
    assert (state.status, state.share, state.sentence) == ("done", 1.0, "")
    expected = mimokit.search(load_preset("llava_7b_colocated"), gpus=8)
    assert state.result is not None
    assert state.result.best.layout == expected.best.layout
    assert [one.layout for one in state.result.pareto] == [one.layout for one in expected.pareto]
    found = state.to_json()["found"]
    assert found["layouts"][0]["words"].startswith(expected.best.layout.mode)
    assert found["rows"] == ROWS
    telling = [found["layouts"][at] for at in found["telling"]]
    taught = [one.layout.mode for one in expected.telling()]
    assert [each["mode"] for each in telling] == taught
    assert len({*found["telling"]}) == 3
    assert all(each["on_front"] or each in telling for each in found["layouts"][ROWS:])


def test_a_click_on_a_layout_that_would_teach_much_loads_it() -> None:
    driver = searched(Driver())
    found = driver.session.search.state
    place = found.to_json()["found"]["telling"][0]
    driver.send("take_found", index=place)
    assert found.result is not None
    assert driver.session.loaded_layout is found.result.telling()[0].layout
    assert found_layouts(found.result)["telling"] == [], "ParetoView asks for none"


def test_a_search_takes_the_gpu_and_the_number_that_are_asked_for() -> None:
    driver = Driver()
    driver.send("gpu", name="h200")
    task = searched(driver, "1,6").session.search.state.result.task
    assert ("H200" in task.hardware.name, task.gpus) == (True, 16)
    assert driver.screen["search"]["gpus"] == "1,6"
    assert driver.screen["search"]["world"] == "8"


@pytest.mark.parametrize("objective", ["step_time", "memory"])
def test_every_layout_that_is_found_loads_as_one_edit(
    monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    import mimokit.layout_search as room

    own = room.search
    monkeypatch.setattr(room, "search", partial(own, objective=objective))
    driver = searched(Driver())
    found = driver.session.search.state
    before, loaded = driver.session.draft, 0
    for index, one in enumerate(layouts_shown(found.result)):
        driver.send("take_found", index=index)
        assert driver.session.draft is not before, driver.session.notice
        loaded += 1
        assert driver.sentences == []
        assert driver.plan.deployment_mode == one.layout.mode
        assert driver.plan.world_size == one.layout.gpus
        assert driver.screen["search"]["loaded"] == index
        resolved, at_once = driver.session.resolved, one.layout.encoder_microbatches
        assert layout_of_config(resolved) == replace(one.layout, encoder_microbatches=None)
        assert at_once in (None, resolved.runtime.encoder_microbatches)
        assert driver.session.notice == ""
        driver.send("undo")
        assert driver.session.draft is before
        assert driver.screen["search"]["loaded"] == -1
    assert loaded > ROWS
    driver.send("redo")
    assert driver.screen["search"]["loaded"] != -1


def test_what_was_found_is_what_the_planner_predicts() -> None:
    driver = searched(Driver())
    best = driver.session.search.state.result.best
    driver.send("take_found", index=0)
    driver.send("tab", name="prediction")
    sentence = driver.screen["prediction"]["sentence"]
    assert sentence.startswith(f"step {best.seconds:.3g} s (")
    assert f"memory {best.peak_memory / 2**30:.1f} of" in sentence


def test_what_a_layout_computes_stays_when_it_is_loaded() -> None:
    driver = searched(Driver(HETEROGENEOUS))
    samples = driver.plan.batch.global_batch_size
    driver.send("take_found", index=0)
    assert driver.plan.batch.global_batch_size == samples
    assert driver.screen["fields"]["name"] == "llava_7b_heterogeneous"
    assert driver.screen["search"]["aged"] == ""


def test_an_edited_batch_is_kept_out_of_what_was_searched() -> None:
    driver = searched(Driver())
    driver.type("data.seq_length", "2048")
    assert "edited since" in driver.screen["search"]["aged"]
    driver.send("take_found", index=0)
    assert driver.screen["fields"]["data"]["seq_length"] == "4096"
    assert driver.screen["search"]["aged"] == ""
    driver.send("undo")
    assert driver.screen["fields"]["data"]["seq_length"] == "2048"


def test_a_world_that_was_typed_gives_way_to_fewer_gpus() -> None:
    driver = Driver()
    driver.type("world_size", "8")
    searched(driver, "4")
    driver.send("take_found", index=0)
    assert driver.sentences == []
    assert driver.plan.world_size <= 4


def test_what_a_layout_says_beyond_the_inputs_is_shown_beside_the_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = (*paths.SIZE_INPUTS, "recompute_granularity", "virtual_pipeline_model_parallel_size")
    monkeypatch.setattr(paths, "SIZE_FIELDS", known)
    sizes = {"tensor_parallel": 2, "recompute_granularity": "full", "rank_offset": 8}
    assert paths.sizes_beyond_inputs(sizes) == "recompute full"
    assert paths.sizes_beyond_inputs({"virtual_pipeline_model_parallel_size": 4}) == "VPP 4"
    for module in Driver().screen["fields"]["modules"]:
        assert module["beyond"] == ""


def test_a_search_is_cancelled_and_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    slow(monkeypatch, began)
    driver = Driver()
    driver.send("search", gpus="")
    assert began.wait(SECONDS)
    state = driver.session.search.state
    assert (state.status, state.share, state.evaluated) == ("running", 0.5, 1234)
    driver.send("search", gpus="")  # goes on; there is one at a time
    driver.type("data.base_batch_size", "16")  # the planner stays usable
    assert driver.plan.batch.samples_per_microbatch == 16
    driver.send("undo")
    driver.send("cancel_search")
    assert driver.session.search.state.status in ("cancelling", "done")
    driver.session.search.wait(SECONDS)
    assert driver.session.search.state.status == "done"


def test_a_real_search_that_is_cancelled_at_once_says_so() -> None:
    search = background_search.BackgroundSearch()
    search._cancelled.set()
    search._run(resolved_config(*_planned()), 8, PredictionConfig())
    assert search.state.status == "failed"
    assert search.state.sentence.endswith(
        "the search was stopped before it found a layout that fits."
    )


def _planned() -> tuple[Any, Any]:
    config = load_preset("llava_7b_colocated")
    return config, mimokit.plan(config)


@rows(
    "gpus, said",
    ("many", "GPUs is the text 'many'; write a whole number"),
    ("0", "GPUs is 0; it must be a whole number from 1 to 131,072."),
    ("-2", "GPUs is -2; it must be"),
    ("9" * 30, "it must be a whole number from 1 to 131,072."),
    ("1.5", "GPUs is the text '1.5'"),
)
def test_a_wrong_number_of_gpus_is_one_sentence(gpus: str, said: str) -> None:
    driver = searched(Driver(), gpus)
    state = driver.session.search.state
    assert state.status == "failed"
    assert said in state.sentence
    assert "\n" not in state.sentence


def test_a_search_that_finds_nothing_says_what_would_do() -> None:
    driver = Driver()
    driver.type("model.module_architectures.language_module.num_layers", "2048")
    state = searched(driver, "1").session.search.state
    assert state.status == "failed"
    assert state.result is None
    assert "no layout fits on 1 x NVIDIA H100" in state.sentence
    assert state.to_json()["found"] is None


def test_a_model_without_a_network_and_a_refused_layout_are_not_searched() -> None:
    sections = load_preset("llava_7b_colocated").to_mapping()
    del sections["model"]["module_architectures"]["images"]
    state = searched(Driver(sections)).session.search.state
    assert "Module 'images': it is in module_parallelisms but missing from" in state.sentence
    driver = searched(Driver())
    driver.type(LANGUAGE + "data_parallel", "x")
    searched(driver)
    state = driver.session.search.state
    assert state.sentence.startswith("The layout has 1 problem; right it first.")
    assert state.result is not None, "what was found before stays"


def test_an_error_of_the_search_itself_becomes_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(seams.SEARCH, fail)
    state = searched(Driver()).session.search.state
    assert state.sentence == "The search ended with an error: MemoryError"


def test_a_click_on_a_point_of_nothing_does_nothing() -> None:
    driver = Driver()
    draft = driver.session.draft
    driver.send("take_found", index=0)
    searched(driver)
    driver.send("take_found", index=10**6)
    driver.send("take_found", index=-1)
    assert driver.session.draft is draft


def test_the_browser_hears_of_progress_and_of_the_end() -> None:
    planner = LayoutPlanner()
    heard: list[str] = []
    planner.observe(lambda change: heard.append(change["new"]["status"]), "_search")
    planner.show("search")
    planner._on_message(None, {"type": "search", "gpus": ""}, [])
    planner._session.search.wait(SECONDS)
    assert heard[0] == "running"
    assert heard[-1] == "done"
    assert planner._search["found"]["title"].startswith(
        "llava_7b_colocated, 5.66 B parameters, 64 samples of 4,096 tokens per step, on 8 x "
    )
    planner._on_message(None, {"type": "take_found", "index": 0}, [])
    assert planner._state["search"]["loaded"] == 0
    assert planner.plan.deployment_mode == planner._search["found"]["layouts"][0]["mode"]


def test_a_pareto_view_loads_into_its_planner(result: SearchResult) -> None:
    planner = LayoutPlanner()
    before = planner.config
    view = ParetoView(result, planner)
    assert view._found == found_layouts(result)
    assert (view.picked, view._loaded) == (None, -1)
    view._on_message(None, {"type": "take_found", "index": 0}, [])
    assert view.picked is result.best
    assert planner.plan.world_size == result.best.layout.gpus
    assert planner.config.name == "llava_7b_colocated"
    assert view._loaded == 0
    planner.undo()
    assert planner.config == before
    assert view._loaded == -1
    view._on_message(None, {"type": "take_found", "index": 10**6}, [])
    view._on_message(None, {"type": "other"}, [])
    assert planner.config == before


def test_a_pareto_view_takes_a_result_alone(result: SearchResult) -> None:
    view = ParetoView(result)
    assert (view.planner, view.picked, view._loaded) == (None, None, -1)
    assert view._found == {**found_layouts(result), "verbs": ("Pick", "Picked")}
    view._on_message(None, {"type": "take_found", "index": 1}, [])
    assert view._loaded == 1
    assert view.picked is result.top(2)[1]
    assert "layouts evaluated" in view._saved.bundle()["text/html"]


def test_a_layout_of_another_model_brings_its_model_along(result: SearchResult) -> None:
    planner = LayoutPlanner("preset:three_encoders_7b_heterogeneous")
    ParetoView(result, planner)._on_message(None, {"type": "take_found", "index": 0}, [])
    assert planner.problems == ()
    assert set(planner.plan.modules) == {"images", "language_module"}
    planner.undo()
    assert len(planner.plan.modules) == 4


def test_without_a_kernel_a_pareto_view_is_a_table(result: SearchResult) -> None:
    assert "layouts evaluated" in ParetoView(result, LayoutPlanner())._saved.bundle()["text/html"]
