"""The planner at work, without a browser."""

import re
from pathlib import Path

import pytest

import mimokit
from mimokit.architecture import load_model
from mimokit.architecture.from_config import model_of_config
from mimokit.config.recipe import RecipeConfig
from mimokit.config.sizes import RECOMPUTE_FULL
from mimokit.config_files import load_experiment_config, load_preset
from mimokit.interop import layout_of_config, workload_of_config
from mimokit.prediction import predict
from mimokit_widgets import BatchSplit
from mimokit_widgets.planner.networks import published_networks
from tests.cli.call import call
from tests.large_presets import LARGE_PRESETS
from tests.rows import rows
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver


@rows("name", *LARGE_PRESETS)
def test_every_preset_opens_without_a_problem(name: str) -> None:
    driver = Driver()
    driver.send("preset", name=name)
    assert driver.sentences == []
    assert driver.plan == mimokit.plan(load_preset(name))
    assert driver.screen["fields"]["name"] == name


def test_every_edit_is_planned_at_once() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("hold", on=False)
    driver.type(LANGUAGE + "data_parallel", "4")
    assert driver.plan.world_size == 40
    driver.type(LANGUAGE + "context_parallel", "2")
    assert driver.plan.world_size == 72
    driver.type("data.base_batch_size", "16")
    assert driver.plan.batch.samples_per_microbatch == 64


def test_an_empty_data_parallel_is_worked_out() -> None:
    driver = Driver()
    driver.type(IMAGES + "data_parallel", "auto")
    driver.type(LANGUAGE + "data_parallel", "")
    assert driver.sentences[0].endswith("fill in the world size or data_parallel.")
    driver.type("world_size", "64")
    assert driver.sentences == []
    assert driver.plan.modules["images"].data_parallel == 64
    assert driver.plan.modules["language_module"].data_parallel == 8
    assert driver.screen["fields"]["modules"][0]["worked_out"] == "64"


def test_undo_and_redo_go_step_by_step() -> None:
    driver = Driver()
    first = driver.session.draft
    driver.type(IMAGES + "data_parallel", "1")
    driver.type(IMAGES + "data_parallel", "16")  # the same field: one step
    driver.send("settle")
    driver.type(LANGUAGE + "data_parallel", "2")
    last = driver.session.draft
    driver.send("undo")
    assert driver.session.draft.content["model"]["module_parallelisms"]["images"][
        "data_parallel"
    ] == 16  # fmt: skip
    driver.send("undo")
    assert driver.session.draft == first
    driver.send("undo")
    assert driver.session.draft == first
    assert not driver.screen["can_undo"]
    for _ in range(3):
        driver.send("redo")
    assert driver.session.draft == last
    driver.send("undo")
    driver.type(LANGUAGE + "data_parallel", "4")
    assert not driver.screen["can_redo"]


def test_modules_can_be_added_renamed_moved_linked_and_removed() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("add")
    assert driver.sentences == []
    assert list(driver.plan.modules) == ["images", "encoder_1", "language_module"]
    assert driver.plan.modules["encoder_1"].rank_offset == 24
    driver.send("rename", name="encoder_1", text="audio")
    driver.send("move", name="audio", by=-1)
    assert list(driver.plan.modules) == ["audio", "images", "language_module"]
    driver.send("end_to_end")
    assert [ranks.rank_offset for ranks in driver.plan.modules.values()] == [0, 1, 9]
    driver.send("feeds", name="images", target="audio", on=True)
    assert driver.sentences == []
    assert driver.plan.topology["images"] == ("language_module", "audio")
    driver.send("feeds", name="images", target="language_module", on=False)
    assert list(driver.plan.modules) == ["images", "audio", "language_module"], "as rows pass"
    driver.send("feeds", name="images", target="language_module", on=True)
    driver.send("remove", name="audio")
    driver.send("end_to_end")
    assert driver.sentences == []
    assert driver.plan == mimokit.plan("preset:llava_7b_heterogeneous")


@rows("mode", "homogeneous", "colocated", "heterogeneous")
def test_a_module_is_added_so_that_the_mode_accepts_it(mode: str) -> None:
    driver = Driver(f"preset:llava_7b_{mode}")
    driver.send("add")
    driver.send("add")
    assert driver.sentences == []
    assert len(driver.plan.modules) == 4


