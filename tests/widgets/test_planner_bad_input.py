"""What a user gets wrong in the planner: one sentence, the field marked, a button where known."""

import time
from typing import Any

from mimokit.config_files import load_preset
from mimokit_widgets.planner.inputs import inputs
from mimokit_widgets.planner.limits import MOST_CHARACTERS, MOST_MODULES, MOST_RANKS
from tests.rows import rows
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver


@rows(
    "text, said",
    ("abc", "tensor_parallel is the text 'abc'; write a whole number"),
    ("2.5", "tensor_parallel is the text '2.5'; write a whole number"),
    ("1e3", "tensor_parallel is the text '1e3'; write a whole number"),
    ("0", "tensor_parallel is 0; it must be at least 1"),
    ("-4", "tensor_parallel is -4; it must be at least 1"),
    ("9" * 24, "tensor_parallel is a number of 24 digits"),
    ("9" * 5000, "tensor_parallel is the text '999"),
)
def test_a_wrong_number_is_marked_and_the_last_plan_stays(text: str, said: str) -> None:
    driver = Driver()
    before = driver.plan
    driver.type(LANGUAGE + "tensor_parallel", text)
    assert driver.plan is before
    (error,) = driver.session.field_errors
    assert said in error.sentence
    assert len(error.sentence) < 200
    assert ".".join(error.path) == LANGUAGE + "tensor_parallel"
    state = driver.screen
    assert not state["valid"]
    assert state["headline"].startswith("colocated on 8 ranks")
    assert state["ranks"]["world"] == 8
    driver.click_fix(error.label)
    assert driver.session.problems == ()
    assert driver.plan.modules["language_module"].tensor_parallel == 8


@rows(
    "path, text, label",
    (LANGUAGE + "data_parallel", "3", "DP 3 → 4"),
    (LANGUAGE + "rank_offset", "6", "offset 6 → 8"),
    (LANGUAGE + "rank_offset", "10", "offset 10 → 8"),
    (LANGUAGE + "tensor_parallel", "3", "TP 3 → 4"),
    (LANGUAGE + "pipeline_parallel", "5", "PP 5 → 4"),
    ("data.num_microbatches", "10000000", "micro-batches 10,000,000 → 1,024"),
    ("ranks_per_node", "0", "ranks per node 0 → 8"),
    ("ranks_per_node", "many", "ranks per node many → 8"),
    ("world_size", "100000000000", "world size 100,000,000,0… → auto"),
    ("world_size", "all", "world size all → auto"),
)
def test_one_click_rights_it(path: str, text: str, label: str) -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type(path, text)
    assert not driver.screen["valid"]
    driver.click_fix(label)
    assert driver.sentences == []
    assert driver.screen["valid"]


def every_field() -> list[str]:
    sent = inputs()
    of_sizes = [LANGUAGE + each["key"] for name in ("sizes", "execution") for each in sent[name]]
    network = "model.module_architectures.images."
    return [
        *of_sizes,
        *(network + each["key"] for each in sent["network"]),
        *("data." + each["key"] for each in sent["data"]),
        *(".".join(each["path"]) for each in sent["training"]),
        "model.special_token_ids.images",
        "data.modality_seq_lengths.images",
        "prediction.price_per_gpu_hour",
        "world_size",
        "ranks_per_node",
    ]


@rows("text", "abc", "-1", "1.5x", "9" * 30)
def test_what_cannot_be_is_a_sentence_in_every_field(text: str) -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    for path in every_field():
        before = driver.plan
        driver.type(path, text)
        state = driver.screen
        if (
            state["valid"] and path == "runtime.precision"
        ):  # of an unknown name: it is planned, and not predicted
            assert "Nothing is predicted" in state["verdict"]["sentence"]
        elif state["valid"]:
            assert (path, text) == ("prediction.price_per_gpu_hour", "9" * 30)
        else:
            assert driver.plan is before, path
            whose = "strategy" if path.startswith("strategy") else path.rpartition(".")[2]
            named = (whose, whose.replace("_", " "))
            told = [sentence for sentence in driver.sentences if any(n in sentence for n in named)]
            assert told, (path, driver.sentences)
            assert all(len(sentence) < 400 for sentence in driver.sentences), path
        driver.send("undo")
        assert driver.sentences == [], path


def test_a_fix_that_is_offered_no_more_does_nothing() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type(LANGUAGE + "data_parallel", "3")
    draft = driver.session.draft
    stale = {"path": "model.module_parallelisms.images.data_parallel", "value": 9}
    driver.send("fix", fixes=[stale])
    driver.send("fix", fixes=[])
    assert driver.session.draft is draft


def test_no_network_is_bent_to_suit_a_size_that_was_just_typed() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type(LANGUAGE + "tensor_parallel", "3")
    assert [label for label in driver.labels if label] == ["TP 3 → 4"]
    assert any("num_attention_heads is 32" in sentence for sentence in driver.sentences)


