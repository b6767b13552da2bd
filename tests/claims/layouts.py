"""Three models, each in any layout: two modules, three modalities, and experts.

All layouts of a model read the same samples and take the same steps, so that one process computes
what all of them are compared with.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mimokit.config import DeploymentMode, ExperimentConfig, StrategyConfig
from tests.layouts import SAMPLES_PER_MICROBATCH, digits_config
from tests.layouts_experts import MIXTURE
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config

IMAGES = "images"
TOKENS = 44
"""Of a sample: what one sequence in slices, and two contexts in two chunks each, divide."""
FIELDS = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "dp": "data_parallel",
    "sp": "sequence_parallel",
}
Make = Callable[[], ExperimentConfig]
Sizes = Mapping[str, Any]
"""Field of a module's parallelism, or its short name -> value; `dp` is 1 if it is left out."""
ALONE: Sizes = MappingProxyType({})
HOMOGENEOUS: DeploymentMode = "homogeneous"
COLOCATED: DeploymentMode = "colocated"
HETEROGENEOUS: DeploymentMode = "heterogeneous"
TP2: Sizes = {"tp": 2}
DP2: Sizes = {"dp": 2}
CP2: Sizes = {"cp": 2}
PP2: Sizes = {"pp": 2}
SP2: Sizes = {"tp": 2, "sp": True}
EP2: Sizes = {"ep": 2, "dp": 2}
CHUNKS: Sizes = {"pp": 2, "vpp": 2}


def placed(
    config: ExperimentConfig, mode: DeploymentMode, sizes: Mapping[str, Sizes]
) -> ExperimentConfig:
    """Return a model in another layout, with as many samples in each micro-batch."""
    fields = {
        name: {"data_parallel": 1, **{FIELDS.get(key, key): value for key, value in own.items()}}
        for name, own in (
            dict.fromkeys(config.model.module_parallelisms, ALONE) | {**sizes}
        ).items()
    }
    config.data.base_batch_size = SAMPLES_PER_MICROBATCH // fields[LANGUAGE]["data_parallel"]
    return config.with_layout(mode, **fields)


def two_modules() -> ExperimentConfig:
    """Return an encoder and a language model of two layers each, not finalized."""
    config = digits_config(num_microbatches=2)
    networks = config.model.module_architectures
    networks[IMAGES].num_layers = networks[LANGUAGE].num_layers = 2
    config.data.seq_length = networks[LANGUAGE].seq_length = TOKENS
    return config


def two(
    mode: DeploymentMode, images: Sizes = ALONE, language: Sizes = ALONE, model: Make = two_modules
) -> Make:
    """Return what makes a layout of two modules."""
    return lambda: placed(model(), mode, {IMAGES: images, LANGUAGE: language})


def _three_modalities() -> ExperimentConfig:
    sizes = {"clip": (1, 1), "qwen": (1, 1), "audio": (1, 1), LANGUAGE: (1, 1)}
    config = multimodal_config(
        sizes, "homogeneous", num_microbatches=2, three_axes=True, presence=PRESENCE
    )
    for network in config.model.module_architectures.values():
        network.num_layers = 2
    return config


def three_modalities(mode: DeploymentMode, **sizes: Sizes) -> ExperimentConfig:
    """Return images of one size and of any, sound that some samples lack, and words."""
    return placed(_three_modalities(), mode, sizes)


def _experts() -> ExperimentConfig:
    config = two_modules()
    old = config.model.module_architectures[LANGUAGE]
    fields = {**MIXTURE, "num_layers": old.num_layers, "seq_length": TOKENS}
    config.model.module_architectures[LANGUAGE] = type(old)(**fields)
    return config


def experts(mode: DeploymentMode, images: Sizes, language: Sizes) -> ExperimentConfig:
    """Return a language model with four experts in each layer, of which a token takes two."""
    return placed(_experts(), mode, {IMAGES: images, LANGUAGE: language})


def layered(make: Make, module: str = LANGUAGE, **fields: Any) -> Make:
    """Return what makes a layout with other fields of a network."""

    def changed() -> ExperimentConfig:
        config = make()
        network = config.model.module_architectures[module].model_copy(update=fields)
        config.model.module_architectures[module] = network
        if "vocab_size" in fields:
            config.data.vocab_size = fields["vocab_size"]
        if "pooling_head" in fields:  # one row of each image
            config.data.image_seq_length //= network.seq_length
        return config.finalize()

    return changed


FOUR_LAYERS = layered(two_modules, num_layers=4)
"""Of the language model: two stages of two chunks each."""


def run_with(make: Make, **fields: Any) -> Make:
    """Return what makes a layout with other fields of the runtime."""

    def changed() -> ExperimentConfig:
        config = make()
        for name, value in fields.items():
            setattr(config.runtime, name, value)
        return config.finalize()

    return changed


def in_rows(make: Make) -> Make:
    """Return what makes a layout whose samples lie in a row."""

    def changed() -> ExperimentConfig:
        config = make()
        config.data.pack_sequences_in_batch = True
        return config.finalize()

    return changed


def with_strategy(make: Make, **fields: Any) -> Make:
    """Return what makes replicas of a layout that exchange by a strategy."""

    def changed() -> ExperimentConfig:
        config = make()
        config.strategy = StrategyConfig(**fields)
        return config.finalize()

    return changed
