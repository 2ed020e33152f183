"""Random dot_generals under random compositions of JAX's transformations, by jaxbw and by lax.

A case is drawn from anything that has the methods of `random.Random`, so that hypothesis draws (and
shrinks) them, and a seed and a number do. Operands are small integers: sums are exact, on any
device and in any order, and the comparison is of types and bits.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jaxbw

from .dot_general_cases import DimensionNumbers, integers

Function = Callable[..., Any]  # of both operands
DotGeneral = Callable[..., Any]
Shape = tuple[int, ...]

# Of lhs and rhs, and what is preferred of the matmul.
DTYPES = (
    ("bfloat16", "bfloat16", None),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", None),
    ("float16", "float16", "float32"),
    ("float32", "float32", None),
    ("float64", "float64", None),
    ("bfloat16", "float32", None),
    ("float32", "complex64", None),
    ("complex64", "complex64", None),
    ("int32", "int32", None),
    ("int8", "int8", "int32"),
    ("bool", "bool", None),
    ("float8_e4m3fn", "float8_e4m3fn", None),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"),
    ("float8_e5m2", "float8_e4m3fn", "float32"),
    ("float8_e4m3fn", "float8_e5m2", "bfloat16"),
)
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jaxbw.checkpoint_policies.dots_saveable,
}
BATCH = 2  # of vmap and scan


@dataclass(frozen=True)
class Step:
    """A transformation.

    Attributes:
      name: of one of the functions of `TRANSFORMATIONS`.
      which: the operands that it is about: of 0 and 1.
      axes: for each operand, where a vmap's dimension is; taken modulo its rank then.
      variant: of vmap, where the result has the dimension; of remat, the policy.
    """

    name: str
    which: tuple[int, ...]
    axes: tuple[int, int]
    variant: Any = None


@dataclass(frozen=True)
class Case:
    """A matmul and what is done to it, innermost first."""

    shapes: tuple[Shape, Shape]
    dims: DimensionNumbers
    dtypes: tuple[str, str]
    preferred: str | None
    steps: tuple[Step, ...]

    def transformed(self, dot_general: DotGeneral) -> tuple[Function, tuple[Shape, Shape]]:
        """The function, and the shapes of its operands."""
        function: Function = lambda x, y: dot_general(  # noqa: E731
            x, y, self.dims, preferred_element_type=self.preferred
        )
        shapes = self.shapes
        for step in self.steps:
            function, shapes = TRANSFORMATIONS[step.name](function, shapes, step)
        return function, shapes


def draw(source: random.Random) -> Case:
    """A case that JAX takes."""
    shapes, dims = _matmul(source)
    *dtypes, preferred = source.choice(DTYPES)
    inexact = [i for i in (0, 1) if jnp.issubdtype(dtypes[i], jnp.inexact)]
    steps: list[Step] = []
    for _ in range(source.choice((0, 1, 1, 2, 2, 3))):
        names = list(TRANSFORMATIONS)
        if len(inexact) < 2:
            names = [name for name in names if name not in DERIVATIVES]
        if any(step.name in DERIVATIVES for step in steps):
            names = [name for name in names if name != "linear_transpose"]  # linear no more
        if sum(step.name in DERIVATIVES for step in steps) == 2:
            names = [name for name in names if name not in DERIVATIVES]
        name = source.choice(names)
        which = source.choice(((0,), (1,)) if name == "linear_transpose" else ((0,), (1,), (0, 1)))
        axes = (source.randint(0, 4), source.randint(0, 4))
        variant = {"vmap": (0, -1), "remat": tuple(POLICIES)}.get(name, (None,))
        steps.append(Step(name, which, axes, source.choice(variant)))
    return Case(shapes, dims, (dtypes[0], dtypes[1]), preferred, tuple(steps))


def _matmul(source: random.Random) -> tuple[tuple[Shape, Shape], DimensionNumbers]:
    """Shapes and dimension numbers; the dimensions of an operand lie anyhow."""

    def sizes() -> list[int]:
        return [source.choice((1, 2, 2, 3, 3, 0)) for _ in range(source.choice((0, 1, 1, 2)))]

    batch, contract = sizes(), sizes()
    shapes, batches, contractions = list[Shape](), list[Shape](), list[Shape]()
    for _ in range(2):
        extents = [*batch, *contract, *sizes()]
        order = source.sample(range(len(extents)), len(extents))
        places = [order.index(i) for i in range(len(extents))]
        shapes.append(tuple(extents[i] for i in order))
        batches.append(tuple(places[: len(batch)]))
        contractions.append(tuple(places[len(batch) : len(batch) + len(contract)]))
    dims = ((contractions[0], contractions[1]), (batches[0], batches[1]))
    return (shapes[0], shapes[1]), dims


# The transformations


def _jit(f: Function, shapes: Any, step: Step) -> Any:
    return jax.jit(f), shapes


def _remat(f: Function, shapes: Any, step: Step) -> Any:
    return jax.checkpoint(f, policy=POLICIES[step.variant]), shapes


def _vmap(f: Function, shapes: Any, step: Step) -> Any:
    axes = [step.axes[i] % (len(shapes[i]) + 1) if i in step.which else None for i in range(2)]
    grown = tuple(
        shape if axis is None else (*shape[:axis], BATCH, *shape[axis:])
        for shape, axis in zip(shapes, axes, strict=True)
    )
    return jax.vmap(f, tuple(axes), step.variant), grown


def _scan(f: Function, shapes: Any, step: Step) -> Any:
    """Over some operands; the others are the same for all iterations."""

    def scanned(*operands: Any) -> Any:
        def body(carry: None, slices: Any) -> tuple[None, Any]:
            given = list(operands)
            for i, x in zip(step.which, slices, strict=True):
                given[i] = x
            return carry, f(*given)

        return lax.scan(body, None, tuple(operands[i] for i in step.which))[1]

    return scanned, tuple((BATCH, *s) if i in step.which else s for i, s in enumerate(shapes))


def _grad(f: Function, shapes: Any, step: Step) -> Any:
    return jax.grad(lambda x, y: _weighted_sum(f(x, y)), step.which), shapes


def _jvp(f: Function, shapes: Any, step: Step) -> Any:
    return lambda *operands: jax.jvp(f, operands, tuple(map(_tangent, operands))), shapes


def _linearize(f: Function, shapes: Any, step: Step) -> Any:
    def linearized(*operands: Any) -> Any:
        out, linear = jax.linearize(f, *operands)
        return out, linear(*map(_tangent, operands))

    return linearized, shapes


def _linear_transpose(f: Function, shapes: Any, step: Step) -> Any:
    (i,) = step.which

    def transposed(*operands: Any) -> Any:
        def linear(x: Any) -> Any:
            given = list(operands)
            given[i] = x
            return f(*given)

        return jax.linear_transpose(linear, operands[i])(f(*operands))

    return transposed, shapes


TRANSFORMATIONS: dict[str, Callable[[Function, Any, Step], Any]] = {
    "jit": _jit,
    "remat": _remat,
    "vmap": _vmap,
    "scan": _scan,
    "grad": _grad,
    "jvp": _jvp,
    "linearize": _linearize,
    "linear_transpose": _linear_transpose,
}
DERIVATIVES = ("grad", "jvp", "linearize", "linear_transpose")


def _tangent(x: Any) -> Any:
    """The elements of x in another order."""
    return lax.rev(x, tuple(range(x.ndim)))


def _weighted_sum(results: Any) -> Any:
    """A real number to differentiate: each element counts by a weight of its own."""
    total: Any = 0.0
    for x in jax.tree.leaves(results):
        if x.dtype.name.startswith("float8"):  # which JAX promotes to nothing
            x = x.astype(jnp.float32)
        weights = (jnp.arange(x.size) % 5 - 2).reshape(x.shape)
        total += jnp.sum(jnp.real(x) * weights.astype(jnp.real(x).dtype))
    return total


# The comparison

BY = (jaxbw.dot_general, lax.dot_general)


def check(cases: Sequence[Case]) -> None:
    """Traces cases by jaxbw and by lax, and runs them in one program.

    Args:
      cases: what `draw` gives.

    Raises:
      AssertionError: types or values differ.
    """
    programs, given = [], []
    for case in cases:
        _, shapes = case.transformed(lax.dot_general)
        operands = [
            integers(shape, dtype, i)
            for i, (shape, dtype) in enumerate(zip(shapes, case.dtypes, strict=True))
        ]
        ours, theirs = (jax.make_jaxpr(case.transformed(f)[0])(*operands) for f in BY)
        assert ours.out_avals == theirs.out_avals, case
        programs.append([jaxpr_as_fun(ours), jaxpr_as_fun(theirs)])
        given.append(operands)

    def program(given: Any) -> Any:
        return [
            [f(*operands) for f in each] for each, operands in zip(programs, given, strict=True)
        ]

    results = jax.jit(program)(given)
    for case, (ours, theirs) in zip(cases, results, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(x, y, str(case))


def is_refused_by_lax(case: Case) -> bool:
    """Whether the platform does not compile a case even without jaxbw."""
    function, shapes = case.transformed(lax.dot_general)
    types = (jax.ShapeDtypeStruct(*each) for each in zip(shapes, case.dtypes, strict=True))
    try:
        jax.jit(function).lower(*types).compile()
    except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError):
        return True
    return False
