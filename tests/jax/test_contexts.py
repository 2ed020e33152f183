"""target, implementation and explain; that the former two are part of jit's cache key."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw._src.compat import Block
from jaxbw._src.primitives import serve
from jaxbw._src.selection import devices, select
from jaxbw._src.selection.policy import policy_of

X, W = jnp.ones((256, 512), jnp.bfloat16), jnp.ones((512, 128), jnp.bfloat16)


@pytest.mark.parametrize(
    "contexts",
    [
        lambda: (jaxbw.target("H200"), jaxbw.target("B200")),
        lambda: (jaxbw.implementation("xla"), jaxbw.implementation(("sm90", "xla"))),
        lambda: (jaxbw.batch_invariant(), jaxbw.implementation("xla")),
    ],
)
def test_a_change_retraces(contexts: Any) -> None:
    traces = []

    @jax.jit
    def matmul(x: Any, w: Any) -> Any:
        traces.append(1)
        return jaxbw.matmul(x, w)

    matmul(X, W)
    for expected, context in zip((2, 3), contexts(), strict=True):
        with context:
            matmul(X, W)
            matmul(X, W)
        assert len(traces) == expected
    matmul(X, W)
    assert len(traces) == 3  # as at first
    for context in contexts():
        with context:
            matmul(X, W)
    assert len(traces) == 3


def test_lowering_follows_the_target() -> None:
    matmul = jax.jit(lambda x, w: jaxbw.matmul(x, w, implementation=("sm100", "sm90")))
    names = []
    for target in ("H200", "B200"):
        with jaxbw.target(target):
            text = matmul.trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
        names.append("jaxbw_sm90" in text)
    assert names == [True, False]


def test_contexts_nest_and_belong_to_a_thread() -> None:
    seen = []
    with jaxbw.target("H200"):
        with jaxbw.target("B200"):
            assert devices.current_target() == "B200"
            thread = threading.Thread(target=lambda: seen.append(devices.current_target()))
            thread.start()
            thread.join()
        assert devices.current_target() == "H200"
    assert devices.current_target() is None
    assert seen == [None]


@pytest.mark.parametrize(
    ("block", "seen"),
    [
        (lambda: jaxbw.implementation("xla"), lambda: jaxbw.explain(X, W).reason == "asked for"),
        (lambda: jaxbw.target("H200"), lambda: devices.current_target() == "H200"),
        (lambda: jaxbw.batch_invariant(), lambda: policy_of(None, None, "").config is not None),
    ],
)
def test_contexts_are_decorators(block: Callable[[], Block], seen: Any) -> None:
    """Of a function that calls itself, too, and that jit traces."""

    @block()
    def function(x: Any, again: int = 1) -> Any:
        """A name and a docstring."""
        inner = function(x, again - 1) if again else True
        return seen() and inner

    assert not seen()
    assert function(1)
    assert not seen()
    assert function.__doc__ == "A name and a docstring."
    assert jax.jit(lambda x: jnp.asarray(function(x)))(1.0)
    for _ in range(2):
        with block():
            assert seen()


def test_an_argument_outranks_the_context() -> None:
    with jaxbw.target("H200"), jaxbw.implementation("xla"):
        assert jaxbw.explain(X, W).implementation == "xla"
        assert jaxbw.explain(X, W, implementation="sm90").implementation == "sm90"


@pytest.mark.parametrize(("device", "family"), [("H200", "sm90"), ("B200", "sm100")])
def test_kernel_is_that_of_the_device(device: str, family: str) -> None:
    with jaxbw.target(device), jaxbw.implementation("kernel"):
        assert jaxbw.explain(X, W).implementation == family
        text = jax.jit(jaxbw.matmul).trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
        assert f'kernel = "jaxbw_{family}' in text


def test_kernel_is_strict() -> None:
    integers = X.astype(int), W.astype(int)
    with pytest.raises(NotImplementedError, match="the operands are int32; sm90 kernels"):
        jaxbw.explain(*integers, implementation="kernel", device="H200")
    either = jaxbw.explain(*integers, implementation=("kernel", "xla"), device="H200")
    assert either.implementation == "xla"
    with pytest.raises(NotImplementedError, match="the kernels run on CUDA, not on this platform"):
        jax.jit(lambda x, w: jaxbw.matmul(x, w, implementation="kernel")).trace(X, W).lower(
            lowering_platforms=("cpu",)
        )


def test_explain_takes_types_and_arrays_and_prints() -> None:
    with jaxbw.target("H200"):
        choice = jaxbw.explain(X, W, bias=jnp.ones(128), activation="gelu")
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (X, W)]
        bias = jax.ShapeDtypeStruct((128,), jnp.float32)
        assert jaxbw.explain(*types, bias=bias, activation="gelu") == choice
    text = str(choice)
    assert str(choice.kernel).startswith("jaxbw_sm90_elementwise_bf16_")
    for part in (
        "gelu(bf16[1,256,512] @ bf16[1,512,128] + bias float32) -> bf16[1,256,128]",
        "H200",
        str(choice.kernel),
        ", cta_group 1, stages ",
        "modelled",
    ):
        assert part in text
    with pytest.raises(AttributeError):
        choice.kernel = "other"  # type: ignore[misc]


def test_explain_says_why_xla_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "VERIFIED_FAMILIES", frozenset({"sm90"}))
    with jaxbw.target("B200"):
        choice = jaxbw.explain(X, W)
        assert choice.implementation == "xla"
        assert [str(refusal) for refusal in choice.refused] == ["sm100: kernel not yet verified"]
        strict = jaxbw.explain(X, W, implementation="sm100")
        assert (strict.kernel or "").startswith("jaxbw_sm100_16bit")
    if jax.default_backend() == "cpu":
        assert "no CUDA GPU" in jaxbw.explain(X, W).reason
    with jaxbw.target("H200"):
        integers = jaxbw.explain(X.astype(int), W.astype(int))
        assert (
            "the operands are int32; sm90 kernels take bfloat16, float16, "
            "float8_e4m3fn, float8_e5m2 and float32" in str(integers)
        )


def test_explain_says_what_the_epilogue_is_and_what_is_repacked() -> None:
    odd, full = jnp.ones((512, 100), jnp.bfloat16), jnp.ones((256, 100), jnp.float32)
    with jaxbw.target("B200"):
        choice = jaxbw.explain(
            X, odd, c=full, alpha=0.5, beta=2, bias=full[:, 0], bias_axis=-2, residual=full
        )
        gated = jaxbw.explain(X, W, W, activation="silu")
        assert "repacked" not in str(jaxbw.explain(X, W))
    assert choice.problem == (
        "0.5 * bf16[1,256,512] @ bf16[1,512,100] + 2 * c float32 + bias float32 along m"
        " + residual float32 -> bf16[1,256,100]"
    )
    assert "repacked        rhs" in str(choice)
    assert gated.problem.startswith("silu(bf16[1,256,512] @ bf16[1,512,128]) * up -> ")


def test_batch_invariance_does_not_look_at_m() -> None:
    def config(m: int) -> jaxbw.GemmConfig | None:
        x = jax.ShapeDtypeStruct((m, 4096), jnp.bfloat16)
        return jaxbw.explain(x, jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16)).config

    for target in ("H200", "B200"):
        with jaxbw.target(target):
            assert config(8) != config(4096)
            with jaxbw.batch_invariant():
                assert config(1) == config(8) == config(4096)


def test_explain_of_a_dot_general() -> None:
    dims = (((0,), (1,)), ((), ()))
    with jaxbw.target("H200"):
        choice = jaxbw.explain(X.T, W.T, dimension_numbers=dims)
    assert "_tt_" in (choice.kernel or "")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            devices.Device("A100", (8, 0), 108, 0),
            "A100, compute capability 8.0: there are no kernels for it",
        ),
        (
            devices.Device("H200", (9, 0), 132, 0, "its driver is old"),
            "H200, .*: its driver is old",
        ),
    ],
)
def test_a_gpu_without_kernels_is_told_once(
    device: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "running_device", lambda: device)
    monkeypatch.setattr(serve, "_warned", set())

    def lower() -> str:
        matmul = jax.jit(lambda x, w: jaxbw.matmul(x, w))
        return str(matmul.trace(X, W).lower(lowering_platforms=("cuda",)).as_text())

    with pytest.warns(UserWarning, match=message):
        assert "stablehlo.dot_general" in lower()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower()
