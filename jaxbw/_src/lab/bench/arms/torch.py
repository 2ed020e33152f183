"""torch, whose matmuls are cuBLAS's."""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul


class Torch(Arm):
    """`torch.matmul`; a transposed operand is a view."""

    package: ClassVar[str] = "torch"

    def refusal(self, case: Case) -> str | None:
        """Its epilogues are kernels of their own, which nobody would pick."""
        return super().refusal(case) or no_epilogue(case)

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Nothing is compiled."""
        import torch

        layout = case.plain.layout

        def matmul(lhs: Any, rhs: Any) -> Any:
            return torch.matmul(
                lhs if layout[0] == "n" else lhs.T, rhs if layout[1] == "n" else rhs.T
            )

        return torch_matmul(matmul)


def no_epilogue(case: Case) -> str | None:
    """The refusal of a case with an epilogue."""
    return None if case.epilogue == "none" else "it computes plain matmuls only"


def torch_matmul(run: Callable[..., Any], **details: Any) -> Matmul:
    """A matmul of torch's tensors."""
    import torch

    def wait(results: Any) -> None:
        torch.cuda.synchronize()

    return Matmul(run, torch.from_dlpack, wait, details)
