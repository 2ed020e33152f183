"""The emulator against kernels beside the GEMM that Triton makes: rows, attention, fp8."""

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxbw import emulator

from .launching import BF16, SCHEDULES, Array, Layer

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton", reason="triton is missing: pip install 'jaxbw[independent]'")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    return importlib.import_module(".triton_layers", __package__)


def on_device(values: Array, dtype: Any) -> Array:
    array = emulator.empty(values.shape, dtype)
    array[...] = values
    return array


def run(layer: Layer, inputs: list[Any], outputs: list[Array], *numbers: int) -> None:
    """Leaves the results of the last schedule, which every other one has, too."""
    first = None
    for schedule, seed in SCHEDULES:
        for output in outputs:
            output.view(np.uint8)[...] = 0xA5
        report = layer.run(
            *inputs, *outputs, *numbers, schedule=schedule, seed=seed, checks="hardware"
        )
        assert report.findings == [], (schedule, seed)
        found = [output.tobytes() for output in outputs]
        assert first is None or found == first, (schedule, seed)
        first = found


def noise(*shape: int) -> Array:
    values: Array = np.random.default_rng(sum(shape)).normal(size=shape).astype(BF16)
    return values


@pytest.mark.parametrize(("rows", "columns"), [(7, 200), (5, 1000)])
def test_softmax(triton: Any, rows: int, columns: int) -> None:
    x, out = on_device(noise(rows, columns), BF16), emulator.empty((rows, columns), BF16)
    run(triton.softmax(columns), [x], [out], rows, columns)
    powers = np.exp(x.astype(np.float64))
    want = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=2**-8)


@pytest.mark.parametrize(("rows", "columns"), [(6, 256), (4, 700)])
def test_layer_norm(triton: Any, rows: int, columns: int) -> None:
    x, out = on_device(noise(rows, columns), BF16), emulator.empty((rows, columns), BF16)
    weight, bias = (on_device(noise(columns + i), np.float32)[:columns] for i in range(2))
    run(triton.layer_norm(rows), [x, weight, bias], [out], columns)
    exact = x.astype(np.float64)
    apart = exact - exact.mean(axis=1, keepdims=True)
    want = apart / np.sqrt((apart**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=2**-8, atol=2**-18)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("length", "heads", "width", "causal", "block"),
    [
        (200, 2, 64, False, (128, 64)),
        (256, 1, 128, True, (128, 128)),
        (100, 1, 32, True, (64, 32)),
        (48, 2, 32, False, (16, 16)),  # by mma.sync
    ],
)
def test_attention(
    triton: Any, length: int, heads: int, width: int, causal: bool, block: tuple[int, int]
) -> None:
    layer = triton.attention(length, heads, width, causal, block)
    assert ("tcgen05.mma" in layer.ptx) == (block[0] >= 64)
    assert ("mma.sync" in layer.ptx) == (block[0] < 64)
    q, k, v = (on_device(noise(heads, length, width + i)[..., :width], BF16) for i in range(3))
    out = emulator.empty((heads, length, width), BF16)
    run(layer, [q, k, v], [out], length)
    exact = [each.astype(np.float64) for each in (q, k, v)]
    scores = np.einsum("hmd,hnd->hmn", exact[0], exact[1]) / width**0.5
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    want = np.einsum("hmn,hnd->hmd", powers / powers.sum(axis=-1, keepdims=True), exact[2])
    # Powers are rounded to bfloat16, and so is the result, whose terms are of the size of v.
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize(("rows", "columns"), [(5, 256), (3, 900)])
def test_cast_to_fp8(triton: Any, rows: int, columns: int) -> None:
    x, out = on_device(noise(rows, columns), BF16), emulator.empty((rows, columns), FP8)
    scales = emulator.empty(rows, np.float32)
    run(triton.cast(rows, columns), [x], [out, scales], columns)
    exact = x.astype(np.float32)
    want = np.abs(exact).max(axis=1) / np.float32(448)
    np.testing.assert_allclose(scales, want, rtol=2**-22)
    # Division is div.full, which is off by an ulp or two: where that crosses a tie is not compared.
    quotient = (exact / scales[:, None]).astype(np.float64)
    near = [(quotient * (1 + side * 2**-20)).astype(FP8) for side in (-1, 1)]
    clear = near[0].view(np.uint8) == near[1].view(np.uint8)
    assert clear.mean() > 0.9
    assert (out.view(np.uint8) == near[0].view(np.uint8))[clear].all()


@pytest.mark.parametrize("width", [64, 32])
def test_rows_are_gathered_and_scattered_by_tma(triton: Any, width: int) -> None:
    layer, descriptors = triton.gather(width, 32, 2)
    assert "tile::gather4" in layer.ptx
    assert "tile::scatter4" in layer.ptx
    source, target = on_device(noise(50, width), BF16), emulator.empty((60, width), BF16)
    # Rows that are not there are zeros; of the target, are not written.
    rows = on_device(np.random.default_rng(3).integers(0, 70, 64), np.int32)
    run(layer, [*descriptors(source, target), rows], [])
    padded = np.concatenate([source, np.zeros((20, width), BF16)])
    assert (target == padded[rows[:60]]).all()


@pytest.mark.parametrize("block", [(32, 64), (16, 32)])
def test_tensor_maps_that_a_kernel_makes(triton: Any, block: tuple[int, int]) -> None:
    rows, columns = 50, 104
    layer = triton.double(rows, columns, block)
    for opcode in ("tensormap.replace", "tensormap.cp_fenceproxy", "fence.proxy.tensormap"):
        assert opcode in layer.ptx
    x, out = on_device(noise(rows, columns), BF16), emulator.empty((rows, columns), BF16)
    run(layer, [x], [out], rows, columns)
    assert (out == x * 2).all()


def test_a_kernel_of_cute_that_queries_refused_responses() -> None:
    pytest.importorskip("cutlass", reason="cutlass is missing: pip install 'jaxbw[independent]'")
    rows = 11
    layer = importlib.import_module(".cute_launch_control", __package__).add_row_numbers(rows)
    is_cancelled, row_of = (
        layer.ptx.index(f"query_cancel.{query}") for query in ("is_canceled", "get_first_ctaid::x")
    )
    # No branch between: both are asked of every response.
    asked = layer.ptx[min(is_cancelled, row_of) : max(is_cancelled, row_of)]
    assert "bra" not in asked
    x = on_device(np.arange(rows * 128).reshape(rows, 128), np.int32)
    for checks in ("hardware", "strict"):
        for schedule, seed in SCHEDULES:
            out = emulator.empty(x.shape, np.int32)
            report = layer.run(x, out, schedule=schedule, seed=seed, checks=checks)
            assert report.findings == [], (checks, schedule, seed)
            assert (out == x + np.arange(rows)[:, None]).all()
            assert report.clusters_cancelled + report.clusters_started == rows
            assert report.clusters_cancelled
