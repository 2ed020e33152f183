"""float32 matmuls by bfloat16 pieces: the algorithms BF16_BF16_F32, _X3, _X6 and _X9."""

import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import DotAlgorithmPreset
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxbw
from jaxbw._src.pieces import pieces_of

from .dot_general_cases import in_numpy

Operand = Callable[..., Any]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]

X1, X3, X6, X9 = (
    DotAlgorithmPreset[f"BF16_BF16_F32{suffix}"] for suffix in ("", "_X3", "_X6", "_X9")
)
# Which piece of lhs meets which of rhs, the smallest matmuls first.
MATMULS = {
    X1: [(0, 0)],
    X3: [(0, 1), (1, 0), (0, 0)],
    X6: [(0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0)],
}
MATMULS[X9] = [(2, 2), (1, 2), (2, 1), *MATMULS[X6]]
PRESETS = list(MATMULS)
EMULATORS = ["emulator", "emulator-sm90"]
U = 2.0**-24  # float32's unit roundoff

# Of a value from 1 to 2, at most: each piece, of 8 bits, and what is left behind it. Rounding to
# nearest leaves half a unit, and the sign is one more bit of the next piece.
LEFT = [2.0**-8, 2.0**-17, 0.0]
PIECE = [1 + 2.0**-8, *LEFT[:2]]

LAYOUTS = {
    "nn": ((40, 24), (24, 56), (((1,), (0,)), ((), ()))),
    "tt": ((24, 40), (56, 24), (((0,), (1,)), ((), ()))),
    "rows of no 16 bytes": ((7, 11), (11, 5), (((1,), (0,)), ((), ()))),
    "batched": ((2, 24, 40), (2, 56, 24), (((1,), (2,)), ((0,), (0,)))),
    "to be transposed": ((8, 24, 16), (24, 16), (((1,), (0,)), ((), ()))),
}


def split_error(preset: DotAlgorithmPreset) -> float:
    """What an algorithm leaves out of a matmul, at most, as a share of the magnitudes."""
    kept = MATMULS[preset]
    count = 1 + max(i for i, _ in kept)
    whole = sum(PIECE[i] * PIECE[j] for i in range(count) for j in range(count))
    left = LEFT[count - 1]
    return whole - sum(PIECE[i] * PIECE[j] for i, j in kept) + 2 * left + left**2


def bound(preset: DotAlgorithmPreset, k: int) -> float:
    """The same with the errors of the sums: each addition loses at most 2 U of what it adds up."""
    sums = partial = 0.0
    for i, j in MATMULS[preset]:
        partial += PIECE[i] * PIECE[j]
        sums += 2 * k * U * partial
    return split_error(preset) + sums + U


def check(result: Any, lhs: Any, rhs: Any, dims: Any, preset: DotAlgorithmPreset) -> None:
    x, y = (np.asarray(each, np.float64) for each in (lhs, rhs))
    k = math.prod(x.shape[i] for i in dims[0][0])
    error = np.abs(np.asarray(result, np.float64) - in_numpy(x, y, dims))
    assert result.dtype == np.float32
    assert (error <= bound(preset, k) * in_numpy(np.abs(x), np.abs(y), dims)).all()


@pytest.mark.parametrize("preset", PRESETS, ids=str)
def test_the_pieces(preset: DotAlgorithmPreset, operand: Operand) -> None:
    """In exact sums: what an algorithm leaves out, and the order."""
    lhs, rhs = operand((64, 32), "float32"), operand((32, 64), "float32", 1)
    pieces = pieces_of(preset, lhs.dtype, rhs.dtype)
    assert pieces is not None
    assert pieces.matmuls == tuple(MATMULS[preset])
    x, y = pieces.operand(lhs, of_rhs=False, axis=1), pieces.operand(rhs, of_rhs=True, axis=0)
    assert x.dtype == y.dtype == jnp.bfloat16
    assert x.shape[1] == y.shape[0] == 32 * len(MATMULS[preset])
    whole = [np.asarray(each, np.float64) for each in (lhs, rhs)]
    error = np.abs(np.asarray(x, np.float64) @ np.asarray(y, np.float64) - whole[0] @ whole[1])
    magnitude = np.abs(whole[0]) @ np.abs(whole[1])
    assert (error <= (split_error(preset) + 2.0**-48) * magnitude).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", LAYOUTS)
@pytest.mark.parametrize("preset", PRESETS, ids=str)
@pytest.mark.parametrize("name", EMULATORS)
def test_values(name: str, preset: DotAlgorithmPreset, case: str, operand: Operand) -> None:
    lhs_shape, rhs_shape, dims = LAYOUTS[case]
    lhs, rhs = operand(lhs_shape, "float32"), operand(rhs_shape, "float32", 1)
    matmul = functools.partial(
        jaxbw.dot_general, dimension_numbers=dims, precision=preset, implementation=name
    )
    out = jax.jit(matmul)(lhs, rhs)
    check(out, lhs, rhs, dims, preset)
    np.testing.assert_array_equal(out, matmul(lhs, rhs))


