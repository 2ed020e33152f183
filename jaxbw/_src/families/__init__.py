"""What the kernels of each architecture can do: one `Family` each, by its name.

All that depends on the architecture in Python stands in these objects;
docs/adding_an_architecture.md lists what a new one needs.
"""

from collections.abc import Mapping

from jaxbw._src.families.family import Family
from jaxbw._src.families.sm90 import SM90
from jaxbw._src.families.sm100 import SM100

FAMILIES: Mapping[str, Family] = {family.name: family for family in (SM100, SM90)}
"""In the order in which `implementation="kernel"` tries them."""
