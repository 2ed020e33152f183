"""jaxbw.matmul inside jax.jit on the GPU of this machine, against NumPy in float64.

Every case is strict about the implementation and looks the custom call up in the compiled program,
so that XLA cannot pass the test in the kernels' place.
"""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.selection import devices

from ..emulator.gemm_cases import ACCUMULATION_8BIT, INPUTS, cta_launch, gemms

pytestmark = pytest.mark.gpu

Values = npt.NDArray[np.float64]

ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
DTYPES = ["bfloat16", "float16"]
LAYOUTS = ["nn", "nt", "tn", "tt"]
LONG = {
    **{"bf16": "bfloat16", "f16": "float16", "f32": "float32"},
    **{"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"},
}


@pytest.fixture(scope="module")
def family() -> str:
    """The kernels that this machine's GPU runs."""
    device = devices.running_device()
    assert device is not None
    assert device.problem is None, device.problem
    if device.family is None:
        pytest.fail(f"jaxbw has no kernels for {device.name}")
    return device.family


def normal(shape: tuple[int, ...], dtype: str, number: int = 0) -> jax.Array:
    generator = np.random.default_rng([*shape, number])
    return jnp.asarray(generator.standard_normal(shape), dtype)


def wide(x: Any) -> Values:
    return np.asarray(x).astype(np.float64)


def serve(function: Callable[..., Any], *operands: Any, calls: int = 1) -> Any:
    """Runs a function as one compiled program, which holds so many of our custom calls."""
    compiled = jax.jit(function).lower(*operands).compile()
    text = compiled.as_text() or ""
    assert text.count(f'custom_call_target="{TARGET}"') == calls, text
    assert "__cublas" not in text
    return compiled(*operands)


def assert_close(
    result: Any, reference: Values, magnitude: Values, k: int, coarse: float = 0.0
) -> None:
    """Within the rounding of the output, of K float32 sums, and of `coarse` of the magnitude."""
    eps = ROUNDOFF[result.dtype.name]
    bound = eps * np.abs(reference) + (2 * k * 2.0**-24 + coarse) * magnitude + 2.0**-24
    error = np.abs(wide(result) - reference)
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: error {error[worst]}, bound {bound[worst]}"


def laid_out(
    m: int, n: int, k: int, layout: str, dtype: str, batch: tuple[int, ...] = ()
) -> tuple[jax.Array, jax.Array, Any]:
    """Operands of a matmul in a layout, and its dimension numbers."""
    lhs_shape, lhs_k = ((m, k), 1) if layout[0] == "n" else ((k, m), 0)
    rhs_shape, rhs_k = ((k, n), 0) if layout[1] == "n" else ((n, k), 1)
    rank = len(batch)
    both = tuple(range(rank))
    dims = (((rank + lhs_k,), (rank + rhs_k,)), (both, both))
    # What is bfloat16 is exact as TF32, too, which kernels make of float32.
    drawn = "bfloat16" if dtype == "float32" else dtype
    lhs, rhs = normal((*batch, *lhs_shape), drawn), normal((*batch, *rhs_shape), drawn, 1)
    return lhs.astype(dtype), rhs.astype(dtype), dims


