"""A matmul of each kind on each kernel family that can run here, held to NumPy bit for bit.

Operands are small integers: their sums are exact in float32 in any order, and so is the result.
On a GPU the kernels themselves run, elsewhere both families do in the emulator.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw
from jaxbw._src.lab.bench.case import CONTRACTING
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.implementations import EMULATED

_M, _N, _K = 136, 200, 72  # no multiples of a tile, rows of multiples of 16 bytes


@dataclass(frozen=True)
class Case:
    """A matmul: its sizes, and which operands lie transposed in memory ("t")."""

    name: str
    n: int = _N
    k: int = _K
    layout: str = "nn"
    fused: bool = False


CASES = (
    Case("matmul"),
    Case("transposed operands", layout="tt"),
    Case("unaligned rows", n=_N + 1, k=_K - 1),
    Case("bias, relu, residual", fused=True),
)


@dataclass(frozen=True)
class Verdict:
    """What came of a case. `fault` says what is wrong; None where nothing is."""

    implementation: str
    case: str
    fault: str | None
    seconds: float


def implementations(device: Device | None, platforms: Sequence[str]) -> tuple[str, ...]:
    """What can run here: the GPU's kernels where JAX has the GPU, else both families, emulated.

    Args:
      device: this machine's GPU; None where there is none.
      platforms: what JAX can compute on.
    """
    usable = device is not None and device.family is not None and device.problem is None
    if usable and "gpu" in platforms:
        assert device is not None
        assert device.family is not None
        return (device.family,)
    return tuple(EMULATED) if "cpu" in platforms else ()


def run(names: Sequence[str]) -> Iterator[Verdict]:
    """Every case on every implementation."""
    for name in names:
        for case in CASES:
            start = time.monotonic()
            fault = _fault(name, case)
            yield Verdict(name, case.name, fault, round(time.monotonic() - start, 3))


def _fault(name: str, case: Case) -> str | None:
    """What is wrong with a case, in a line."""
    try:
        platform = "cpu" if name in EMULATED else "gpu"
        with jax.default_device(jax.devices(platform)[0]):
            found, expected = _computed(name, case)
    except Exception as error:  # whatever it is, it is the finding
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"
    wrong = int((found != expected).sum())
    return f"{wrong} of {found.size} elements are wrong" if wrong else None


def _computed(name: str, case: Case) -> tuple[Any, Any]:
    """The result, and what it must be."""
    draw = np.random.default_rng(0)
    lhs, rhs, bias, residual = (
        draw.integers(-2, 3, shape).astype(np.float32)
        for shape in ((_M, case.k), (case.k, case.n), (case.n,), (_M, case.n))
    )
    expected = lhs @ rhs
    options: dict[str, Any] = {"implementation": name, "preferred_element_type": jnp.float32}
    if case.fused:
        expected = np.maximum(expected + bias, 0) + residual
        options |= {"bias": bias, "activation": "relu", "residual": residual}
        matmul = partial(jaxbw.matmul, **options)
    else:
        dims = (CONTRACTING[case.layout], ((), ()))
        matmul = partial(jaxbw.dot_general, dimension_numbers=dims, **options)
    stored = (
        x.T if letter == "t" else x for x, letter in zip((lhs, rhs), case.layout, strict=True)
    )
    found = jax.jit(matmul)(*(jnp.asarray(x, jnp.bfloat16) for x in stored))
    return np.asarray(found), expected
