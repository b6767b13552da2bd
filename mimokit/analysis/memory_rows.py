"""The memory that modules of runs held, next to what was predicted, from their health."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mimokit.analysis.run_folders import RunFolderError, read_object
from mimokit.analysis.table_file import records
from mimokit.result_files import RunFile
from mimokit.tables import Section
from mimokit.units import bytes_text

HELD_COLUMNS = ("run", "module", "rank", "part", "measured", "predicted")


def read_held(folders: Mapping[str, Path]) -> pd.DataFrame:
    """Return the rows of `Runs.held`; a run that did not measure it has none."""
    rows = [row for name, folder in folders.items() for row in _rows(name, folder)]
    return pd.DataFrame(rows, columns=list(HELD_COLUMNS))


def _rows(run: str, folder: Path) -> Iterator[dict[str, Any]]:
    try:
        held = read_object(folder / RunFile.HEALTH).get("held")
    except RunFolderError:  # `Runs.problems` has it
        return
    for of_rank in held if isinstance(held, list) else ():
        predicted = of_rank.get("predicted") or {}
        for part, measured in (of_rank.get("measured") or {}).items():
            yield {
                "run": run,
                "module": of_rank.get("module"),
                "rank": of_rank.get("rank"),
                "part": part,
                "measured": measured,
                "predicted": predicted.get(part),
            }


def held_section(held: pd.DataFrame) -> Section:
    """Return a table of one run's rows: measured bytes, predicted ones, and their ratio."""
    rows = [
        [
            str(row["module"]),
            str(row["rank"]),
            str(row["part"]),
            bytes_text(int(row["measured"])),
            *_predicted(row["predicted"], row["measured"]),
        ]
        for row in records(held)
    ]
    columns = ("module", "rank", "part", "measured", "predicted", "predicted over measured")
    return Section("Memory held in the first iteration", columns, rows)


def _predicted(predicted: float | None, measured: float) -> tuple[str, str]:
    if predicted is None:
        return "-", "-"
    ratio = f"{predicted / measured:.2f}" if measured else "-"
    return bytes_text(round(predicted)), ratio
