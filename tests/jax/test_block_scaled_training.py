"""Matmuls that are block-scaled forward and backward: jax.nn's, and the recipes of training."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src import stochastic

from ..quantized import BLOCK_FORMATS

RECIPES = {"mxfp8": jaxbw.mxfp8_dot_general, "nvfp4": jaxbw.nvfp4_dot_general}
PLAIN: Any = (((1,), (0,)), ((), ()))
BATCHED: Any = (((3, 1), (2, 0)), ((0,), (3,)))  # of [b,k,m,l] and [k,n,l,b]


def array(shape: Any, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Numbers that bfloat16 holds, so that no format rounds them twice."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(jnp.bfloat16)
    return x.astype(dtype)


def quantized(x: Any, *given: Any, **options: Any) -> Any:
    """float64 of what the format makes of an array."""
    made = jax.jit(lambda x: jaxbw.quantize(x, *given, **options).dequantized())(x)
    return np.asarray(made).astype(np.float64)


def assert_near(got: Any, left: Any, right: Any) -> None:
    """A matmul within the roundings of its float32 sums."""
    bound = (left.shape[-1] + 4) * 2.0**-23 * (np.abs(left) @ np.abs(right)) + 1e-30
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - left @ right), bound)


def expected(name: str, x: Any, w: Any, bar: Any) -> list[tuple[Any, Any]]:
    """The operands of the three matmuls, `[m, k]` by `[k, n]` forward."""
    square = name == "nvfp4"
    along = partial(quantized, w, name, square=square)
    return [
        (quantized(x, name), along(axis=-2)),
        (quantized(bar, name), along(axis=-1).T),
        (quantized(x, name, axis=-2).T, quantized(bar, name, axis=-2)),
    ]


def with_gradients(function: Any, x: Any, w: Any, bar: Any) -> Any:
    @jax.jit
    def evaluated(x: Any, w: Any, bar: Any) -> Any:
        y, transpose = jax.vjp(function, x, w)
        return y, *transpose(bar)

    return evaluated(x, w, bar)


_extent = st.one_of(st.integers(1, 300), st.sampled_from([1, 31, 33, 129]))


@settings(max_examples=settings().max_examples // 12)  # each is several programs
@given(m=_extent, n=_extent, k=_extent, name=st.sampled_from(list(RECIPES)))
def test_three_matmuls(m: int, n: int, k: int, name: str) -> None:
    """Forward and backward each is of quantized operands, in blocks along what it contracts."""
    x, w, bar = array((m, k)), array((k, n), 1), array((m, n), 2)
    found = with_gradients(partial(RECIPES[name], dimension_numbers=PLAIN), x, w, bar)
    for got, operands in zip(found, expected(name, x, w, bar), strict=True):
        assert_near(got, *operands)


def test_dimensions() -> None:
    """Batch dimensions, several of each kind, in any order: rows and columns are flattened."""
    x, w = array((2, 6, 5, 7)), array((6, 4, 7, 2), 1)
    bar = array((2, 5, 4), 2)
    got = with_gradients(partial(jaxbw.mxfp8_dot_general, dimension_numbers=BATCHED), x, w, bar)
    flat_x = x.transpose(0, 2, 3, 1).reshape(2, 5, 42)
    flat_w = w.transpose(3, 2, 0, 1).reshape(2, 42, 4)
    dims = (((2,), (1,)), ((0,), (0,)))
    flat = with_gradients(
        partial(jaxbw.mxfp8_dot_general, dimension_numbers=dims), flat_x, flat_w, bar
    )
    wanted = (
        flat[0],
        flat[1].reshape(2, 5, 7, 6).transpose(0, 3, 1, 2),
        flat[2].reshape(2, 7, 6, 4).transpose(2, 3, 1, 0),
    )
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    np.testing.assert_allclose(got[0], np.einsum("bkml,knlb->bmn", x, w), atol=1)


def test_vectors_and_nothing() -> None:
    function = jax.jit(jaxbw.mxfp8_dot_general, static_argnums=2)
    x, w = array(40), array((40, 3), 1)
    got = function(x, w, (((0,), (0,)), ((), ())))
    np.testing.assert_array_equal(got, function(x[None], w, PLAIN)[0])
    assert (
        with_gradients(
            partial(jaxbw.mxfp8_dot_general, dimension_numbers=PLAIN),
            *(np.zeros(shape, np.float32) for shape in ((0, 5), (5, 3), (0, 3))),
        )[2].tolist()
        == [[0.0] * 3] * 5
    )


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_kept_is_quantized(name: str) -> None:
    """For the backward pass: no more than the data and their scales, and the dtypes come back."""
    x, w = array((128, 256), dtype=jnp.bfloat16), array((256, 384), 1, jnp.bfloat16)
    y, transpose = jax.vjp(partial(RECIPES[name], dimension_numbers=PLAIN), x, w)
    assert y.dtype == jnp.bfloat16
    kept = [leaf for leaf in jax.tree.leaves(transpose) if leaf.size > 1]
    dtype, _, of_scale, block = BLOCK_FORMATS[name]
    assert {leaf.dtype for leaf in kept} == {np.dtype(dtype), np.dtype(of_scale)}
    numbers = x.size + w.size
    assert sum(leaf.size for leaf in kept) == numbers + numbers // block
    of_x, of_w = transpose(y)
    assert of_x.dtype == of_w.dtype == jnp.bfloat16
    with pytest.raises(TypeError, match="x is differentiated"):
        jax.grad(lambda bar: transpose(bar)[0].astype(np.float32).sum())(y)


def test_a_key_is_for_the_backward_pass() -> None:
    """Gradients vary with it, about their means; an outlier does not cost its block's precision."""
    x, w, bar = array((40, 32)), array((32, 48), 1), array((40, 48), 2)
    x[3] *= 64
    function = partial(jaxbw.nvfp4_dot_general, dimension_numbers=PLAIN)
    y, of_x, of_w = with_gradients(function, x, w, bar)

    @jax.jit
    @jax.vmap
    def drawn(key: Any) -> Any:
        return with_gradients(partial(function, key=key), x, w, bar)

    keys = jax.random.split(jax.random.key(0), 256)
    ys, of_xs, of_ws = map(np.asarray, drawn(keys))
    np.testing.assert_array_equal(ys, np.broadcast_to(y, ys.shape))
    assert of_xs.std(axis=0).min() > 0
    for once, many in zip(drawn(keys[:1])[1:], (of_xs, of_ws), strict=True):
        np.testing.assert_array_equal(once[0], many[0])

    def error(got: Any, wanted: Any) -> Any:
        return np.linalg.norm(np.asarray(got, np.float64) - wanted) / np.linalg.norm(wanted)

    exact = bar @ quantized(w, "nvfp4", axis=-1, square=True).T
    assert error(of_xs.mean(axis=0), exact) < 0.2 * error(of_x, exact)
    exact = x.astype(np.float64).T @ bar
    assert error(of_ws.mean(axis=0), exact) < 0.75 * error(of_w, exact)


