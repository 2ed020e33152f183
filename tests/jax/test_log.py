"""What the logger says of matmuls, and the names by which a profiler shows them."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw._src import log
from jaxbw._src.selection import select
from jaxbw._src.selection.xla import XlaTime

Told = Callable[[], list[str]]
X, W = jnp.ones((48, 64), jnp.bfloat16), jnp.ones((64, 80), jnp.bfloat16)
MATMUL = "bf16[1,48,64] @ bf16[1,64,80] -> bf16[1,48,80]"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Told:
    """What has been logged since the test began."""
    monkeypatch.setattr(log, "_told", set())
    caplog.set_level(logging.INFO, "jaxbw")
    return lambda: caplog.messages


def lowered(function: Callable[..., Any], *operands: Any, platform: str = "cuda") -> Any:
    """Lowered anew: JAX keeps what an earlier test lowered, and nothing would be told of it."""
    jax.clear_caches()
    return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,))


def matmul(x: Any, w: Any) -> Any:
    return jaxbw.matmul(x, w)


def test_a_kernel_is_told_once_with_its_configuration(told: Told) -> None:
    with jaxbw.target("H200"):
        choice = jaxbw.explain(X, W)
        assert told() == []  # nothing is served
        for _ in range(2):
            lowered(lambda x, w: jaxbw.matmul(x, w) + jaxbw.matmul(x, w), X, W)
    assert told() == [f"{MATMUL}: sm90 on H200, {choice.kernel}, {choice.config}: {choice.reason}"]
    with jaxbw.target("B200"):
        lowered(matmul, X, W)
    assert len(told()) == 2
    assert f"{MATMUL}: sm100 on B200, jaxbw_sm100_16bit_1cta, block " in told()[1]


@pytest.mark.parametrize(
    ("function", "platform", "reason"),
    [
        (matmul, "cpu", "xla: the kernels run on CUDA, not on this platform"),
        (lambda x, w: jaxbw.matmul(x, w, implementation="xla"), "cuda", "xla: asked for"),
        (
            lambda x, w: jaxbw.matmul(x, w, implementation=("sm90", "xla")),
            "cpu",
            "xla: the kernels run on CUDA, not on this platform",
        ),
        (
            lambda x, w: jaxbw.matmul(x, w, implementation="emulator"),
            "cpu",
            "emulator on B200, emulated",
        ),
    ],
)
def test_why_xla_serves_is_told(
    told: Told, function: Callable[..., Any], platform: str, reason: str
) -> None:
    lowered(function, X, W, platform=platform)
    (message,) = told()
    assert message.startswith(f"{MATMUL}: {reason}")


def test_grouped_matmuls_are_told(told: Told) -> None:
    def grouped(x: Any, w: Any) -> Any:
        return jaxbw.ragged_dot(x, w[None], jnp.full(1, 48))

    lowered(grouped, X, W, platform="cpu")
    with jaxbw.target("H200"):
        lowered(grouped, X, W)
    by_xla, by_kernel = told()
    matmul = "ragged bf16[1,48,64] @ bf16[1,1,64,80] -> bf16[1,48,80]"
    assert by_xla == f"{matmul}: xla: the kernels run on CUDA, not on this platform"
    assert by_kernel.startswith(f"{matmul}: sm90 on H200, jaxbw_sm90_grouped_bf16_nn_")


def test_refusals_are_told(told: Told) -> None:
    with jaxbw.target("H200"):
        lowered(matmul, X.astype("float32"), W.astype("float32"))
    (message,) = told()
    assert "xla: no kernel serves this matmul, see refused; refused sm90: the operands are" in (
        message
    )


def test_both_times_are_told_where_xla_is_weighed(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jaxbw.target("H200"):
        cost = jaxbw.explain(X, W, implementation="kernel").cost
        assert cost is not None
        for time in (XlaTime(1.0, 1.25), XlaTime(90.0, 91.0)):
            monkeypatch.setattr(select, "xla_time", lambda problem, device, time=time: time)
            lowered(lambda x, w: jaxbw.matmul(x, w), X, W)
    quick, slow = told()
    assert quick == (
        f"{MATMUL}: xla: modelled 1.00 us, with its margin 1.25, the best kernel "
        f"{cost.total:.2f} us"
    )
    assert slow.startswith(f"{MATMUL}: sm90 on H200, ")
    assert slow.endswith(f"; {cost.total:.2f} us, XLA 90.00 us, with its margin 91.00")


def test_nothing_is_made_or_kept_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_told", set())
    assert not log.LOGGER.isEnabledFor(logging.INFO)

    def fails() -> str:
        raise AssertionError

    log.once(fails)
    lowered(matmul, X, W, platform="cpu")
    assert log._told == set()


SCRIPT = """
import logging
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("jax").setLevel(logging.WARNING)
import jax, jax.numpy as jnp, jaxbw
x = jnp.ones((64, 64), jnp.bfloat16)
jax.jit(jaxbw.matmul)(x, x)
"""


def as_a_user(level: str | None) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if k != log.VARIABLE}
    return subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        env=environment | {"JAX_PLATFORMS": "cpu"} | ({log.VARIABLE: level} if level else {}),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_variable() -> None:
    done = as_a_user("info")
    lines = [line for line in done.stderr.splitlines() if "jaxbw" in line]
    assert lines == [
        "jaxbw: bf16[1,64,64] @ bf16[1,64,64] -> bf16[1,64,64]: xla: the kernels run on CUDA, not "
        "on this platform"
    ]
    assert "jaxbw:" not in as_a_user("warning").stderr
    wrong = as_a_user("loud")
    assert wrong.returncode == 1
    assert "JAXBW_LOG is 'loud'; set it to one of debug, info, warning, error" in wrong.stderr


# --- names in a profile


@pytest.mark.parametrize("fused", [False, True])
def test_a_profile_shows_scope_and_kernel(fused: bool) -> None:
    """A kernel's row has the kernel's name; that of its operation, the user's scopes."""

    def layer(x: Any, w: Any) -> Any:
        with jax.named_scope("feed_forward"):
            return jaxbw.matmul(x, w, activation=activation)

    activation = "gelu" if fused else None
    with jaxbw.target("H200"):
        text = lowered(layer, X, W).as_text(debug_info=True)
        kernel = jaxbw.explain(X, W, activation=activation).kernel
    assert '"jit(layer)/feed_forward/jaxbw_gemm"' in text
    assert str(kernel).startswith(f"jaxbw_sm90_{'elementwise' if fused else 'plain'}_bf16_")
    assert f'kernel = "{kernel}"' in text
