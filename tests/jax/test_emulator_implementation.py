"""implementation="emulator": the kernels' own code, on the CPU, inside jit."""

import contextlib
import functools
import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxbw
from jaxbw import GemmConfig, _native
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.primitives.partitioning import TARGET as PARTITIONED
from jaxbw._src.selection import manifest

from .dot_general_cases import in_numpy
from .epilogues import CASES, arrays, formula, in_float64, numbers

Operand = Callable[..., Any]
Close = Callable[..., None]

EMULATED = {"emulator": "sm100", "emulator-sm90": "sm90"}
COPIES = re.compile(r"stablehlo\.(transpose|copy|pad|slice|concatenate|gather|dot_general)\b")
CHECKS = "JAXBW_EMULATOR_CHECKS"

LAYOUTS = {
    "nn": ((136, 72), (72, 200), (((1,), (0,)), ((), ()))),
    "nt": ((136, 72), (200, 72), (((1,), (1,)), ((), ()))),
    "tn": ((72, 136), (72, 200), (((0,), (0,)), ((), ()))),
    "tt": ((72, 136), (200, 72), (((0,), (1,)), ((), ()))),
    "heads": ((2, 40, 2, 32), (2, 32, 64), (((2, 3), (0, 1)), ((), ()))),
    "batched": ((3, 40, 64), (3, 64, 72), (((2,), (1,)), ((0,), (0,)))),
    "batched nt": ((3, 40, 64), (3, 72, 64), (((2,), (2,)), ((0,), (0,)))),
}


@pytest.fixture(params=list(EMULATED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def hlo(function: Callable[..., Any], *operands: Any, platform: str = "cpu") -> str:
    return str(jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,)).as_text())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", LAYOUTS)
def test_forward_and_backward(
    case: str, name: str, dtype: str, operand: Operand, assert_matmul_close: Close
) -> None:
    lhs_shape, rhs_shape, dims = LAYOUTS[case]
    lhs, rhs = operand(lhs_shape, dtype), operand(rhs_shape, dtype, 1)
    matmul = functools.partial(jaxbw.dot_general, dimension_numbers=dims, implementation=name)

    def step(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(matmul, lhs, rhs)
        return out, *pull_back(cotangent)

    cotangent = operand(jax.eval_shape(matmul, lhs, rhs).shape, dtype, 2)
    text = hlo(step, lhs, rhs, cotangent)
    assert text.count(f"@{TARGET}(") == 3
    assert text.count(f'kernel = "jaxbw_{EMULATED[name]}') == 3
    assert not COPIES.search(text)

    out, lhs_bar, rhs_bar = jax.jit(step)(lhs, rhs, cotangent)
    x, y, g = wide(lhs), wide(rhs), wide(cotangent)
    k = math.prod(lhs.shape[i] for i in dims[0][0])
    batch = math.prod(lhs.shape[i] for i in dims[1][0])
    m, n = x.size // k // batch, y.size // k // batch
    assert_matmul_close(out, in_numpy(x, y, dims), in_numpy(abs(x), abs(y), dims), k)

    def transposed(*given: Any) -> Any:
        wide_matmul = functools.partial(jax.lax.dot_general, dimension_numbers=dims)
        return in_float64(lambda x, y, g: jax.vjp(wide_matmul, x, y)[1](g), *given)

    for got, want, magnitude, terms in zip(
        (lhs_bar, rhs_bar),
        transposed(x, y, g),
        transposed(abs(x), abs(y), abs(g)),
        (n, m),
        strict=True,
    ):
        assert got.dtype == dtype
        assert_matmul_close(got, want, magnitude, terms)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (GemmConfig(128, 256, cluster=(2, 2)), (500, 520, 136)),
        (GemmConfig(128, 64, cluster=(1, 2), stages=3, swizzle=2), (264, 264, 320)),
        (GemmConfig(256, 128, cluster=(2, 1), cta_group=2), (520, 264, 200)),
        (GemmConfig(256, 256, cluster=(4, 1), cta_group=2), (1000, 264, 64)),
        (GemmConfig(128, 64, split_k=3), (136, 100, 520)),
        (GemmConfig(128, 128, split_k=2, split_tail=True, cluster=(2, 1)), (264, 136, 136)),
        (GemmConfig(128, 64, swap_ab=True, raster="n", scheduler="none"), (3, 264, 129)),
        (GemmConfig(512, 256, cluster=(2, 1), cta_group=2, block_k=64), (520, 264, 72)),
        (GemmConfig(64, 24, cluster=(1, 1), swap_ab=True, block_k=128), (20, 129, 264)),
        (GemmConfig(128, 32, cluster=(2, 1), cta_group=2), (136, 77, 64)),
    ],
    ids=str,
)
def test_configurations(
    config: GemmConfig, shape: tuple[int, int, int], operand: Operand, assert_matmul_close: Close
) -> None:
    m, n, k = shape
    lhs, rhs = operand((m, k)), operand((n, k), number=1)
    x, y = wide(lhs), wide(rhs).T
    on_both = config.block_m == 128 and config.cta_group == 1
    for name in EMULATED if on_both else ("emulator",):
        out = jaxbw.dot_general(
            lhs,
            rhs,
            LAYOUTS["nt"][2],
            preferred_element_type=jnp.float32,
            implementation=name,
            config=config,
        )
        assert out.dtype == jnp.float32
        assert_matmul_close(out, x @ y, abs(x) @ abs(y), k)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("output", ["bfloat16", "float32"])
