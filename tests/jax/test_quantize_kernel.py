"""jaxbw.quantize on the kernels: in the emulator, and as it is lowered for CUDA."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import jaxbw
from jaxbw import _native
from jaxbw._src.primitives.quantize import TARGET

from ..quantized import FORMATS, quantized

DTYPES = ("float32", "bfloat16", "float16")
Lower = Callable[..., str]


@pytest.fixture(autouse=True)
def strict_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXBW_EMULATOR_CHECKS", "strict")


def any_numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Every kind of number, and in the first of dimension 0 normal ones alone."""
    random, of_jax = np.random.default_rng(0), jnp.dtype(dtype)
    bits = np.dtype(f"u{of_jax.itemsize}")
    x = random.integers(0, 2 ** (8 * bits.itemsize), shape, bits).view(of_jax)
    if shape:
        x[0] = random.standard_normal(x[0].shape).astype(of_jax)
    return x


def check(x: Any, name: str, axis: Any, both: bool, family: str = "emulator") -> None:
    q = jaxbw.quantize(x, name, axis=axis, both=both, implementation=family)
    bits, scale = quantized(x, name, axis)
    np.testing.assert_array_equal(np.asarray(q.data).view(np.uint8), bits)
    np.testing.assert_array_equal(np.asarray(q.scale), scale)
    assert (q.data.dtype, q.scale.dtype, q.dtype) == (FORMATS[name][0], np.float32, x.dtype)
    assert (q.transposed is not None) == both
    if both:
        turned = np.asarray(q.transposed).view(np.uint8)
        np.testing.assert_array_equal(turned, bits.swapaxes(-1, -2))


# One launch and two; with and without transposed tiles; rows of every alignment.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "both"),
    [
        ((33, 130), None, False),
        ((33, 130), -1, False),
        ((33, 130), -1, True),
        ((131, 260), None, True),
        ((132, 260), None, True),
        ((3, 20001), -1, False),
        ((3, 5, 7), (1, 2), True),
        ((2, 3, 40, 9), (1, 2, 3), True),
        ((4, 1, 6), (0, 2), False),
        ((3, 4), (), False),
        ((7,), 0, False),
        ((), None, False),
    ],
)
def test_bits(dtype: str, shape: tuple[int, ...], axis: Any, both: bool) -> None:
    check(any_numbers(shape, dtype), "e4m3", () if shape == () else axis, both)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", ["emulator", "emulator-sm90"])
def test_formats_and_families(name: str, family: str) -> None:
    check(any_numbers((5, 40), "bfloat16"), name, None, True, family)
    check(any_numbers((5, 40), "float32"), name, -1, False, family)


def test_amax_of_nothing_finite() -> None:
    for value in (0.0, -0.0, np.nan, np.inf, 1e-40, 2.0**-126, 3e38):
        for axis in (None, -1):
            check(np.full((3, 9), value, np.float32), "e4m3", axis, True)


def test_ties_and_neighbors() -> None:
    """Scales of 1, so that each of these is what is rounded."""
    for name, (dtype, largest) in FORMATS.items():
        numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        numbers = np.unique(numbers[np.isfinite(numbers)])
        exact = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2])
        x = np.concatenate([np.nextafter(exact, s * np.float32(1e9)) for s in (-1, 1)] + [exact])
        x = np.clip(x, -largest, largest)
        q = jaxbw.quantize(x, name, implementation="emulator")
        assert q.scale == 1
        np.testing.assert_array_equal(
            np.asarray(q.data).view(np.uint8), x.astype(dtype).view(np.uint8)
        )


def test_vmap_and_jit() -> None:
    x = any_numbers((4, 3, 10), "float32")
    for in_axis in (0, 1):
        for axis in (None, -1):
            run = partial(jaxbw.quantize, format="e4m3", axis=axis, implementation="emulator")
            q = jax.jit(jax.vmap(run, in_axes=in_axis))(x)
            for i, each in enumerate(np.moveaxis(x, in_axis, 0)):
                bits, scale = quantized(each, "e4m3", axis)
                np.testing.assert_array_equal(np.asarray(q.data[i]).view(np.uint8), bits)
                np.testing.assert_array_equal(np.asarray(q.scale[i]), scale)


