"""The table of docs/transformations.md: each transformation does what stands there."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.experimental.checkify
import jax.numpy as jnp
import pytest

import jaxbw

PAGE = Path(__file__).parents[2] / "docs" / "transformations.md"
ROWS = re.compile(r"^\| `([^`]*f[^`]*)` \| (\w+) \| ([\w ]+) \|$", re.MULTILINE)
X, W = jnp.ones((3, 4)), jnp.ones((4, 4)) / 8
FORMS: dict[str, list[Any]] = {
    "plain": [
        lambda x: jaxbw.matmul(x, W),
        lambda x: jaxbw.dot_general(x, W, (((1,), (1,)), ((), ()))),
    ],
    "with an epilogue": [
        lambda x: jaxbw.matmul(x, W, alpha=2),  # linear
        lambda x: jaxbw.gated_matmul(x, W, W),
        lambda x: jaxbw.matmul(x, W, c=x, alpha=x[0, 0], beta=x[0, 1]),
    ],
}


def test_the_table_has_rows() -> None:
    assert len(ROWS.findall(PAGE.read_text())) == 19


@pytest.mark.parametrize(("call", "plain", "fused"), ROWS.findall(PAGE.read_text()))
def test_what_works(call: str, plain: str, fused: str) -> None:
    for says, forms in zip((plain, fused), FORMS.values(), strict=True):
        for form in forms:
            scope = {"jax": jax, "f": form, "x": X}
            if says == "yes" or (says == "if linear" and form is forms[0]):
                eval(call, scope)
            else:
                assert says == "if linear"
                with pytest.raises(NotImplementedError):
                    eval(call, scope)
