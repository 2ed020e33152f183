"""Scales of rows and columns: their shapes, what vmap makes of them, and which values they take.

Their formula, derivatives and lowering are tested with those of the other epilogues.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

from .epilogues import assert_same

SCALES = np.array([1, -1, 2, 0.5, -4], np.float32)  # times which integers stay exact


def integers(*shape: int, number: int = 0) -> Any:
    drawn = np.random.default_rng([*shape, number]).integers(-3, 4, shape)
    return jax.device_put(drawn.astype(jnp.bfloat16))


def scales(*shape: int, number: int = 0) -> Any:
    return jax.device_put(np.random.default_rng([*shape, number]).choice(SCALES, shape))


def exact(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


# lhs, rhs, and the shapes of their scales.
SHAPES = {
    "matrices": ((4, 8), (8, 6), (4,), (6,)),
    "scalars": ((4, 8), (8, 6), (), ()),
    "size 1 where it is contracted": ((4, 8), (8, 6), (4, 1), (1, 6)),
    "one of all": ((4, 8), (8, 6), (1,), (1, 1)),
    "batches": ((2, 4, 8), (2, 8, 6), (2, 4), (2, 6)),
    "shared in a batch": ((2, 4, 8), (2, 8, 6), (1, 4), (2, 1)),
    "batches of lhs": ((2, 4, 8), (8, 6), (2, 4), (6,)),
    "batches of rhs": ((4, 8), (2, 8, 6), (4,), (2, 6)),
    "broadcast batches": ((2, 1, 4, 8), (3, 8, 6), (2, 1, 4), (3, 6)),
    "some broadcast": ((1, 3, 4, 8), (2, 3, 8, 6), (1, 3, 4), (2, 3, 6)),
    "a vector": ((8,), (8, 6), (), (6,)),
    "another vector": ((4, 8), (8,), (4,), ()),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_of_matmul(case: str) -> None:
    lhs_shape, rhs_shape, of_lhs, of_rhs = SHAPES[case]
    x, w = integers(*lhs_shape), integers(*rhs_shape, number=1)
    s, t = scales(*of_lhs), scales(*of_rhs, number=1)
    rows = s if s.ndim in (0, x.ndim) else s[..., None]
    columns = t if t.ndim in (0, w.ndim) or w.ndim == 1 else t[..., None, :]
    wanted = (exact(x) * exact(rows)) @ (exact(w) * exact(columns))
    got = jaxbw.matmul(x, w, lhs_scale=s, rhs_scale=t, preferred_element_type=np.float32)
    np.testing.assert_array_equal(exact(got), wanted)


def test_shapes_of_dot_general() -> None:
    """Dimensions in the operands' order, which is not that of the result."""
    x, w = integers(4, 2, 8, 3), integers(5, 8, 3, 7, number=1)
    s, t = scales(4, 2, 3), scales(5, 3, 7, number=1)
    dims = (((2,), (1,)), ((3,), (2,)))
    got = jaxbw.dot_general(x, w, dims, lhs_scale=s, rhs_scale=t, preferred_element_type="float32")
    wanted = np.einsum("abkz,ckzd,abz,czd->zabcd", *map(exact, (x, w, s, t)))
    np.testing.assert_array_equal(exact(got), wanted)


def test_transposed_operands_are_read_in_place() -> None:
    x, w, s, t = integers(8, 4), integers(6, 8, number=1), scales(4), scales(6, number=1)

    @jax.jit
    def matmul(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x.T, w.T, lhs_scale=s, rhs_scale=t, preferred_element_type="float32")

    wanted = exact(s)[:, None] * (exact(x).T @ exact(w).T) * exact(t)
    np.testing.assert_array_equal(exact(matmul(x, w)), wanted)


@pytest.mark.parametrize("given", [*itertools.product([False, True], repeat=2)], ids=str)
def test_gated(given: tuple[bool, bool]) -> None:
    """One of the right operands may have scales, a scalar or a vector; both share those of rows."""
    x, w, u, s = integers(4, 8), integers(8, 6, number=1), integers(8, 6, number=2), scales(4)
    of_gate, of_up = scales(6, number=3) if given[0] else None, scales() if given[1] else None
    got = jaxbw.gated_matmul(
        *(x, w, u),
        activation="relu",
        lhs_scale=s,
        rhs_gate_scale=of_gate,
        rhs_up_scale=of_up,
        preferred_element_type=np.float32,
    )
    rows = exact(s)[:, None] * exact(x)
    gate, up = (
        rows @ exact(y) * (1 if scale is None else exact(scale))
        for y, scale in ((w, of_gate), (u, of_up))
    )
    np.testing.assert_array_equal(exact(got), np.maximum(gate, 0) * up)