def test_fused(
    case: str, output: str, name: str, operand: Operand, assert_matmul_close: Close
) -> None:
    """n is no multiple of 8: such results leave without TMA. XLA takes no part in it."""
    keywords = CASES[case]
    given = arrays(keywords, operand, "bfloat16", (72, 64, 132 if output == "float32" else 131))

    def fused(given: Any) -> Any:
        return jaxbw.matmul(
            **given,
            **numbers(keywords),
            preferred_element_type=output,
            implementation=name,
        )

    text = hlo(fused, given)
    assert text.count(f"@{TARGET}(") == 1
    assert not re.search(r"stablehlo\.(dot_general|add|multiply|tanh|logistic)\b", text)
    reference = in_float64(lambda given: formula(**given, **numbers(keywords)), given)
    x, y = abs(wide(given["lhs"])), abs(wide(given["rhs"]))
    x = x * abs(wide(given.get("lhs_scale", jnp.ones(1))))[:, None]
    y = y * abs(wide(given.get("rhs_scale", jnp.ones(1))))
    others = sum(np.abs(wide(given[key])).max() for key in given if key not in ("lhs", "rhs"))
    # An activation has a slope of at most 1.13, and its value is within 2^-20 of z, relatively.
    assert_matmul_close(fused(given), reference, 1.13 * (2 * x @ y + 2 * others), 64 + 16)


@pytest.mark.parametrize(
    "case",
    ["bias along m", "alpha and beta", "relu", "all, relu", "traced alpha and beta"],
)
def test_fused_gradients(case: str, name: str, operand: Operand) -> None:
    keywords = CASES[case]
    given = arrays(keywords, operand, "bfloat16", (72, 64, 136))
    cotangent = operand((72, 136), number=9)

    def step(given: Any, cotangent: Any, implementation: str = name) -> Any:
        def fused(given: Any) -> Any:
            return jaxbw.matmul(**given, **numbers(keywords), implementation=implementation)

        out, pull_back = jax.vjp(fused, given)
        return {"out": out} | pull_back(cotangent)[0]

    text = hlo(step, given, cotangent)
    assert text.count(f"@{TARGET}(") == 3
    assert "stablehlo.dot_general" not in text
    got = jax.jit(step)(given, cotangent)
    wanted = in_float64(functools.partial(step, implementation="xla"), given, cotangent)
    for key, x in got.items():
        error = np.abs(wide(x) - wide(wanted[key])).max()
        assert error <= 2.0**-6 * np.abs(wide(wanted[key])).max(), key


def test_gated(name: str, operand: Operand) -> None:
    x = operand((40, 72))
    weights = [operand((72, 200), number=i) / 8 for i in (1, 2)]
    cotangent = operand((40, 200), number=3)

    def step(*given: Any, implementation: str = name) -> Any:
        *primals, cotangent = given
        fused = functools.partial(jaxbw.gated_matmul, implementation=implementation)
        out, pull_back = jax.vjp(fused, *primals)
        return out, *pull_back(cotangent)

    given = (x, *weights, cotangent)
    text = hlo(step, *given)
    assert text.count(f"@{TARGET}(") == 5
    assert not COPIES.search(text)
    got = jax.jit(step)(*given)
    wanted = in_float64(functools.partial(step, implementation="xla"), *given)
    for a, b in zip(got, wanted, strict=True):
        assert np.abs(wide(a) - wide(b)).max() <= 2.0**-6 * np.abs(wide(b)).max()


