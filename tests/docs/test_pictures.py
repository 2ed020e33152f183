"""The pictures in docs/images show what the kernels do today."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from . import pictures
from .picture_data import DATA


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DATA)
def test_a_picture_shows_what_the_kernels_do(name: str) -> None:
    now = json.loads(json.dumps(DATA[name]()))
    assert pictures.data_of(pictures.path(name)) == now, "python -m tests.docs.pictures draws it"


@pytest.mark.parametrize("name", DATA)
def test_a_picture_can_be_drawn(name: str) -> None:
    data = pictures.data_of(pictures.path(name))
    figure = pictures.DRAW[name](data)
    assert figure.axes


def test_the_timeline_shows_what_the_kernel_does(tmp_path: Path) -> None:
    """By the command that docs/getting_started.md gives."""
    root = pictures.IMAGES.parents[1]
    script, picture = root / "benchmarks" / "emulator_timeline.py", tmp_path / "timeline.png"
    trace = tmp_path / "trace.json"
    subprocess.run([sys.executable, script, picture, trace], check=True, cwd=tmp_path)
    shows = []
    for path in (picture, pictures.IMAGES / "emulator-timeline.png"):
        with Image.open(path) as image:
            shows.append(image.info["Events"])
    assert shows[0] == shows[1], f"python {script} docs/images/emulator-timeline.png draws it"
    assert json.loads(trace.read_text())["traceEvents"]
