"""The examples as modules, and as a user starts them: they are scripts, of no package."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(
    name: str, folder: Path, sizes: dict[str, int], **environment: str
) -> tuple[str, float, float]:
    """What an example of a GPT prints, on two devices; its loss, and that without context."""
    cpu = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    # An example may import another one, which lies beside it.
    given = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *(f"--{key}={n}" for key, n in sizes.items())],
        cwd=folder,
        env=given | cpu | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert "2 x cpu" in run.stdout
    losses = re.search(r"held-out loss (\S+) before, (\S+) after training", run.stdout)
    without = re.search(r"without any context (\S+)", run.stdout)
    assert losses is not None
    assert without is not None
    before, after = map(float, losses.groups())
    assert before > np.log(50)  # nothing is known of some hundred characters
    return run.stdout, after, float(without.group(1))