def on_devices(function: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


def test_in_a_shard_map_it_is_of_each_shard() -> None:
    x = any_numbers((4, 10), "float32")

    def run(x: Any) -> Any:
        q = jaxbw.quantize(x, "e4m3", both=True, implementation="emulator")
        return q.data, q.scale[None], q.transposed

    data, scale, transposed = on_devices(run, PartitionSpec("a"))(x)
    wanted = [quantized(x[i : i + 2], "e4m3") for i in (0, 2)]
    np.testing.assert_array_equal(
        np.asarray(data).view(np.uint8), np.concatenate([bits for bits, _ in wanted])
    )
    np.testing.assert_array_equal(scale, [scale for _, scale in wanted])
    np.testing.assert_array_equal(
        np.asarray(transposed).view(np.uint8), np.concatenate([bits.T for bits, _ in wanted])
    )


def test_types_in_an_explicit_mesh() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), (jax.sharding.AxisType.Explicit,) * 2)
    x = jax.device_put(any_numbers((4, 8), "float32"), NamedSharding(mesh, PartitionSpec("a", "b")))
    with jax.set_mesh(mesh):
        q = jax.jit(lambda x: jaxbw.quantize(x, "e4m3", axis=-1, both=True))(x)
    specs = [tuple(a.sharding.spec) for a in (q.data, q.scale, q.transposed)]
    assert specs == [("a", "b"), ("a", None), ("b", "a")]
    bits, scale = quantized(np.asarray(x), "e4m3", -1)
    np.testing.assert_array_equal(np.asarray(q.data).view(np.uint8), bits)
    np.testing.assert_array_equal(np.asarray(q.scale), scale)


# Lowering


def calls(text: str) -> int:
    return text.count(f"@{TARGET}(")


@pytest.mark.parametrize("target", ["B200", "H200"])
def test_a_kernel_is_chosen_on_its_device(cuda_hlo: Lower, target: str) -> None:
    x = jnp.ones((64, 256), jnp.bfloat16)
    quantize = partial(jaxbw.quantize, format="e4m3")
    assert calls(cuda_hlo(quantize, x)) == 0  # no GPU here
    with jaxbw.target(target):
        text = cuda_hlo(partial(quantize, both=True), x)
        assert calls(text) == 1
        assert "stablehlo.transpose" not in text
        assert f"jaxbw_{'sm90' if target == 'H200' else 'sm100'}_quantize_bf16" in text
        for other in (partial(quantize, axis=0), partial(quantize, implementation="xla")):
            assert calls(cuda_hlo(other, x)) == 0
        with jaxbw.implementation("xla"):
            assert calls(cuda_hlo(quantize, x)) == 0
        assert calls(cuda_hlo(quantize, jnp.ones((0, 4)))) == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "kernels"),
    [
        ((8192, 8192), "float32", {}, 0),
        ((2, 4096, 4096), "float32", {}, 0),
        ((8192, 8192), "float32", {"axis": -1}, 1),
        ((8192, 8192), "float32", {"both": True}, 1),
        ((64, 8192), "float32", {}, 1),
        ((8192, 8192), "bfloat16", {}, 1),
        ((4095, 4097), "bfloat16", {}, 1),
        ((4095, 4097), "bfloat16", {"both": True}, 1),
        ((4095, 4097), "float32", {"both": True}, 0),
    ],
)
def test_xla_serves_what_it_is_quicker_at(
    cuda_hlo: Lower, shape: tuple[int, ...], dtype: str, options: dict[str, Any], kernels: int
) -> None:
    x = jax.ShapeDtypeStruct(shape, dtype)
    with jaxbw.target("H200"):
        assert calls(cuda_hlo(partial(jaxbw.quantize, format="e4m3", **options), x)) == kernels
        strict = partial(jaxbw.quantize, format="e4m3", implementation="sm90", **options)
        assert calls(cuda_hlo(strict, x)) == 1


def test_a_context_is_not_strict(cuda_hlo: Lower) -> None:
    """It is about matmuls: what no kernel quantizes is XLA's."""
    with jaxbw.implementation("sm90"):
        assert calls(cuda_hlo(lambda x: jaxbw.quantize(x, "e4m3"), jnp.ones((4, 8)))) == 1
        assert calls(cuda_hlo(lambda x: jaxbw.quantize(x, "e4m3", axis=0), jnp.ones((4, 8)))) == 0
    with jaxbw.implementation("emulator"):
        jaxbw.quantize(jnp.ones((4, 8)), "e4m3", axis=0)


def test_a_program_of_several_devices_is_partitioned_by_xla() -> None:
    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Auto,))
    x = jax.device_put(
        any_numbers((4, 10), "float32"), NamedSharding(mesh, PartitionSpec("a", None))
    )
    with jaxbw.implementation("emulator"):
        q = jax.jit(lambda x: jaxbw.quantize(x, "e4m3"))(x)
    bits, scale = quantized(np.asarray(x), "e4m3")
    np.testing.assert_array_equal(np.asarray(q.data).view(np.uint8), bits)
    assert q.scale == scale


