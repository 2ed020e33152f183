"""Which kernels this installation has: jaxbw/kernels/manifest.json, written by the build."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxbw._src.selection.kernel_table import Kernel

_VERSION = 3  # of the format, see cuda/kernels/generate.py


def directory() -> Path:
    """The folder of the .cubin and .ptx files; it need not exist."""
    return Path(str(resources.files("jaxbw") / "kernels"))


def ptx(kernel: Kernel, folder: Path | None = None) -> str:
    """The PTX of a kernel, from the folder of another build or the installed one."""
    return kernel.ptx(((folder or directory()) / f"{kernel.source_name}.ptx").read_text())


@cache
def kernels() -> tuple[Kernel, ...]:
    """Every compiled instance; empty where the package was built without kernels.

    Raises:
      ImportError: the manifest is of another version of jaxbw.
    """
    from jaxbw._src.selection.kernel_table import Kernel

    path = directory() / "manifest.json"
    if not path.is_file():
        return ()
    manifest = json.loads(path.read_text())
    if manifest["version"] != _VERSION:
        raise ImportError(
            f"{path} has version {manifest['version']}, this jaxbw reads {_VERSION}: reinstall it"
        )
    return tuple(Kernel.from_json(entry) for entry in manifest["kernels"])
