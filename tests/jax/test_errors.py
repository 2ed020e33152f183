"""What is refused: when, as which exception, and in which words."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw import _native
from jaxbw._src.primitives.gemm import TARGET

BF16 = jnp.bfloat16
X, W = jnp.ones((16, 64), BF16), jnp.ones((64, 32), BF16)
NUMPY = np.ones((64, 64), np.float32)


def call(lhs: Any = X, rhs: Any = W, **keywords: Any) -> Callable[[], Any]:
    return lambda: jaxbw.matmul(lhs, rhs, **keywords)


CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (call(W, W), ValueError, r"lhs bf16\[64,32\], rhs bf16\[64,32\].*32, is not .* 64; transpose"),
    (call(jnp.ones(()), W), ValueError, "one dimension or more"),
    (call(jnp.ones((2, 3, 4)), jnp.ones((5, 4, 3))), ValueError, "2 and 5 do not broadcast"),
    (call([[1.0]], W), TypeError, r"matmul: lhs is a list; .* jnp.asarray\(lhs\)"),
    (call(X, None), TypeError, "matmul: rhs is None; pass an array"),
    (call(NUMPY.astype(">f4"), W), TypeError, r'lhs is .* other byte order; .*astype\("float32"\)'),
    (call(X, NUMPY.astype(object)), TypeError, "rhs is a NumPy array of dtype object, which JAX"),
    (call(bias=np.ma.array([1.0] * 32)), ValueError, r"bias is a masked .* bias.filled\(0\)"),
    (lambda: jaxbw.gated_matmul(X, W, [1.0]), TypeError, "gated_matmul: rhs_up is a list"),
    (lambda: jaxbw.explain(X, [1.0]), TypeError, "explain: rhs is a list"),
    (lambda: jaxbw.einsum("mk,kn", X, W, precision={1}), TypeError, "einsum: precision is .1.; it"),
    (lambda: jaxbw.accelerate(3), TypeError, "accelerate: function is 3; it is"),  # type: ignore[call-overload]
    (
        lambda: jaxbw.dot_general(X, X, (((1,), (0,)), ((), ()))),
        TypeError,
        r"lhs bf16\[16,64\], rhs bf16\[16,64\], dimension_numbers .* the same shape, got .64,.",
    ),
    (lambda: jaxbw.dot_general(X, W, 3), TypeError, r"dimension_numbers is 3; it is \(\(lhs con"),
    (lambda: jaxbw.dot_general(X[None], W, None), TypeError, "dimension_numbers is None; it is"),
    (
        call(implementation="sm80"),
        ValueError,
        "'sm80'; it is one of kernel, sm100, sm90, xla, emulator, emulator-sm90, or None",
    ),
    (call(implementation=()), ValueError, "implementation is empty"),
    (call(implementation=3), TypeError, "matmul: implementation is 3; it is one of kernel"),
    (call(implementation={"xla"}), TypeError, "implementation is {'xla'}; .* a list or tuple"),
    (lambda: jaxbw.implementation(3), TypeError, "implementation is 3"),  # type: ignore[arg-type]
    (call(activation="tanh"), ValueError, "activation is 'tanh'; it is one of None, 'relu'"),
    (call(activation=["gelu"]), TypeError, r"activation is \['gelu'\]; it is one of None, 'relu'"),
    (
        lambda: jaxbw.gated_matmul(X, W, W, activation=["gelu"]),  # type: ignore[arg-type]
        TypeError,
        r"gated_matmul: activation is \['gelu'\]",
    ),
    (
        lambda: jaxbw.gated_matmul(X, W, W, recompute=[1]),  # type: ignore[arg-type]
        TypeError,
        r"recompute is \[1\]; it is True or False",
    ),
    (call(implementation=[["xla"]]), TypeError, r"implementation is \(\['xla'\],\); it is one"),
    (call(precision={"high"}), TypeError, "matmul: precision is {'high'}; it is a jax.lax.Prec"),
    (call(precision="hi"), ValueError, "matmul: precision is 'hi'; it is a jax.lax.Precision"),
    (
        call(preferred_element_type=[1]),
        TypeError,
        r"preferred_element_type is \(1,\); it is a dtype",
    ),
    (call(preferred_element_type="floaty"), TypeError, "_element_type is 'floaty'; it is a dtype"),
    (call(out_sharding=["x"]), TypeError, r"out_sharding is \('x',\); it is a NamedSharding"),
    (call(out_sharding=P("x")), ValueError, r"it is a NamedSharding, None, or under jax.set_mesh"),
    (call(bias=[1.0] * 32), TypeError, "matmul: bias is a list; make it an array"),
    (call(bias=jnp.ones(31)), ValueError, r"bias f32\[31\] is not \[32\]"),
    (call(bias=jnp.ones((16, 32))), ValueError, r"bias f32\[16,32\] is not a vector; add"),
    (call(bias=jnp.ones(32, int)), TypeError, "bias is int32; cast it"),
    (call(X, W[:, 0], bias=jnp.ones(16)), ValueError, "no dimension n for the bias"),
    (call(bias=jnp.ones(32), bias_axis=-2), ValueError, r"\[32\] is not \[16\], the rows of the"),
    (call(bias=jnp.ones(32), bias_axis=0), ValueError, "bias_axis is 0; it is -1, .* or -2"),
    (call(bias=jnp.ones(32), bias_axis=[-1]), ValueError, r"bias_axis is \[-1\]; it is -1, .* or"),
    (call(X[0], W, bias=jnp.ones(1), bias_axis=-2), ValueError, "no dimension m for the bias"),
    (call(residual=jnp.ones(32)), ValueError, r"residual f32\[32\] is not shaped as .* \[16,32\]"),
    (call(c=jnp.ones((16, 32), int)), TypeError, "c is int32; cast it"),
    (call(beta=2), ValueError, "beta is 2 and there is no c"),
    (call(alpha="2"), TypeError, "alpha is '2'; it is a real number, or a scalar array"),
    (call(alpha=2j), TypeError, "alpha is 2j; it is a real number, or a scalar array"),
    (call(alpha=10**400), ValueError, "matmul: alpha is beyond the range of a float"),
    (call(alpha=jnp.ones(1)), ValueError, r"alpha f32\[1\] is no scalar; reshape it to \(\), or"),
    (call(alpha=jnp.ones((), "complex64")), TypeError, "alpha is complex64; take its real part"),
    (call(beta=jnp.ones(())), ValueError, "beta is an array and there is no c"),
    (call(X.astype(int), W.astype(int), activation="relu"), TypeError, "real floating result"),
    (
        lambda: jaxbw.gated_matmul(X, W, W[:, :8]),
        ValueError,
        r"bf16\[64,32\] and bf16\[64,8\]; they have one shape and one dtype",
    ),
    (lambda: jaxbw.gated_matmul(X, W, W.astype(float)), ValueError, "one shape and one dtype"),
    (lambda: jaxbw.explain(X, W, W[:, :8]), ValueError, "one shape and one dtype"),
    (call(config="big"), TypeError, "it is a jaxbw.GemmConfig or None"),
    (call(config=jaxbw.GemmConfig(100, 64)), ValueError, "sm100: block_m is 100.*sm90: block_m"),
    (
        call(config=jaxbw.GemmConfig(128, 80), implementation="sm90"),
        ValueError,
        "takes 32, 64, 96, 128, 160, 192, 256",
    ),
    (
        call(
            config=jaxbw.GemmConfig(256, 160, cta_group=2, cluster=(2, 1), stages=7),
            implementation="sm100",
        ),
        NotImplementedError,
        "stages is 7; this tile takes 1 to 6",
    ),
    (
        lambda: jaxbw.gated_matmul(
            X, W, W, config=jaxbw.GemmConfig(128, 64, swap_ab=True), implementation="sm100"
        ),
        NotImplementedError,
        "that is not for gated matmuls",
    ),
    (
        call(X.astype(jnp.int8), W.astype(jnp.int8), implementation="sm90"),
        NotImplementedError,
        r"the operands are int8; sm90 kernels take bfloat16, float16, "
        r"float8_e4m3fn, float8_e5m2 and float32.\n"
        "Leave implementation=None to run on XLA",
    ),
    (
        call(X.astype(float), W.astype(float), implementation="sm100", precision="highest"),
        NotImplementedError,
        "kernels multiply them as TF32, which is precision=None or DEFAULT",
    ),
    (
        call(X.astype(float), W.astype(float), implementation="emulator", precision="highest"),
        NotImplementedError,
        "kernels multiply them as TF32, which is precision=None or DEFAULT",
    ),
    (
        call(X, W.astype(jnp.float16), implementation="sm100"),
        NotImplementedError,
        "different dtypes, bfloat16 and float16",
    ),
    (
        call(preferred_element_type=jnp.float64, implementation="sm90"),
        NotImplementedError,
        "the result is float64",
    ),
    (
        call(implementation=("sm100", "sm90"), precision="F16_F16_F16"),
        NotImplementedError,
        "every candidate refuses\n  sm100: precision",
    ),
    (call(jnp.ones((0, 64), BF16), implementation="sm90"), NotImplementedError, "is 0"),
    (lambda: jaxbw.target(["B200"]), ValueError, "the targets are B200"),  # type: ignore[arg-type]
    (lambda: jaxbw.use_tuned(3), TypeError, "use_tuned: path is 3"),  # type: ignore[arg-type]
    (lambda: jaxbw.target("B100"), ValueError, "the targets are B200, GB200, B300, H200, H100"),
    (lambda: jaxbw.implementation("cublas"), ValueError, "it is one of"),
    (lambda: jaxbw.explain(X, W, implementation="sm80"), ValueError, "'sm80'"),
    (lambda: jaxbw.explain(W, W), ValueError, "transpose an operand"),
]


@pytest.mark.parametrize(("action", "error", "message"), CASES)
def test_at_trace_time(action: Any, error: type[Exception], message: str) -> None:
    context = jax.enable_x64(True) if "float64" in message else jax.enable_x64(False)
    with context, pytest.raises(error, match=r"(?s)" + message) as raised:
        jax.make_jaxpr(action)()
    assert str(raised.value).startswith("jaxbw."), "which call"
    assert "Arguments(" not in str(raised.value)


@pytest.mark.parametrize("family", ["sm100", "sm90"])
@pytest.mark.parametrize("keywords", [{}, {"activation": "relu"}])
def test_the_platform_is_the_lowerings_question(family: str, keywords: Any) -> None:
    strict = jax.jit(functools.partial(jaxbw.matmul, implementation=family, **keywords))
    with jax.default_device(jax.devices("cpu")[0]):
        with pytest.raises(
            NotImplementedError,
            match=r"bf16\[16,64\] @ bf16\[64,32\]: the kernels run on CUDA, not",
        ):
            strict(X, W)
        with pytest.raises(
            NotImplementedError,
            match=r"bf16\[16,64\] @ bf16\[64,32\]: the kernels run on CUDA, not",
        ):
            jaxbw.matmul(X, W, implementation=family, **keywords)
    if not _native.devices():
        assert TARGET in strict.trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
    with jax.default_device(jax.devices("cpu")[0]):
        either = jaxbw.matmul(X, W, implementation=(family, "xla"), **keywords)
    assert either.shape == (16, 32)


def test_a_strict_kernel_for_another_gpu_names_the_one_it_needs() -> None:
    strict = jax.jit(functools.partial(jaxbw.matmul, implementation="sm100"))
    message = r"this is H200, .* 9.0; the kernels need compute capability 10.0 or 10.3 \(B200"
    with jaxbw.target("H200"), pytest.raises(NotImplementedError, match=message):
        strict.trace(X, W).lower(lowering_platforms=("cuda",))


def test_backward_matmuls_of_a_strict_kernel_may_be_xlas() -> None:
    """The cotangent of a float32 result is float32, which no kernel takes."""

    def loss(x: Any, w: Any) -> Any:
        out = jaxbw.matmul(x, w, preferred_element_type=jnp.float32, implementation="sm90")
        return out.sum()

    with jaxbw.target("H200"):
        lowered = jax.jit(jax.value_and_grad(loss)).trace(X, W).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    assert text.count(f"@{TARGET}(") == 1
    assert text.count("stablehlo.dot_general") == 1