def test_export() -> None:
    x = any_numbers((4, 24), "bfloat16")

    @jax.jit
    def run(x: Any) -> Any:
        q = jaxbw.quantize(x, "e4m3", axis=-1, implementation="emulator")
        return jax.lax.bitcast_convert_type(q.data, jnp.uint8), q.scale

    exported = export.export(run, disabled_checks=jaxbw.export_disabled_checks)(x)
    data, scale = export.deserialize(exported.serialize()).call(x)
    bits, scales = quantized(x, "e4m3", -1)
    np.testing.assert_array_equal(data, bits)
    np.testing.assert_array_equal(scale, scales)

    (n,) = export.symbolic_shape("n")
    symbolic = jax.ShapeDtypeStruct((n, 24), jnp.bfloat16)
    free = jax.jit(lambda x: jaxbw.quantize(x, "e4m3", axis=-1).scale)
    np.testing.assert_array_equal(export.export(free)(symbolic).call(x), scales)


# Refusals


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "reason"),
    [
        ((4, 8), 0, "float32", r"x f32\[4,8\]: the kernels' scales are shared along the last"),
        ((0, 8), None, "float32", r"x f32\[0,8\]: a dimension is 0"),
        ((4, 8), None, "float8_e5m2", "bfloat16 and float16, not float8_e5m2"),
    ],
)
def test_what_no_kernel_takes(shape: tuple[int, ...], axis: Any, dtype: str, reason: str) -> None:
    x = np.ones(shape, jnp.dtype(dtype))
    for run in (jaxbw.quantize, jax.jit(jaxbw.quantize, static_argnums=1, static_argnames=NAMES)):
        with pytest.raises(NotImplementedError, match=f"{reason}[^$]*Leave implementation=None"):
            run(x, "e4m3", axis=axis, implementation="emulator")


NAMES: Sequence[str] = ("axis", "implementation")


def test_implementations_of_other_platforms_and_none() -> None:
    x = jnp.ones((4, 8))
    with pytest.raises(NotImplementedError, match=r"='sm90'\): x f32\[4,8\]: the kernels run on"):
        jaxbw.quantize(x, "e4m3", implementation="sm90")
    with pytest.raises(ValueError, match="implementation is 'sm80'"):
        jaxbw.quantize(x, "e4m3", implementation="sm80")
    assert jaxbw.quantize(x, "e4m3", implementation=("sm90", "xla")).scale == np.float32(1 / 448)


F32, E4M3 = _native.DataType.F32, _native.DataType.E4M3


def test_workspace_and_what_is_planned() -> None:
    bytes_of = partial(_native.quantize_workspace_bytes, dtype=F32, format=E4M3)
    assert bytes_of([4096, 8192]) == 0  # a block holds a group
    assert bytes_of([1, 8193]) == 2 * 4
    assert bytes_of([1, 2**30]) == 4096 * 4
    assert bytes_of([2, 1, 4, 4]) == 2 * 4
    for x, complaint in (
        ([4], r"x \[4\]: it is \[groups, group\] or"),
        ([4, 0], "a dimension is 0"),
        ([2**30, 2**20], "more than 2\\^40"),
        ([2**31, 4], "more groups, rows, columns or tiles"),
        ([1, 1, 2**32, 4], "more groups, rows, columns or tiles"),
        ([1, 1, 8, 6], "rows and columns are multiples of 4"),
    ):
        with pytest.raises(ValueError, match=complaint):
            bytes_of(x)
    with pytest.raises(ValueError, match="it is f16, bf16 or f32"):
        _native.quantize_workspace_bytes([4, 4], E4M3, E4M3)
    with pytest.raises(ValueError, match="data are e4m3 or e5m2"):
        _native.quantize_workspace_bytes([4, 4], F32, F32)


@pytest.mark.parametrize(
    ("kernel", "change", "complaint"),
    [
        ("jaxbw_sm90_quantize_f16", {}, "does not quantize f32"),
        ("jaxbw_sm90_repack_32bit", {}, "does not quantize f32"),
        ("jaxbw_sm90_quantize_f32", {"scale": (3,)}, r"scale is \[3\]; here it is \[2\]"),
        ("jaxbw_sm90_quantize_f32", {"data": (2, 3)}, r"data is \[2,3\]; here it is \[2,4\]"),
        ("jaxbw_sm90_quantize_f32", {"more": (2,)}, "3 results; this call has 2"),
    ],
)
def test_calls_that_are_none(kernel: str, change: dict[str, Any], complaint: str) -> None:
    shapes = {"data": (2, 4), "scale": (2,)} | change
    dtypes = {"data": jnp.float8_e4m3fn}
    results = [
        jax.ShapeDtypeStruct(shape, dtypes.get(name, jnp.float32)) for name, shape in shapes.items()
    ]
    call = jax.jit(partial(jax.ffi.ffi_call(TARGET, results), kernel=kernel))
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"{TARGET}.*{complaint}"):
        call(jnp.ones((2, 4)))
