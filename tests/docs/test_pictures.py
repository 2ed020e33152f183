"""The pictures in docs/images show what the kernels do today; `python -m tests.docs.pictures`."""

import json

import pytest

from . import pictures
from .picture_data import DATA


@pytest.mark.parametrize("name", DATA)
def test_a_picture_shows_what_the_kernels_do(name: str) -> None:
    now = json.loads(json.dumps(DATA[name]()))
    assert pictures.data_of(pictures.path(name)) == now, "python -m tests.docs.pictures draws it"


@pytest.mark.parametrize("name", DATA)
def test_a_picture_can_be_drawn(name: str) -> None:
    data = pictures.data_of(pictures.path(name))
    figure = pictures.DRAW[name](data)
    assert figure.axes