def test_rotated_operands_have_the_same_product() -> None:
    """Also where rows, which are contracted, are no multiple of what is rotated together."""
    x, y, signs = array((2, 37, 5)), array((2, 37, 3), 1), stochastic.signs_of(jax.random.key(3))
    left, right = (np.asarray(stochastic.rotated(a, signs)).astype(np.float64) for a in (x, y))
    assert left.shape == (2, 48, 5)
    assert np.abs(left[:, :37] - x).max() > 0.5
    wanted = x.astype(np.float64).swapaxes(1, 2) @ y
    np.testing.assert_allclose(left.swapaxes(1, 2) @ right, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_rotated_numbers_are_rounded(dtype: Any) -> None:
    """As by a cast: all numbers of a dtype, halfway to the next, and beside that.

    On a GPU XLA left the cast out, where what was rotated became float32 again: the global scale
    was that of other numbers than a CPU's, and of other ones than are in the array.
    """
    numbers = np.arange(2**16, dtype=np.uint16).view(np.dtype(dtype)).astype(np.float32)
    halfway = numbers.view(np.uint32) + np.uint32(1 << (15 if dtype == jnp.bfloat16 else 12))
    near = [bits.view(np.float32) for bits in (halfway - 1, halfway, halfway + 1)]
    x = np.concatenate([numbers, *near])
    x = x[~np.isnan(x) & ((x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny))]
    with np.errstate(over="ignore"):
        wanted = x.astype(dtype)
    found = np.asarray(jax.jit(stochastic.cast, static_argnums=1)(x, dtype))
    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


def test_scan_and_remat() -> None:
    """The gradient of a scan of layers that are computed again is that of the layers in turn."""
    x, w = array((5, 40)), array((3, 40, 40), 1) / 8

    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(jaxbw.mxfp8_dot_general(x, w, PLAIN))

    def scanned(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, w)[0].sum()

    def in_turn(x: Any, w: Any) -> Any:
        for each in w:
            x = layer(x, each)
        return x.sum()

    got, wanted = (jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(x, w) for f in (scanned, in_turn))
    _assert_close(got, wanted)


def _assert_close(got: Any, wanted: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2**-12, atol=2**-12), got, wanted)


