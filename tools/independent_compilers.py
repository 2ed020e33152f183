"""Installs other people's compilers, the extra "independent", for the tests: `make test` runs this.

They are more than all other tools together, and tests/independent alone needs them. Asked for
jaxbw[independent], pip would build jaxbw once more.
"""

import subprocess
import sys
from importlib.metadata import requires

from packaging.requirements import Requirement


def _is_of_extra(requirement: Requirement) -> bool:
    marker = requirement.marker
    return (
        marker is not None
        and marker.evaluate({"extra": "independent"})
        and not marker.evaluate({"extra": ""})
    )


def main() -> None:
    """Installs what the extra adds."""
    requirements = map(Requirement, requires("jaxbw") or [])
    wanted = [f"{each.name}{each.specifier}" for each in requirements if _is_of_extra(each)]
    if wanted:  # there are none of them for some platforms
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted], check=True)


if __name__ == "__main__":
    main()
