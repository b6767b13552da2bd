"""What follows from a draft: a config, its plan and its frames, or what is wrong."""

import warnings
from dataclasses import dataclass
from typing import Any

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig, Problem
from mimokit.config_files import config_from_mapping
from mimokit.planning.frames.batch_frames import batch_frames
from mimokit.planning.layout import plan_checked
from mimokit.planning.report import PlannedLayout
from mimokit.planning.types import LayoutPlan
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.limits import limit_problems
from mimokit_widgets.view_models.frame_question import FrameQuestion


@dataclass(frozen=True)
class ValidLayout:
    """A config and its plan.

    Attributes:
        notes: what is allowed and still worth knowing.
    """

    config: ExperimentConfig
    plan: PlannedLayout
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DraftOutcome:
    """The result of planning a draft: a layout, or why it is rejected."""

    layout: ValidLayout | None
    problems: tuple[Problem, ...] = ()


def evaluate(draft: Draft) -> DraftOutcome:
    """Plan a draft; never raises for what a user wrote."""
    beyond = tuple(limit_problems(draft))
    if beyond:
        return DraftOutcome(None, beyond)
    world: Any = draft.world_size  # whatever was typed; checked with the rest
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = config_from_mapping(draft.content, world_size=world)
            plan = PlannedLayout.of(plan_checked(config, world))
    except ConfigError as error:
        return DraftOutcome(None, error.problems)
    except ValueError as error:  # a plan that cannot be made of sizes that pass every check
        sentence = " ".join(str(error).split()).rstrip(".") + "."
        return DraftOutcome(None, (Problem("model", "layout", None, sentence),))
    notes = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return DraftOutcome(ValidLayout(config, plan, notes))


def resolved_config(config: ExperimentConfig, plan: LayoutPlan) -> ExperimentConfig:
    """Return a config with every data_parallel filled in, as its plan has it."""
    sizes = {
        name: sizes.model_copy(update={"data_parallel": plan.modules[name].data_parallel})
        for name, sizes in config.model.module_parallelisms.items()
    }
    model = config.model.model_copy(update={"module_parallelisms": sizes})
    return config.model_copy(update={"model": model})


def frame_question(
    config: ExperimentConfig, plan: LayoutPlan, supposed: PredictionConfig
) -> FrameQuestion | None:
    """Return the frames of a layout with their estimated times; None if its config says nothing
    about any, or they are more than can be counted one by one.

    They are those of the first vision encoder about whose frames the config says something.

    Args:
        supposed: the GPU and the software.
    """
    # The predictor is slow to import, so it is imported when the tab is first opened.
    from mimokit.prediction.frames import timed

    batches = batch_frames(config, plan)
    if not batches:
        return None
    whole = resolved_config(config, plan).model_copy(update={"prediction": supposed})
    return FrameQuestion.of(timed(whole, plan, batches[:1])[0])
