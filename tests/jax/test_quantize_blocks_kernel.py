"""jaxbw.quantize to block-scaled formats on the kernels: the bits of XLA's form, in the emulator.

XLA's form against NumPy is test_block_scaled.py's.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import jaxbw
from jaxbw._src import stochastic
from jaxbw._src.primitives.quantize_blocks import TARGET

from ..quantized import BLOCK_FORMATS

DTYPES = ("float32", "bfloat16", "float16")
TIES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)  # of e2m1
FAMILIES = ("emulator", "emulator-sm90")  # which round to e2m1 each in its way
Lower = Callable[..., str]


@pytest.fixture(autouse=True)
def strict_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXBW_EMULATOR_CHECKS", "strict")


_quantize = jax.jit(
    jaxbw.quantize,
    static_argnums=1,
    static_argnames=("axis", "square", "both", "implementation"),
)


@partial(jax.jit, static_argnums=(1, 2), static_argnames=("axis", "square", "both"))
def _by_each(x: Any, name: str, implementations: Sequence[str], **options: Any) -> Any:
    """One program, as compiling is most of the time."""
    return [jaxbw.quantize(x, name, implementation=each, **options) for each in implementations]


def bits(x: Any) -> Any:
    return np.atleast_1d(np.asarray(x)).view(np.uint8)


def assert_same(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(bits(one), bits(other))


def check(x: Any, name: str, families: Sequence[str] = FAMILIES, **options: Any) -> None:
    wanted, *got = _by_each(x, name, ("xla", *families), **options)
    for one in got:
        assert_same(one, wanted)


def any_numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Rows of every kind of number, and rows of normal ones, a NaN among them."""
    random, of_jax = np.random.default_rng(0), jnp.dtype(dtype)
    unsigned = np.dtype(f"u{of_jax.itemsize}")
    x = random.integers(0, 2 ** (8 * unsigned.itemsize), shape, unsigned).view(of_jax)
    normal = random.standard_normal(shape) * np.exp(random.standard_normal(shape))
    x[..., 1:, :] = normal.astype(of_jax)[..., 1:, :]
    x[..., -1, -1] = -np.nan
    return x


# Rows of every alignment; parts of tiles, of blocks and of what a thread has.
@pytest.mark.sampled(6)  # each is four programs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 50, 70), (130, 260)])
def test_both_directions(dtype: str, name: str, square: bool, shape: tuple[int, ...]) -> None:
    for axis, family in zip((-1, -2), FAMILIES, strict=True):
        options: Any = {"axis": axis, "both": True, "square": square}
        check(any_numbers(shape, dtype), name, (family,), **options)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("axis", [-1, -2])
def test_one_direction(name: str, axis: int) -> None:
    check(any_numbers((40, 132), "bfloat16"), name, axis=axis)
    check(any_numbers((40, 131), "float32"), name, axis=axis)


@settings(max_examples=settings().max_examples // 2)  # each is a program
@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    name=st.sampled_from(list(BLOCK_FORMATS)),
    options=st.fixed_dictionaries(
        {"axis": st.sampled_from([-1, -2]), "both": st.booleans(), "square": st.booleans()}
    ),
)
def test_shapes(shape: tuple[int, int], name: str, options: Any) -> None:
    check(any_numbers(shape, "bfloat16"), name, FAMILIES[:1], **options)


_values = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, np.inf, np.nan, 1e-45, -1e-40, 2.0**-126, 3e38, 448.0, 6.0]),
)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@given(x=arrays.arrays(np.float32, (2, 40), elements=_values, fill=st.just(1.0)))
def test_any_values(name: str, x: Any) -> None:
    check(x, name, both=True)


def around(x: Any) -> Any:
    """These numbers and their neighbours."""
    return np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)], -1)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_e5m2", "mxfp4"])
