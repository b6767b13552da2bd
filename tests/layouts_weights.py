"""Small configs for tests: a model whose modules start from checkpoints."""

from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from tests.hugging_face_weights import checkpoint

STD = 0.3
"""Of the parameters: logits of a size of 2."""


def weights_mapping(
    language: str, tower: str, mode: str, images: dict[str, int], words: dict[str, int]
) -> dict[str, Any]:
    """Return the sections of a config that states of both networks only where they are.

    Args:
        language: a checkpoint of `tests.hugging_face_weights`.
        tower: likewise.
        mode: deployment mode.
        images: parallel sizes of the tower.
        words: of the language model.
    """
    return {
        "model": {
            "deployment_mode": mode,
            "module_parallelisms": {"images": images, "language_module": words},
            "module_architectures": {
                "images": {"weights": str(checkpoint(tower, STD))},
                "language_module": {"weights": str(checkpoint(language, STD)), "seq_length": 24},
            },
            "special_token_ids": {"images": 101},
        },
        "data": {"base_batch_size": 4, "image_seq_length": 4},
        "runtime": {"num_iterations": 1},
    }


def weights_config(
    language: str, tower: str, mode: str, images: dict[str, int], words: dict[str, int]
) -> ExperimentConfig:
    """Return the config of `weights_mapping`."""
    return config_from_mapping(weights_mapping(language, tower, mode, images, words))