def test_the_mode_changes_with_the_ranks() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.type("model.deployment_mode", "heterogeneous")
    assert driver.sentences == []
    assert driver.plan.modules["language_module"].rank_offset == 8
    driver.type("model.deployment_mode", "colocated")
    assert driver.sentences == []
    assert driver.plan == mimokit.plan("preset:llava_7b_colocated")


@rows("kind", "encoder", "language")
def test_every_published_network_can_be_taken(kind: str) -> None:
    module = "images" if kind == "encoder" else "language_module"
    for published in published_networks()[kind]:
        driver = Driver()
        driver.send("network", name=module, published=published)
        network = driver.session.draft.content["model"]["module_architectures"][module]
        assert network["num_layers"] == load_model(published).net.layers
        assert network.get("num_query_groups", network["num_attention_heads"]) == (
            load_model(published).net.kv_heads
        )
        # Refused may be that the token id lies in the new vocabulary, or that TP 8 divides it not.
        about = {problem.field for problem in driver.session.problems}
        assert about.isdisjoint({"num_layers", "seq_length", "image_size", "patch_size"})


@rows("published", "llama-3-8b", "mixtral-8x7b", "deepseek-v2")
def test_a_published_network_is_taken_whole(published: str) -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type("data.vocab_size", str(load_model(published).vocab))
    driver.type("data.image_special_token_id", str(load_model(published).vocab))
    driver.type("model.special_token_ids.images", str(load_model(published).vocab))
    driver.send("network", name="language_module", published=published)
    assert driver.sentences == []
    taken = model_of_config(driver.session.valid.config.model).language
    assert taken.net == load_model(published).net
    assert taken.parameters == load_model(published).parameters


def test_what_is_saved_loads_again(tmp_path: Path) -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type(LANGUAGE + "data_parallel", "4")
    path = tmp_path / "mine.yaml"
    driver.send("save", path=str(path))
    assert driver.session.notice == f"Written to {path}."
    assert load_experiment_config(path) == driver.session.valid.config
    other = Driver()
    other.send("load", name="mine.yaml", text=path.read_text())
    assert other.plan == driver.plan


def test_a_foreign_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    driver = Driver()
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    driver.send("save", path=str(path))
    assert path.read_text() == "precious"
    assert "already" in driver.session.notice
    again = driver.session.again
    assert again is not None
    driver.send(again.pop("type"), **again)
    assert path.read_text() != "precious"
    driver.send("save", path=str(path))  # now it is ours
    assert driver.session.notice == f"Written to {path}."


@rows("name", "absent/mine.yaml", "\x00.yaml", "\ud800.yaml", "x" * 300)
def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path, name: str) -> None:
    driver = Driver()
    driver.send("save", path=f"{tmp_path}/{name}")
    assert re.search("could not be written|No file can have the name", driver.session.notice)
    assert not list(tmp_path.iterdir())


def test_a_refused_layout_is_not_saved_and_not_copied(tmp_path: Path) -> None:
    driver = Driver()
    driver.type(LANGUAGE + "tensor_parallel", "3")
    driver.send("save", path=str(tmp_path / "mine.yaml"))
    assert not (tmp_path / "mine.yaml").exists()
    assert "right them first" in driver.session.notice
    for what in ("torchrun", "yaml"):
        assert driver.send("copy", what=what) is None


def test_the_copied_command_starts_as_many_processes_as_ranks() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    reply = driver.send("copy", what="torchrun")
    assert reply is not None
    assert reply["text"] == (
        "torchrun --nnodes 3 --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500 "
        "--nproc-per-node 8 -m mimokit.experiment llava_7b_heterogeneous.yaml"
    )
    driver.type("ranks_per_node", "64")
    reply = driver.send("copy", what="torchrun")
    assert reply is not None
    assert reply["text"].startswith("torchrun --nproc-per-node 24 ")


