"""`jaxbw.explain_function`: what serves each matmul of a function, and why. Nothing is computed."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn

from jaxbw._src import compat
from jaxbw._src.lab.explain import estimated
from jaxbw._src.lab.explain_grouped import served
from jaxbw._src.lab.tuning import find
from jaxbw._src.primitives import ragged_fused, ragged_gathered, serve
from jaxbw._src.problem import GemmProblem
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import devices
from jaxbw._src.selection.choice import Choice, Refusal
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.implementations import EMULATED
from jaxbw._src.selection.policy import Policy
from jaxbw._src.selection.ragged import RaggedChoice
from jaxbw._src.selection.search import Cost
from jaxbw._src.selection.xla import xla_time

_NOT_OURS = "it is jax.lax.dot_general's; jaxbw.accelerate would put it to the choice"


@dataclass(frozen=True)
class ExplainedMatmul:
    """A matmul of a function.

    Attributes:
      count: how often a call of the function computes it, so far as that is known: the body of a
        `lax.scan` counts as often as it runs, that of a `lax.while_loop` once, and each branch of a
        `lax.cond`.
      problem: the matmul, reduced to one batched GEMM, in words, with what is fused; or a grouped
        one, as of `jaxbw.ragged_dot`.
      fused: what the kernel does behind the matmul: of "alpha", "c", "bias", the activation's name,
        "gate", "residual".
      choice: what serves it, and why, as `jaxbw.explain` has it.
      us: the modelled time of one, in microseconds; None where there is no model. Of a grouped one
        that of a kernel, of groups as large as `rows_per_group` says, or alike.
      flops: floating-point operations of one; 0 where a size is symbolic. Of a grouped one as if
        all rows were in groups.
    """

    count: int
    problem: str
    fused: tuple[str, ...]
    choice: Choice
    us: float | None
    flops: int

    @property
    def total_us(self) -> float | None:
        """The modelled time of all of them."""
        return None if self.us is None else self.count * self.us


@dataclass(frozen=True)
class ExplainedFunction:
    """The different matmuls of a function, those with the most arithmetic first; `print` shows it.

    Attributes:
      matmuls: an `ExplainedMatmul` for each.
    """

    matmuls: tuple[ExplainedMatmul, ...]

    @property
    def on_kernels(self) -> int:
        """How many matmuls a call computes on kernels."""
        return sum(x.count for x in self.matmuls if x.choice.kernel is not None)

    @property
    def on_xla(self) -> int:
        """How many it computes on XLA."""
        return sum(x.count for x in self.matmuls if x.choice.kernel is None)

    def __str__(self) -> str:
        rows = [("count", "us each", "matmul", "served by")]
        for x in self.matmuls:
            us = "" if x.us is None else f"{x.us:.2f}"
            served = x.choice.kernel or f"XLA: {_why(x.choice)}"
            rows.append((str(x.count), us, x.problem, served))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{a:>{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}".rstrip()
            for a, b, c, d in rows
        ]
        known = [x.total_us for x in self.matmuls if x.total_us is not None]
        total = f"{self.on_kernels} on kernels, {self.on_xla} on XLA"
        if known:
            total += f"; modelled {sum(known):.1f} us"
            if len(known) < len(self.matmuls):
                total += " without those that have no model"
        return "\n".join([*lines, total])


def explain_function(
    function: Callable[..., Any], *args: Any, device: str | None = None
) -> ExplainedFunction:
    """Each matmul of a function: how often, its sizes, what serves it, how long, and why.

    The function is traced, not run. What `jax.grad` adds is seen where the function takes the
    gradient itself. A matmul that nothing uses is left out. In a program that XLA divides among
    devices a matmul is shown whole; inside of a `jax.shard_map`, it is one device's part.

    Args:
      function: jittable: with jaxbw's matmuls, under `jaxbw.accelerate`, or any other. What is
        `jax.lax.dot_general`'s is XLA's.
      args: its arguments: arrays, or trees of them, or `jax.ShapeDtypeStruct` objects.
      device: as of `explain`; default None.

    Returns:
      A frozen dataclass whose `matmuls` have `count`, `problem`, `fused`, `choice` (as of
      `explain`) and `us` (modelled); `print` shows it as a table.

    Raises:
      ValueError: there is no such device.
      NotImplementedError: as the matmuls that are asked about.

    >>> x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((4096, 512), (512, 512)))
    >>> gradient = jax.grad(lambda w, x: jax.nn.relu(x @ w).sum())
    >>> report = jaxbw.explain_function(jaxbw.accelerate(gradient), w, x, device="B200")
    >>> [(each.count, each.choice.implementation, each.problem) for each in report.matmuls]
    ... # doctest: +NORMALIZE_WHITESPACE
    [(1, 'sm100', 'bf16[1,4096,512] @ bf16[1,512,512] -> bf16[1,4096,512]'),
     (1, 'sm100', 'bf16[1,4096,512]^T @ bf16[1,4096,512] -> bf16[1,512,512]')]
    """
    call = "jaxbw.explain_function"
    named = (
        nullcontext()
        if device is None
        else devices.target(devices.known(device, f"{call}(device="))
    )
    counts: dict[tuple[GemmProblem, Policy | None], int] = {}
    with named:
        target = devices.current_target()
        jaxpr = compat.without_dead_code(jax.make_jaxpr(function)(*args).jaxpr)
        for problem, policy, times in find.matmuls_in(jaxpr):
            counts[problem, policy] = counts.get((problem, policy), 0) + times
        explained = [_explained(*key, count, target, call) for key, count in counts.items()]
        grouped: dict[tuple[RaggedProblem, Choice], int] = {}
        for part, served, times in _grouped(jaxpr, target):
            grouped[part, served] = grouped.get((part, served), 0) + times
    explained += [
        ExplainedMatmul(
            times,
            choice.problem,
            _fused(part),
            choice,
            None if choice.cost is None else choice.cost.total,
            _flops(part),
        )
        for (part, choice), times in grouped.items()
    ]
    return ExplainedFunction(tuple(sorted(explained, key=lambda x: -x.count * x.flops)))


def _explained(
    problem: GemmProblem, policy: Policy | None, count: int, target: str | None, call: str
) -> ExplainedMatmul:
    names, target = (None, target) if policy is None else (policy.implementation, policy.target)
    has_device = names is not None or target is not None or jax.default_backend() == "gpu"
    on = serve.device_for(names, target) if has_device else None
    if policy is None:
        choice = serve.choose(problem, Policy(("xla",)), on, call)
        choice = replace(choice, reason=_NOT_OURS)
    else:
        choice = estimated(serve.choose(problem, policy, on, call), problem, on)
    us = choice.xla_us
    if choice.cost is not None:
        us = choice.cost.total
    elif us is None and on is not None and (time := xla_time(problem, on)) is not None:
        us = time.us
    return ExplainedMatmul(count, choice.problem, _fused(problem), choice, us, _flops(problem))


# What is computed where no kernel takes a grouped matmul with its epilogue, or gathers.
_APART: dict[Any, Callable[..., Any]] = {
    ragged_fused.ragged_fused_p: ragged_fused.formula,
    ragged_gathered.ragged_gathered_p: ragged_gathered.apart,
}


def _grouped(jaxpr: Jaxpr, target: str | None) -> Iterator[tuple[RaggedProblem, Choice, int]]:
    """The grouped matmuls of a program, what serves each, and how often it runs."""
    for problem, equation, times in find.ragged_matmuls_in(jaxpr):
        choice = _grouped_choice(problem, equation, target)
        if choice.kernel is not None or equation.primitive not in _APART:
            yield problem, choice, times
            continue
        formula = partial(_APART[equation.primitive], **equation.params)
        types: list[Any] = [each.aval for each in equation.invars]
        for part, its_choice, count in _grouped(jax.make_jaxpr(formula)(*types).jaxpr, target):
            yield part, its_choice, times * count


def _grouped_choice(problem: RaggedProblem, equation: JaxprEqn, target: str | None) -> Choice:
    found, on = served(problem, equation, target)
    kernel = None if isinstance(found, Refusal) else found
    return Choice(
        implementation="xla" if kernel is None else kernel.implementation,
        kernel=None if kernel is None else kernel.kernel,
        config=None if kernel is None else kernel.config,
        cost=None if kernel is None else _grouped_cost(problem, kernel, on),
        wave=None,
        repacked=(),
        candidates=(),
        reason=found.reason,
        refused=(),
        problem=str(problem),
        device=None if on is None else on.name,
    )


def _grouped_cost(problem: RaggedProblem, choice: RaggedChoice, on: Device | None) -> Cost:
    """The modelled cost of a launch, of groups as large as the call expects."""
    from jaxbw._src.lab.model.grouped import for_even_sizes  # wanted by few

    if (name := choice.implementation) in EMULATED:
        on = devices.for_family(on, EMULATED[name])
    assert on is not None
    return for_even_sizes(problem, choice.config, on.machine).cost


def _fused(problem: GemmProblem | RaggedProblem) -> tuple[str, ...]:
    e = problem.epilogue
    parts = {
        "alpha": e.alpha != 1,
        **dict(zip(("lhs_scale", "rhs_scale"), e.scaled_operands, strict=True)),
        "c": e.c is not None,
        "bias": e.bias is not None,
        e.activation or "": e.activation is not None,
        "gate": e.gated,
        "residual": e.residual is not None,
        "out_scale": e.out_scale,
        "out_format": e.out_format is not None,
    }
    return tuple(name for name, is_there in parts.items() if is_there)


def _flops(problem: GemmProblem | RaggedProblem) -> int:
    """Of a grouped matmul those of all its rows."""
    p = problem
    sizes = (p.batch, p.m, p.n, p.k)
    if not all(isinstance(size, int) for size in sizes):
        return 0
    return 2 * math.prod(sizes) * (1 + p.epilogue.gated)


def _why(choice: Choice) -> str:
    return "; ".join([choice.reason, *map(str, choice.refused)])