def test_ten_thousand_modules_are_refused_at_once() -> None:
    modules = "".join(f"    m{n}: {{tensor_parallel: 1}}\n" for n in range(10_000))
    driver = Driver()
    before = driver.session.draft
    began = time.process_time()
    driver.send("load", name="pasted.yaml", text="model:\n  module_parallelisms:\n" + modules)
    assert time.process_time() - began < 5
    assert driver.session.draft is before
    assert str(MOST_CHARACTERS // 1000) in driver.session.notice
    assert "characters" in driver.session.notice


def test_too_many_modules_in_a_small_file_are_refused() -> None:
    modules = "".join(f"    m{n}: {{}}\n" for n in range(MOST_MODULES + 1))
    driver = Driver()
    before = driver.session.draft
    driver.send("load", name="pasted.yaml", text="model:\n  module_parallelisms:\n" + modules)
    assert driver.session.draft is before
    assert driver.session.notice == (
        "File 'pasted.yaml': module_parallelisms has 65 modules; the planner shows at most 64."
    )


def test_too_many_modules_from_code_are_one_sentence() -> None:
    sizes = {f"m{n}": {} for n in range(10_000)}
    driver = Driver({"model": {"module_parallelisms": sizes}})
    assert driver.sentences == [
        "Section 'model': module_parallelisms has 10,000 modules; the planner shows at most 64."
    ]
    assert len(driver.screen["fields"]["modules"]) == MOST_MODULES


def test_a_yaml_with_unknown_keys_names_each_and_can_drop_them() -> None:
    text = load_preset("llava_7b_colocated").to_yaml()
    text = text.replace("  base_batch_size:", "  base_batchsize: 3\n  base_batch_size:")
    text += "\ncolour: blue\n"
    driver = Driver()
    driver.send("load", name="mine.yaml", text=text)
    assert len(driver.sentences) == 2
    assert any("unknown key base_batchsize" in sentence for sentence in driver.sentences)
    assert any("unknown key colour" in sentence for sentence in driver.sentences)
    driver.click_fix("Remove base_batchsize")
    driver.click_fix("Remove colour")
    assert driver.sentences == []


@rows(
    "text, said",
    ("model: [1, 2\n", "mine.yaml"),
    ("just words", "mine.yaml"),
    ("", "mine.yaml"),
    ("\x00\x01", "mine.yaml"),
)
def test_what_is_no_yaml_leaves_everything_as_it_was(text: str, said: str) -> None:
    driver = Driver()
    before = driver.session.draft
    driver.send("load", name="mine.yaml", text=text)
    assert driver.session.draft is before
    assert said in driver.session.notice
    assert driver.sentences == []


def test_a_yaml_that_extends_another_says_so() -> None:
    driver = Driver()
    lines = load_preset("llava_7b_colocated").to_yaml().splitlines()
    own = [line for line in lines if not line.startswith("extends")]
    text = "\n".join(["extends: elsewhere.yaml", *own])
    driver.send("load", name="mine.yaml", text=text)
    assert "extends elsewhere.yaml" in driver.session.notice


@rows(
    "content",
    {},
    {"model": 3},
    {"model": {"module_parallelisms": 7}},
    {"model": {"module_parallelisms": {"a": 1}}},
    {"model": {"module_parallelisms": {"a": {"tensor_parallel": []}}}, "data": []},
    {"model": {"topology": {"a": "b"}, "module_parallelisms": {"a": {}, 3: {}}}},
    {"model": {"module_architectures": [], "special_token_ids": 1, "topology": []}},
)
def test_a_config_that_is_hardly_one_is_shown_and_can_be_edited(content: dict[str, Any]) -> None:
    driver = Driver(content)
    assert driver.sentences
    assert not driver.screen["valid"]
    assert driver.screen["tabs"] == []
    driver.send("add")
    driver.type("data.base_batch_size", "4")
    driver.send("move", name="encoder_1", by=-1)
    driver.send("rename", name="encoder_1", text="eyes")
    driver.send("network", name="eyes", published="clip-vit-l-14-336")
    driver.send("feeds", name="eyes", target="nobody", on=True)
    driver.send("end_to_end")
    driver.send("remove", name="eyes")
    for mode in ("homogeneous", "colocated", "heterogeneous", "nonsense", ""):
        driver.type("model.deployment_mode", mode)
        assert driver.screen["fields"]["mode"] in (mode, "")
    driver.send("preset", name="llava_7b_homogeneous")
    assert driver.sentences == []


@rows("name", "", "two words", "ä", "a/b", "images")
def test_a_name_that_is_none_or_taken_is_refused(name: str) -> None:
    driver = Driver()
    before = driver.session.draft
    driver.send("rename", name="language_module", text=name)
    assert driver.session.draft is before
    assert "language_module" in driver.session.notice


def test_more_ranks_than_can_be_drawn_are_refused_beside_the_field() -> None:
    driver = Driver()
    driver.type(IMAGES + "data_parallel", str(MOST_RANKS * 2))
    assert driver.session.field_errors[0].path[-1] == "data_parallel"
    assert "the planner takes at most 131,072 ranks" in driver.sentences[0]


def test_an_unknown_message_and_a_rank_that_is_none_do_nothing() -> None:
    driver = Driver()
    assert driver.send("explode") is None
    for rank in (-1, 8, 10**9):
        driver.send("select", rank=rank)
        assert driver.session.selected is None


def test_a_file_with_a_sweep_shows_the_layout_that_it_varies() -> None:
    text = load_preset("llava_7b_colocated").to_yaml() + "sweep: {runtime.seed: [1, 2]}\n"
    driver = Driver()
    driver.send("load", name="grid.yaml", text=text)
    assert driver.sentences == []
    assert driver.session.notice == (
        "File 'grid.yaml': it has a sweep; the planner shows the layout that it varies."
    )
