"""Write the frozen answers anew, or whole into a folder."""

import json
import sys
from pathlib import Path

from tests.config.refusals import SENTENCES, refusals
from tests.frozen.answers import FROZEN, answers, as_frozen, sources
from tests.frozen.searches import CASES, SEARCHES, as_kept, searched

given = {source: answers(source) for source in sources()}
found = {case: searched(case) for case in CASES}
if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for source, answer in (given | found).items():
        file = folder / f"{source.replace('/', '.').replace(':', '.')}.json"
        file.write_text(json.dumps(answer, indent=1, sort_keys=True))
else:
    kept = {source: as_frozen(answer) for source, answer in given.items()}
    FROZEN.write_text(json.dumps(kept, indent=None, separators=(",\n", ":")) + "\n")
    SENTENCES.write_text(json.dumps(refusals(), indent=1) + "\n")
    of_searches = {case: as_kept(answer) for case, answer in found.items()}
    SEARCHES.write_text(json.dumps(of_searches, indent=1) + "\n")
