"""Strips of scans as pictures."""

import base64
import re

import numpy as np

from make.site.check import external_references
from mimokit_widgets import show_strips

VOCABULARY = ["0", "1", "<end>", "<read>"]
SAMPLE = {"images": np.eye(8)[None].repeat(3, axis=0), "question": [3], "answer": [1, 0, 1, 2]}


def test_a_strip_is_one_picture_beside_its_words() -> None:
    view = show_strips([SAMPLE] * 9, VOCABULARY, count=2)
    assert len(view) == 2
    page = view._repr_html_()
    assert page.count("<img") == 2
    assert "&lt;read&gt;" in page
    assert "scans of 1 0 1 &lt;end&gt;" in page  # text for screen readers
    assert external_references(page) == []


def test_the_picture_is_a_png_of_the_right_size() -> None:
    page = show_strips([SAMPLE], VOCABULARY)._repr_html_()
    found = re.search(r"base64,([^\"]+)", page)
    assert found is not None
    png = base64.b64decode(found[1])
    assert png.startswith(b"\x89PNG")
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (3 * 8 + 2, 8)


def test_without_a_notebook_it_is_text() -> None:
    assert repr(show_strips([SAMPLE], VOCABULARY)) == "3 scans, <read> → 1 0 1 <end>"


def test_right_and_wrong_answers_of_a_model_are_told_apart() -> None:
    right, wrong = (1, 0, 1, 2), (1, 1, 1, 2)
    read = {number: wrong if number == 3 else right for number in range(6)}
    view = show_strips([SAMPLE] * 6, VOCABULARY, count=4, read=read)
    assert repr(view).splitlines() == [
        *["3 scans, <read> → 1 0 1 <end> (the model read 1 0 1 <end>: right)"] * 3,
        "3 scans, <read> → 1 0 1 <end> (the model read 1 1 1 <end>: wrong)",
    ]
    page = view._repr_html_()
    assert (page.count("✓"), page.count("✗"), page.count("the model read")) == (3, 1, 1)