def test_two_layouts_side_by_side_show_what_differs() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("pin")
    same = driver.screen["compare"]
    assert not any(line["differs"] for line in (*same["verdicts"], *same["lines"]))
    driver.type(LANGUAGE + "data_parallel", "4")
    lines = {line["label"]: line for line in driver.screen["compare"]["lines"]}
    assert lines["language_module: sizes"]["values"] == ("TP 4 · PP 2 · DP 2", "TP 2 · PP 2 · DP 4")
    assert lines["language_module: executed with"]["values"][1] == "SP · distributed optimizer"
    assert lines["language_module: sizes"]["differs"]
    assert not lines["images: sizes"]["differs"]
    driver.send("unpin")
    assert driver.screen["tab"] == "ranks"


def test_how_a_module_is_executed_is_edited_in_fields() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type(LANGUAGE + "recompute_granularity", "full")
    driver.type(LANGUAGE + "virtual_pipeline_model_parallel_size", "2")
    driver.send("flag", path=(LANGUAGE + "use_distributed_optimizer").split("."), on=False)
    execution = driver.plan.executions["language_module"]
    assert (execution.sizes.recompute, execution.sizes.virtual) == (RECOMPUTE_FULL, 2)
    assert not execution.sizes.distributed_optimizer
    module = driver.screen["fields"]["modules"][1]
    assert module["sizes"]["recompute_granularity"] == "full"
    assert not module["execution_flags"]["use_distributed_optimizer"]
    driver.type(LANGUAGE + "recompute_granularity", "all")
    assert not driver.screen["valid"]
    assert any("recompute_granularity" in sentence for sentence in driver.sentences)


def test_the_verdict_follows_edits_and_pins() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    seconds = driver.screen["verdict"]["lines"][0]
    assert (seconds["label"], seconds["change"]) == ("time per step", "")
    supposed = "No dense model in bf16 on this GPU was fitted."
    assert supposed in seconds["why"]
    assert supposed in driver.screen["verdict"]["supposed"]
    driver.type(LANGUAGE + "recompute_granularity", "full")
    after = driver.screen["verdict"]
    assert after["lines"][0]["change"].startswith(seconds["value"].removesuffix(" s"))
    assert after["against"] == "Compared with the layout before the last edit."
    driver.send("pin")
    assert driver.screen["verdict"]["against"] == ""  # it is the same layout
    driver.type("prediction.gpu", "none")
    assert "Nothing is predicted" in driver.screen["verdict"]["sentence"]
    driver.send("undo")
    driver.type(LANGUAGE + "num_distributed_optimizer_instances", "x")
    assert not driver.screen["valid"]
    assert driver.screen["verdict"]["lines"][0]["value"]


def test_the_same_figures_decide_wherever_a_layout_is_shown(tmp_path: Path) -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.type("prediction.price_per_gpu_hour", "2.5")
    driver.send("search", gpus="8")
    driver.session.search.wait(180)
    driver.send("take_found", index=0)
    driver.send("pin")
    strip = driver.screen["verdict"]["lines"]
    keys = ["seconds", "tokens", "memory", "idle", "dollars"]
    assert [line["key"] for line in strip] == keys
    told = {line["label"]: line["value"] for line in strip}
    compared = driver.screen["compare"]["verdicts"]
    assert {line["label"]: line["values"][0] for line in compared} == told
    notes = {line["key"]: line["note"] for line in strip if line["note"]}
    assert notes.keys() == {"seconds", "memory"}
    assert [line["notes"][0] for line in compared if line["notes"][0]] == list(notes.values())
    (memory,) = [line for line in compared if line["bars"]]
    assert list(map(list, memory["bars"][0])) == driver.screen["verdict"]["bar"]
    assert memory["bad"] == (False, False)
    found = driver.session.search.state.to_json()["found"]
    headings = {label: found["layouts"][0]["texts"][key] for key, label in found["figures"]}
    assert headings.items() >= told.items()
    assert (found["layouts"][0]["notes"], found["layouts"][0]["fits"]) == (notes, True)
    file = driver.session.save(tmp_path / "found.yaml")
    printed = call("predict", file, columns=200).stdout
    assert all(text in printed for pair in told.items() for text in pair)
    driver.type("data.base_batch_size", "8192")
    memory = next(line for line in driver.screen["compare"]["verdicts"] if line["bars"])
    assert memory["bad"] == (True, True)
    assert memory["notes"][1].endswith(": does not fit")
    _, _, held = printed.partition("Memory of the fullest rank of each module")
    assert all(name in held for name in driver.plan.modules)