def test_every_scale_and_ties(name: str) -> None:
    """Each power of two as the scale, by an amax around the largest number; around all ties."""
    dtype, largest, _, block = BLOCK_FORMATS[name]
    numbers = np.arange(16 if "4" in name else 256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    ties = around((numbers[1:] + numbers[:-1]) / 2)
    blocks = np.append(ties, np.zeros(-len(ties) % (block - 1))).reshape(-1, block - 1)
    rows = np.insert(blocks, 0, largest, axis=1).reshape(-1)
    powers = np.exp2(np.arange(-149.0, 128))
    with np.errstate(over="ignore"):
        ladder = around((largest * powers)[:, None].astype(np.float32))
        x = (rows * powers[:, None]).astype(np.float32)
    check(np.append(ladder.reshape(-1), np.float32(1)).reshape(-1, 1), name)
    check(x[::3], name)


SCALES = np.arange(127, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)
GLOBAL = (1.0, 1 / 3, 1.9999999, 2.0**-126, 3.7e-38, 2.0**127, 3.4e38, 1e-20)


@pytest.mark.parametrize("whole", GLOBAL)
def test_every_scale_and_ties_of_nvfp4(whole: float) -> None:
    """Each scale in e4m3, by an amax around what is rounded to it, too; around all ties."""
    blocks = np.concatenate([np.full(1, 6, np.float32), around(TIES[:5])])
    more = np.concatenate([np.full(10, 6, np.float32), around(TIES[5:])])
    middles = np.append((SCALES[1:] + SCALES[:-1]) / 2, np.float32(464))[:, None]
    for x in (np.concatenate([blocks, more]) * SCALES[:, None], around(6 * middles).repeat(16, 1)):
        with np.errstate(over="ignore"):
            scaled = np.clip(x.astype(np.float64) * np.float32(whole), -3e38, 3e38)
        check(scaled.astype(np.float32), "nvfp4", global_scale=np.float32(whole))


def hardest_quotients(exact: float) -> tuple[Any, Any]:
    """float32 x and y with x / y as near as they come to half-way between `exact` and the next."""
    found = []
    significand = int(exact * 2.0 ** (24 - np.floor(np.log2(exact))))
    for middle in (significand - 1, significand + 1):  # of 25 bits, odd
        for shift, rest in itertools.product((24, 25), (-3, -1, 1, 3)):
            y = -rest * pow(middle, -1, 2**shift) % 2**shift  # so that 2^shift x = middle y + rest
            x = (middle * y + rest) >> shift
            if 2**23 <= x < 2**24 and 2**23 <= y < 2**24:
                found.append((x, y))
    dividends, divisors = np.array(found, np.float32).reshape(-1, 2).T
    return dividends, divisors


def test_a_division_by_the_global_scale_is_correctly_rounded() -> None:
    """Else such a quotient would be on the wrong side of a tie."""
    found = 0
    for scale in (1.0, 1.125, 1.375, 1.875):
        for tie in TIES:
            for x, y in zip(*hardest_quotients(scale * tie), strict=True):
                x *= np.exp2(np.round(np.log2(scale * tie * y / x))).astype(np.float32)
                block = np.full((1, 16), x)
                block[0, 0] = np.float32(6 * scale) * y
                check(block, "nvfp4", global_scale=y)
                found += 1
    assert found > 40


@pytest.mark.parametrize("whole", [0.0, -1.0, 1e-40, np.inf, np.nan, 2.0**-126, 1e-30, 3e38])
def test_a_global_scale_that_is_none_or_leaves_the_range(whole: float) -> None:
    for dtype in ("float16", "float32"):
        x = any_numbers((33, 50), dtype)
        check(x, "nvfp4", both=True, square=True, global_scale=np.float32(whole))


def test_dimensions() -> None:
    x = any_numbers((3, 2, 40), "float32")
    check(x[0, 0], "nvfp4")
    for axis in (0, -2, -1):
        check(x, "nvfp4", axis=axis)
        check(x, "mxfp8", axis=axis)


def test_vmap() -> None:
    """Each array has its global scale."""
    x = any_numbers((4, 3, 40), "float32")
    for in_axis in (0, 1):
        for name in ("mxfp8", "nvfp4"):
            run = partial(jaxbw.quantize, format=name, both=True, implementation="emulator")
            q = jax.tree.map(np.asarray, jax.jit(jax.vmap(run, in_axes=in_axis))(x))
            for i, each in enumerate(np.moveaxis(x, in_axis, 0)):
                wanted = _quantize(each, name, both=True, implementation="xla")
                assert_same(jax.tree.map(lambda a, i=i: a[i], q), wanted)
    scales = np.array([1, 2, 0.5, 3], np.float32)
    run = partial(jaxbw.quantize, format="nvfp4", implementation="emulator")
    of_all = jax.jit(jax.vmap(lambda s: run(x[0], global_scale=s)))(scales)
    one = _quantize(x[0], "nvfp4", global_scale=scales[3], implementation="xla")
    assert_same(jax.tree.map(lambda a: np.asarray(a)[3], of_all), one)


# Rounded stochastically, and rotated


RANDOM = [{"key": 1}, {"rotation": 2}, {"key": 1, "rotation": 2}]


def with_keys(options: Any) -> Any:
    is_key = {name: name in ("key", "rotation") for name in options}
    return {name: jax.random.key(x) if is_key[name] else x for name, x in options.items()}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("random", RANDOM)
@pytest.mark.parametrize("more", [{}, {"both": True}, {"both": True, "square": True}])
@pytest.mark.parametrize("shape", [(1, 1), (2, 50, 70), (130, 261)])
def test_random_bits(
    dtype: str, family: str, random: Any, more: Any, shape: tuple[int, ...]
) -> None:
    x = any_numbers(shape, dtype)

    @jax.jit
    def both(x: Any, keys: Any) -> Any:
        options = {"axis": -2, **keys, **more}
        return [jaxbw.quantize(x, "nvfp4", implementation=i, **options) for i in ("xla", family)]

    wanted, got = both(x, with_keys(random))
    assert_same(got, wanted)
    assert wanted.shape[-2] == (-(-shape[-2] // 16) * 16 if "rotation" in random else shape[-2])


@pytest.mark.parametrize("whole", GLOBAL)
def test_points_of_steps(whole: float) -> None:
    """Numbers at the points at which they go up, and beside them: of all scales."""
    key = jax.random.key(0)
    shape = (len(SCALES) - 1, 16 * 21)
    points = np.asarray(stochastic.points(stochastic.seed_of(key), shape)).astype(np.float64)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # of e2m1
    low, step = numbers[:-1][np.arange(shape[1]) % 7], np.diff(numbers)[np.arange(shape[1]) % 7]
    x = (low + (points + 0.5) / 2**16 * step).astype(np.float32)
    x[:, ::3], x[:, 1::3] = (np.nextafter(x, to)[:, i::3] for i, to in enumerate((-1, np.inf)))
    x[:, ::16] = 6
    with np.errstate(over="ignore"):
        x = (x.astype(np.float64) * SCALES[1:, None] * np.float32(whole)).astype(np.float32)
    run = partial(jaxbw.quantize, format="nvfp4", key=key, global_scale=np.float32(whole))
    wanted, *got = jax.jit(lambda x: [run(x, implementation=i) for i in ("xla", *FAMILIES)])(x)
    for one in got:
        assert_same(one, wanted)


def test_random_bits_by_a_global_scale_that_is_none() -> None:
    """Data have no sign then, since x counts as NaN."""
    x = any_numbers((33, 50), "float32")
    run = partial(jaxbw.quantize, format="nvfp4", key=jax.random.key(0))

    @jax.jit
    def of_each(whole: Any) -> Any:
        return [run(x, global_scale=whole, implementation=i) for i in ("xla", *FAMILIES)]

    for whole in (0.0, -1.0, 1e-40, np.inf, np.nan):
        wanted, *got = of_each(np.float32(whole))
        for one in got:
            assert_same(one, wanted)


def test_numbers_of_the_format_stay_what_they_are() -> None:
    """Whatever the points, by whichever scale and global scale: a reciprocal is not exact."""
    numbers = np.array([6, 0, -0.5, 1, -1.5, 2, -3, 4] * 2)
    for whole in GLOBAL:
        with np.errstate(over="ignore"):
            x = (numbers * SCALES[1:, None] * np.float32(whole)).astype(np.float32)
        x = x[np.isfinite(x).all(axis=1) & (np.abs(x[:, 2]) > 2.0**-125)]
        scale = np.float32(whole)
        once = [
            jaxbw.quantize(x, "nvfp4", key=jax.random.key(i), global_scale=scale) for i in (0, 1)
        ]
        assert_same(once[0], once[1])
        np.testing.assert_allclose(np.asarray(once[0].dequantized()), x, rtol=2**-22)


def test_random_bits_of_vmap() -> None:
    """Each array has its seed and its signs; or all the same ones."""
    x, keys = any_numbers((3, 40, 50), "bfloat16"), jax.random.split(jax.random.key(0), 3)
    run = partial(jaxbw.quantize, format="nvfp4", axis=-2)

    def of_each(implementation: str, x: Any, key: Any) -> Any:
        return run(x, key=key, rotation=key, implementation=implementation)

    for axes in ((0, 0), (0, None), (None, 0)):
        given = [each if axis == 0 else each[0] for each, axis in zip((x, keys), axes, strict=True)]
        of_all = jax.jit(jax.vmap(partial(of_each, "emulator"), in_axes=axes))(*given)
        for i in range(3):
            one = jax.jit(partial(of_each, "xla"))(
                *(each[i] if axis == 0 else each for each, axis in zip(given, axes, strict=True))
            )
            assert_same(jax.tree.map(lambda a, i=i: np.asarray(a)[i], of_all), one)


def test_random_bits_do_not_depend_on_the_devices(cuda_hlo: Lower) -> None:
    """A kernel has them in a program of one; several leave them to XLA."""
    x = any_numbers((256, 64), "bfloat16")
    run = partial(jaxbw.quantize, format="nvfp4", axis=-2, **with_keys(RANDOM[-1]))
    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Auto,))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("a")))
    with jaxbw.implementation("emulator"):
        assert_same(jax.jit(run)(placed), jax.jit(run)(x))
    with jaxbw.target("B200"):
        (call,) = calls(cuda_hlo(run, x))
    assert "jaxbw_sm100_quantize_blocks_bf16" in call