@pytest.mark.parametrize(
    ("name", "axes"),
    [("mxfp8", (0, 0)), ("mxfp8", (None, 0)), ("mxfp8", (1, None)), ("nvfp4", (0, 0))],
)
def test_vmap(name: str, axes: Any) -> None:
    """Of value and gradient: each has the scales that it has apart, a global one too."""
    x, w = array((3, 5, 40)), array((3, 40, 40), 1)
    x[1] *= 100

    def loss(x: Any, w: Any) -> Any:
        return jnp.sin(RECIPES[name](x, w, PLAIN)).sum()

    one = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    stacked = (x if axes[0] is not None else x[:1], w if axes[1] is not None else w[:1])
    each = [one(*(a[i % len(a)] for a in stacked)) for i in range(3)]
    given = [
        a[0] if axis is None else np.moveaxis(a, 0, axis)
        for a, axis in zip(stacked, axes, strict=True)
    ]
    _assert_close(
        jax.jit(jax.vmap(one, axes))(*given), jax.tree.map(lambda *a: jnp.stack(a), *each)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_forward_mode_is_refused(name: str) -> None:
    x, w = array((5, 40)), array((40, 24), 1)
    with pytest.raises(TypeError, match="to a custom_vjp function"):
        jax.jvp(lambda x: RECIPES[name](x, w, PLAIN), (x,), (x,))


@pytest.mark.parametrize("kind", ["jit", "shard_map"])
def test_data_parallel(kind: str) -> None:
    """Rows on two devices, in whole blocks: the numbers of one device."""
    mesh = jax.make_mesh((2,), ("rows",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])
    x, w, bar = array((2, 64, 40)), array((40, 24), 1), array((2, 64, 24), 2)
    dims = (((2,), (0,)), ((), ()))

    def gradients(x: Any, w: Any, bar: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            total = (jaxbw.mxfp8_dot_general(x, w, dims) * bar).sum()
            return jax.lax.psum(total, "rows") if kind == "shard_map" else total

        return jax.value_and_grad(loss, (0, 1))(x, w)

    rows, whole = P("rows"), P()
    if kind == "jit":
        shardings = [NamedSharding(mesh, spec) for spec in (rows, whole, rows)]
        got = jax.jit(gradients, in_shardings=shardings)(x, w, bar)
    else:
        specs: Any = {"in_specs": (rows, whole, rows), "out_specs": (whole, (rows, whole))}
        got = jax.jit(jax.shard_map(gradients, mesh=mesh, **specs))(x, w, bar)
        kind = "one device"
    _assert_close(got, jax.jit(gradients)(x, w, bar))


# jax.nn's


def configs(name: Any) -> Any:
    # Of others, by which a division is rounded, XLA may multiply with the rounded reciprocal.
    of_all: Any = np.array([2.0**-6], np.float32) if name == "nvfp4" else None
    return [jax.nn.get_scaled_dot_general_config(name, of_all)] * 3


def powers_of_two(x: Any) -> Any:
    """An array whose blocks, along either axis, have a power of two as their scale.

    XLA may divide by multiplying with the rounded reciprocal. Of 15 or 30 that takes a number which
    lies midway between two of e2m1 to the other one.
    """
    rows, columns = np.indices(x.shape[-2:])
    tiles = 2.0 ** (rows // 16 % 3 + columns // 16 % 5 - 3)
    return np.where((rows + columns) % 16 == 0, 6, x.clip(-5, 5)) * tiles.astype(np.float32)


@pytest.mark.parametrize("dims", [PLAIN, (((2,), (2,)), ((0,), (0,)))], ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_beside_jax(name: Any, dims: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of jax.nn.scaled_dot_general, whose matmul is a GPU's: here float32."""
    module = pytest.importorskip(
        "jax._src.cudnn.scaled_matmul_stablehlo", reason="JAX keeps its scaled matmul elsewhere"
    )

    def scaled_matmul(
        lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any
    ) -> Any:
        left, right = (
            x.astype(np.float32) * jnp.repeat(s.astype(np.float32), x.shape[-1] // s.shape[-1], -1)
            for x, s in ((lhs, lhs_scales), (rhs, rhs_scales))
        )
        return jnp.matmul(
            left, right.mT, precision="highest", preferred_element_type=preferred_element_type
        )

    monkeypatch.setattr(module, "scaled_matmul_wrapper", scaled_matmul)
    shapes: Any = [(64, 96), (96, 32), (64, 32)]
    if dims != PLAIN:
        shapes = [(2, 64, 96), (2, 32, 96), (2, 64, 32)]
    x, w, bar = (powers_of_two(array(shape, i)) for i, shape in enumerate(shapes))
    x[..., 0, 0] = 3000  # beyond the global scale
    ours, theirs = (
        with_gradients(partial(f, dimension_numbers=dims, configs=configs(name)), x, w, bar)
        for f in (jaxbw.scaled_dot_general, jax.nn.scaled_dot_general)
    )
    for got, wanted in zip(ours, theirs, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=2**-16, atol=2**-10)


def test_no_configs_is_a_dot_general() -> None:
    x, w = array((5, 40)), array((40, 3), 1)
    got = jaxbw.scaled_dot_general(x, w, PLAIN)
    np.testing.assert_array_equal(got, jaxbw.dot_general(x, w, PLAIN))


def test_what_is_refused() -> None:
    x, w = jnp.ones((5, 40)), jnp.ones((40, 3))
    with pytest.raises(TypeError, match=r"lhs f32\[5,40\], rhs f32\[40,3\]: dimensions \(0,\) and"):
        jaxbw.mxfp8_dot_general(x, w, (((0,), (0,)), ((), ())))
    with pytest.raises(TypeError, match="nvfp4_dot_general: lhs is int32"):
        jaxbw.nvfp4_dot_general(x.astype(int), w, PLAIN)
    with pytest.raises(NotImplementedError, match="out_sharding is to be None"):
        jaxbw.mxfp8_dot_general(x, w, PLAIN, out_sharding=jax.P())
    with pytest.raises(ValueError, match="there are 2 configs"):
        jaxbw.scaled_dot_general(x, w, PLAIN, configs=configs("mxfp8")[:2])
    config = configs("mxfp8")[0]
    config.block_size = 16
    with pytest.raises(ValueError, match="e4m3fn by float8_e8m0fnu in blocks of 16; there are"):
        jaxbw.scaled_dot_general(x, w, PLAIN, configs=[config] * 3)
    with pytest.raises(NotImplementedError, match="MX formats are for sm100"):
        jaxbw.scaled_dot_general(x, w, PLAIN, configs=configs("mxfp8"), implementation="sm90")