def check(
    lhs: jax.Array, rhs: jax.Array, dims: Any, family: str, output: str | None = None, **kw: Any
) -> None:
    def matmul(lhs: Any, rhs: Any) -> Any:
        return jaxbw.dot_general(
            lhs, rhs, dims, preferred_element_type=output, implementation=family, **kw
        )

    result = serve(matmul, lhs, rhs)
    assert result.dtype == (output or lhs.dtype)
    k = int(np.prod([lhs.shape[i] for i in dims[0][0]]))
    left, right = wide(lhs), wide(rhs)
    (lhs_k, rhs_k), (lhs_batch, _) = dims
    if lhs_batch:
        left = left if lhs_k == (len(lhs_batch) + 1,) else left.swapaxes(-1, -2)
        right = right if rhs_k == (len(lhs_batch),) else right.swapaxes(-1, -2)
        reference, magnitude = left @ right, np.abs(left) @ np.abs(right)
    else:
        reference = np.tensordot(left, right, (lhs_k, rhs_k))
        magnitude = np.tensordot(np.abs(left), np.abs(right), (lhs_k, rhs_k))
    alpha, residual = kw.get("alpha", 1.0), wide(kw.get("residual", 0.0))
    reference, magnitude = alpha * reference + residual, alpha * magnitude + np.abs(residual)
    # Sums of 8 bits may be as coarse as Hopper's, which test_8bit.py compares bit by bit.
    narrow = lhs.dtype.itemsize == 1
    assert_close(result, reference, magnitude, k, narrow * ACCUMULATION_8BIT * -(-k // 32))


# What a kernel of Hopper is asked for by: parts of K, a factor, a residual.
ASKED = {
    "plain": "",
    "elementwise": "factor",
    "fused": "factor residual",
    "cast": "parts",
    "skinny": "",
    "gemm": "parts factor",
}


@pytest.mark.parametrize("kernel", gemms(), ids=lambda kernel: kernel.name)
def test_every_kernel_of_the_table(kernel: Any, family: str) -> None:
    """Each instance by configuration, at a shape with a tail in every dimension."""
    if kernel.family != family:
        pytest.skip(f"a kernel of {kernel.family}")
    layouts = LAYOUTS if kernel.layout == "any" else [kernel.layout]
    for layout in layouts:
        for dtype in dict.fromkeys(lhs for lhs, _ in INPUTS[kernel.input]):
            promoted = kernel.input == "8bit_promoted"
            asked = "" if family == "sm100" or promoted else ASKED[kernel.role]
            config = jaxbw.GemmConfig(
                **cta_launch(kernel),
                cta_group=kernel.cta_group,
                split_k=2 if "parts" in asked else 1,
            )
            lhs, rhs, dims = laid_out(328, 392, 200, layout, LONG[dtype])
            narrow = lhs.dtype.itemsize == 1
            options: dict[str, Any] = {"config": config, "implementation": family}
            if "factor" in asked:
                options["alpha"] = 0.5
            if "residual" in asked:
                options["residual"] = normal((328, 392), "bfloat16" if narrow else LONG[dtype], 2)
            if promoted:
                options["precision"] = jax.lax.Precision.HIGHEST
            choice = jaxbw.explain(
                *(lhs, rhs),
                dimension_numbers=dims,
                preferred_element_type="bfloat16" if narrow else None,
                **options,
            )
            assert choice.kernel == kernel.name
            del options["implementation"]
            check(lhs, rhs, dims, family, "bfloat16" if narrow else None, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", ["bfloat16", "float16", "float32"])
def test_layouts_and_dtypes(layout: str, dtype: str, output: str, family: str) -> None:
    check(*laid_out(264, 136, 328, layout, dtype), family, output)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 8, 8),
        (1, 2048, 4096),
        (7, 24, 40),
        (33, 2112, 7168),
        (100, 576, 1000),
        (129, 257 * 8, 72),
        (255, 264, 2304),
        (1000, 1032, 520),
        (2049, 2056, 136),
        (4096, 4096, 64),
        (128, 8, 16384),
    ],
)
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_odd_sizes(m: int, n: int, k: int, layout: str, family: str) -> None:
    check(*laid_out(m, n, k, layout, "bfloat16"), family)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (8, 1, 64),
        (8, 8, 1),
        (64, 1, 8),
        (8, 128, 3),
        (1, 1, 1),
        (1, 1000, 4096),
        (129, 131, 133),
        (1000, 1001, 999),
        (5, 50257, 768),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_size_is_too_odd(m: int, n: int, k: int, layout: str, family: str) -> None:
    """Rows that TMA cannot address are repacked within the call; so they are in the gradients."""
    lhs, rhs, dims = laid_out(m, n, k, layout, "bfloat16")
    check(lhs, rhs, dims, family)
    assert jaxbw.explain(lhs, rhs, dimension_numbers=dims).implementation == family
    matmul = functools.partial(jaxbw.dot_general, dimension_numbers=dims, implementation=family)
    cotangent = normal((m, n), "bfloat16", 2)
    of_lhs, of_rhs = serve(
        lambda x, y, g: jax.vjp(matmul, x, y)[1](g), lhs, rhs, cotangent, calls=2
    )
    g, left, right = wide(cotangent), wide(lhs), wide(rhs)
    left = left if layout[0] == "n" else left.T
    right = right if layout[1] == "n" else right.T
    for got, (a, b), letter in (
        (of_lhs, (g, right.T), layout[0]),
        (of_rhs, (left.T, g), layout[1]),
    ):
        got = got if letter == "n" else got.T
        assert_close(got, a @ b, np.abs(a) @ np.abs(b), a.shape[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [(3,), (2, 5)])
def test_batches(layout: str, batch: tuple[int, ...], family: str) -> None:
    check(*laid_out(136, 200, 72, layout, "bfloat16", batch), family)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_clusters(cluster: tuple[int, int], layout: str, family: str) -> None:
    config = jaxbw.GemmConfig(128, 128, cluster=cluster, swizzle=2)
    check(*laid_out(1000, 776, 328, layout, "bfloat16"), family, config=config)


@pytest.mark.parametrize("waves", [0.5, 1.25, 2.5])
def test_partial_waves(waves: float, family: str) -> None:
    device = devices.running_device()
    assert device is not None
    rows = 128 * max(1, round(waves * device.sm_count / 8))
    check(*laid_out(rows, 8 * 128, 192, "nn", "bfloat16"), family)


ACTIVATIONS = ["relu", "silu", "gelu", "gelu_exact"]


def activated(name: str | None, z: Values) -> Any:
    if name == "relu":
        return np.maximum(z, 0)
    if name == "gelu":
        return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    if name == "gelu_exact":
        return 0.5 * z * (1 + np.vectorize(math.erf)(z / np.sqrt(2)))
    if name == "silu":
        return z / (1 + np.exp(-z))
    return z


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias_axis", [None, -1, -2])
@pytest.mark.parametrize("output", ["bfloat16", "float32"])
@pytest.mark.parametrize("n", [264, 251])
def test_fused(
    n: int, activation: str | None, bias_axis: int | None, output: str, family: str
) -> None:
    m, k = 200, 136
    lhs, rhs = normal((m, k), "bfloat16"), normal((k, n), "bfloat16", 1)
    given: dict[str, Any] = {
        "c": normal((m, n), output, 3),
        "residual": normal((m, n), "bfloat16", 4),
    }
    if bias_axis is not None:
        given["bias"] = normal((m if bias_axis == -2 else n,), "float32", 2)

    def fused(lhs: Any, rhs: Any, given: Any) -> Any:
        return jaxbw.matmul(
            lhs,
            rhs,
            **given,
            alpha=0.5,
            beta=-2,
            bias_axis=bias_axis or -1,
            activation=activation,
            preferred_element_type=output,
            implementation=family,
        )

    result = serve(fused, lhs, rhs, given)
    left, right = wide(lhs), wide(rhs)
    shift = -2 * wide(given["c"])
    if bias_axis is not None:
        shift = shift + (wide(given["bias"])[:, None] if bias_axis == -2 else wide(given["bias"]))
    residual = wide(given["residual"])
    # An activation has a slope of at most 1.13, and its value is within 2^-20 of z, relatively.
    magnitude = 1.13 * (np.abs(left) @ np.abs(right) + np.abs(shift)) + np.abs(residual)
    reference = activated(activation, 0.5 * left @ right + shift) + residual
    assert_close(result, reference, magnitude, k + 16)


def test_c_may_be_used_again(family: str) -> None:
    """The kernel writes over c; where the program still needs it, XLA copies it first."""
    x, w, c = (normal((256, 256), "bfloat16", i) for i in range(3))
    add = functools.partial(jaxbw.matmul, implementation=family)
    total, same = serve(lambda x, w, c: (add(x, w, c=c), c * 2), x, w, c)
    reference, magnitude = wide(x) @ wide(w) + wide(c), np.abs(wide(x)) @ np.abs(wide(w))
    assert_close(total, reference, magnitude + np.abs(wide(c)), 258)
    np.testing.assert_array_equal(wide(same), 2 * wide(c))
    donated = jax.jit(lambda c: add(x, w, c=c), donate_argnums=0)(c + 0)
    np.testing.assert_array_equal(wide(donated), wide(total))
    # Twice into one array: the second call starts from what the first has written.
    twice = serve(lambda x, w, c: add(x, w, c=add(x, w, c=c)), x, w, c, calls=2)
    bound = 2.0**-7 * np.abs(reference + wide(x) @ wide(w)).max()
    assert np.abs(wide(twice) - (reference + wide(x) @ wide(w))).max() <= bound


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("shape", [(264, 136, 200), (8, 512, 1408), (33, 77, 131)], ids=str)
def test_gated(shape: tuple[int, int, int], activation: str, family: str) -> None:
    m, k, n = shape
    given = normal((m, k), "bfloat16"), *(normal((k, n), "bfloat16", i) / 8 for i in (1, 2))
    fused = functools.partial(jaxbw.gated_matmul, activation=activation, implementation=family)
    result = serve(fused, *given)
    x, w_gate, w_up = map(wide, given)
    z, u = x @ w_gate, x @ w_up
    # The factors' errors, each times the other factor, which is at most its own magnitude.
    magnitude = 4 * 1.13 * (np.abs(x) @ np.abs(w_gate)) * (np.abs(x) @ np.abs(w_up))
    assert_close(result, activated(activation, z) * u, magnitude, k + 16)

    def pull_back(*given: Any, **keywords: Any) -> Any:
        *primals, cotangent = given
        out, back = jax.vjp(functools.partial(fused, **keywords), *primals)
        return out, *back(cotangent)

    cotangent = normal((m, n), "bfloat16", 3)
    got = serve(pull_back, *given, cotangent, calls=5)
    again = serve(functools.partial(pull_back, recompute=True), *given, cotangent, calls=6)
    with jax.default_matmul_precision("highest"):
        wanted = pull_back(
            *(x.astype(jnp.float32) for x in (*given, cotangent)), implementation="xla"
        )
    # What is computed again may be served by another configuration, whose sums have another order:
    # its bits are not those of what was saved (seen on an H200, in one element of a thousand).
    for x, y, z in zip(got, wanted, again, strict=True):
        for found in (x, z):
            assert np.abs(wide(found) - wide(y)).max() <= 2.0**-6 * np.abs(wide(y)).max()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_run_on_kernels(layout: str, family: str) -> None:
    lhs, rhs, dims = laid_out(264, 136, 200, layout, "bfloat16")
    cotangent = normal((264, 136), "bfloat16", 3)

    def pull_back(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        def matmul(lhs: Any, rhs: Any) -> Any:
            return jaxbw.dot_general(lhs, rhs, dims, implementation=family)

        return jax.vjp(matmul, lhs, rhs)[1](cotangent)

    of_lhs, of_rhs = serve(pull_back, lhs, rhs, cotangent, calls=2)
    g = wide(cotangent)
    left = wide(lhs) if layout[0] == "n" else wide(lhs).T
    right = wide(rhs) if layout[1] == "n" else wide(rhs).T
    for got, (a, b), letter in (
        (of_lhs, (g, right.T), layout[0]),
        (of_rhs, (left.T, g), layout[1]),
    ):
        result = got if letter == "n" else got.T
        assert_close(result, a @ b, np.abs(a) @ np.abs(b), a.shape[1])


@pytest.mark.parametrize(
    ("activation", "traced"),
    [*((name, False) for name in (None, *ACTIVATIONS)), (None, True), ("silu", True)],
)
@pytest.mark.parametrize("bias_axis", [-1, -2])
def test_fused_gradients_run_on_kernels(
    activation: str | None, traced: bool, bias_axis: int, family: str
) -> None:
    given = {
        "lhs": normal((264, 136), "bfloat16"),
        "rhs": normal((136, 200), "bfloat16", 1),
        "c": normal((264, 200), "bfloat16", 4),
        "bias": normal((200 if bias_axis == -1 else 264,), "float32", 2),
        "residual": normal((264, 200), "bfloat16", 5),
    }
    factors: dict[str, Any] = {"alpha": 0.5, "beta": 2}
    if traced:
        given |= {name: jnp.float32(factor) for name, factor in factors.items()}
    cotangent = normal((264, 200), "bfloat16", 3)

    def pull_back(given: Any, cotangent: Any, implementation: str = family) -> Any:
        def fused(given: Any) -> Any:
            return jaxbw.matmul(
                **factors | given,
                bias_axis=bias_axis,
                activation=activation,
                implementation=implementation,
            )

        out, back = jax.vjp(fused, given)
        return {"out": out} | back(cotangent)[0]

    got = serve(pull_back, given, cotangent, calls=3)
    in_float32 = jax.tree.map(lambda x: x.astype(jnp.float32), given)
    with jax.default_matmul_precision("highest"):
        wanted = pull_back(in_float32, cotangent.astype(jnp.float32), implementation="xla")
    for name, x in got.items():
        # z is rounded to bfloat16, and so is its cotangent: two roundings of each of K terms.
        error = np.abs(wide(x) - wide(wanted[name])).max()
        assert error <= 2.0**-6 * np.abs(wide(wanted[name])).max(), name
    repeat = jax.jit(pull_back)
    for _ in range(5):  # sums over rows, too, come in one order
        jax.tree.map(np.testing.assert_array_equal, *map(_bits, (got, repeat(given, cotangent))))


def _bits(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x).view(f"u{x.dtype.itemsize}"), tree)


def test_batch_invariance(family: str) -> None:
    """A row has the same bits whatever rows stand beside it."""
    rows, w = normal((1000, 4096), "bfloat16"), normal((4096, 520), "bfloat16", 1)
    with jaxbw.batch_invariant(), jaxbw.implementation(family):
        whole = np.asarray(jax.jit(jaxbw.matmul)(rows, w)).view(np.uint16)
        for m in (1, 2, 7, 8, 33, 128, 257):
            part = np.asarray(jax.jit(jaxbw.matmul)(rows[:m], w)).view(np.uint16)
            np.testing.assert_array_equal(part, whole[:m])


@pytest.mark.parametrize(
    "config",
    [
        jaxbw.GemmConfig(128, 128, split_k=4),
        jaxbw.GemmConfig(128, 128, split_k=3, split_tail=True, cluster=(2, 1)),
        jaxbw.GemmConfig(128, 64, swap_ab=True),
        jaxbw.GemmConfig(128, 256, raster="n", swizzle=4, scheduler="none"),
    ],
    ids=str,
)
def test_configurations(config: Any, family: str) -> None:
    for n in (264, 131):
        for output in ("bfloat16", "float32"):
            check(*laid_out(200, n, 1000, "nt", "bfloat16"), family, output, config=config)
            check(*laid_out(200, n, 1000, "nn", "bfloat16", (3,)), family, output, config=config)


def test_jvp(family: str) -> None:
    lhs, rhs = normal((136, 264), "bfloat16"), normal((264, 200), "bfloat16", 1)
    multiply = functools.partial(jaxbw.matmul, implementation=family)

    def tangent(lhs: Any, rhs: Any) -> Any:
        return jax.jvp(multiply, (lhs, rhs), (rhs.T[:136], rhs))[1]

    result = serve(tangent, lhs, rhs, calls=2)
    left, right = wide(lhs), wide(rhs)
    reference = right.T[:136] @ right + left @ right
    np.testing.assert_allclose(wide(result), reference, atol=2.0**-6 * np.abs(reference).max())


@pytest.mark.parametrize("axes", [(0, None), (0, 0)])
def test_vmap(axes: Any, family: str) -> None:
    lhs = normal((3, 136, 264), "bfloat16")
    rhs = normal((3, 264, 200) if axes[1] == 0 else (264, 200), "bfloat16", 1)
    multiply = jax.vmap(functools.partial(jaxbw.matmul, implementation=family), axes)
    result = serve(multiply, lhs, rhs)
    left, right = wide(lhs), wide(rhs)
    assert_close(result, left @ right, np.abs(left) @ np.abs(right), 264)


def test_a_chain_replays_as_a_command_buffer(family: str) -> None:
    """Enough operations that XLA captures them as a CUDA graph, which later runs replay."""
    x = normal((256, 256), "bfloat16")
    weights = [normal((256, 256), "bfloat16", i + 1) / 16 for i in range(8)]
    split = jaxbw.GemmConfig(128, 128, split_k=2)  # a launch leaves its counters zero

    def chain(x: Any, weights: Any) -> Any:
        for i, weight in enumerate(weights):
            config = split if i % 2 else None
            x = jaxbw.matmul(
                x, weight, activation="relu", residual=x, implementation=family, config=config
            )
        return x

    compiled = jax.jit(chain).lower(x, weights).compile()
    assert (compiled.as_text() or "").count(f'custom_call_target="{TARGET}"') == 8
    first = np.asarray(compiled(x, weights))
    for _ in range(5):
        np.testing.assert_array_equal(np.asarray(compiled(x, weights)), first)
    other = compiled(x * 2, [weight * 0.5 for weight in weights])  # other buffers, same graph
    assert not np.array_equal(np.asarray(other), first)
    np.testing.assert_array_equal(np.asarray(compiled(x, weights)), first)
    with jax.default_matmul_precision("highest"):
        expected = functools.reduce(
            lambda x, w: jax.nn.relu(x @ w.astype(jnp.float32)) + x, weights, x.astype(jnp.float32)
        )
    scale = np.abs(wide(expected)).max()
    np.testing.assert_allclose(wide(first), wide(expected), atol=2.0**-5 * scale)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_nan_and_inf(activation: str | None, family: str) -> None:
    lhs = normal((136, 200), "bfloat16").at[3, 7].set(jnp.nan).at[100, 190].set(jnp.inf)
    rhs = normal((200, 72), "bfloat16", 1).at[150, 70].set(-jnp.inf)
    result = serve(
        functools.partial(jaxbw.matmul, activation=activation, implementation=family), lhs, rhs
    )
    with np.errstate(invalid="ignore"):  # some hosts' BLAS raises it
        z = np.asarray(lhs, np.float32) @ np.asarray(rhs, np.float32)
    expected = z if activation is None else np.where(z < 0, np.float32(0), z)
    found = np.asarray(result, np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(found[infinite], expected[infinite])
    np.testing.assert_array_equal(np.isinf(found), infinite)


def test_beyond_the_edge_nothing_is_read(family: str) -> None:
    """A NaN in a row beside the matmul must not reach it: tails are filled with zeros."""
    base = normal((264, 200), "bfloat16").at[8:].set(jnp.nan)
    rhs = normal((200, 72), "bfloat16", 1)
    result = serve(lambda base, rhs: jaxbw.matmul(base[:8], rhs, implementation=family), base, rhs)
    assert np.isfinite(wide(result)).all()


@pytest.mark.parametrize(("m", "k", "n"), [(0, 64, 32), (64, 0, 32), (64, 64, 0)])
def test_zero_sizes(m: int, k: int, n: int) -> None:
    lhs, rhs = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
    assert jaxbw.explain(lhs, rhs).implementation == "xla"
    result = jax.jit(functools.partial(jaxbw.matmul, bias=jnp.ones(n), activation="relu"))(lhs, rhs)
    np.testing.assert_array_equal(wide(result), np.ones((m, n)))


def test_eight_threads(family: str) -> None:
    """Host threads share kernels, caches and tensor maps, and must not share results."""
    rhs = normal((264, 136), "bfloat16")
    multiply = jax.jit(functools.partial(jaxbw.matmul, implementation=family))

    def work(number: int) -> None:
        m = 8 * (number + 1)  # a compilation of its own
        lhs = normal((m, 264), "bfloat16", number)
        left, right = wide(lhs), wide(rhs)
        for _ in range(20):
            assert_close(multiply(lhs, rhs), left @ right, np.abs(left) @ np.abs(right), 264)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, number) for number in range(8)]:
            future.result()


