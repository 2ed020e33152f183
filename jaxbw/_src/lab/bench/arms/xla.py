"""XLA's own matmul, as `jax.jit` compiles it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
from jax import lax

from jaxbw._src.lab.bench.arms.arm import Arm, specs
from jaxbw._src.lab.bench.case import CONTRACTING, Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul

TRITON_OFF = {"xla_gpu_enable_triton_gemm": False}


@dataclass(frozen=True)
class Xla(Arm):
    """`jax.jit`, with options of the compiler."""

    options: Mapping[str, bool] = field(default_factory=dict)
    measures_to_compile: ClassVar[bool] = True

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Compiles the matmul; XLA times kernels to choose one."""
        lowered = jax.jit(_function(case)).lower(*specs(case))
        options: dict[str, str | bool] = dict(self.options)
        return Matmul(lowered.compile(compiler_options=options or None))


def _function(case: Case) -> Callable[..., Any]:
    """The case in terms of `jax.lax` and `jax.nn`."""
    activation = {"bias_gelu": jax.nn.gelu, "bias_silu": jax.nn.silu}.get(case.epilogue)
    if activation is not None:
        return lambda lhs, rhs, bias: activation(lhs @ rhs + bias)
    if case.epilogue == "swiglu":
        return lambda lhs, gate, up: jax.nn.silu(lhs @ gate) * (lhs @ up)
    return matmul_function(case, lax.dot_general)


def options(case: Case) -> dict[str, Any]:
    """What a user gives a `dot_general` of such operands."""
    if not case.is_fp8:
        return {}
    precision = lax.Precision.HIGHEST if case.precise else None
    return {"preferred_element_type": case.result_dtype, "precision": precision}


def matmul_function(case: Case, dot_general: Callable[..., Any]) -> Callable[..., Any]:
    """The matmul of a case without epilogue, by a `dot_general`; a gradient by transposition."""
    dims = (CONTRACTING[case.layout if case.layout in CONTRACTING else "nn"], ((), ()))

    def dot(lhs: Any, rhs: Any) -> Any:
        return dot_general(lhs, rhs, dimension_numbers=dims, **options(case))

    def lhs_gradient(cotangent: Any, rhs: Any) -> Any:
        lhs = jax.ShapeDtypeStruct((case.m, case.k), case.dtype)
        return jax.linear_transpose(lambda lhs: dot(lhs, rhs), lhs)(cotangent)[0]

    def rhs_gradient(lhs: Any, cotangent: Any) -> Any:
        rhs = jax.ShapeDtypeStruct((case.k, case.n), case.dtype)
        return jax.linear_transpose(lambda rhs: dot(lhs, rhs), rhs)(cotangent)[0]

    return {"dlhs": lhs_gradient, "drhs": rhs_gradient}.get(case.layout, dot)