@pytest.mark.parametrize("preset", [X1, X3, X6], ids=str)
def test_xla_serves_them_elsewhere(preset: DotAlgorithmPreset, operand: Operand) -> None:
    """XLA's for CPUs computes in float32 whatever the algorithm; it has no X9."""
    lhs, rhs = operand((40, 24), "float32"), operand((24, 56), "float32", 1)
    dims = LAYOUTS["nn"][2]
    out = jaxbw.dot_general(lhs, rhs, dims, precision=preset)
    check(out, lhs, rhs, dims, preset)
    np.testing.assert_array_equal(out, lax.dot_general(lhs, rhs, dims, precision=preset))


@pytest.mark.parametrize("preset", PRESETS, ids=str)
@pytest.mark.parametrize("name", EMULATORS)
def test_integers_are_exact(name: str, preset: DotAlgorithmPreset) -> None:
    """Those of one piece, and with X6 and X9 those of two; every sum is below 2^24."""
    most = 255 if preset in (X1, X3) else 1000
    generator = np.random.default_rng(0)
    lhs, rhs = (
        generator.integers(-most, most, shape, endpoint=True).astype(np.float32)
        for shape in ((24, 16), (16, 40))
    )
    out = jaxbw.matmul(lhs, rhs, precision=preset, implementation=name)
    np.testing.assert_array_equal(np.asarray(out, np.float64), lhs.astype(np.float64) @ rhs)


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("preset", PRESETS, ids=str)
@pytest.mark.parametrize("name", EMULATORS)
def test_nan_and_infinity(name: str, preset: DotAlgorithmPreset) -> None:
    """In the results where float32's are: pieces of infinity, which have no rest, make no NaN."""
    lhs = np.full((9, 4), 1.001, np.float32)
    rhs = np.full((4, 6), 0.999, np.float32)
    lhs[0, 1], lhs[1, 0], lhs[2, 2], lhs[3] = np.inf, -np.inf, np.nan, 0
    lhs[4, :2] = np.inf, -np.inf
    lhs[5], lhs[6] = [LARGEST, 0, 0, 0], [0, -LARGEST, 0, 0]
    lhs[7] = LARGEST
    rhs[1, 1], rhs[3, 2], rhs[2, 3], rhs[0, 4] = np.inf, np.nan, 0, -0.999
    given: tuple[Any, ...] = (lhs, rhs)
    if preset == X1:  # as XLA for GPUs, which rounds these operands to infinity
        given = tuple(np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32) for x in given)
    wanted = np.asarray(lax.dot(*given, precision="highest"))
    assert np.isfinite(wanted[5:7, 0]).all() == (preset != X1)
    out = np.asarray(jaxbw.matmul(lhs, rhs, precision=preset, implementation=name))
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(out), kind(wanted))
    assert (out[3, [0, 3, 4, 5]] == 0).all()
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(out[finite], wanted[finite], rtol=bound(preset, 4))


@pytest.mark.parametrize("preset", PRESETS, ids=str)
@pytest.mark.parametrize("name", EMULATORS)
def test_subnormals(name: str, preset: DotAlgorithmPreset) -> None:
    """XLA's for CPUs may take what is below float32's normal numbers for 0, in lax's matmul too."""
    lhs = np.array([[2.0**-130], [2.0**-149], [1.001 * 2.0**-126], [1.001 * 2.0**-120]], np.float32)
    rhs = np.array([[1.0, 1.001, 2.0**100]], np.float32)
    out = np.asarray(jaxbw.matmul(lhs, rhs, precision=preset, implementation=name), np.float64)
    exact = lhs.astype(np.float64) @ rhs
    lost = 2.0**-126 * np.abs(rhs)
    assert (np.abs(out - exact) <= bound(preset, 1) * np.abs(exact) + lost).all()


@pytest.mark.parametrize("name", EMULATORS)
def test_derivatives_and_vmap(name: str, operand: Operand) -> None:
    lhs, rhs, bar = (
        operand(shape, "float32", i) for i, shape in enumerate([(3, 8, 24), (24, 16), (3, 8, 16)])
    )
    matmul = functools.partial(jaxbw.matmul, precision=X3, implementation=name)
    each = jax.vmap(matmul, (0, None))
    out, pull_back = jax.vjp(each, lhs, rhs)
    lhs_bar, rhs_bar = pull_back(bar)
    check(out, lhs, rhs, (((2,), (0,)), ((), ())), X3)
    check(lhs_bar, bar, rhs, (((2,), (1,)), ((), ())), X3)
    check(rhs_bar, lhs, bar, (((0, 1), (0, 1)), ((), ())), X3)
    _, tangent = jax.jvp(each, (lhs, rhs), (lhs, jnp.zeros_like(rhs)))
    check(tangent, lhs, rhs, (((2,), (0,)), ((), ())), X3)


