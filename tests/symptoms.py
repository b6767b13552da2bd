"""How long a symptom of a rank lasts before a cluster acts on it, for the time of a test."""

import pytest

from mimokit.cluster.symptoms import SYMPTOMS


def acted_on_after(monkeypatch: pytest.MonkeyPatch, symptom: str, seconds: float) -> None:
    """Change a row of the table."""
    monkeypatch.setitem(SYMPTOMS, symptom, SYMPTOMS[symptom]._replace(after=seconds))
