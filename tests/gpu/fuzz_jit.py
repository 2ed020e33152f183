"""Random matmuls through jax.jit on the sm90 kernels, against float64.

    python -m tests.gpu.fuzz_jit --cases 25 --seed 1 --jobs 8 --out DATE_fuzz_jit.json

Cases are drawn as for fuzz_direct.py and become calls of jaxbw.matmul, gated_matmul or dot_general,
half of them in the configuration that was drawn, half in the one that the selection takes. Many
share a compiled function: `--cases` counts these. It runs twice, and must give the same bits.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import jaxbw
from jaxbw import GemmConfig
from jaxbw._src.primitives.gemm import TARGET

from ..emulator import gemm_draw
from ..emulator.gemm_cases import BETA, OPERANDS, Case, verify_results
from ..emulator.gemm_launch import Matmul
from . import fuzz_direct, fuzzing
from .campaign import Outcome

IMPLEMENTATION = "sm90"
MATMULS = 20  # in a compiled function
SMALL = replace(fuzz_direct.H200, area=1 << 18, work=1 << 25)


def draw(seed: int, number: int) -> list[Case]:
    """The cases of a function."""
    first = MATMULS * number
    drawn = (fuzz_direct.draw(seed, i, SMALL) for i in range(first, first + MATMULS))
    return [as_called(case) for case in drawn]


def as_called(case: Case) -> Case:
    """A case as the functions of jaxbw can say it.

    They save nothing by themselves; XLA decides where c lies; matmul's operands are row-major, and
    gated_matmul's have no more of an epilogue than scales and the activation. Their amax is of all
    matrices of a batch, where the oracle's is of each: test_8bit.py has it.
    """
    case = replace(case, save=False, in_place=False, out_scale=None, blocks=False)
    if case.gated:
        case = replace(case, alpha=1.0, in_memory=False, c=None, bias=None, residual=None)
    return replace(case, shared=()) if is_plain(case) else replace(case, layout="nn")


def is_plain(case: Case) -> bool:
    """Whether it is a call of dot_general."""
    arrays = (case.c, case.bias, case.residual)
    return (
        not case.gated
        and case.alpha == 1
        and not case.in_memory
        and case.activation == "none"
        and not (case.lhs_scale or case.rhs_scale)
        and all(array is None for array in arrays)
    )


def given_config(case: Case, index: int) -> GemmConfig | None:
    """The configuration of every other case.

    It must be legal for the layout that the call has; that of dimensions of 1 is jaxbw's choice.
    """
    if index % 2 or min(case.m, case.n, case.k) == 1 or gemm_draw.sm90_refusal(case) is not None:
        return None
    return case.gemm_config()


def call(case: Case, config: GemmConfig | None, operands: dict[str, Any]) -> Any:
    """The matmul of a case, traced."""
    lhs, rhs, *up = (operands.get(name) for name in ("lhs", "rhs", "rhs_up"))
    options: dict[str, Any] = dict(
        preferred_element_type=OPERANDS[case.output],
        precision=jax.lax.Precision.HIGHEST if case.promoted else None,
        implementation=IMPLEMENTATION,
        config=config,
    )
    if is_plain(case):
        contracting = (2 if case.layout[0] == "n" else 1,), (1 if case.layout[1] == "n" else 2,)
        return jaxbw.dot_general(lhs, rhs, (contracting, ((0,), (0,))), **options)
    options["activation"] = None if case.activation == "none" else case.activation
    scales = {name: operands[name] for name in operands if name.endswith("_scale")}
    if case.gated:
        if "rhs_scale" in scales:
            scales["rhs_gate_scale"] = scales.pop("rhs_scale")
        return jaxbw.gated_matmul(lhs, rhs, up[0], **scales, **options)
    epilogue = {"alpha": case.alpha, "beta": 1.0 if case.c is None else BETA}
    names = ("c", "bias", "residual", *epilogue)
    return jaxbw.matmul(
        lhs,
        rhs,
        **epilogue | {name: operands[name] for name in names if name in operands},
        bias_axis=-2 if case.bias_along_m else -1,
        **scales,
        **options,
    )


def operands(case: Case, matmul: Matmul) -> dict[str, Any]:
    """The arrays of a call."""
    names = ("lhs", "rhs", "rhs_up", "c", "bias", "residual")
    arrays = {name: getattr(matmul, name) for name in names} | matmul.scales
    for name, letter in zip(names[:3], (*case.layout, case.layout[1]), strict=True):
        if arrays[name] is not None:
            dtype = case.dtype if name == "lhs" else case.rhs_dtype or case.dtype
            stored = arrays[name].astype(OPERANDS[dtype])
            arrays[name] = stored if letter == "n" else np.swapaxes(stored, 1, 2)
    for name in case.shared:
        own = (name, "rhs_up") if name == "rhs" else (name,)
        for operand in (*own, *(f"{each}_scale" for each in own)):
            if arrays.get(operand) is not None:
                arrays[operand] = arrays[operand][0]
    there = {name: array for name, array in arrays.items() if array is not None}
    return there | matmul.factors


def check(cases: Sequence[Case]) -> None:
    """Compiles one function of all cases, and compares its results.

    Raises:
      AssertionError: something is wrong.
    """
    matmuls = [case.matmul() for case in cases]
    configs = [given_config(case, index) for index, case in enumerate(cases)]
    given = [operands(case, matmul) for case, matmul in zip(cases, matmuls, strict=True)]

    def function(given: list[dict[str, Any]]) -> list[Any]:
        return [call(*each) for each in zip(cases, configs, given, strict=True)]

    compiled = jax.jit(function).lower(given).compile()
    calls = (compiled.as_text() or "").count(f'custom_call_target="{TARGET}"')
    assert calls == len(cases), f"{calls} calls of kernels for {len(cases)} matmuls"
    first, second = (jax.tree.map(np.asarray, compiled(given)) for _ in range(2))
    for case, matmul, result, again in zip(cases, matmuls, first, second, strict=True):
        assert result.tobytes() == again.tobytes(), f"{case}: two calls differ"
        verify_results(case, matmul, [result.reshape(case.batch, case.m, case.n)])


def attempt(seed: int, number: int) -> Outcome:
    """Tries the matmuls of a function."""
    try:
        check(draw(seed, number))
    except jax.errors.JaxRuntimeError as error:  # after which a context may be of no use
        return Outcome(number, str(error), lost=True)
    except (AssertionError, NotImplementedError, ValueError) as error:
        return Outcome(number, f"{type(error).__name__}: {error}")
    return Outcome(number)


FUZZER = fuzzing.Fuzzer("fuzz_jit", draw=draw, attempt=attempt, attempts=25, repeats=2)

if __name__ == "__main__":
    sys.exit(fuzzing.main(FUZZER))
