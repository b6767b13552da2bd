"""Files of a checkpoint that are damaged are refused in a sentence, not read in part."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mimokit.config import ConfigError
from mimokit.engine.checkpoints.files import read_whole, write_files
from mimokit.planning.checkpoints import Checkpoint, DataPosition, file_of_rank
from tests.rows import rows

NAME = "weights/images/w"
NOTES = {
    "does not say where its blocks belong": "[]",
    "does not say where its blocks": json.dumps({NAME: {"saved_offsets": 7}}),
    "has a block that lies outside of weights/images/w": json.dumps(
        {NAME: {"saved_offsets": [2**62, 0]}}
    ),
}
"""What is said of a file -> its note of where its blocks belong."""


def _checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(folder, 1, {}, {NAME: (2, 3)}, {}, DataPosition("", 1, 1, 1, 1), {})


def test_a_whole_tensor_is_read_as_it_was_written(tmp_path: Path) -> None:
    block = torch.arange(6.0).view(2, 3)
    write_files(tmp_path, 0, [{NAME: ((0, 0), block[:1])}, {NAME: ((1, 0), block[1:])}])
    assert torch.equal(read_whole(_checkpoint(tmp_path), [NAME])[NAME], block)


@rows("said", *NOTES)
def test_a_note_that_is_damaged_is_refused(said: str, tmp_path: Path) -> None:
    note = {"format": "pt", "DCP_SHARDING_INFO": NOTES[said]}
    save_file({NAME: torch.ones(2, 3)}, tmp_path / file_of_rank(0, 0), metadata=note)
    with pytest.raises(ConfigError, match=said) as error:
        read_whole(_checkpoint(tmp_path), [NAME])
    assert len(str(error.value).splitlines()) == 1