AXES = [*itertools.product((None, 0, 1), (None, 1), (None, 0), (None, 0))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("axes", [axes for axes in AXES if any(x is not None for x in axes)])
def test_vmap(axes: Any, operand: Any) -> None:
    shapes = (4, 8), (8, 6), (4,), (6,)
    given = [
        operand(shape if axis is None else (*shape[:axis], 3, *shape[axis:]), "float32", i)
        for i, (shape, axis) in enumerate(zip(shapes, axes, strict=True))
    ]

    def ours(x: Any, w: Any, s: Any, t: Any) -> Any:
        return jaxbw.matmul(x, w, lhs_scale=s, rhs_scale=t, activation="silu")

    def formula(x: Any, w: Any, s: Any, t: Any) -> Any:
        return jax.nn.silu((s[:, None] * x) @ (w * t))

    def mapped(function: Any, *given: Any) -> Any:
        return jax.vmap(function, axes)(*given)

    assert_same(mapped, (ours, formula), *given)


IMPLEMENTATIONS = ["xla", "emulator", "emulator-sm90"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_kernels_with_batches_of_each(implementation: Any) -> None:
    """Few rows, for which the operands are exchanged; a stack, and a batch of both."""
    for lhs_shape, rhs_shape in (((5, 72), (72, 200)), ((2, 40, 72), (2, 72, 72))):
        x, w = integers(*lhs_shape), integers(*rhs_shape, number=1)
        s, t = scales(*lhs_shape[:-1]), scales(*rhs_shape[:-2], rhs_shape[-1], number=1)
        got = jaxbw.matmul(
            *(x, w),
            lhs_scale=s,
            rhs_scale=t,
            bias=t.reshape(-1)[: rhs_shape[-1]],
            activation="relu",
            preferred_element_type=np.float32,
            implementation=implementation,
        )
        z = exact(s)[..., :, None] * (exact(x) @ exact(w)) * exact(t)[..., None, :]
        wanted = np.maximum(z + exact(t).reshape(-1)[: rhs_shape[-1]], 0)
        np.testing.assert_array_equal(exact(got), wanted)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_zero_and_nan(implementation: Any) -> None:
    """A scale of 0 leaves the bias, and one that is NaN spoils no other row or column."""
    x, w, bias = integers(40, 64), integers(64, 72, number=1), jnp.arange(72.0)
    s, t = scales(40).at[:2].set(jnp.array([0.0, jnp.nan])), scales(72).at[5].set(jnp.nan)
    got = jaxbw.matmul(
        *(x, w),
        lhs_scale=s,
        rhs_scale=t,
        bias=bias,
        preferred_element_type=np.float32,
        implementation=implementation,
    )
    wanted = exact(s)[:, None] * (exact(x) @ exact(w)) * exact(t) + exact(bias)
    np.testing.assert_array_equal(exact(got), wanted)
    assert np.isnan(wanted[1]).all()
    assert (wanted[0, 6:] == exact(bias)[6:]).all()


X, W = jnp.ones((4, 8)), jnp.ones((8, 6))
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "columns of lhs": (
        {"lhs_scale": jnp.ones(8)},
        ValueError,
        r"lhs_scale f32\[8\] does not fit lhs f32\[4,8\]; it is a scalar, or \[4\].*: reshape it",
    ),
    "blocks": (
        {"rhs_scale": jnp.ones((2, 6))},
        ValueError,
        r"rhs_scale f32.*along the contraction",
    ),
    "integers": ({"rhs_scale": jnp.ones(6, int)}, TypeError, "rhs_scale is int32; cast it to floa"),
    "a list": ({"lhs_scale": [1.0]}, TypeError, r"lhs_scale is a list; .*asarray\(lhs_scale\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    keywords, error, message = REFUSED[case]
    with pytest.raises(error, match=f"matmul: {message}"):
        jaxbw.matmul(X, W, **keywords)
    with pytest.raises(error, match=f"explain: {message}"):
        jaxbw.explain(X, W, **keywords)


def test_other_calls_refuse_alike() -> None:
    with pytest.raises(ValueError, match=r"dot_general: rhs_scale f32\[8\] does not fit rhs"):
        jaxbw.dot_general(X, W, None, rhs_scale=jnp.ones(8))
    with pytest.raises(ValueError, match=r"gated_matmul: rhs_gate_scale f32\[4\] .* rhs_gate f32"):
        jaxbw.gated_matmul(X, W, W, rhs_gate_scale=jnp.ones(4))
    with pytest.raises(TypeError, match="needs a real floating result, and this one is int32"):
        jaxbw.matmul(X.astype(int), W.astype(int), lhs_scale=jnp.ones(4))
