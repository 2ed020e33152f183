"""One compiled step: how long it takes, and what it launches."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxbw._src.lab import cupti
from jaxbw._src.lab.bench.models.form import Form
from jaxbw._src.lab.bench.models.transformer import Transformer
from jaxbw._src.lab.tuning.find import dense_matmuls
from jaxbw._src.primitives import serve
from jaxbw._src.selection import devices
from jaxbw._src.selection.policy import FREE

# What a kernel does, by its name: the first that fits. What fits none is a fusion of XLA's.
KINDS = {
    "repack, reduce": r"jaxbw_sm\d+_(repack|reduce)",
    "jaxbw": r"jaxbw_sm\d+",
    "attention": r"cudnn|fmha|flash|sdpa",
    "xla matmul": r"nvjet|cutlass|gemm|gemv|dot|split_?[kK]|cublas",
    "copy": r"memcpy|copy|dynamic_(update_)?slice",
    "transpose": r"transpose",
}
OTHER = "other"
PROFILED_STEPS = 2


def kind(kernel: str) -> str:
    """The kind of a kernel.

    >>> kind("jaxbw_sm90_bf16_nn_64x256"), kind("input_transpose_fusion_3"), kind("loop_add_fusion")
    ('jaxbw', 'transpose', 'other')
    """
    return next((name for name, pattern in KINDS.items() if re.search(pattern, kernel)), OTHER)


@dataclass(frozen=True)
class Launches:
    """Kernels of a step, by kind: how many, and their milliseconds together."""

    counts: dict[str, int]
    milliseconds: dict[str, float]

    @classmethod
    def of(cls, kernels: Sequence[tuple[str, float]], steps: int) -> "Launches":
        """Of so many steps' kernels, by name and milliseconds."""
        counts, milliseconds = Counter[str](), dict[str, float]()
        for name, ms in kernels:
            counts[kind(name)] += 1
            milliseconds[kind(name)] = milliseconds.get(kind(name), 0) + ms / steps
        return cls(
            {name: count // steps for name, count in counts.items()},
            {name: round(ms, 4) for name, ms in milliseconds.items()},
        )


def count_matmuls(model: Transformer, form: Form, stacking: str) -> dict[str, int]:
    """How many matmuls the jaxpr of a step has; scans counted out.

    "jaxbw": ours; "kernels": those of them that a kernel serves, on this machine's GPU or the
    target; "xla": those that are lax's.
    """
    step, given = model.step(form, stacking), model.argument_shapes(stacking)
    device = serve.device_for(None, devices.current_target())
    counts = Counter({"jaxbw": 0, "kernels": 0, "xla": 0})
    for each in dense_matmuls(step, *given):
        counts["jaxbw"] += each.count
        choice = serve.choose(each.problem, FREE, device, "bench model")
        if choice.kernel is not None:
            counts["kernels"] += each.count
    total = sum(each.count for each in dense_matmuls(step, *given, lax=True))
    return {**counts, "xla": total - counts["jaxbw"]}


@dataclass(frozen=True)
class Program:
    """A step of a model in one form, compiled.

    Attributes:
      returns_cache: whether the third argument, a decoding step's cache, is consumed and returned.
      matmuls: what `count_matmuls` says.
      temporary_bytes: memory beside arguments and results.
    """

    compiled: Any
    returns_cache: bool
    matmuls: dict[str, int]
    temporary_bytes: int
    compile_s: float

    @classmethod
    def compile(cls, model: Transformer, form: Form, stacking: str) -> "Program":
        """Compiles a step for this machine's device. The arguments are not needed yet."""
        begin = time.perf_counter()
        jitted = jax.jit(model.step(form, stacking), donate_argnums=(2,) if model.cache else ())
        compiled = jitted.lower(*model.argument_shapes(stacking)).compile()
        seconds = round(time.perf_counter() - begin, 1)
        memory: Any = compiled.memory_analysis()
        return cls(
            compiled,
            model.cache > 0,
            count_matmuls(model, form, stacking),
            memory.temp_size_in_bytes,
            seconds,
        )

    def run(self, arguments: tuple[Any, ...]) -> tuple[float, tuple[Any, ...], Any]:
        """A step and the wait for it: milliseconds, the next step's arguments, the result."""
        begin = time.perf_counter()
        result = self.compiled(*arguments)
        jax.block_until_ready(result)
        ms = 1e3 * (time.perf_counter() - begin)
        if self.returns_cache:
            arguments = (*arguments[:2], result[1], *arguments[3:])
        return ms, arguments, result[0]

    def launches(self, arguments: tuple[Any, ...]) -> tuple[Launches, tuple[Any, ...]]:
        """What a step launches, from CUPTI; and the next step's arguments."""
        with cupti.recorded() as kernels:
            for _ in range(PROFILED_STEPS):
                _, arguments, _ = self.run(arguments)
        return Launches.of(kernels, PROFILED_STEPS), arguments
