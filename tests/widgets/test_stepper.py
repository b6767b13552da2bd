"""The view of a stepper: what is drawn, what buttons do, what is red."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np

from make.site.check import external_references
from mimokit.config.data import ModalityPresence
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView, show_step
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.rows import rows
from tests.widgets.fake_cluster import FakeCluster, other_values

LAYOUTS = {
    "fan_in": digits_config((1, 8), (4, 2)),
    "fan_out": digits_config((4, 2), (1, 8), 2),
    "homogeneous": digits_config((2, 2), (2, 2)),
    "apart_fan_in": apart_config((1, 1, 4), (2, 1, 2), 2),
    "apart_fan_out": apart_config((2, 1, 1), (1, 3, 2), 4),
}


def _svg(html: str) -> ElementTree.Element:
    """Return the picture of a step as a tree; it must be well-formed."""
    text = re.findall(r"<svg.*?</svg>", html, re.DOTALL)[-1]
    return ElementTree.fromstring(text)


def _arrows(picture: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [g for g in picture.iter("g") if g.get("class") == f"arrow {kind}"]


@rows("name", *LAYOUTS)
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


def test_a_bridge_that_fans_out_cuts_and_gathers_gradients():
    stepper = Stepper(FakeCluster(), LAYOUTS["fan_out"])
    for action, words in (("gather", "cut"), ("scatter", "gather gradients")):
        stepper.run_until(action=action)
        page = show_step(stepper).data
        assert f"{words} of images for micro-batch 0" in page
        actions = [t for t in _svg(page).iter("text") if t.get("class") == "action"]
        assert f"{words} · 0" in {text.text for text in actions}


def test_a_sample_has_the_colours_of_all_that_crosses_and_none_of_what_is_absent():
    config = digits_config((1, 8), (4, 2))
    config.data.modality_presence["images"] = ModalityPresence(samples=[True, False])
    stepper = Stepper(FakeCluster(), config)
    stepper.run_until(action="gather")
    cells = [r for r in _svg(show_step(stepper).data).iter("rect") if "y" in r.attrib]
    crossing = [
        "crosses" in cell.get("class", "") for cell in cells if "sample" in cell.get("class", "")
    ]
    assert crossing == [True, False] * 4


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


def test_tensors_of_a_rank_are_pictures_that_can_be_opened_and_edited():
    view = StepperView(Stepper(FakeCluster(), LAYOUTS["apart_fan_in"]))
    output, pixels = "microbatch.0.output.tensor", "loaded.modality_inputs.images.pixel_values"

    def ask(**message):
        view._on_message(view, message, [])
        return view._opened

    ask(type="next")
    ask(type="select", rank=2)
    said = {each["name"]: each["said"] for each in view._tensors["pictures"]}
    assert said[output].endswith(", 1 NaN")
    shown, listed = view._shown, view._tensors
    assert ask(type="open", name=pixels)["parts"][0]["images"]["count"] == 4
    assert view._shown is shown  # opening draws no step anew and asks for no other tensor
    assert view._tensors is listed
    opened = ask(type="open", name=output)
    assert opened["editable"]
    assert opened["parts"][0]["exact"]
    (part,) = ask(type="window", window=[2, 4, 4, 6])["parts"]
    assert np.isnan(np.frombuffer(part["cells"], np.float32)).tolist() == [
        False,
        False,
        False,
        True,
    ]
    cell = {"rank": 2, "name": output, "row": 3, "column": 5}
    ask(type="edit", **cell, value="0.25")
    assert view.stepper.inspect(2, output)[3, 5] == 0.25
    assert "1 edit, the last of microbatch.0.output.tensor[3, 5]" in view._shown["heading"]
    ask(type="edit", **cell, value="many")
    assert view._shown["error"] == "'many' is no number; type one such as 0.5, or nan."
    whole = ask(type="whole", whole=True)
    assert [part["who"] for part in whole["parts"]][:2] == [
        "rank 0, samples 0–1",
        "rank 1, samples 2–3",
    ]
    assert not whole["editable"]
    ask(type="restore", number=0)
    assert np.isnan(view.stepper.inspect(2, output)[3, 5])
    ask(type="select", rank=2)
    assert view._tensors == {}


def test_breakpoints_stop_and_the_first_difference_is_found():
    view = StepperView(Stepper(FakeCluster(other_values), LAYOUTS["apart_fan_in"]))
    for message, number in (
        ({"type": "toggle", "tick": 5}, -1),
        ({"type": "breakpoint"}, 5),
        ({"type": "toggle", "tick": 5}, 5),
        ({"type": "breakpoint"}, 16),
        ({"type": "first"}, 2),
        ({"type": "look", "number": 4}, 4),
        ({"type": "difference"}, 8),
    ):
        view._on_message(view, message, [])
        assert view._shown["number"] == number, message
    view._on_message(view, {"type": "toggle", "tick": 99}, [])
    assert view._shown["error"] == "An iteration has no tick 99; its ticks are 0 to 16."


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


def test_the_samples_of_what_crosses_travel_along_its_arrows():
    view = StepperView(Stepper(FakeCluster(), LAYOUTS["fan_in"]), vocabulary=list("abcdefgh"))
    view.stepper.run_until(action="gather")
    picture = _svg(view._shown["picture"])
    travellers = [g for g in picture.iter("g") if g.get("class") == "traveller"]
    paths = [g.get("style").split("'")[1] for g in travellers]
    arrows = _arrows(picture, "moved") + _arrows(picture, "kept")
    assert sorted(paths) == sorted(arrow[1].get("d") for arrow in arrows)
    shown = {g[0].get("href") for g in travellers}
    assert len(shown) == 8  # one picture for each sample
    assert all(address.startswith("data:image/png;base64,") for address in shown)
    at_the_top = [image.get("href") for image in picture if image.get("href")]
    titles = [title.text for title in picture.iter("title") if "sample 3: " in title.text]
    assert titles
    assert set(titles[0].removeprefix("sample 3: ").split()) <= set("abcdefgh")
    assert not at_the_top  # they lie in groups, with the number and the words of their sample
    view.stepper.run_until(action="scatter")
    assert "traveller gradient" in view._shown["picture"]


def test_a_micro_batch_is_read_once_and_a_saved_page_asks_no_rank(monkeypatch):
    """It is written in a thread, while the ranks may answer another call."""
    cluster = FakeCluster()
    asked, answer = [], cluster.run

    def counted(function, name, *given, **options):
        asked.append(given[0] if given else name)
        return answer(function, name, *given, **options)

    monkeypatch.setattr(cluster, "run", counted)
    view = StepperView(Stepper(cluster, LAYOUTS["fan_in"]))
    view.stepper.run_until(action="gather")
    assert asked.count("picture") == 2  # a rank of each language replica has its samples
    view.stepper.next(3)
    view.stepper.back(2)
    assert asked.count("picture") == 2
    before = len(asked)
    assert "traveller" in view._in_html()
    assert len(asked) == before


def test_what_no_rank_keeps_travels_as_a_number():
    cluster = FakeCluster()
    cluster._picture = lambda *_: None
    stepper = Stepper(cluster, LAYOUTS["fan_in"])
    stepper.run_until(action="gather")
    picture = _svg(show_step(stepper).data)
    told = {g[0].text for g in picture.iter("g") if g.get("class") == "traveller"}
    assert told == {str(sample) for sample in range(8)}


def test_token_ids_are_words_where_there_is_a_vocabulary():
    for vocabulary, words in (((), 0), ([*"abcdefgh", "<pad>"], 4)):
        view = StepperView(Stepper(FakeCluster(), LAYOUTS["fan_in"]), vocabulary=vocabulary)
        view.stepper.next()
        view.selected, view.opened = 0, "loaded.input_ids"
        lines = view._opened["parts"][0]["words"]
        assert len(lines) == words
        assert all(set(line.split()) <= {*"abcdefgh", "▦"} for line in lines)


def test_play_stops_at_a_breakpoint_a_difference_and_the_end_of_an_iteration():
    view = StepperView(Stepper(FakeCluster(other_values), LAYOUTS["apart_fan_in"]))
    ticks, stops = len(view.stepper.clock), []
    view.stepper.toggle_breakpoint(5)
    for _ in range(ticks):
        view._on_message(view, {"type": "next"}, [])
        if view._shown["stops"]:
            stops.append(view._shown["number"])
    wrong = [each.number for each in view.stepper.snapshots if each.differences]
    assert wrong
    assert stops == sorted({5, *wrong, ticks - 1})


def test_an_edit_is_taken_back_and_the_steps_behind_it_are_done_again():
    name = "microbatch.0.output.tensor"
    stepper = Stepper(FakeCluster(), LAYOUTS["apart_fan_in"])
    view = StepperView(stepper)
    stepper.next(2)
    right = stepper.inspect(2, name).copy()
    stepper.edit(2, name, 7.0, (0, 0))
    stepper.edit(2, name, 8.0, (0, 1))
    stepper.next(3)
    stepper.back()
    for left in (1, 0):
        view._on_message(view, {"type": "take-back"}, [])
        assert len(stepper.edits) == left
        assert ("class='edited'" in view._shown["heading"]) is bool(left)
        assert (view._shown["number"], view._shown["taken"]) == (3, 5)
        assert stepper.inspect(2, name)[0, :2].tolist() == [
            7.0 if left else right[0, 0],
            right[0, 1],
        ]
    view._on_message(view, {"type": "take-back"}, [])
    assert view._shown["error"] == "There is no edit to take back."
