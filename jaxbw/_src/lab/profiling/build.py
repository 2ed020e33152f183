"""Profiling builds of kernels: compiled when one is asked for, kept by what their sources hold.

They are no part of the package. Whoever reads a profile works on the kernels, and has their
sources; a wheel stays as small as it is, and its build as short.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

SOURCES = "JAXBW_SOURCES"  # a checkout; by default the one that the package lies in
CACHE = "JAXBW_PROFILE_CACHE"  # a directory


def compiled(kernel: str) -> Path:
    """The directory with the profiling build of a kernel, a `.cubin` and a `.ptx`.

    It is compiled unless it has been: 3 seconds for a Hopper kernel, 10 for a Blackwell one.

    Raises:
      RuntimeError: there are no sources or no compiler, or it refuses them.
    """
    root = sources()
    directory = cache() / _digest(root)
    if not (directory / f"{kernel}.cubin").exists():
        script = root / "cuda" / "kernels" / "profiled.py"
        command = [sys.executable, str(script), "--output", str(directory), kernel]
        environment = {name: v for name, v in os.environ.items() if name != "PYTHONSAFEPATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise RuntimeError(
                f"jaxbw.profile: the profiling build of {kernel} failed:\n{done.stderr}"
                "The emulator's profile takes no compiler: "
                'implementation="emulator-sm90" or "emulator"'
            )
    return directory


def sources() -> Path:
    """The checkout with the sources of the kernels.

    Raises:
      RuntimeError: there is none.
    """
    given = os.environ.get(SOURCES)
    root = Path(given) if given else Path(__file__).resolve().parents[4]
    if not (root / "cuda" / "kernels" / "profiled.py").exists():
        raise RuntimeError(
            f"jaxbw.profile: a profile on a GPU is made by kernels that are compiled for it, and "
            f"{root} does not have their sources; set {SOURCES} to a checkout of jaxbw. The "
            'emulator\'s profile takes none: implementation="emulator-sm90" or "emulator"'
        )
    return root


def cache() -> Path:
    """Where profiling builds are kept: JAXBW_PROFILE_CACHE, or the user's cache."""
    given = os.environ.get(CACHE)
    if given:
        return Path(given).absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "jaxbw" / "profile"


def _digest(root: Path) -> str:
    """Tells sources apart, and how they are compiled."""
    cuda = root / "cuda"
    files = [cuda / "params.h", cuda / "kernels.toml", *(cuda / "kernels").glob("*.py")]
    files += [path for part in ("gemm", "ptx") for path in (cuda / part).iterdir()]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
