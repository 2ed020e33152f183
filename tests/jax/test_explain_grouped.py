"""What `jaxbw.explain_function` says of grouped matmuls."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw

X = jax.ShapeDtypeStruct((512, 128), jnp.bfloat16)
EXPERTS = jax.ShapeDtypeStruct((8, 128, 256), jnp.bfloat16)
SIZES = jax.ShapeDtypeStruct((8,), jnp.int32)


def explained(function: Any, device: str | None) -> list[tuple[int, str | None, str]]:
    report = jaxbw.explain_function(function, X, EXPERTS, SIZES, device=device)
    return [(each.count, each.choice.kernel, each.problem) for each in report.matmuls]


def test_both_gradients_have_a_kernel() -> None:
    gradients = jax.grad(lambda x, w, sizes: jaxbw.ragged_dot(x, w, sizes).sum(), (0, 1))
    of_experts = "ragged bf16[1,512,128]^T @ bf16[1,512,256] -> bf16[1,8,128,256]"
    of_x = "ragged bf16[1,512,256] @ bf16[1,8,128,256]^T -> bf16[1,512,128]"
    assert explained(gradients, "H200") == [
        (1, "jaxbw_sm90_grouped_bf16_tn_64x128", of_experts),
        (1, "jaxbw_sm90_grouped_bf16_nt_64x128", of_x),
    ]
    assert {kernel for _, kernel, _ in explained(gradients, "B200")} == {
        "jaxbw_sm100_grouped_16bit_1cta"
    }
    report = jaxbw.explain_function(gradients, X, EXPERTS, SIZES, device="H200")
    assert all(each.us is not None and 1 < each.us < 100 for each in report.matmuls)
    report = jaxbw.explain_function(gradients, X, EXPERTS, SIZES)
    assert report.on_xla == 2
    assert [each.us for each in report.matmuls] == [None, None]
    assert "XLA: there is no CUDA GPU, and no target is named" in str(report)


def test_an_epilogue_that_no_kernel_takes_leaves_a_matmul() -> None:
    def gated(x: Any, w: Any, sizes: Any) -> Any:
        def layer(x: Any, _: None) -> Any:
            h = jaxbw.gated_ragged_dot(x, w, w, sizes, activation="silu")
            return h[:, :128], None

        return jax.lax.scan(layer, x, None, length=3)[0]

    kernel = "jaxbw_sm90_grouped_bf16_nn_64x128"
    fused = "ragged silu(bf16[1,512,128] @ bf16[1,8,128,256]) * up -> bf16[1,512,256]"
    assert explained(gated, "H200") == [(3, kernel, fused)]
    wide = "ragged bf16[1,512,128] @ bf16[1,8,128,256] -> f32[1,512,256]"
    assert explained(gated, None) == [(6, None, wide)]  # gate and up


def test_float8_has_a_kernel_on_hopper_where_weights_lie_k_major() -> None:
    def quantized(x: Any, w: Any, sizes: Any) -> Any:
        q = jaxbw.quantize(x, "e4m3", axis=-1)
        return [
            jaxbw.ragged_dot(q, jaxbw.quantize(w, "e5m2", axis=-2, both=both), sizes)
            for both in (False, True)
        ]

    report = jaxbw.explain_function(quantized, X, EXPERTS, SIZES, device="H200")
    (served,) = [each for each in report.matmuls if each.choice.kernel is not None]
    assert served.choice.kernel == "jaxbw_sm90_grouped_8bit_nt_64x128"
    assert served.problem == (
        "ragged lhs_scale * rhs_scale * f8_e4m3fn[1,512,128] @ f8_e5m2[1,8,256,128]^T"
        " -> bf16[1,512,256]"
    )
    assert "of 8 bits sm90 takes k: pass the mT of weights [groups, n, k], or what" in str(report)
    both = jaxbw.explain_function(quantized, X, EXPERTS, SIZES, device="B200").matmuls
    assert [each.choice.kernel for each in both] == ["jaxbw_sm100_grouped_8bit_1cta"] * 2


def test_tiles_behind_whole_waves_are_split_for_a_group_that_has_most_rows() -> None:
    """Of the weights' gradient on Hopper: 12 tiles of 276 in four parts, 52 of 448 in two."""

    def gradient(x: Any, dy: Any, sizes: Any) -> Any:
        contraction = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        return jaxbw.ragged_dot_general(x, dy, sizes, contraction)

    def parts(m: int, k: int, n: int, device: str) -> Any:
        x, dy = (jax.ShapeDtypeStruct((m, columns), jnp.bfloat16) for columns in (k, n))
        (matmul,) = jaxbw.explain_function(gradient, x, dy, SIZES, device=device).matmuls
        config = matmul.choice.config
        assert config is not None
        return config.split_k, config.split_tail

    assert parts(32768, 7168, 2048, "H100") == (2, True)
    assert parts(32768, 2880, 2880, "H100") == (4, True)
    assert parts(32768, 4096, 14336, "H100") == (1, False)  # 76 of 1792
    assert parts(32768, 4096, 33792 // 4, "H100") == (1, False)  # none of 1056
    assert parts(4096, 7168, 2048, "H100") == (1, False)
    assert parts(32768, 7168, 2048, "B200") == (1, False)


def test_promoted_sums_have_wide_tiles_where_these_load_less() -> None:
    def kernel(m: int, n: int, function: Any = jaxbw.ragged_dot) -> str | None:
        x = jax.ShapeDtypeStruct((m, 1024), jnp.float8_e4m3fn)
        w = jax.ShapeDtypeStruct((8, n, 1024), jnp.float8_e4m3fn)

        def highest(x: Any, w: Any, sizes: Any) -> Any:
            weights = [w.mT] * (2 if function is jaxbw.gated_ragged_dot else 1)
            return function(x, *weights, sizes, "highest", jnp.bfloat16)

        report = jaxbw.explain_function(highest, x, w, SIZES, device="H100")
        (matmul,) = report.matmuls
        kernel: str | None = matmul.choice.kernel
        return kernel

    wide, narrow = (f"jaxbw_sm90_grouped_8bit_promoted_nt_64x{n}" for n in (192, 128))
    assert kernel(8192, 2048) == wide
    assert kernel(32768, 256) == narrow  # two tiles load 512 rows and columns, of 192 columns 640
    assert kernel(512, 2048) == narrow  # a warpgroup has a tile to itself
    assert kernel(8192, 2048, jaxbw.gated_ragged_dot) == narrow


@pytest.mark.parametrize(
    ("rows", "k", "forward", "backward"),
    [(2048, 4096, 2, 2), (2047, 4096, 1, 2), (2048, 4224, 2, 1), (2047, 128, 1, 1)],
)
def test_blackwell_takes_pairs_where_they_waste_little(
    rows: int, k: int, forward: int, backward: int
) -> None:
    """Of large groups, and of a contraction whose result is whole tiles of 256 rows."""
    x = jax.ShapeDtypeStruct((8 * rows, k), jnp.bfloat16)
    experts = jax.ShapeDtypeStruct((8, k, 2048), jnp.bfloat16)
    gradient = jax.grad(lambda w, x, sizes: jaxbw.ragged_dot(x, w, sizes).sum())
    for function, ctas in (
        (lambda w, x, s: jaxbw.ragged_dot(x, w, s), forward),
        (gradient, backward),
    ):
        report = jaxbw.explain_function(function, experts, x, SIZES, device="B200")
        assert {each.choice.kernel for each in report.matmuls} == {
            f"jaxbw_sm100_grouped_16bit_{ctas}cta"
        }


@pytest.mark.parametrize(
    ("name", "rows", "n", "is_gated", "tile"),
    [
        *(("mxfp8", 512, 3072, gated, (256, 128 << gated)) for gated in (False, True)),
        *(("mxfp4", 512, 3072, gated, (256, 128 << gated)) for gated in (False, True)),
        *(("nvfp4", 512, 3072, gated, (256, 256)) for gated in (False, True)),
        ("mxfp8", 512, 128, False, (128, 128)),  # a pair's CTAs would have half a tile each
        ("mxfp8", 511, 3072, False, (128, 192)),
        ("mxfp8", 8, 3072, False, (128, 128)),  # fewer tiles than SMs
        ("mxfp8", 511, 3072, True, (128, 128)),
        *(("mxfp4", 511, 3072, gated, (128, 128)) for gated in (False, True)),
        *(("nvfp4", 511, 3072, gated, (128, 192 + 64 * gated)) for gated in (False, True)),
    ],
)
def test_tiles_of_block_scaled_formats(
    name: str, rows: int, n: int, is_gated: bool, tile: tuple[int, int]
) -> None:
    def function(x: Any, w: Any, sizes: Any) -> Any:
        q, u = jaxbw.quantize(x, name), jaxbw.quantize(w, name, axis=-2)
        if is_gated:
            return jaxbw.gated_ragged_dot(q, u, u, sizes)
        return jaxbw.ragged_dot(q, u, sizes)

    x = jax.ShapeDtypeStruct((8 * rows, 1024), jnp.bfloat16)
    experts = jax.ShapeDtypeStruct((8, 1024, n), jnp.bfloat16)
    report = jaxbw.explain_function(function, x, experts, SIZES, device="B200")
    configs = [each.choice.config for each in report.matmuls]
    found = [(config.block_m, config.block_n) for config in configs if config is not None]
    assert found == [tile]
