"""Measuring without a GPU waits for no clock to recover, and draws fewer resamples."""

import pytest

from jaxbw._src.lab.bench import measure, statistics


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "IDLE_S", 0.0)
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
