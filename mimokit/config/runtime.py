"""How long a run is, what it measures and how it steps."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mimokit.config.base import ConfigModel, Name, NotNegative, Positive
from mimokit.config.recipe import RecipeConfig

PipelineSchedule = Literal["homogeneous", "colocated", "three_phase", "1f1b"]
DeploymentMode = Literal["homogeneous", "colocated", "heterogeneous"]

THREE_PHASE: PipelineSchedule = "three_phase"
"""Encoders forward over all micro-batches of a step, the language model's pipeline, encoders
backward (arXiv 2605.27678; Megatron-LM's pull request 4784)."""

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
"""Default schedule of each deployment mode."""

PipelineOrder = Literal["1f1b", "gpipe", "zb-h1"]
GPIPE: PipelineOrder = "gpipe"
ZERO_BUBBLE: PipelineOrder = "zb-h1"

LoggerName = Literal["tensorboard", "wandb", "mlflow"]
TENSORBOARD: LoggerName = "tensorboard"

PRECISION_OF_RUNS = "fp32"
"""What a `precision` that is left out (None) means."""

FP8 = "fp8"
"""Products of layers in 8 bits with one scale for a matrix; all else in bf16."""

BLOCK_SCALED = ("mxfp8", "nvfp4")
"""Those with a scale for each block of a matrix, which GPUs from Blackwell on multiply."""

MEASURED_PRECISIONS = ("fp32", "bf16", "fp16")
"""Those that `calibrate` measures."""

RUNNABLE_PRECISIONS = (*MEASURED_PRECISIONS, FP8)
"""Those that runs support on every device."""

TF32 = "tf32"
"""What GPUs alone compute in: fp32 numbers, of which products take fewer bits."""

PatchName = Literal["vit_frame_parallel"]
FRAME_PARALLEL: PatchName = "vit_frame_parallel"

SampleOrder = Literal["as_drawn", "balanced"]
AS_DRAWN: SampleOrder = "as_drawn"
BALANCED: SampleOrder = "balanced"


class ValidationConfig(ConfigModel):
    """The loss on held-out samples during a run, which is the column validation_loss."""

    interval: Positive
    """Iterations between two validations."""

    samples: Positive = 256
    """Held-out samples, the same ones in every validation and every layout."""

    def due(self, iteration: int) -> bool:
        """Tell whether to validate after an iteration (0-based)."""
        return (iteration + 1) % self.interval == 0


class CheckpointConfig(ConfigModel):
    """Saved training state, from which a run goes on under any layout. See docs/checkpoints.md."""

    interval: Positive = 100
    """Optimizer steps between two checkpoints; there is one after the last step as well."""

    keep: Positive = 2
    """Checkpoints that are kept, the newest ones."""

    directory: str | None = None
    """Folder of the checkpoints, on a file system that all ranks share. None: the folder
    `checkpoints` of the run's results."""


class RuntimeConfig(ConfigModel):
    """One run."""

    num_iterations: Positive = 10
    """Optimizer steps."""

    warmup_iterations: NotNegative = 0
    """First steps, which averages exclude."""

    log_interval: Positive = 1
    """Steps between two log lines."""

    enable_performance_monitoring: bool = True
    """Time the phases and write metrics."""

    pipeline_schedule: PipelineSchedule | None = None
    """None: the schedule of the deployment mode. In colocated mode `three_phase` allows pipeline
    parallelism in the language model, `colocated` does not."""

    pipeline_order: PipelineOrder | None = None
    """What the stages of a pipeline do with the micro-batches of a step. 1f1b: a forward and a
    backward in turn, and of stages with several chunks in Megatron's interleaved order. gpipe: all
    forwards, then all backwards. zb-h1: 1f1b whose gradients of weights are computed apart and
    later, so that stages wait less at the end; not with several chunks. None: 1f1b."""

    encoder_microbatches: Positive | None = None
    """Micro-batches for which a colocated encoder computes forward before the language model works
    on them; afterwards it computes backward for all of them. More of them are fewer changes between
    modules, and more activations that are held. None: 1, and with `three_phase` all of a step, as
    predictions have it for all colocated layouts."""

    enable_profiling: bool = False
    """Profile the steps [profile_start_step, profile_end_step)."""

    use_pytorch_profiler: bool = False
    """With torch's own profiler, whose files go into the folder `profile` of the run, and with
    TensorBoard into that of TensorBoard, too. Needs enable_profiling."""

    profile_start_step: NotNegative = 3
    """First step that is profiled, counted from 0."""

    profile_end_step: NotNegative = 8
    """First step after the profiled ones, at most num_iterations."""

    metrics_output_dir: str | None = None
    """Folder of the run's results. None: a new folder under `runs`. A results folder that a command
    or a call names comes before it."""

    save_hf: str | None = None
    """New directory for the trained language model, in the format of the Hugging Face weights
    that it started from (`weights`), with the encoder and projector that started from the same
    directory, as those of a LLaVA. Encoders that started from other weights are in a folder of
    their name inside, without their projectors. Ranks write it; they have to share its file
    system. Replicas under a strategy write the mean of their weights; simple_reduce and demo keep
    these alike."""

    checkpoint: CheckpointConfig | None = None
    """Saves the training state. None: it is not saved."""

    resume_from: str | None = None
    """The folder of a checkpoint that the run goes on from, with the same model and data and any
    layout. `mimokit run FILE --resume RESULTS_DIR` finds it. num_iterations counts from the first
    step of all. None: the run begins."""

    tensorboard_dir: str | None = None
    """Folder for TensorBoard files; several experiments write into its folders
    `run_<timestamp>/<experiment>`. None: no files, unless `loggers` names tensorboard."""

    loggers: list[LoggerName] | None = None
    """Where the metrics go next to the run's folder. tensorboard writes into `tensorboard_dir`, by
    default the folder `tensorboard` of the run. None: tensorboard if `tensorboard_dir` is given."""

    hardware: str | None = None
    """The machine: a GPU by name, or a hardware file such as `calibrate` writes. Of its peak
    model_flop_utilisation is a share. None: the GPU of the ranks; without one it is unknown."""

    recipe: RecipeConfig | None = None
    """How the training stack runs the model, for predictions. None: unknown."""

    validation: ValidationConfig | None = None
    """Loss on held-out samples. None: no validation."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of AdamW."""

    learning_rate_warmup: NotNegative = 0
    """First steps, over which the learning rate rises linearly to its value."""

    learning_rate_decay: NotNegative = 0
    """Last steps, over which the learning rate falls linearly towards 0."""

    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of AdamW."""

    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Of AdamW."""

    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm. 0: no clipping."""

    seed: NotNegative = 1234
    """Of weights and data."""

    precision: Name | None = None
    """Of matrix products: fp32, tf32, bf16, fp8, mxfp8, nvfp4, … None: fp32. Runs support fp32,
    bf16, fp16 and fp8, and tf32 on GPUs. In bf16 weights and activations are bf16, gradients are
    summed in fp32, and the optimizer steps fp32 weights, which begin as the bf16 ones; save_hf
    writes them in the types of the weights that the run started from. The same holds in fp16, where
    losses are scaled, too. In fp8 it holds as well, but the linear layers inside transformer layers
    multiply numbers of 8 bits: weights and activations E4M3, gradients E5M2, with one scale for
    each tensor of a micro-batch, as in Transformer Engine's Float8CurrentScaling. GPUs of compute
    capability 8.9 or more (Ada, Hopper) do that in hardware; elsewhere the same numbers are
    multiplied in fp32, which is slower than bf16."""

    initial_loss_scale: Annotated[float, Field(gt=0)] = 2.0**15
    """What losses are multiplied by in fp16, so that small gradients do not become zero. A step
    whose gradients overflow is left out in all modules and halves it; 1000 steps without double
    it."""

    patch_type: list[PatchName] = Field(default_factory=list)
    """Patches of the model. vit_frame_parallel: the data-parallel replicas of a vision encoder
    share the images and frames of each micro-batch evenly, whichever replica reads them."""

    loss_func: Annotated[str, Field(min_length=1)] | None = None
    """package.module:function of the user's, a function of (loss mask, loss of every token) that
    returns the sum of the losses of the language model and the number of their tokens. See
    docs/own_modules.md. None: the sum over the unmasked tokens."""

    forward_step: Annotated[str, Field(min_length=1)] | None = None
    """package.module:function of the user's, a function of (data iterator, model) that returns the
    output of one micro-batch and a function that computes the loss of it. See docs/own_modules.md.
    None: mimokit's."""

    sample_order: SampleOrder = AS_DRAWN
    """Which replica reads which sample of a micro-batch. as_drawn: in the order in which they are
    drawn. balanced: so that replicas have about the same work in encoders and language model, and
    nothing has to travel for it; loss and gradients are the same. The data set must state the sizes
    of its samples before they are read (`sample_sizes`), as mimokit's digits do. What is uneven
    after that, a sample of many frames say, vit_frame_parallel shares."""

    def encoder_microbatches_of(self, num_microbatches: int) -> int:
        """Return the micro-batches of a step for which an encoder computes before others do."""
        if self.encoder_microbatches is not None:
            return self.encoder_microbatches
        return num_microbatches if self.pipeline_schedule == THREE_PHASE else 1

    @property
    def chosen_loggers(self) -> tuple[LoggerName, ...]:
        """The loggers, each once; tensorboard first if only its folder is given."""
        named = self.loggers or []
        implied = [TENSORBOARD] if self.tensorboard_dir is not None else []
        return tuple(dict.fromkeys([*implied, *named]))


@dataclass(frozen=True)
class Evaluations:
    """When and on how much a run is tested.

    Attributes:
        interval: iterations between two tests, 0 for one at the end only.
        samples: held-out samples of each test but the last, which has `final_samples`.
    """

    interval: int = 0
    samples: int = 256
    final_samples: int = 1024

    def due(self, iteration: int, iterations: int) -> bool:
        """Tell whether to test after an iteration (0-based) that is not the last."""
        last = iteration + 1 >= iterations
        return self.interval > 0 and (iteration + 1) % self.interval == 0 and not last
