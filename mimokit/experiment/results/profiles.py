"""Files of PyTorch's profiler in the folder of a run, put together from what ranks send.

Their names end in `.pt.trace.json.gz`: TensorBoard's profiler plugin and Perfetto open them.
"""

from __future__ import annotations

import os
from pathlib import Path

from mimokit.result_files import PROFILES
from mimokit.samples import ProfileSample


class ProfileFiles:
    """Writes the profiles of one run."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / PROFILES

    def take(self, sample: ProfileSample) -> None:
        """Append a part; a file gets its name with its last part.

        Raises:
            OSError: the part cannot be written.
        """
        self._folder.mkdir(exist_ok=True)
        # The name comes from a rank: it may not lead out of the folder.
        target = self._folder / Path(sample.name).name
        part = target.with_name(f".{target.name}.part")
        with part.open("ab" if sample.part else "wb") as file:
            file.write(sample.content)
        if sample.part + 1 == sample.parts:
            os.replace(part, target)
