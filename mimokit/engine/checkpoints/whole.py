"""Writes the weights of a checkpoint whole, module by module."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from mimokit.engine.checkpoints.files import read_whole
from mimokit.planning.checkpoints import WEIGHTS, Checkpoint, tensor_name


def write_weights(checkpoint: Checkpoint, output: Path) -> list[str]:
    """Write a file per module into a new folder, and return their names.

    One module is in memory at a time.

    Raises:
        ConfigError: the checkpoint is not whole.
        OSError: the folder exists or cannot be written.
    """
    output.mkdir(parents=True)
    files = []
    for module in dict.fromkeys(name.split("/", 1)[0] for name in checkpoint.weights):
        prefix = tensor_name(WEIGHTS, module, "")
        names = [name for name in checkpoint.shapes if name.startswith(prefix)]
        whole = read_whole(checkpoint, names)
        tensors = {name.removeprefix(prefix): tensor for name, tensor in whole.items()}
        note = {"format": "pt", "step": str(checkpoint.step)}
        files.append(f"{module}.safetensors")
        save_file(tensors, output / files[-1], metadata=note)
    return files
