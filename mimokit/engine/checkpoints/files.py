"""The files of a checkpoint: written by every rank, read by torch.distributed.checkpoint.

They are safetensors with torch's own note of where each block belongs in its whole tensor. Nothing
is pickled, neither in a file nor between ranks.
"""

import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from xxhash import xxh3_64

from mimokit.architecture.tensor_cut import Shape
from mimokit.engine.checkpoints.blocks import BlockTensor
from mimokit.engine.checkpoints.state import HeldTensor
from mimokit.planning.checkpoint_files import SAVE
from mimokit.planning.checkpoints import (
    WEIGHTS,
    Checkpoint,
    damaged,
    file_of_rank,
    tensor_name,
    unusable,
)
from mimokit.planning.digests import digest_text

_BLOCKS = "DCP_SHARDING_INFO"
"""`torch.distributed.checkpoint._hf_utils.CUSTOM_METADATA_KEY`."""

BlocksByFile = list[dict[str, tuple[Shape, torch.Tensor]]]
"""Of every file: tensor -> (offsets in the whole, block)."""


def write_files(folder: Path, rank: int, files: BlocksByFile, save: str = "") -> dict[str, str]:
    """Write the files of a rank and wait until the disk has them; may raise OSError.

    Args:
        save: the id of the save, which the files keep.

    Returns:
        Name of a file -> digest of what was to be written.
    """
    digests = {}
    for number, blocks in enumerate(files):
        name = file_of_rank(rank, number)
        path = folder / name
        offsets = {name: {"saved_offsets": list(places)} for name, (places, _) in blocks.items()}
        tensors = {name: tensor for name, (_, tensor) in blocks.items()}
        note = {"format": "pt", SAVE: save, _BLOCKS: json.dumps(offsets)}
        try:
            save_file(tensors, path, metadata=note)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written ({error})") from None
        with ThreadPoolExecutor(1, "mimokit-digest") as computes:  # while the disk writes
            digest = computes.submit(_digest_of, path, tensors)
            sync(path)
        digests[name] = digest.result()
    return digests


def _digest_of(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of a file; that of its tensors is of the memory, not of what is written."""
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
    digest = xxh3_64(length + header)
    begins = {
        name: value["data_offsets"][0]
        for name, value in json.loads(header).items()
        if name in tensors and tensors[name].numel()
    }
    for name in sorted(begins, key=begins.__getitem__):
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest_text(digest)


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_into(checkpoint: Checkpoint, held: Iterable[HeldTensor]) -> None:
    """Fill the blocks of this rank; only they are read.

    Raises:
        ConfigError: a tensor or a part of one is not in the files.
    """
    state: dict[str, Any] = {
        tensor.name: BlockTensor(tensor.whole, tensor.blocks) for tensor in held if tensor.blocks
    }
    _read(checkpoint, state)


def read_whole(checkpoint: Checkpoint, names: Iterable[str]) -> Mapping[str, torch.Tensor]:
    """Return whole tensors, by their names in the checkpoint."""
    types = _WholeReader(checkpoint).found.state_dict_metadata
    state: dict[str, torch.Tensor] = {}
    for name in names:
        stored = types[name]
        assert isinstance(stored, TensorStorageMetadata)
        state[name] = torch.zeros(stored.size, dtype=stored.properties.dtype)
    _read(checkpoint, state)
    return state


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


def _read(checkpoint: Checkpoint, state: dict[str, Any]) -> None:
    lacks = sorted(state.keys() - checkpoint.shapes.keys())
    if lacks:
        raise unusable(checkpoint.directory, f"it lacks {lacks[0]}; it was saved by another run")
    reader = _WholeReader(checkpoint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no ranks talk to each other
            load(state, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        why = "; ".join(str(cause) for cause, _ in error.failures.values())
        raise damaged(checkpoint.directory, f"it cannot be read ({why})") from None


class _WholeReader(HuggingFaceStorageReader):
    """Torch's reader, of a checkpoint of which no block may be missing: it would read on."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(str(checkpoint.directory))
        try:
            self.found: Metadata = super().read_metadata()
        except (SafetensorError, OSError) as error:
            raise damaged(checkpoint.directory, f"it cannot be read ({error})") from None
        except Exception:  # torch's reader takes the note for what it should be
            why = "a file of a rank does not say where its blocks belong"
            raise damaged(checkpoint.directory, why) from None
        for name, shape in checkpoint.shapes.items():
            stored = self.found.state_dict_metadata.get(name)
            tensor = stored if isinstance(stored, TensorStorageMetadata) else None
            entries = sum(math.prod(block.sizes) for block in tensor.chunks) if tensor else 0
            if tensor and entries == math.prod(shape) != math.prod(tensor.size):
                why = f"a file of a rank has a block that lies outside of {name}"
                raise damaged(checkpoint.directory, why)
            if entries != math.prod(shape):
                why = f"its files have {entries:,} of the {math.prod(shape):,} entries of {name}"
                raise damaged(checkpoint.directory, why)

    def read_metadata(self) -> Metadata:
        return self.found
