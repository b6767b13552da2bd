"""What follows from a draft: a config and its plan, or what is wrong."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config_files import config_from_mapping
from mimokit.planning.layout import plan as plan_of
from mimokit.planning.types import LayoutPlan
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.limits import limit_problems


@dataclass(frozen=True)
class DraftOutcome:
    """The result of planning a draft.

    Attributes:
        config: the config, None if the draft is rejected.
        plan: its plan, None likewise.
        problems: why it is rejected; empty for a valid draft.
        notes: what is allowed and still worth knowing.
    """

    config: ExperimentConfig | None
    plan: LayoutPlan | None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def evaluate(draft: Draft) -> DraftOutcome:
    """Plan a draft; never raises for what a user wrote."""
    beyond = tuple(limit_problems(draft))
    if beyond:
        return DraftOutcome(None, None, beyond)
    world: Any = draft.world_size  # whatever was typed; checked with the rest
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = config_from_mapping(draft.content, world_size=world)
            plan = plan_of(config, world)
    except ConfigError as error:
        return DraftOutcome(None, None, error.problems)
    except ValueError as error:  # a plan that cannot be made of sizes that pass every check
        sentence = " ".join(str(error).split()).rstrip(".") + "."
        return DraftOutcome(None, None, (Problem("model", "layout", None, sentence),))
    notes = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return DraftOutcome(config, plan, (), notes)


def resolved_config(config: ExperimentConfig, plan: LayoutPlan) -> ExperimentConfig:
    """Return a config with every data_parallel filled in, as its plan has it."""
    sizes = {
        name: own.model_copy(update={"data_parallel": plan.modules[name].data_parallel})
        for name, own in config.model.module_parallelisms.items()
    }
    model = config.model.model_copy(update={"module_parallelisms": sizes})
    return config.model_copy(update={"model": model})
