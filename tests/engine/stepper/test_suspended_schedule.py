"""The lines that a debugger shows before they run."""

from mimokit.engine.stepper.suspended_schedule import code_to_come
from mimokit.engine.steps import Step
from mimokit.step_kinds import StepKind


def _add() -> int:
    return 1 + 1


def _schedule():
    yield Step(StepKind.LOAD, "images", 0)
    number = 1
    yield Step(StepKind.FORWARD, "images", 0, _add)
    return number + _add()


def test_the_lines_are_those_up_to_the_next_step_or_of_the_function_that_runs():
    schedule = _schedule()
    place, *lines = code_to_come(schedule, next(schedule)).splitlines()
    assert place.startswith("test_suspended_schedule.py:")
    assert lines == ["number = 1"]
    place, *lines = code_to_come(schedule, next(schedule)).splitlines()
    assert lines == ["return 1 + 1"]
    assert next(schedule, None) is None
    assert code_to_come(schedule, None) == ""
