"""What a step costs on shared cores besides products, from small trainings that are predicted.

The predicted CPU seconds of a step are linear in those of a byte, of a kernel, of a micro-batch, of
a step and of a rank's part in a collective, which are fitted to trainings on all ranks. Then as
many ranks as trained share as many cores as make their predicted step the measured one, and where
they meet in tensor parallelism, their part in a collective takes as long.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mimokit.config import (
    DataConfig,
    ExperimentConfig,
    MimoParallelismConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    PredictionConfig,
    RuntimeConfig,
)
from mimokit.config.prediction import PredictedInput
from mimokit.prediction.calibration.fit import FittedLaw, fit_law
from mimokit.prediction.calibration.measurements import StepTime, Training
from mimokit.prediction.hardware import Cores, Hardware
from mimokit.prediction.hardware.hardware import LEAST
from mimokit.prediction.prediction import predict

IMAGES, LANGUAGE, IMAGE_TOKEN = "images", "language_module", 16
MOST_IMAGES, MEAN_IMAGES, PATCHES = 8, 4.5, 4
"""Images of a strip of digits, and patches of each."""
STEPS, WARMUP = 24, 4


def trainings(ranks: int) -> list[Training]:
    """Return the trainings on 1, 2, 4, … and all ranks."""
    numbers = [*(2**power for power in range(ranks.bit_length()) if 2**power < ranks), ranks]
    on_all = [
        Training(ranks, layers=4),
        Training(ranks, micro_batches=4),
        Training(ranks, samples=16),
    ]
    cut = [Training(number, layers=4, tensor=2) for number in numbers if number % 2 == 0]
    return [*map(Training, numbers), *cut, *on_all]


def config_of_training(training: Training) -> ExperimentConfig:
    """Return the config of a small training, whose modules share all ranks."""
    language = ModuleArchitecture(
        num_layers=training.layers,
        hidden_size=64,
        num_attention_heads=8,
        seq_length=42,
        vocab_size=16,
    )
    scans = {"seq_length": PATCHES, "vocab_size": 0, "image_size": 8, "patch_size": 4}
    sizes = ModuleParallelismConfig(
        tensor_parallel=training.tensor, data_parallel=training.ranks // training.tensor
    )
    config = ExperimentConfig(
        model=MimoParallelismConfig(
            llm_module_name=LANGUAGE,
            deployment_mode="homogeneous",
            module_parallelisms={IMAGES: sizes, LANGUAGE: sizes},
            special_token_ids={IMAGES: IMAGE_TOKEN},
            module_architectures={IMAGES: language.model_copy(update=scans), LANGUAGE: language},
        ),
        data=DataConfig(
            base_batch_size=training.samples,
            num_microbatches=training.micro_batches,
            seq_length=language.seq_length,
            image_seq_length=MOST_IMAGES * PATCHES,
            vocab_size=language.vocab_size,
            image_special_token_id=IMAGE_TOKEN,
            dataset_size=4096,
        ),
        runtime=RuntimeConfig(num_iterations=STEPS),
        prediction=PredictionConfig(
            inputs={IMAGES: PredictedInput(length=PATCHES, count=MEAN_IMAGES)}
        ),
        name="calibration",
    )
    config.model.finalize(training.ranks)
    return config


def fit_cores(hardware: Hardware, steps: Sequence[StepTime]) -> tuple[Hardware, FittedLaw]:
    """Return hardware with the constants of its cores, and the fit of the steps on all ranks."""
    most = max(step.training.ranks for step in steps)
    on_all = [step for step in steps if step.training.ranks == most]
    names = ["byte", "kernel", "micro_batch", "step"]
    if any(step.training.tensor > 1 for step in on_all):
        names.append("latency")
    none = dict.fromkeys(names, 0.0)
    products = [_seconds(step, _alone(hardware, most, none)) for step in on_all]

    def slopes(name: str) -> list[float]:
        each = _alone(hardware, most, none | {name: UNITS[name]})
        pairs = zip(on_all, products, strict=True)
        return [(_seconds(step, each) - least) / UNITS[name] for step, least in pairs]

    fit = fit_law(
        "steps of small trainings, without products",
        {name: slopes(name) for name in names},
        [step.cpu_seconds - least for step, least in zip(on_all, products, strict=True)],
        [str(step.training) for step in on_all],
    )
    fitted = _alone(hardware, most, fit.constants)
    shared, latency = {}, {}
    timed = {step.training: step for step in steps}
    for ranks in sorted({training.ranks for training in timed}):
        whole, cut = timed[Training(ranks)], timed.get(Training(ranks, layers=4, tensor=2))
        at_once = fitted
        if cut is not None:
            least = fit.constants["latency"]
            latency[ranks] = max(least, _latency(whole, cut, hardware, most, fit.constants))
            at_once = _alone(hardware, most, {**fit.constants, "latency": latency[ranks]})
        shared[ranks] = statistics.median(
            ranks * _seconds(step, at_once) / step.seconds
            for training, step in timed.items()
            if training.ranks == ranks and training.tensor == 1
        )
    cores = Cores(shared, fit.constants["micro_batch"], fit.constants["step"], latency)
    return replace(fitted, cores=cores), fit


def _latency(
    whole: StepTime, cut: StepTime, hardware: Hardware, most: int, constants: Mapping[str, float]
) -> float:
    """Return the latency with which two trainings on as many cores take as long as measured."""
    unit = UNITS["latency"]
    instant, slow = (_alone(hardware, most, {**constants, "latency": each}) for each in (0.0, unit))
    least, least_cut = _seconds(whole, instant), _seconds(cut, instant)
    more, more_cut = _seconds(whole, slow) - least, _seconds(cut, slow) - least_cut
    missing = cut.seconds * least - whole.seconds * least_cut
    return max(LEAST, unit * missing / (whole.seconds * more_cut - cut.seconds * more))


UNITS = {"byte": 1e-9, "kernel": 1e-5, "micro_batch": 1e-3, "step": 1e-3, "latency": 1e-4}
"""Constant -> seconds with which its share of a step is computed; all are about as large."""


def _alone(hardware: Hardware, most: int, constants: Mapping[str, float]) -> Hardware:
    """Return the hardware with such constants, and a core for each of up to `most` ranks."""
    own = {1: 1.0, most: float(most)}
    near = replace(hardware.domain, latency=constants.get("latency", hardware.domain.latency))
    memory = 1 / max(constants["byte"], 1e-18)
    return replace(
        hardware,
        memory_bandwidth=memory,
        efficiency=replace(hardware.efficiency, kernel=constants["kernel"], memory=1.0),
        domain=near,
        network=near if hardware.network == hardware.domain else hardware.network,
        cores=Cores(own, constants["micro_batch"], constants["step"]),
    )


def _seconds(step: StepTime, hardware: Hardware) -> float:
    return predict(config_of_training(step.training), gpu=hardware).seconds
