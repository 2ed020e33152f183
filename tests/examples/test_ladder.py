"""examples/ladder/run.py as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from ladder.rungs import RUNGS

SCRIPT = Path(__file__).parents[2] / "examples" / "ladder" / "run.py"


def test_run_as_a_user_would(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, SCRIPT, "--png", "ladder.png", "--size", "512", "1024", "128"],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "emulated: counts, not speed" in run.stdout
    rows = dict(re.findall(r"^(\S.*?)  +(.*)$", run.stdout, re.MULTILINE))
    loaded = {}
    for rung in RUNGS:
        _, loaded[rung.name], derived, *_ = rows[rung.name].split()
        assert loaded[rung.name] == derived
    assert float(loaded["double output"]) > 3 * float(loaded["multicast 4x4"])
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