def test_pinned_layouts_follow_the_batch_and_the_model() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("hold", on=False)
    driver.send("pin")
    driver.type(LANGUAGE + "data_parallel", "4")
    driver.send("pin")
    driver.send("pin")  # the same again is no other layout
    driver.type(LANGUAGE + "data_parallel", "8")
    driver.type("data.num_microbatches", "3")
    compared = driver.screen["compare"]
    lines = {line["label"]: line["values"] for line in compared["lines"]}
    assert lines["samples per step"] == ("96", "96", "96")
    verdict = {line["label"]: line["values"] for line in compared["verdicts"]}
    assert "%" not in "".join(verdict["tokens/s per GPU"])  # they have more GPUs
    driver.send("unpin", place=0)
    assert len(driver.screen["compare"]["names"]) == 2
    driver.send("undo")
    values = {line["label"]: line["values"] for line in driver.screen["compare"]["lines"]}
    assert values["samples per step"] == ("256", "256")


def test_tabs_of_what_a_plan_lacks_are_absent() -> None:
    colocated = [tab["name"] for tab in Driver().screen["tabs"]]
    assert colocated == ["ranks", "batch", "traffic", "samples", "prediction", "search"]
    apart = Driver("preset:llava_7b_heterogeneous")
    assert [tab["name"] for tab in apart.screen["tabs"]] == colocated
    videos = Driver("preset:digits_videos")
    assert "frames" in [tab["name"] for tab in videos.screen["tabs"]]
    apart.send("tab", name="prediction")
    assert "1F1B over 4 stages" in apart.screen["prediction"]["order"]
    together = Driver()
    together.send("tab", name="prediction")
    assert "order" not in together.screen["prediction"]


def test_a_rank_and_a_sample_beyond_a_smaller_layout_are_let_go() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("select", rank=23)
    driver.send("sample", sample=7, backward=True)
    assert driver.screen["details"]["rank"] == 23
    driver.send("preset", name="llava_7b_colocated")
    assert driver.session.selected is None
    driver.send("tab", name="batch")
    assert driver.screen["walk"]["sample"] == 7
    driver.type("data.base_batch_size", "8")
    assert driver.screen["walk"]["backward"] is True


def test_every_number_has_a_formula_that_ends_in_it() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    figures = {figure["key"]: figure for figure in driver.screen["figures"]}
    assert figures["world"]["formula"].endswith("= 24")
    assert "rejected" not in figures
    assert figures["samples_per_microbatch"]["formula"] == (
        "base_batch_size 4 × DP 2 of language_module = 8"
    )
    assert figures["tokens"]["value"] == "262,144"
    driver.type("runtime.precision", "nvfp4")
    rejected = {figure["key"]: figure for figure in driver.screen["figures"]}["rejected"]
    assert (rejected["label"], rejected["value"]) == ("fields that `mimokit run` rejects", "1")
    assert "precision" in rejected["formula"]
    colocated = Driver()
    figures = {figure["key"]: figure for figure in colocated.screen["figures"]}
    moved = colocated.plan.bridges[0].bytes_forward
    formula = figures["bridge.images.language_module.forward"]["formula"]
    assert formula.endswith(f"= {moved:,} B. Per micro-batch.")
    numbers = formula.split(" = ")[0]
    left = numbers.replace("(8 − 1) pieces from the others", "7").replace(",", "")
    product = 1
    for factor in left.split(" × "):
        product *= int(factor.split()[0])
    assert product == moved


@rows("mode", "homogeneous", "colocated", "heterogeneous")
def test_nothing_flows_back_to_a_frozen_encoder(mode: str) -> None:
    driver = Driver(f"preset:llava_7b_{mode}")
    driver.send("tab", name="batch")
    driver.send("sample", sample=3, backward=True)
    trained = driver.screen["walk"]["steps"]
    assert trained[-1].startswith("images computes its gradient")
    driver.send("flag", path=["model", "module_architectures", "images", "frozen"], on=True)
    steps = driver.screen["walk"]["steps"]
    assert steps[0] == trained[0]
    assert steps[1:] == ["no gradient crosses: nothing in images or before it is trained"]
    view = BatchSplit(driver.session.valid.config, sample=3, backward=True)
    assert view._looked_at["steps"] == steps


