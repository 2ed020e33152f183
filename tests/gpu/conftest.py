"""What the tests on a GPU share."""

import pytest

from jaxbw._src.selection import select


@pytest.fixture(autouse=True)
def _xla_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of kernels, and which of them XLA is quicker at is not theirs to know."""
    monkeypatch.setattr(select, "xla_time", lambda problem, device: None)
