"""jaxbw itself, as a user calls it."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax

import jaxbw
from jaxbw._src.lab.bench.arms.arm import Arm, specs
from jaxbw._src.lab.bench.arms.xla import matmul_function, options
from jaxbw._src.lab.bench.case import CONTRACTING, Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul
from jaxbw._src.selection.choice import Choice

_ACTIVATIONS = {"bias_gelu": "gelu", "bias_silu": "silu", "swiglu": "silu"}


class Ours(Arm):
    """jaxbw's choice of kernel and configuration."""

    measures_to_compile: ClassVar[bool] = True  # where it leaves the matmul to XLA

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Compiles the matmul, and notes what serves it."""
        choice = _explain(case)
        details: dict[str, Any] = {"kernel": choice.kernel, "reason": choice.reason}
        if choice.config is not None:
            details |= {"config": str(choice.config), "fields": dataclasses.asdict(choice.config)}
        if choice.cost is not None:
            details["modelled_us"] = choice.cost.total
        compiled = jax.jit(_function(case)).lower(*specs(case)).compile()
        return Matmul(compiled, details=details)


def _function(case: Case) -> Callable[..., Any]:
    """The case in terms of jaxbw."""
    activation = _ACTIVATIONS.get(case.epilogue)
    if case.epilogue == "none":
        return matmul_function(case, jaxbw.dot_general)
    if case.epilogue == "swiglu":
        return lambda lhs, gate, up: jaxbw.gated_matmul(lhs, gate, up, activation=activation)
    return lambda lhs, rhs, bias: jaxbw.matmul(lhs, rhs, bias=bias, activation=activation)


def _explain(case: Case) -> Choice:
    """Which kernel serves the case."""
    lhs, rhs, *extra = specs(case)
    epilogue: dict[str, Any] = {}
    if case.epilogue != "none":
        operand = "rhs_up" if case.epilogue == "swiglu" else "bias"
        epilogue = {operand: extra[0], "activation": _ACTIVATIONS[case.epilogue]}
    dims = (CONTRACTING[case.plain.layout], ((), ()))
    return jaxbw.explain(lhs, rhs, dimension_numbers=dims, **epilogue, **options(case))
