"""What a planner can be asked on a page without a kernel: its tabs, its ranks, its samples."""

import copy
from collections.abc import Iterator
from typing import Any

from mimokit.prediction.traffic import traffic_of_plan
from mimokit_widgets._widget import Answers, asked
from mimokit_widgets.planner.screen import screen_of
from mimokit_widgets.planner.session import Session
from mimokit_widgets.view_models.rank_details import details_of_ranks
from mimokit_widgets.view_models.sample_walk import walks_of_samples
from mimokit_widgets.view_models.traffic_blocks import blocks_of_kinds

WITHOUT = ("search",)
"""Tabs that do nothing without a kernel."""


def saved_answers(session: Session) -> Answers:
    """Return what the pictures of a planner can be asked; fields cannot be edited."""
    valid = session.valid
    if valid is None:
        return {}
    now = screen_of(session)
    answers: dict[str, dict[str, Any]] = dict(_tabs(session, now))
    for rank, details in details_of_ranks(valid.plan, session.ranks_per_node, valid.config):
        answers[asked(type="select", rank=rank)] = {"_state": {"patch": {"details": details}}}
    for sample, backward, walk in walks_of_samples(valid.plan, valid.config):
        message = asked(type="sample", sample=sample, backward=backward)
        answers[message] = {"_state": {"patch": {"walk": walk}}}
    traffic = traffic_of_plan(valid.config, valid.plan)
    for kind, by_node, (picture, matrix) in blocks_of_kinds(traffic, session.ranks_per_node):
        message = asked(type="traffic", kind=kind, by_node=by_node)
        answers[message] = {"_state": {"patch": {"traffic": picture, "numbers": matrix}}}
    return answers


def _tabs(session: Session, now: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for tab in now["tabs"]:
        if tab["name"] in WITHOUT:
            continue
        opened = copy.copy(session)
        opened.tab = tab["name"]
        patch = {
            name: value
            for name, value in screen_of(opened).items()
            if name not in now or value != now[name] or name == "numbers"
        }
        message = asked(type="tab", name=tab["name"])
        yield message, {"_state": {"patch": {**patch, "tab": tab["name"]}}}