@pytest.mark.parametrize("name", EMULATORS)
def test_epilogues(name: str, operand: Operand) -> None:
    """The formula around the sums is the kernel's, and a gated matmul's factors are both split."""
    x, w, up, c = (
        operand(shape, "float32", i)
        for i, shape in enumerate([(16, 24), (24, 32), (24, 32), (16, 32)])
    )
    keywords: dict[str, Any] = {"precision": X6, "implementation": name}
    wide = [np.asarray(each, np.float64) for each in (x, w, up, c)]
    magnitude = np.abs(wide[0]) @ np.abs(wide[1])
    sums = wide[0] @ wide[1]

    out = jaxbw.matmul(x, w, c=c, beta=0.5, bias=c[0], activation="relu", **keywords)
    wanted = np.maximum(sums + 0.5 * wide[3] + wide[3][0], 0)
    added = 4 * U * (magnitude + 2 * np.abs(wide[3]) + np.abs(wide[3][0]))
    assert (np.abs(out - wanted) <= bound(X6, 24) * magnitude + added).all()

    out = jaxbw.gated_matmul(x, w, up, activation=None, **keywords)
    magnitude_up, sums_up = np.abs(wide[0]) @ np.abs(wide[2]), wide[0] @ wide[2]
    error = np.abs(np.asarray(out, np.float64) - sums * sums_up)
    assert (error <= 3 * bound(X6, 24) * magnitude * magnitude_up).all()

    half = jaxbw.matmul(x, w, preferred_element_type="bfloat16", **keywords)
    assert half.dtype == jnp.bfloat16
    error = np.abs(np.asarray(half, np.float64) - sums)
    assert (error <= 2.0**-8 * np.abs(sums) + 2 * bound(X6, 24) * magnitude).all()


def test_several_devices() -> None:
    """Each splits its part; a divided contraction is summed in float32."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    generator = np.random.default_rng(0)
    lhs, rhs = (
        generator.integers(-500, 500, shape).astype(np.float32) for shape in ((16, 32), (32, 24))
    )
    matmul = jax.jit(functools.partial(jaxbw.matmul, precision=X6, implementation="emulator"))
    for specs in ((PartitionSpec("x"), PartitionSpec()), (PartitionSpec(None, "x"),) * 2):
        left, right = (
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip((lhs, rhs), specs, strict=True)
        )
        np.testing.assert_array_equal(matmul(left, right), lhs.astype(np.float64) @ rhs)


@pytest.mark.parametrize("preset", PRESETS, ids=str)
def test_one_gemm_of_the_pieces(
    preset: DotAlgorithmPreset, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    """In all layouts: K is the axis that is longer, and no operand is transposed."""
    lhs, rhs = operand((64, 128), "float32"), operand((128, 96), "float32", 1)
    longer = 128 * len(MATMULS[preset])

    def step(lhs: Any, rhs: Any) -> Any:
        out, pull_back = jax.vjp(functools.partial(jaxbw.matmul, precision=preset), lhs, rhs)
        return out, pull_back(out)

    text = cuda_hlo(step, lhs, rhs)
    assert "stablehlo.transpose" not in text
    calls = custom_calls(text)
    assert all(f'kernel = "jaxbw_{family}' in call for call in calls)
    types = sorted(re.findall(r"tensor<[\dx]+bf16>", " ".join(c.split(" : ")[-1] for c in calls)))
    times = len(MATMULS[preset])
    shapes = [(64, longer), (longer, 96), (64, 96 * times), (128, 96 * times)]
    shapes += [(64 * times, 128), (64 * times, 96)]
    assert types == sorted(f"tensor<1x{m}x{n}xbf16>" for m, n in shapes)


def test_explain_says_how(family: str) -> None:
    x = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    y = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    choice = jaxbw.explain(x, y, precision=X3)
    asked = "f32[1,256,512] @ f32[1,512,128] -> f32[1,256,128]"
    assert choice.implementation == family
    assert choice.problem == f"{asked} as a bfloat16 GEMM, k = 3 x 512"
    one = jaxbw.explain(x, y, precision=X1)
    assert one.problem == f"{asked} as a bfloat16 GEMM"
    # More pieces are more to multiply and more to write.
    six = jaxbw.explain(x, y, precision=X6)
    costs = [each.cost for each in (one, choice, six)]
    for less, more in itertools.pairwise(costs):
        assert less is not None
        assert more is not None
        assert 0 < less.repack < more.repack
        assert less.total < more.total
    assert jaxbw.explain(x, y, precision=X3, implementation="xla").implementation == "xla"


@pytest.mark.parametrize("name", EMULATORS)
def test_what_is_refused(name: str, operand: Operand) -> None:
    lhs, rhs = operand((16, 32), "float32"), operand((32, 8), "float32", 1)

    def message(lhs: Any, rhs: Any, precision: Any) -> str:
        with pytest.raises(NotImplementedError) as caught:
            jaxbw.matmul(lhs, rhs, precision=precision, implementation=name)
        return str(caught.value)

    half = lhs.astype(jnp.bfloat16)
    assert "precision=None asks for that" in message(half, rhs.astype(jnp.bfloat16), X3)
    assert "the operands have different dtypes" in message(half, rhs, X3)
    assert "which is BF16_BF16_F32_X3, BF16_BF16_F32_X6 or" in message(lhs, rhs, "highest")
