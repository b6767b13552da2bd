"""Write the frozen answers anew, or whole into a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.config.refusals import SENTENCES, refusals
from tests.frozen.answers import FROZEN, answers, as_frozen, sources

given = {source: answers(source) for source in sources()}
if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for source, answer in given.items():
        file = folder / f"{source.replace('/', '.').replace(':', '.')}.json"
        file.write_text(json.dumps(answer, indent=1, sort_keys=True))
else:
    kept = {source: as_frozen(answer) for source, answer in given.items()}
    FROZEN.write_text(json.dumps(kept, indent=None, separators=(",\n", ":")) + "\n")
    SENTENCES.write_text(json.dumps(refusals(), indent=1) + "\n")