def test_in_a_shard_map_and_among_devices() -> None:
    x = any_numbers((256, 64), "bfloat16")
    wanted = _quantize(x, "mxfp4", implementation="xla")

    def run(x: Any) -> Any:
        q = jaxbw.quantize(x, "mxfp4", implementation="emulator")
        return q.data, q.scale

    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("a")
    of_shards = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    assert_same(of_shards, (wanted.data, wanted.scale))
    with jaxbw.implementation("emulator"):  # which XLA partitions
        placed = jax.device_put(x, NamedSharding(mesh, spec))
        assert_same(jax.jit(lambda x: jaxbw.quantize(x, "mxfp4"))(placed), wanted)


def test_types_in_an_explicit_mesh() -> None:
    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Explicit,))
    x = jax.device_put(any_numbers((256, 64), "float32"), NamedSharding(mesh, PartitionSpec("a")))
    with jax.set_mesh(mesh):
        q = jax.jit(lambda x: jaxbw.quantize(x, "mxfp8"))(x)
    assert [each.sharding.spec[0] for each in (q.data, q.scale)] == ["a", "a"]
    assert_same(q, _quantize(np.asarray(x), "mxfp8", implementation="xla"))


# Lowering


def calls(text: str) -> list[str]:
    return [line for line in text.splitlines() if f"@{TARGET}(" in line]


