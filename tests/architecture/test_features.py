"""A feature of networks is known by few files, and by no more than before."""

import re
from pathlib import Path

from tests.rows import rows

ROOM = Path(__file__).parents[2] / "mimokit"
POOLING = r"[Pp]ooling|\.pools\b|\bpools ?[:=]"


def _knowing(pattern: str, folder: Path = ROOM) -> list[str]:
    files = (file for file in folder.rglob("*.py") if re.search(pattern, file.read_text()))
    return sorted(str(file.relative_to(folder)) for file in files)


@rows(
    "pattern, most",
    (POOLING, 8),
    (r"\bmla\b|MLA|[Ll]atent|kv_lora", 12),
    (r"window_(size|options|attn|attention|mask)|windowed|full_attention_layers|[Ss]liding", 14),
)
def test_few_files_know_a_feature(pattern: str, most: int) -> None:
    files = _knowing(pattern)
    assert files, "the pattern is that of the feature"
    assert len(files) <= most, files


def test_a_file_that_knows_a_feature_is_counted(tmp_path: Path) -> None:
    (tmp_path / "plan.py").write_text("if network.pooling_head:\n    ...\n")
    (tmp_path / "other.py").write_text("spools = 1\n")
    assert _knowing(POOLING, tmp_path) == ["plan.py"]