def test_c_may_be_used_again(name: str, operand: Operand) -> None:
    x, w, c = operand((72, 64)), operand((64, 72), number=1), operand((72, 72), number=2)
    add = functools.partial(jaxbw.matmul, implementation=name)
    total, same = jax.jit(lambda x, w, c: (add(x, w, c=c), c * 2))(x, w, c)
    np.testing.assert_array_equal(wide(same), 2 * wide(c))
    donated = jax.jit(lambda c: add(x, w, c=c), donate_argnums=0)(c + 0)
    np.testing.assert_array_equal(wide(donated), wide(total))
    assert np.abs(wide(total) - (wide(x) @ wide(w) + wide(c))).max() <= 2.0**-3


@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (1, 64, 1), (64, 1, 7), (3, 5, 1), (13, 77, 131), (130, 66, 1), (2, 9, 33, 65)],
    ids=str,
)
def test_no_size_is_too_odd(
    sizes: tuple[int, ...], name: str, operand: Operand, assert_matmul_close: Close
) -> None:
    *batch, m, k, n = sizes
    lhs, rhs = operand((*batch, m, k)), operand((*batch, k, n), number=1)
    out = jax.jit(functools.partial(jaxbw.matmul, implementation=name))(lhs, rhs)
    x, y = wide(lhs), wide(rhs)
    assert_matmul_close(out, x @ y, abs(x) @ abs(y), k)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_float32_is_multiplied_as_tf32(layout: str, operand: Operand) -> None:
    """Integers of few bits are exact in TF32, and so are sums of their matmuls."""
    shapes = [
        (40, 72) if layout[0] == "n" else (72, 40),
        (72, 100) if layout[1] == "n" else (100, 72),
    ]
    lhs, rhs = (jnp.round(operand(s, "float32", i) * 16) for i, s in enumerate(shapes))
    dims = (((int(layout[0] == "n"),), (int(layout[1] == "t"),)), ((), ()))
    matmul = functools.partial(jaxbw.dot_general, dimension_numbers=dims, implementation="emulator")
    assert 'kernel = "jaxbw_sm100_tf32' in hlo(matmul, lhs, rhs)
    x = wide(lhs) if layout[0] == "n" else wide(lhs).T
    y = wide(rhs) if layout[1] == "n" else wide(rhs).T
    np.testing.assert_array_equal(wide(matmul(lhs, rhs)), x @ y)
    with pytest.raises(NotImplementedError, match="as TF32"):
        matmul(lhs, rhs, precision="highest")


def test_a_batch_invariant_row_has_the_same_bits(name: str, operand: Operand) -> None:
    rows, w = operand((200, 264)), operand((264, 72), number=1)
    with jaxbw.batch_invariant(), jaxbw.implementation(name):
        whole = wide(jaxbw.matmul(rows, w))
        for m in (1, 7, 130):
            np.testing.assert_array_equal(wide(jaxbw.matmul(rows[:m], w)), whole[:m])


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 2)])
def test_vmap(axes: Any, name: str, operand: Operand, assert_matmul_close: Close) -> None:
    def stacked(axis: int | None, shape: tuple[int, ...], number: int) -> Any:
        x = operand((3, *shape) if axis is not None else shape, number=number)
        return x if axis is None else jnp.moveaxis(x, 0, axis)

    lhs, rhs = stacked(axes[0], (40, 64), 0), stacked(axes[1], (64, 72), 1)
    matmul = jax.vmap(functools.partial(jaxbw.matmul, implementation=name), axes)
    out = jax.jit(matmul)(lhs, rhs)
    x, y = (
        wide(x if axis is None else jnp.moveaxis(x, axis, 0))
        for x, axis in zip((lhs, rhs), axes, strict=True)
    )
    assert hlo(matmul, lhs, rhs).count(f"@{TARGET}(") == 1
    assert_matmul_close(out, x @ y, abs(x) @ abs(y), 64)


def test_operands_that_are_constants_or_one_array(
    name: str, operand: Operand, assert_matmul_close: Close
) -> None:
    x = operand((128, 128))
    for matmul in (lambda y: jaxbw.matmul(x, y), lambda y: jaxbw.matmul(y, y)):
        with jaxbw.implementation(name):
            out = jax.jit(matmul)(x)
        assert_matmul_close(out, wide(x) @ wide(x), abs(wide(x)) @ abs(wide(x)), 128)


