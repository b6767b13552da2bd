"""What the planner's picture of frames begins with."""

from __future__ import annotations

from mimokit.config import ExperimentConfig, PredictionConfig
from mimokit.planning.frames.batch_frames import batch_frames, encoder_frames, vision_encoders
from mimokit.planning.types import LayoutPlan
from mimokit_widgets.planner.outcome import resolved_config
from mimokit_widgets.view_models.frame_question import FrameQuestion


def frame_question(
    config: ExperimentConfig, plan: LayoutPlan, supposed: PredictionConfig
) -> FrameQuestion | None:
    """Return the frames of a layout with their estimated times; None if it encodes no images.

    They are those of the first vision encoder about whose frames the config says something, else
    of the first one, with as many frames in every sample as its tokens have room for.

    Args:
        supposed: the GPU and the software.
    """
    # The predictor is slow to import, so it is imported when the tab is first opened.
    from mimokit.prediction.frames import timed

    encoders = vision_encoders(config)
    if not encoders:
        return None
    batches = batch_frames(config, plan) or (encoder_frames(config, plan, encoders[0]),)
    whole = resolved_config(config, plan).model_copy(update={"prediction": supposed})
    return FrameQuestion.of(timed(whole, plan, batches[:1])[0])
