"""How long a run is, what it measures and how it steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mimokit.config.base import ConfigModel, Name

PipelineSchedule = Literal["homogeneous", "colocated", "three_phase", "1f1b"]
DeploymentMode = Literal["homogeneous", "colocated", "heterogeneous"]

THREE_PHASE: PipelineSchedule = "three_phase"
"""Encoders forward over all micro-batches of a step, the language model's pipeline, encoders
backward (arXiv 2605.27678; Megatron-LM's pull request 4784): it is planned, not run yet."""

MODE_OF_SCHEDULE: dict[PipelineSchedule, DeploymentMode] = {
    "homogeneous": "homogeneous",
    "colocated": "colocated",
    THREE_PHASE: "colocated",
    "1f1b": "heterogeneous",
}
SCHEDULE_OF_MODE: dict[DeploymentMode, PipelineSchedule] = {
    "homogeneous": "homogeneous",
    "colocated": "colocated",
    "heterogeneous": "1f1b",
}
"""The one that a mode has where nobody says another."""

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class RuntimeConfig(ConfigModel):
    """One run.

    Attributes:
        num_iterations: optimizer steps.
        warmup_iterations: first steps that averages leave out.
        log_interval: steps between two log lines.
        enable_performance_monitoring: time the phases and write metrics.
        pipeline_schedule: None: the one of the model's deployment mode. In colocated mode
            `three_phase` lets the language model have a pipeline, which `colocated` does not.
        enable_profiling: profile the steps [profile_start_step, profile_end_step).
        use_pytorch_profiler: with torch's own profiler.
        metrics_output_dir: folder for the metrics, or None for no files.
        tensorboard_dir: folder for TensorBoard files, or None for none.
        learning_rate: of AdamW.
        learning_rate_warmup: first steps, over which the learning rate rises to its value.
        learning_rate_decay: last steps, over which it falls towards 0.
        weight_decay: of AdamW.
        adam_epsilon: of AdamW.
        clip_grad: largest global gradient norm; 0 clips nothing.
        seed: of weights and data.
        precision: of matrix products: bf16, fp8, mxfp8, nvfp4, … None: predictions take bf16, runs
            here fp32, the only one that they have yet.
    """

    num_iterations: Positive = 10
    warmup_iterations: NotNegative = 0
    log_interval: Positive = 1
    enable_performance_monitoring: bool = True
    pipeline_schedule: PipelineSchedule | None = None
    enable_profiling: bool = False
    use_pytorch_profiler: bool = False
    profile_start_step: NotNegative = 3
    profile_end_step: NotNegative = 8
    metrics_output_dir: str | None = None
    tensorboard_dir: str | None = None
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    learning_rate_warmup: NotNegative = 0
    learning_rate_decay: NotNegative = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    seed: NotNegative = 1234
    precision: Name | None = None