@pytest.mark.parametrize("target", ["B200", "H200"])
def test_a_kernel_is_chosen_on_its_device(cuda_hlo: Lower, target: str) -> None:
    """Nothing is done to x or the results around the call."""
    x = jnp.ones((128, 256), jnp.bfloat16)
    quantize = partial(jaxbw.quantize, format="mxfp4", both=True, square=True)
    assert not calls(cuda_hlo(quantize, x))  # no GPU here
    with jaxbw.target(target):
        text = cuda_hlo(quantize, x)
        (call,) = calls(text)
        assert f"jaxbw_{'sm90' if target == 'H200' else 'sm100'}_quantize_blocks_bf16" in call
        for operation in ("transpose", "pad", "reduce", "convert"):
            assert f"stablehlo.{operation}" not in text
        assert len(calls(cuda_hlo(partial(jaxbw.quantize, format="nvfp4"), x))) == 1
        assert not calls(cuda_hlo(partial(quantize, implementation="xla"), x))
        for other in (jnp.ones((0, 4)), jax.ShapeDtypeStruct((4, 4), jnp.float8_e5m2)):
            assert not calls(cuda_hlo(quantize, other))


def test_what_is_not_used_is_not_made(cuda_hlo: Lower) -> None:
    def lines(use: Callable[[Any], Any], **options: Any) -> list[str]:
        x = jnp.ones((64, 256))
        kept = jax.jit(lambda x: use(jaxbw.quantize(x, "mxfp8", both=True, **options)))
        return calls(cuda_hlo(jax.checkpoint(kept), x))

    with jaxbw.target("H200"):
        for use, columns, rows in (
            (lambda q: q, 2, 2),
            (lambda q: (q.data, q.scale), 2, 0),
            (lambda q: (q.transposed, q.transposed_scale), 0, 2),
            (lambda q: (q.scale, q.transposed), 1, 2),
            (lambda q: q.scale, 2, 2),
        ):
            (call,) = lines(use)
            assert f"columns = {columns} : i32" in call
            assert f"rows = {rows} : i32" in call
        assert not lines(lambda q: 0)
        (call,) = lines(lambda q: q, square=True)  # the data serve both directions
        assert "rows = 1 : i32" in call


