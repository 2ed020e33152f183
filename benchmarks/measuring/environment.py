"""The GPU that a script measures on, and what a reader needs to repeat the run."""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from typing import Any

from jaxbw._src.lab.tuning.launching import ROTATED
from jaxbw._src.selection import devices
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.tuned import table_for


def running_gpu(parser: argparse.ArgumentParser) -> Device:
    """The GPU; the parser exits where there is none that kernels run on."""
    device = devices.running_device()
    if device is None or device.family is None:
        parser.error("there is no GPU that kernels run on")
    return device


def environment(device: Device, time: str, itemsize: int = 2) -> dict[str, Any]:
    """What a reader needs to repeat the run.

    `time`: what was measured; `itemsize`: bytes of a number of the operands.
    """
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    table = table_for(device.machine.name, itemsize)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "gpu": device.name,
        "table": None if table is None else table.made,
        "time": time,
        "inputs": f"iid normal, rotating over {ROTATED / 1e6:.0f} MB",
    }