def test_a_frozen_module_is_said_and_followed() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    path = ["model", "module_architectures", "images", "frozen"]
    driver.send("flag", path=path, on=True)
    assert driver.sentences == []
    assert driver.session.valid.config.model.frozen_modules == {"images"}
    assert driver.screen["fields"]["modules"][0]["flags"]["frozen"]
    assert not any(bridge.backward.transfers for bridge in driver.plan.disjoint_bridges)
    driver.send("tab", name="batch")
    driver.send("sample", sample=0, backward=True)
    steps = driver.screen["walk"]["steps"]
    assert steps[-1] == "no gradient crosses: nothing in images or before it is trained"
    driver.send(
        "flag", path=["model", "module_architectures", "language_module", "frozen"], on=True
    )
    assert "every module is frozen" in driver.sentences[0]


def test_what_the_data_section_says_of_a_module_follows_its_name() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type("data.modality_seq_lengths.images", "640")
    driver.send("rename", name="images", text="eyes")
    assert driver.sentences == []
    assert driver.session.valid.config.data.modality_seq_lengths == {"eyes": 640}
    driver.type("data.modality_seq_lengths.eyes", "0")
    assert driver.session.field_errors[0].path == ("data", "modality_seq_lengths", "eyes")
    driver.send("undo")
    driver.send("remove", name="eyes")
    assert "eyes" not in str(driver.session.draft.content)


@rows("name", *LARGE_PRESETS)
def test_memory_and_time_are_those_that_the_predictor_gives(name: str) -> None:
    driver = Driver(f"preset:{name}")
    driver.send("tab", name="prediction")
    driver.send("gpu", name="b200")
    shown = driver.screen["prediction"]
    config = load_preset(name).model_copy()
    config.model.finalize()
    found = predict(
        model_of_config(config.model), layout_of_config(config), workload_of_config(config), "b200"
    )
    assert shown["sentence"].startswith(f"step {found.seconds:.3g} s (")
    assert sum(part["share"] for part in shown["step"]) == pytest.approx(1, abs=0.02)
    for module in shown["memory"]:
        total = sum(found.memory[module["module"]].values())
        assert module["share"] == pytest.approx(total / found.capacity)
        assert sum(part["share"] for part in module["parts"]) == pytest.approx(module["share"])


def test_memory_and_time_follow_an_edit_and_an_unknown_gpu_changes_nothing() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("tab", name="prediction")
    before = driver.screen["prediction"]
    driver.send("gpu", name="abacus")
    assert driver.screen["prediction"] == before
    driver.type("world_size", "40")
    driver.type(LANGUAGE + "data_parallel", "")  # the world says it
    after = driver.screen["prediction"]
    assert driver.plan.modules["language_module"].data_parallel == 4
    assert after["sentence"] != before["sentence"]
    assert "GiB: fits" in after["sentence"]
    driver.type("data.base_batch_size", "512")
    assert not driver.screen["prediction"]["fits"]


def test_the_work_of_modules_is_a_table_and_a_recipe_changes_it() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.send("tab", name="prediction")
    work = {each["module"]: each["rows"] for each in driver.screen["prediction"]["work"]}
    assert set(work) == set(driver.plan.modules)
    explained = predict("preset:llava_7b_colocated").explain()
    for name, shares in work.items():
        shown = [row for row in explained.of(name) if row.seconds or row.hidden]
        assert [row["rates"] for row in shares] == [row.sum_text for row in shown]
        assert [row["assumed"] for row in shares] == [row.assumed for row in shown]
    tensor = next(row for row in work["language_module"] if "tensor parallelism" in row["what"])
    assert "ranks, " in tensor["what"]
    assert tensor["bytes"]
    assert tensor["launches"]
    assert any(row["what"].startswith("waits for launches") for row in work["images"])
    driver.type("runtime.recipe.graphs", "full")
    assert driver.session.resolved is not None
    assert driver.session.resolved.runtime.recipe == RecipeConfig(graphs="full")
    captured = {each["module"]: each["rows"] for each in driver.screen["prediction"]["work"]}
    assert not any(row["what"].startswith("waits for launches") for row in captured["images"])
    assert "graphs" not in driver.screen["verdict"]["supposed"]
    driver.type("runtime.recipe.graphs", "")
    assert "graphs" in driver.screen["verdict"]["supposed"]