def test_export() -> None:
    x = any_numbers((4, 64), "bfloat16")
    run = jax.jit(lambda x: bits_of(jaxbw.quantize(x, "nvfp4", implementation="emulator")))
    exported = export.export(run, disabled_checks=jaxbw.export_disabled_checks)(x)
    assert_same(export.deserialize(exported.serialize()).call(x), run(x))
    (n,) = export.symbolic_shape("n")
    symbolic = jax.ShapeDtypeStruct((n, 64), jnp.bfloat16)
    free = jax.jit(lambda x: bits_of(jaxbw.quantize(x, "nvfp4")))
    assert_same(export.export(free)(symbolic).call(x), run(x))


def bits_of(q: Any) -> Any:
    return jax.lax.bitcast_convert_type(q.scale, jnp.uint8), q.data.astype(jnp.float32)


# Refusals


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((0, 4), jnp.float32, "a dimension is 0"),
        ((4, 4), jnp.float8_e5m2, "the kernels quantize float32, bfloat16 and float16, not float8"),
    ],
)
def test_what_no_kernel_takes(shape: Any, dtype: Any, reason: str) -> None:
    run = partial(jaxbw.quantize, jnp.ones(shape, dtype), "mxfp8", implementation="emulator")
    with pytest.raises(NotImplementedError, match=f"{reason}.*[^$]*Leave implementation=None"):
        run()


@pytest.mark.parametrize(
    ("kernel", "change", "complaint"),
    [
        ("quantize_f32", {}, "does not quantize f32 to blocks"),
        ("quantize_blocks_f16", {}, "does not quantize f32 to blocks"),
        ("quantize_blocks_f32", {"data": (2, 4, 4)}, r"data is \[2,4,4\]; here it is \[2,4,32\]"),
        (
            "quantize_blocks_f32",
            {"scale": (2, 1, 2, 512)},
            r"scale is .*; here it is \[2,1,1,512\]",
        ),
        ("quantize_blocks_f32", {"more": (2,)}, "3 results; this call has 2"),
        ("quantize_blocks_f32", {"columns": 0, "rows": 2}, r"data is .*; here it is \[2,5,32\]"),
        ("quantize_blocks_f32", {"rows": 1}, "scale is missing"),
        ("quantize_blocks_f32", {"whole": 1}, "data are e2m1 with global scales"),
        ("quantize_blocks_f32", {"whole": 2}, r"seeds are \[S, 2\], and signs \[S\]"),
        ("quantize_blocks_f32", {"x": (4, 4)}, r"it is \[matrices, rows, columns\]"),
    ],
)
def test_calls_that_are_none(kernel: str, change: dict[str, Any], complaint: str) -> None:
    given = {"x": (2, 4, 5), "data": (2, 4, 32), "scale": (2, 1, 1, 512)} | change
    usual = {"columns": 2, "rows": 0, "square": 0, "whole": 0}
    numbers = {name: np.int32(given.pop(name, value)) for name, value in usual.items()}
    x = [jnp.ones(given.pop("x")), jnp.ones(2), jnp.ones(())][: 1 + int(numbers.pop("whole"))]
    dtypes = {"data": jnp.float8_e4m3fn, "scale": jnp.float8_e8m0fnu}
    results = [
        jax.ShapeDtypeStruct(shape, dtypes.get(name, jnp.float32)) for name, shape in given.items()
    ]
    call = partial(jax.ffi.ffi_call(TARGET, results), kernel=f"jaxbw_sm90_{kernel}", **numbers)
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"{TARGET}.*{complaint}"):
        jax.jit(call)(*x)
