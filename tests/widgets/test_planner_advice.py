"""The what-if at a field and the steps away say what an edit would show."""

import pytest

from mimokit.prediction.verdict import Verdict
from mimokit_widgets.planner.advice import advice_of, choices_of
from tests import seams
from tests.large_presets import LARGE_PRESETS
from tests.rows import rows
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver

TENSOR = tuple(f"{LANGUAGE}tensor_parallel".split("."))


def tokens(driver: Driver) -> float:
    assert driver.session.valid_draft is not None
    verdict = driver.session.verdicts.verdict_of(driver.session.valid_draft)
    assert isinstance(verdict, Verdict)
    return verdict.tokens_per_gpu


def check_choices(source: str, field: str) -> int:
    """Take each value of a field in a new planner and compare what it shows; return how many."""
    path = tuple(f"{LANGUAGE}{field}".split("."))
    choices = choices_of(Driver(source).session, path)
    before = tokens(Driver(source))
    for choice in choices:
        driver = Driver(source)
        world, step = driver.plan.world_size, driver.plan.batch.global_batch_size
        driver.type(".".join(path), choice.value)
        assert driver.sentences == []
        assert (driver.plan.world_size, driver.plan.batch.global_batch_size) == (world, step)
        gain = 100 * (tokens(driver) / before - 1)
        told = float(choice.change.removesuffix(" %").replace("−", "-")) if choice.change else 0.0
        assert told == pytest.approx(gain, abs=0.51)
        shown = driver.screen["verdict"]
        memory = next(line for line in shown["lines"] if line["key"] == "memory")
        assert (memory["value"], shown["fits"]) == (choice.memory, choice.fits)
    return len(choices)


@rows("name", *LARGE_PRESETS)
def test_a_value_comes_to_what_an_edit_shows(name: str) -> None:
    found = [
        check_choices(f"preset:{name}", field)
        for field in ("tensor_parallel", "pipeline_parallel", "data_parallel")
    ]
    assert min(found) >= 1


def test_a_value_that_changes_the_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: no other size gives way."""
    monkeypatch.setattr(seams.KEPT_WITH, lambda _, draft, path: draft)
    with pytest.raises(AssertionError):
        check_choices("preset:llava_7b_heterogeneous", "tensor_parallel")


def test_the_front_question_is_answered() -> None:
    """TP 8 to 4 on these 8 GPUs."""
    driver = Driver()
    choices = {choice.value: choice for choice in choices_of(driver.session, TENSOR)}
    assert list(choices) == ["1", "2", "4", "8"]
    assert (choices["8"].shown, choices["8"].change) == (True, "")
    assert (choices["4"].change, choices["4"].memory) == ("+11 %", "31.9 GiB")
    assert choices["4"].besides == "DP 1 → 2 and micro-batch size 8 → 4"


def test_a_fix_says_what_it_comes_to() -> None:
    driver = Driver()
    driver.send("hold", on=False)
    driver.type(LANGUAGE + "tensor_parallel", "4")
    results = {each["label"]: each["result"] for each in driver.screen["problems"]}
    assert results["DP 2, keeps 8 ranks"] == "+11 %"
    driver.click_fix("DP 2, keeps 8 ranks")
    assert "(+11 %)" in driver.screen["verdict"]["lines"][1]["change"]


def test_other_work_is_named_instead_of_compared() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("hold", on=False)
    other = [choice for choice in choices_of(driver.session, TENSOR) if not choice.shown]
    assert other
    assert all("GPU" in choice.besides and not choice.change for choice in other)


def test_steps_away_are_those_of_a_search() -> None:
    driver = Driver()
    why = advice_of(driver.session, ())["why"]
    assert why[0].startswith("One step away and faster: TP4 instead of TP8 with 4 micro-batches")
    driver.type(LANGUAGE + "tensor_parallel", "5")
    assert advice_of(driver.session, TENSOR)["why"] == []  # of a layout that is not shown


def test_fields_without_values_have_none() -> None:
    driver = Driver()
    for path in (
        "data.seq_length",
        IMAGES + "rank_offset",
        "model.module_parallelisms.gone.tensor_parallel",
        "",
    ):
        assert choices_of(driver.session, tuple(path.split("."))) == []