def test_subnormal_numbers_are_kept(name: str) -> None:
    """XLA's threads flush them to zero, tensor cores do not."""
    tiny = 2.0**-130
    # Filled by NumPy: jnp.full is a program of XLA's, which on some machines makes zeros of them.
    lhs = jnp.asarray(np.full((8, 16), tiny, jnp.bfloat16))
    rhs = jnp.ones((16, 8), jnp.bfloat16)
    out = jax.jit(functools.partial(jaxbw.matmul, implementation=name))(lhs, rhs)
    assert (np.asarray(out).astype(np.float64) == 16 * tiny).all()


def test_checked_and_threaded_runs_agree(
    name: str, operand: Operand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which machine computes a tile changes nothing; the kernels have nothing to be found."""
    lhs, rhs = operand((392, 136)), operand((136, 264), number=1)
    matmul = jax.jit(functools.partial(jaxbw.matmul, implementation=name))
    results = [matmul(lhs, rhs)]
    for checks in ("off", "hardware", "strict"):
        monkeypatch.setenv(CHECKS, checks)
        results.append(matmul(lhs, rhs))
    for result in results[1:]:
        np.testing.assert_array_equal(wide(result), wide(results[0]))


def test_two_threads_at_once(operand: Operand, assert_matmul_close: Close) -> None:
    results: dict[tuple[str, int], Any] = {}
    rhs = operand((64, 136), number=1)

    def work(name: str, number: int) -> None:
        matmul = jax.jit(functools.partial(jaxbw.matmul, implementation=name))
        for _ in range(3):
            results[name, number] = matmul(operand((136, 64), number=number), rhs)

    threads = [
        threading.Thread(target=work, args=(name, number)) for name in EMULATED for number in (2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for (_, number), result in results.items():
        x, y = wide(operand((136, 64), number=number)), wide(rhs)
        assert_matmul_close(result, x @ y, abs(x) @ abs(y), 64)


# What is chosen

X, W = jnp.ones((256, 512), jnp.bfloat16), jnp.ones((512, 128), jnp.bfloat16)


@pytest.mark.parametrize(
    ("name", "target", "device"),
    [
        ("emulator", None, "B200"),
        ("emulator", "GB200", "GB200"),
        ("emulator", "H200", "B200"),
        ("emulator-sm90", None, "H200"),
        ("emulator-sm90", "H100", "H100"),
        ("emulator-sm90", "B300", "H200"),
    ],
)
def test_the_kernel_is_the_one_for_the_device(name: str, target: str | None, device: str) -> None:
    with jaxbw.target(device):
        chosen = jaxbw.explain(X, W, implementation=EMULATED[name])
    with contextlib.nullcontext() if target is None else jaxbw.target(target):
        choice = jaxbw.explain(X, W, implementation=name)
        text = hlo(functools.partial(jaxbw.matmul, implementation=name), X, W)
    assert (choice.implementation, choice.kernel, choice.config) == (
        name,
        chosen.kernel,
        chosen.config,
    )
    assert choice.device == f"{device}, emulated on the CPU"
    assert f"implementation  {name}\n" in str(choice)
    assert f'kernel = "{chosen.kernel}"' in text


def test_a_sequence_takes_what_the_platform_has() -> None:
    either = functools.partial(jaxbw.matmul, implementation=("sm90", "emulator"))
    assert '"jaxbw_sm100' in hlo(either, X, W)
    with jaxbw.target("H200"):
        assert '"jaxbw_sm90' in hlo(either, X, W, platform="cuda")
    fallback = functools.partial(jaxbw.matmul, implementation=("emulator", "xla"))
    assert TARGET in hlo(fallback, X, W)
    assert TARGET not in hlo(fallback, X.astype(int), W.astype(int))
    assert TARGET not in hlo(jaxbw.matmul, X, W)


# Errors


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda name: jaxbw.matmul(X[:0], W, implementation=name), None, "is 0"),
        (
            lambda name: jaxbw.matmul(X.astype(int), W.astype(int), implementation=name),
            None,
            "the operands are int32",
        ),
        (
            lambda name: jaxbw.matmul(X, W, implementation=name, config=GemmConfig(100, 64)),
            ValueError,
            "block_m is 100",
        ),
    ],
)
def test_refusals_at_trace_time(name: str, action: Any, error: Any, message: str) -> None:
    with pytest.raises(error or NotImplementedError, match=message):
        jax.make_jaxpr(lambda: action(name))()


def test_other_platforms_are_refused_when_lowered(name: str) -> None:
    strict = functools.partial(jaxbw.matmul, implementation=name)
    for function in (strict, functools.partial(strict, activation="relu")):
        for platform in ("cuda", "tpu"):
            with pytest.raises(
                NotImplementedError,
                match=r"bf16\[256,512\] @ bf16\[512,128\]: the emulator runs on the CPU, not on",
            ):
                hlo(function, X, W, platform=platform)


def test_several_devices_have_a_call_to_partition_and_shard_map_has_the_kernel(name: str) -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, PartitionSpec("x"))
    lhs = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=rows)
    strict = functools.partial(jaxbw.matmul, implementation=name)
    assert hlo(strict, lhs, W).count(f"@{PARTITIONED}(") == 1
    local = jax.shard_map(
        strict,
        mesh=mesh,
        in_specs=(PartitionSpec("x"), PartitionSpec()),
        out_specs=PartitionSpec("x"),
    )
    assert hlo(local, lhs, W).count(f"@{TARGET}(") == 1


def test_an_unknown_check_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKS, "some")
    with pytest.raises(jax.errors.JaxRuntimeError, match="is 'some'; it is 'off', 'hardware' or"):
        jaxbw.matmul(X, W, implementation=name).block_until_ready()


@pytest.mark.parametrize("n", [64, 63])  # of a whole tile, and by the general way
@pytest.mark.parametrize("implementation", EMULATED)
@pytest.mark.parametrize("activation", ["gelu", "silu"])
@np.errstate(over="ignore", invalid="ignore")
def test_activations_of_extreme_values(activation: str, implementation: str, n: int) -> None:
    """Where e^-z overflows, and what is not finite; a neighbor has nothing of it."""
    extreme = [np.nan, 1.0, np.inf, -np.inf, 2.0, 1e30, -1e30, 90.0, -90.0, -43.0, -7.6, -5.0]
    bias = np.resize(np.array(extreme, np.float32), n)
    lhs, rhs = np.zeros((128, 64), jnp.bfloat16), np.zeros((64, n), jnp.bfloat16)
    found = jaxbw.matmul(
        *(lhs, rhs),
        bias=bias,
        activation=activation,
        preferred_element_type=jnp.float32,
        implementation=implementation,
    )
    x = bias.astype(np.float64)
    z = x if activation == "silu" else np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
    expected = x / (1 + np.exp(-z))
    finite = np.isfinite(expected)
    bound = 2**-20 * np.maximum(1, np.abs(z)) * np.abs(expected) + 2**-120  # z is rounded, too
    for row in np.asarray(found):
        np.testing.assert_array_equal(row[~finite], expected[~finite])
        assert (np.abs(row - expected) <= bound)[finite].all()


@pytest.fixture
def replace_kernel(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Runs an sm90 instance that no other test runs, with its PTX replaced.

    A kernel that could be loaded stays loaded, so each test takes a layout of its own.
    """

    def run(layout: str, change: Callable[[str], str]) -> Any:
        source = "jaxbw_sm90_plain_64x192.ptx"  # of jaxbw_sm90_plain_f16_nn_64x192, ...
        (tmp_path / source).write_text(change((manifest.directory() / source).read_text()))
        _native.set_kernel_directory(str(tmp_path))
        x = jnp.ones((256, 256), jnp.float16)
        dims = (((int(layout[0] == "n"),), (int(layout[1] == "t"),)), ((), ()))
        return jaxbw.dot_general(
            x, x, dims, implementation="emulator-sm90", config=GemmConfig(128, 192)
        ).block_until_ready()

    yield run
    _native.set_kernel_directory(str(manifest.directory()))


def test_a_finding_is_an_error(
    replace_kernel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKS, "strict")
    message = (
        r"f16\[1,256,256\]\^T @ .*kernel jaxbw_sm90_plain_f16_tn_64x192, .*block_n 192, .*"
        r"emulated: jaxbw_sm90_plain_f16_tn_64x192.ptx: the emulator has found\n"
        r"  race: line \d+, CTA "
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        replace_kernel("tn", lambda ptx: re.sub(r"fence\.proxy\.async[^;]*;", "", ptx))


def test_a_kernel_that_is_not_ptx_is_an_error(replace_kernel: Callable[..., Any]) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"_nt_64x192.ptx:\d+: "):
        replace_kernel("nt", lambda ptx: ptx + "\n}")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"_nt_64x192.ptx:\d+: .*bogus"):
        replace_kernel("nt", lambda ptx: ptx.replace("wgmma.fence", "bogus.fence"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="has no entry"):
        replace_kernel("nt", lambda ptx: ptx.replace("entry jaxbw", "entry other"))
