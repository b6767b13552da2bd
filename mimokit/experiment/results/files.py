"""JSON files that appear whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.result_files import whole_file


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file completely or not at all."""
    with whole_file(path) as file:
        file.write(json.dumps(content, indent=2) + "\n")
