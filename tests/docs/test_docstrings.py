"""The examples in the docstrings of every module of the installed package are run.

As in the manuals of NumPy and JAX, the usual names are taken as imported.
"""

import doctest
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

MODULES = ["jaxbw", *(module.name for module in pkgutil.walk_packages(jaxbw.__path__, "jaxbw."))]
NAMES = {"jax": jax, "jaxbw": jaxbw, "jnp": jnp, "np": np}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_docstrings(name: str) -> None:
    failed, _ = doctest.testmod(
        importlib.import_module(name), extraglobs=NAMES, optionflags=doctest.ELLIPSIS
    )
    assert failed == 0
