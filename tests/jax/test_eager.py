"""Calls outside of `jit`: a program each, kept by all that it depends on; and inlined elsewhere."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.api import matmul as api

X, W = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((64, 32), jnp.bfloat16)
DIMS = (((1,), (0,)), ((), ()))
CALLS: dict[str, Callable[..., Any]] = {
    "matmul": lambda x, w, **keywords: jaxbw.matmul(x, w, **keywords),
    "fused": lambda x, w, **keywords: jaxbw.matmul(x, w, activation="gelu", **keywords),
    "gated": lambda x, w, **keywords: jaxbw.gated_matmul(x, w, w, **keywords),
    "dot_general": lambda x, w, **keywords: jaxbw.dot_general(x, w, DIMS, **keywords),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    found: Callable[..., Any] = CALLS[request.param]
    return found


def programs() -> int:
    compiled: tuple[Any, ...] = (api._matmul, api._dot_general)
    return sum(function._cache_size() for function in compiled)


def test_a_second_call_compiles_nothing(call: Callable[..., Any]) -> None:
    x = jnp.ones((17, 64), jnp.bfloat16)
    call(x, W)
    before = programs()
    call(x + 1, W)
    assert programs() == before
    call(x[:16], W)
    assert programs() == before + 1


def test_a_traced_call_is_inlined(call: Callable[..., Any]) -> None:
    jaxpr = jax.make_jaxpr(lambda x, w: call(x, w))(X, W)
    assert not {"jit", "pjit"} & {equation.primitive.name for equation in jaxpr.eqns}


def test_a_program_is_for_its_context(call: Callable[..., Any]) -> None:
    call(X, W)
    before = programs()
    with jaxbw.implementation("xla"):
        call(X, W)
        assert programs() == before + 1
    with jaxbw.batch_invariant(), jaxbw.target("H200"):
        call(X, W)
        assert programs() == before + 2
    with jaxbw.implementation("sm90"), pytest.raises(NotImplementedError, match="run on CUDA"):
        call(X, W)
    before = programs()
    call(X, W)
    assert programs() == before


@pytest.mark.parametrize(
    "keywords",
    [
        {"implementation": ["sm90", "xla"]},
        {"implementation": ("sm90", "xla")},
        {"precision": ["highest", "default"]},
        {"precision": jax.lax.Precision.HIGHEST},
        {"preferred_element_type": "float32"},
        {"preferred_element_type": jnp.float32, "config": jaxbw.GemmConfig(128, 128)},
    ],
    ids=str,
)
def test_arguments_of_any_kind(call: Callable[..., Any], keywords: dict[str, Any]) -> None:
    result = call(X, W, **keywords)
    assert result.dtype == keywords.get("preferred_element_type", jnp.bfloat16)
    np.testing.assert_array_equal(result, jax.jit(lambda x, w: call(x, w, **keywords))(X, W))


def test_a_configuration_that_is_none_is_named(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"config is \{'block_m': 128\}; it is a jaxbw.GemmConfig"):
        call(X, W, config={"block_m": 128})


def test_arguments_that_are_equal_are_one_program() -> None:
    jaxbw.matmul(X, W, alpha=2)
    before = programs()
    np.testing.assert_array_equal(jaxbw.matmul(X, W, alpha=2.0), 2 * jnp.matmul(X, W))
    np.testing.assert_array_equal(jaxbw.matmul(X, W, alpha=np.float64(2)), 2 * jnp.matmul(X, W))
    assert programs() == before


class Parameter:
    """An array in a framework's box, as `nnx.Param` is."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __jax_array__(self) -> jax.Array:
        return self.value


@pytest.mark.parametrize("eager", [True, False])
def test_what_holds_an_array_is_an_operand(call: Callable[..., Any], eager: bool) -> None:
    def matmul(x: jax.Array, w: jax.Array) -> Any:
        return call(Parameter(x), Parameter(w))

    result = matmul(X, W) if eager else jax.jit(matmul)(X, W)
    np.testing.assert_array_equal(result, call(X, W))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray, lambda x: Parameter(jnp.asarray(x))])
def test_a_scalar_array_is_no_part_of_the_program(kind: Callable[..., Any], dtype: str) -> None:
    matmul = jnp.matmul(X, W)

    def scaled(alpha: float) -> Any:
        return jaxbw.matmul(X, W, c=matmul, alpha=kind(np.asarray(alpha, dtype)), beta=2)

    scaled(1)
    before = programs()
    np.testing.assert_array_equal(scaled(-4), -2 * matmul)
    assert programs() == before


@pytest.mark.parametrize("wrong", [None, [[1.0, 2.0]]], ids=str)
def test_what_is_no_array_is_refused(call: Callable[..., Any], wrong: Any) -> None:
    for operands in ((wrong, W), (X, wrong)):
        with pytest.raises(TypeError, match=r"jaxbw\.(gated_)?(matmul|dot_general)"):
            call(*operands)
    with pytest.raises(TypeError, match=r"jaxbw\.gated_matmul"):
        jaxbw.gated_matmul(X, W, wrong)  # None was once taken for a matmul without a gate


def test_numpy_arrays_are_operands(call: Callable[..., Any]) -> None:
    np.testing.assert_array_equal(call(np.asarray(X), np.asarray(W)), call(X, W))
