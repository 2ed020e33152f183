"""What tuning launches, on the fake driver: every kind of matmul, each array in its place."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.lab.tuning import find, launching
from jaxbw._src.lab.tuning.arrays import operands
from jaxbw._src.lab.tuning.launching import Gpu
from jaxbw._src.lab.tuning.measure import launch_of
from jaxbw._src.selection import manifest
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.select import select

from .conftest import FakeDriver

H200 = TARGETS["H200"]
X, W = jnp.ones((136, 72), jnp.bfloat16), jnp.ones((72, 264), jnp.bfloat16)
R = jnp.ones((136, 264), jnp.float32)
MATMULS: dict[str, Any] = {
    "plain": lambda: jaxbw.matmul(X, W),
    "f16 to f32": lambda: jaxbw.matmul(
        X.astype("float16"), W.astype("float16"), preferred_element_type=jnp.float32
    ),
    "rows that are repacked": lambda: jaxbw.matmul(X[:, :71], W[:71]),
    "bias along n": lambda: jaxbw.matmul(X, W, bias=R[0], activation="relu"),
    "bias along m": lambda: jaxbw.matmul(X, W, bias=R[:, 0], bias_axis=-2),
    "c and residual": lambda: jaxbw.matmul(X, W, c=R, beta=0.5, residual=R.astype("bfloat16")),
    "gated": lambda: jaxbw.gated_matmul(X, W, W, activation="relu"),
    "saving z": lambda: jax.grad(
        lambda x: jaxbw.matmul(x, W, activation="silu").astype(jnp.float32).sum()
    )(X),
    "batched": lambda: jaxbw.dot_general(
        jnp.stack([X, X]), jnp.stack([W, W]), (((2,), (1,)), ((0,), (0,)))
    ),
}


EXPERTS = jnp.ones((3, 72, 264), jnp.bfloat16)
SIZES = jnp.array([100, 0, 30], jnp.int32)
CONTRACTION = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
# What is behind the operands that tensor maps are of.
GROUPED: dict[str, Any] = {
    "rows": lambda: jaxbw.ragged_dot(X, EXPERTS, SIZES),
    "gated": lambda: jaxbw.gated_ragged_dot(X, EXPERTS, EXPERTS, SIZES, activation="silu"),
    "gathered, with a bias": lambda: jaxbw.ragged_dot(
        X, EXPERTS, SIZES, lhs_rows=jnp.arange(200) // 2, bias=R[:3]
    ),
    "contraction": lambda: jaxbw.ragged_dot_general(X, R.astype("bfloat16"), SIZES, CONTRACTION),
    "sums in place": lambda: jaxbw.ragged_dot_general(
        *(X, R.astype("bfloat16"), SIZES, CONTRACTION),
        c=jnp.ones((3, 72, 264), jnp.float32),
        preferred_element_type=jnp.float32,
    ),
}


@pytest.fixture
def gpu(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Its memory is the host's, and little: JAX computes on the CPU."""
    sizes = {"_OPERANDS": 2**19, "_RESULTS": 2**22, "_DRAWN": 2**16, "_WINDOW": 2**12}
    for name, size in sizes.items():
        monkeypatch.setattr(launching, name, size)
    return Gpu()


def choice_of(problem: Any, config: GemmConfig) -> Choice:
    found = select(problem, H200, ("sm90",), config, manifest.kernels())
    assert isinstance(found, Choice), found
    return found


@pytest.mark.parametrize("name", MATMULS)
def test_configurations_agree_and_a_wrong_result_is_seen(
    name: str, gpu: Gpu, fake: FakeDriver
) -> None:
    configs = [GemmConfig(128, 128), GemmConfig(128, 256, cluster=(2, 1))]
    if name != "gated":
        configs += [GemmConfig(128, 64, split_k=2), GemmConfig(128, 128, swap_ab=True)]
    for found in find.dense_matmuls(MATMULS[name]):
        launches = [gpu.launch(found.problem, choice_of(found.problem, c)) for c in configs]
        assert max(gpu.deviations(found.problem, launches)) < 0.01
        broken = [launches[0], lambda operands, result, wait: None]
        assert gpu.deviations(found.problem, broken)[1] > 0.5
    assert fake.launches()


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_matmuls_are_launched_behind_their_table(
    name: str, gpu: Gpu, fake: FakeDriver
) -> None:
    """Sizes are read when a call of them runs: here that they are there, with what is added to."""
    (found,) = find.matmuls(GROUPED[name])
    launch = launch_of(gpu, found.problem, H200, GemmConfig(128, 128, swizzle=4))
    for number in range(2):
        launch(number, number, True)
    kernels = [call["kernel"] for call in fake.calls("cuLaunchKernelEx")]
    assert kernels[::2] == ["jaxbw_sm90_group_table_s32"] * 2
    assert all("_grouped_" in each or "_gathered_" in each for each in kernels[1::2])


def test_zeros_agree(gpu: Gpu) -> None:
    """At both ends of a contraction of one group are empty ones: it was "inf off" on an H100."""
    (found,) = find.dense_matmuls(jaxbw.matmul, X, W)

    def nothing(operands: int, result: int, wait: bool) -> None:
        """Leaves zeros in place."""

    assert gpu.deviations(found.problem, [nothing, nothing]) == [0, 0]


def test_operands_are_those_of_the_custom_call() -> None:
    (found,) = find.dense_matmuls(MATMULS["c and residual"])
    bf16, f32 = np.dtype("bfloat16"), np.dtype("float32")
    assert operands(found.problem) == [
        ((1, 136, 72), bf16),
        ((1, 72, 264), bf16),
        ((1, 136, 264), f32),
        ((1, 136, 264), bf16),
    ]


def test_a_matmul_that_does_not_fit_is_refused(gpu: Gpu) -> None:
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    (found,) = find.dense_matmuls(jaxbw.matmul, x, x)
    with pytest.raises(ValueError, match="does not fit the memory that is set aside"):
        gpu.launch(found.problem, choice_of(found.problem, GemmConfig(128, 128)))


def test_memory_grows_while_there_is_some(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_OPERANDS", 2**13)  # a fourth of what the operands are
    monkeypatch.setattr(launching, "_RESULTS", 2**16)
    gpu, configs = Gpu(), (GemmConfig(128, 128), GemmConfig(128, 64))
    (problem,) = (each.problem for each in find.dense_matmuls(jaxbw.matmul, X, W))
    with pytest.raises(ValueError, match="does not fit the memory that is set aside"):
        gpu.launch(problem, choice_of(problem, configs[0]))
    monkeypatch.setattr(launching, "_memory", lambda: 2**20)
    before = gpu.launch(problem, choice_of(problem, configs[0]))
    for result in (jnp.bfloat16, jnp.float32):
        multiply = partial(jaxbw.matmul, preferred_element_type=result)
        (found,) = find.dense_matmuls(multiply, X, W)
        launches = [gpu.launch(found.problem, choice_of(found.problem, c)) for c in configs]
        assert max(gpu.deviations(found.problem, launches)) < 0.01
    before(0, 0, True)  # where it was
