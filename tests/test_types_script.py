"""`make/types.sh`: checks types again only where the workers of mypy did not start."""

from pathlib import Path

from tests.commands import run_to_end
from tests.rows import rows

SCRIPT = Path(__file__).parents[1] / "make" / "types.sh"
LATE = "Failed to establish connection with worker: No status file found"
WRONG = "mimokit/a.py:1: error: Incompatible types"


@rows(
    "with_workers, alone, status, calls",
    (("Success: no issues found", 0), ("", 9), 0, 1),
    ((WRONG, 1), ("", 9), 1, 1),
    ((LATE, 2), ("Success: no issues found", 0), 0, 2),
    ((LATE, 2), (WRONG, 1), 1, 2),
)
def test_types_are_checked_again_only_without_workers(
    tmp_path: Path, with_workers: tuple[str, int], alone: tuple[str, int], status: int, calls: int
) -> None:
    mypy, log = tmp_path / "mypy", tmp_path / "calls"
    mypy.write_text(
        f"#!/bin/sh\necho called >> {log}\n"
        f'if [ "$1" = --num-workers ]; then echo "{with_workers[0]}"; exit {with_workers[1]}; fi\n'
        f'echo "{alone[0]}"\nexit {alone[1]}\n'
    )
    mypy.chmod(0o755)
    ended = run_to_end(["sh", SCRIPT, mypy])
    assert ended.returncode == status
    assert len(log.read_text().splitlines()) == calls
    said = with_workers[0] if calls == 1 else alone[0]
    assert ended.stdout.splitlines()[-1] == said
    assert ended.stdout.count(WRONG) <= 1