def test_runs_repeat_bit_for_bit(family: str) -> None:
    lhs, rhs = normal((1000, 2048), "bfloat16"), normal((2048, 1032), "bfloat16", 1)
    multiply = jax.jit(functools.partial(jaxbw.matmul, implementation=family))
    first = np.asarray(multiply(lhs, rhs)).view(np.uint16)
    for _ in range(10):
        np.testing.assert_array_equal(np.asarray(multiply(lhs, rhs)).view(np.uint16), first)


def test_choosing_is_what_explain_says() -> None:
    lhs, rhs = normal((512, 512), "bfloat16"), normal((512, 512), "bfloat16", 1)
    text = jax.jit(jaxbw.matmul).lower(lhs, rhs).compile().as_text() or ""
    choice = jaxbw.explain(lhs, rhs)
    assert (choice.kernel is not None) == (TARGET in text)
    if choice.kernel is not None:
        assert choice.kernel in text
    device = devices.running_device()
    assert device is not None
    assert choice.device == device.name


def test_the_other_familys_kernels_name_the_gpu_they_need(family: str) -> None:
    other, needed = ("sm100", "10.0") if family == "sm90" else ("sm90", "9.0")
    x = jnp.ones((128, 128), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match=f"the kernels need compute capability {needed}"):
        jax.jit(functools.partial(jaxbw.matmul, implementation=other))(x, x)
