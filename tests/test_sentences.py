"""Every sentence of README.md and docs/limits.md is proved by tests, or claims nothing.

What is refused has tests, too, and those that SECURITY.md names are there.
"""

import re
from pathlib import Path

from tests.claims.bad_input import REFUSED
from tests.claims.sentences import NO_CLAIM, PROVED, known_by, sentences
from tests.rows import rows

ROOT = Path(__file__).parents[1]
PAGES = "README.md", "docs/limits.md"
SAID = [one for page in PAGES for one in sentences((ROOT / page).read_text(encoding="utf-8"))]


def test_every_sentence_is_known_by_one_beginning() -> None:
    unknown = {one: known_by(one) for one in SAID if len(known_by(one)) != 1}
    assert not unknown, "say in tests/claims/sentences.py what proves it"


def test_no_beginning_is_left_of_a_sentence_that_went() -> None:
    assert {*PROVED, *NO_CLAIM} == {one for said in SAID for one in known_by(said)}


NAMED = sorted({name for each in (PROVED, REFUSED) for names in each.values() for name in names})


@rows("name", *NAMED)
def test_what_proves_a_sentence_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_what_security_names_is_there() -> None:
    said = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[^`]+)`", said)
    assert len(named) > 20
    assert not [one for one in named if not (ROOT / one).exists()]
    assert "Report a vulnerability" in said


@rows(
    "text",
    "Each row is a claim. It also makes coffee.",
    "- It also makes coffee.",
    "| coffee | is made |",
    "It also\nmakes coffee.\n\n| refused | because |\n|---|---|",
)
def test_a_sentence_that_is_added_is_found(text: str) -> None:
    assert [one for one in sentences(text) if not known_by(one)]
