"""torch, whose matmuls are cuBLAS's."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul


class Torch(Arm):
    """`torch.matmul`; a transposed operand is a view."""

    package: ClassVar[str] = "torch"

    def refusal(self, case: Case) -> str | None:
        """Its epilogues are kernels of their own, which nobody would pick."""
        return super().refusal(case) or no_epilogue(case) or _fp8_layout(case)

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Nothing is compiled."""
        import torch

        layout = case.plain.layout
        if case.is_fp8:
            return _scaled_matmul(case)

        def matmul(lhs: Any, rhs: Any) -> Any:
            return torch.matmul(
                lhs if layout[0] == "n" else lhs.T, rhs if layout[1] == "n" else rhs.T
            )

        return torch_matmul(matmul)


def _fp8_layout(case: Case) -> str | None:
    """The refusal of operands of 8 bits that cuBLASLt does not take."""
    refused = case.is_fp8 and case.plain.layout != "nt"
    return "torch._scaled_mm takes fp8 in layout nt only" if refused else None


def _scaled_matmul(case: Case) -> Matmul:
    """`torch._scaled_mm` with scales of 1, which is cuBLASLt."""
    import torch

    one = torch.ones((), device="cuda")

    def matmul(lhs: Any, rhs: Any) -> Any:
        types = {"out_dtype": torch.bfloat16, "use_fast_accum": not case.precise}
        return torch._scaled_mm(lhs, rhs.T, scale_a=one, scale_b=one, **types)

    def tensor(array: jax.Array) -> Any:
        return torch.from_dlpack(array.view(jnp.uint8)).view(torch.float8_e4m3fn)

    return dataclasses.replace(torch_matmul(matmul), adopt=tensor)


def only_16bit(case: Case) -> str | None:
    """The refusal of operands of 8 bits."""
    return "it is written for 16 bits" if case.is_fp8 else None


def no_epilogue(case: Case) -> str | None:
    """The refusal of a case with an epilogue."""
    return None if case.epilogue == "none" else "it computes plain matmuls only"


def torch_matmul(run: Callable[..., Any], **details: Any) -> Matmul:
    """A matmul of torch's tensors."""
    import torch

    def wait(results: Any) -> None:
        torch.cuda.synchronize()

    return Matmul(run, torch.from_dlpack, wait, details)
