"""jaxbw.dot_general beside lax.dot_general over the table of dot_general_cases.py."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import Precision
from jax.test_util import check_grads

import jaxbw

from .dot_general_cases import (
    ALGORITHMS,
    CASES,
    DIFFERENTIATED,
    FLOATS,
    Case,
    breaks_xla_on_a_gpu,
    compare,
    refusal,
)

SIDE_BY_SIDE = [jaxbw.dot_general, jax.lax.dot_general]
PLAIN = [case for case in CASES if case.precision not in ALGORITHMS]
CHUNK = 60


@pytest.fixture(autouse=True)
def _with_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, len(PLAIN), CHUNK))
def test_equal(first: int) -> None:
    compare(PLAIN[first : first + CHUNK])


def test_algorithms_that_the_platform_refuses_are_refused_alike() -> None:
    taken = []
    for case in (case for case in CASES if case.precision in ALGORITHMS):
        ours, theirs = (refusal(each, case) for each in SIDE_BY_SIDE)
        assert ours == theirs
        if ours is None:
            taken.append(case)
    assert len(taken) >= 10
    compare(taken)


def test_what_breaks_xla_on_a_gpu_is_lax_s_own_program(cuda_hlo: Callable[..., str]) -> None:
    """The tests on a GPU cannot run these: that jaxbw adds nothing to them is seen here."""
    cases = [case for case in CASES if breaks_xla_on_a_gpu(case)]
    assert len(cases) == 7
    for case in cases:
        ours, theirs = (
            cuda_hlo(lambda x, y, f=f, case=case: case(f, x, y), *case.operands())
            for f in SIDE_BY_SIDE
        )
        assert ours == theirs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(len(DIFFERENTIATED)))
def test_gradients_of_orders_1_and_2_in_both_modes(number: int) -> None:
    """A matmul is linear in each operand, so that differences of any width are derivatives.

    The dtypes take turns. The tolerances are those of JAX for a dtype.
    """
    dtype = FLOATS[number % len(FLOATS)]
    case = Case(DIFFERENTIATED[number], dtype, dtype, precision=Precision.HIGHEST)
    lhs, rhs = map(jnp.asarray, case.operands())
    for function, x in (
        (lambda lhs: case(jaxbw.dot_general, lhs, rhs), lhs),
        (lambda rhs: case(jaxbw.dot_general, lhs, rhs), rhs),
    ):
        check_grads(function, (x,), order=2, modes=["fwd", "rev"], eps=1.0)


@pytest.mark.parametrize("shapes", DIFFERENTIATED, ids=str)
def test_a_pullback_keeps_the_precision(shapes: Any) -> None:
    case = Case(shapes, "float32", "float32", precision=Precision.HIGHEST)
    lhs, rhs = case.operands()
    result, pull_back = jax.vjp(lambda lhs, rhs: case(jaxbw.dot_general, lhs, rhs), lhs, rhs)
    assert str(jax.make_jaxpr(pull_back)(result)).count("Precision.HIGHEST") == 4


def transformed() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What once crashed in JAX."""
    scalar = (((), ()), ((), ()))
    half, vector = np.float16(1.5), (((0,), (0,)), ((), ()))
    x, y = np.arange(5, dtype=np.float32), np.arange(5, dtype=np.complex64)
    # https://github.com/jax-ml/jax/issues/16805
    yield (
        "hessian of a rematerialised matmul of a Python number",
        lambda f: jax.hessian(jax.remat(lambda x: f(x, x, scalar)))(1.0),
    )
    # https://github.com/jax-ml/jax/issues/10818
    yield (
        "jacobian of a matmul that is wider than its operands",
        lambda f: jax.jacrev(lambda x: f(x, x, scalar, preferred_element_type=jnp.float32))(half),
    )
    # https://github.com/jax-ml/jax/issues/33521
    yield (
        "jacobian of the real part of a matmul of real and complex",
        lambda f: jax.jacobian(lambda x, y: f(x, y, vector).real)(x, y),
    )


@pytest.mark.parametrize("transform", dict(transformed()).values(), ids=dict(transformed()))
def test_what_once_crashed_in_jax(transform: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = map(transform, SIDE_BY_SIDE)
    assert jax.typeof(ours) == jax.typeof(theirs)
    np.testing.assert_array_equal(ours, theirs)


def test_the_context_of_the_default_precision() -> None:
    """It is a part of the program, as `lax` has it."""
    lhs, rhs = np.ones((3, 4), np.float32), np.ones((4, 3), np.float32)
    dims = (((1,), (0,)), ((), ()))
    for name in ("float32", "F32_F32_F32", "bfloat16"):
        with jax.default_matmul_precision(name):
            programs = [jax.jit(f, static_argnums=2).lower(lhs, rhs, dims) for f in SIDE_BY_SIDE]
        ours, theirs = (
            next(line for line in program.as_text().splitlines() if "dot_general" in line)
            for program in programs
        )
        assert ours.split("dot_general")[1] == theirs.split("dot_general")[1]


def test_every_pair_of_dtypes_is_there() -> None:
    pairs = {(case.lhs_dtype, case.rhs_dtype) for case in CASES}
    numbers = {lhs for lhs, rhs in pairs if lhs == rhs} - {"bool"}
    numbers = {name for name in numbers if not name.startswith("float8")}
    assert len(numbers) == 14
    assert set(itertools.product(numbers, repeat=2)) <= pairs
