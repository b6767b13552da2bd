"""The view of a stepper: what is drawn, what buttons do, what is red."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from mimokit.experiment import Stepper
from mimokit_widgets import StepperView, show_step
from mimokit_widgets.notebooks.page import external_references
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster, other_values

LAYOUTS = {
    "fan_in": digits_config((1, 8), (4, 2)),
    "fan_out": digits_config((4, 2), (1, 8), 2),
    "homogeneous": digits_config((2, 2), (2, 2)),
    "apart_fan_in": apart_config((1, 1, 4), (2, 1, 2), 2),
    "apart_fan_out": apart_config((2, 1, 1), (1, 3, 2), 4),
}
NAMESPACE = {"svg": "http://www.w3.org/2000/svg"}


def _svg(html: str) -> ElementTree.Element:
    """Return the picture of a step as a tree; it must be well-formed."""
    text = re.findall(r"<svg.*?</svg>", html, re.DOTALL)[-1]
    return ElementTree.fromstring(text)


def _arrows(picture: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [g for g in picture.iter("g") if g.get("class") == f"arrow {kind}"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_step_of_an_iteration_can_be_drawn(name):
    stepper = Stepper(FakeCluster(), LAYOUTS[name])
    for _ in stepper.clock:
        stepper.next()
        page = show_step(stepper).data
        picture = _svg(page)
        ranks = [int(g.get("data-rank")) for g in picture.iter("g") if g.get("data-rank")]
        assert set(ranks) == set(range(stepper.plan.world_size))
        assert not _arrows(picture, "wrong")
        assert external_references(page) == []
    assert "loss 2.5" in show_step(stepper).data


def test_before_the_first_step_there_is_a_picture_too():
    stepper = Stepper(FakeCluster(), LAYOUTS["apart_fan_in"])
    assert "Before the first step" in show_step(stepper).data
    assert not list(_arrows(_svg(show_step(stepper).data), "moved"))


def test_a_gather_has_an_arrow_for_every_piece_and_says_its_samples_and_shape():
    stepper = Stepper(FakeCluster(), LAYOUTS["fan_in"])
    stepper.run_until(action="gather")
    picture = _svg(show_step(stepper).data)
    assert len(_arrows(picture, "moved")) == 8 * 3
    assert len(_arrows(picture, "kept")) == 8
    labels = [t for t in picture.iter("text") if (t.get("class") or "").startswith("label")]
    assert ["".join(label.itertext()) for label in labels] == [f"{n} [8×64]" for n in range(8)]


def test_forward_goes_right_and_backward_goes_left():
    stepper = Stepper(FakeCluster(), LAYOUTS["apart_fan_in"])
    for action, sign in (("receive-forward", 1), ("receive-backward", -1)):
        stepper.run_until(action=action)
        for arrow in _arrows(_svg(show_step(stepper).data), "moved"):
            begin, end = re.match(r"M([\d.]+) .* ([\d.]+) [\d.]+$", arrow[1].get("d")).groups()
            assert (float(end) - float(begin)) * sign > 0


def test_a_difference_is_red_with_both_sides():
    stepper = Stepper(FakeCluster(other_values), LAYOUTS["apart_fan_in"])
    stepper.run_until(action="receive-forward")
    page = show_step(stepper).data
    wrong = _arrows(_svg(page), "wrong")
    assert wrong
    assert all("to rank 4" in arrow[0].text for arrow in wrong)
    assert "<tr class='wrong'>" in page
    assert "planned: what rank 0 gave for samples 0, 1" in page
    assert "happened: rank 4 has other values" in page
    # What the leader of the other replica takes is as planned.
    assert len(_arrows(_svg(page), "moved")) == len(wrong)


def test_what_was_not_sent_is_drawn_in_red_where_it_should_have_gone():
    plant = FakeCluster(
        lambda p: None if p.crossing.source_rank == 2 and not p.crossing.backward else p
    )
    stepper = Stepper(plant, LAYOUTS["apart_fan_in"])
    stepper.run_until(action="send-forward")
    page = show_step(stepper).data
    assert len(_arrows(_svg(page), "wrong")) == 1
    assert "planned: to cross" in page
    assert "happened: it was not sent" in page


def test_the_buttons_go_on_and_back_and_the_code_is_shown():
    view = StepperView(Stepper(FakeCluster(), LAYOUTS["fan_in"]))
    view._on_message(view, {"type": "next"}, [])
    assert view._shown["number"] == 0
    assert "if a &lt; b:" in view._shown["code"]
    view._on_message(view, {"type": "crossing"}, [])
    assert view._shown["number"] == 3
    view._on_message(view, {"type": "back"}, [])
    assert (view._shown["number"], view._shown["taken"]) == (2, 4)
    view._on_message(view, {"type": "look", "number": 0}, [])
    assert view._shown["number"] == 0
    view._on_message(view, {"type": "iteration"}, [])
    assert "loss 2.5" in view._shown["heading"]
    view._on_message(view, {"type": "select", "rank": 2}, [])
    assert "loaded.input_ids" in view._shown["tensors"]
    view._on_message(view, {"type": "select", "rank": 2}, [])
    assert view._shown["tensors"] == ""


def test_the_view_follows_what_cells_do():
    stepper = Stepper(FakeCluster(), LAYOUTS["fan_in"])
    view = StepperView(stepper)
    stepper.next(2)
    assert view._shown["number"] == 1


def test_what_goes_wrong_is_a_sentence_in_the_view():
    view = StepperView(Stepper(FakeCluster(fails_at=2), LAYOUTS["fan_in"]))
    view._on_message(view, {"type": "back"}, [])
    assert view._shown["error"].endswith("going 1 back is not possible.")
    for _ in range(3):
        view._on_message(view, {"type": "next"}, [])
    assert view._shown["error"] == "rank 1 raised ValueError: planted <b>fault</b>"
    view._on_message(view, {"type": "next"}, [])
    assert view._shown["error"].startswith("This stepper has ended: rank 1 raised ValueError")
    assert view._shown["taken"] == 2
