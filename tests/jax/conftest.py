"""What the JAX tests share: operands, references in float64, and bounds on the rounding error."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.selection import select

UNIT_ROUNDOFF = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """Programs that an earlier run has left (tests/conftest.py) are not looked for."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def _xla_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of kernels, and which of them XLA is quicker at is not theirs to know."""
    monkeypatch.setattr(select, "xla_time", lambda problem, device: None)


@pytest.fixture
def operand() -> Callable[..., Any]:
    """A deterministic normal array, of shape, dtype and number."""

    def make(shape: tuple[int, ...], dtype: Any = jnp.bfloat16, number: int = 0) -> Any:
        generator = np.random.default_rng([*shape, number])
        return jax.device_put(generator.standard_normal(shape).astype(jnp.dtype(dtype)))

    return make


@pytest.fixture
def assert_matmul_close() -> Callable[..., None]:
    """Compares a matmul with its reference in float64.

    The bound is eps_out * |reference| for the cast, plus for the sums of K terms in float32
    2 * K * eps * (|lhs| @ |rhs|).
    """

    def check(
        result: Any, reference: Any, magnitude: Any, k: int, sum_dtype: str = "float32"
    ) -> None:
        result = np.asarray(result)
        eps_out = UNIT_ROUNDOFF[result.dtype.name]
        sums = 2 * k * UNIT_ROUNDOFF[sum_dtype]
        bound = eps_out * np.abs(reference) + (1 + eps_out) * sums * magnitude
        error = np.abs(result.astype(np.float64) - reference)
        assert (error <= bound).all(), (
            f"error {error.max()}, bound there {bound.flat[error.argmax()]}"
        )

    return check


@pytest.fixture
def cuda_hlo() -> Callable[..., str]:
    """The StableHLO that a function has for CUDA, lowered on any machine."""

    def lower(function: Callable[..., Any], *operands: Any) -> str:
        return str(jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",)).as_text())

    return lower


@pytest.fixture
def custom_calls() -> Callable[[str], list[str]]:
    """The lines of a module that call our kernels."""

    def find(text: str) -> list[str]:
        return [line for line in text.splitlines() if f"@{TARGET}(" in line]

    return find


@pytest.fixture(params=["H200", "B200"])
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kernel family, with its device as the target of all lowerings."""
    with jaxbw.target(request.param):
        yield {"H200": "sm90", "B200": "sm100"}[request.param]


@pytest.fixture(autouse=True, scope="module")
def _on_the_cpu() -> Iterator[None]:
    """These tests are about what needs no GPU, also on a machine that has one."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield
