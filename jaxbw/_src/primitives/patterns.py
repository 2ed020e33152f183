"""What follows a matmul in a jaxpr, as the epilogue that computes the same.

`STEPS` is the table: each looks at the only use of a result, and takes it in or not. An activation
is found by what JAX traces `ACTIVATIONS` to, equation by equation, so whoever wrote it, and in
whatever version. Between one step and the next nothing else may see the value.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, primitives

from jaxbw._src import compat
from jaxbw._src.epilogue import ACTIVATIONS, Epilogue
from jaxbw._src.primitives.accelerate import policy_of_equation
from jaxbw._src.primitives.graph import Graph, occurrence
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import DimensionNumbers, Operands
from jaxbw._src.selection.policy import Policy

_WIDTHS = {"bfloat16": 16, "float16": 16, "float32": 32, "float64": 64}


class Fusion(NamedTuple):
    """A matmul, and what of its epilogue is found.

    Attributes:
      dot: the equation of the matmul.
      policy: its mark's.
      out: the variable that all this computes.
      eaten: which equations it stands for.
      swapped: the result is that of `rhs.T @ lhs.T`.
      up, c, bias, residual: variables, shaped as `Operands` has them but for the bias, which may
        have dimensions of size 1.
    """

    dot: JaxprEqn
    policy: Policy
    out: Any
    eaten: frozenset[int]
    swapped: bool = False
    up: Any = None
    c: Any = None
    bias: Any = None
    activation: str | None = None
    residual: Any = None

    @property
    def factors(self) -> tuple[Any, Any]:
        """The operands of the matmul as it is now."""
        lhs, rhs = self.dot.invars
        return (rhs, lhs) if self.swapped else (lhs, rhs)

    @property
    def dims(self) -> DimensionNumbers:
        """Its dimension numbers."""
        dims: DimensionNumbers = self.dot.params["dimension_numbers"]
        contract, batch = (tuple(map(tuple, pair)) for pair in dims)
        return (contract[::-1], batch[::-1]) if self.swapped else (contract, batch)  # type: ignore[return-value]

    @property
    def precision(self) -> Any:
        """Its precision."""
        precision = self.dot.params["precision"]
        is_pair = self.swapped and isinstance(precision, tuple)
        return precision[::-1] if is_pair else precision

    @property
    def columns(self) -> tuple[int, ...]:
        """The sizes of the last dimensions of the result: those of rhs."""
        x = self.factors[1].aval
        (_, contract), (_, batch) = self.dims
        return tuple(x.shape[i] for i in kept(x.ndim, contract, batch))

    @property
    def epilogue(self) -> Epilogue:
        """The formula."""
        c, bias, residual = (
            None if x is None else np.dtype(x.aval.dtype)
            for x in (self.c, self.bias, self.residual)
        )
        return Epilogue(
            c=c,
            bias=bias,
            bias_rank=1 if bias is None else len(self.columns),
            activation=self.activation,
            residual=residual,
            gated=self.up is not None,
        )

    def operands(self, read: Callable[[Any], Any]) -> Operands:
        """The arrays, from what `read` has for each variable."""
        names = (*self.factors, self.up, self.c, self.bias, self.residual)
        lhs, rhs, up, c, bias, residual = (None if x is None else read(x) for x in names)
        bias = None if bias is None else bias.reshape(self.columns)
        return Operands(lhs, rhs, up, c, bias, residual)

    def takes(self, i: int, equation: JaxprEqn, **found: Any) -> "Fusion":
        """The same with one more equation."""
        (out,) = equation.outvars
        return self._replace(out=out, eaten=self.eaten | {i}, **found)


def fusions(jaxpr: Jaxpr) -> Iterator[Fusion]:
    """The matmuls that are followed by what an epilogue computes; no equation is in two."""
    graph = Graph(jaxpr)
    for i in range(len(jaxpr.eqns)):
        found = _matmul(graph, i)
        while found is not None and not found.epilogue.gated:
            steps = (step(graph, found) for step in STEPS)
            if (more := next((x for x in steps if x is not None), None)) is None:
                break
            found = more
        if found is None or found.epilogue.is_identity:
            continue
        if found.activation is None and found.residual is None:
            found = found._replace(c=None, residual=found.c)
        graph.taken |= found.eaten
        yield found


def _matmul(graph: Graph, i: int) -> Fusion | None:
    equation = graph.equations[i]
    if equation.primitive is not primitives.dot_general_p or i in graph.taken:
        return None
    policy, (out,) = policy_of_equation(equation), equation.outvars
    if policy is None or out not in graph.uses or not compat.is_on_device(equation):
        return None
    arrays: list[Any] = [x.aval for x in (*equation.invars, out)]
    if equation.params["out_sharding"] is not None or any(map(compat.is_explicit, arrays)):
        return None
    if any(x.dtype.name not in _WIDTHS or x.weak_type for x in arrays):
        return None
    found = Fusion(equation, policy, out, frozenset([i]))
    return found if found.columns else found._replace(swapped=True)  # a matrix times a vector


# The steps


def _transposition(graph: Graph, found: Fusion) -> Fusion | None:
    """Of the matmul itself, its rows for its columns: (w @ x.T).T is x @ w.T."""
    use = graph.only_use(found.out, primitives.transpose_p)
    if use is None or found.swapped or len(found.eaten) > 1:
        return None
    rank, (_, (batch, _)), columns = found.out.aval.ndim, found.dims, len(found.columns)
    dims = range(rank)
    wanted = (*dims[: len(batch)], *dims[rank - columns :], *dims[len(batch) : rank - columns])
    is_swap = tuple(use[1].params["permutation"]) == wanted and rank > len(batch) + columns
    return found.takes(*use, swapped=True) if is_swap else None


def _narrowing(graph: Graph, found: Fusion) -> Fusion | None:
    """A cast of what was summed up in a wider type."""
    use = graph.only_use(found.out, primitives.convert_element_type_p)
    if use is None:
        return None
    cast: Any = use[1].outvars[0].aval
    arrays = (*(x.aval for x in found.factors), cast, found.out.aval)
    widths = [_WIDTHS.get(x.dtype.name) for x in arrays]
    is_cast = widths == [16, 16, 16, 32] and not cast.weak_type
    return found.takes(*use) if is_cast else None


def _sum(graph: Graph, found: Fusion) -> Fusion | None:
    """A bias, or an array shaped as the result: before an activation, or behind it."""
    use = graph.only_use(found.out, primitives.add_p)
    if use is None or found.residual is not None:
        return None
    other = _other(use[1], found)
    if isinstance(other, Literal) or other.aval.weak_type:
        return None
    if found.activation is None and found.bias is None:
        bias = next((x for x in _sources(graph, other) if _is_bias(graph, found, x, other)), None)
        if bias is not None:
            return found.takes(*use, bias=bias)
    if other.aval.shape != found.out.aval.shape:
        return None
    if found.activation is None and found.c is None:
        return found.takes(*use, c=other)
    return found.takes(*use, residual=other)


def _other(equation: JaxprEqn, found: Fusion) -> Any:
    """The operand that is not the matmul."""
    (other,) = (x for x in equation.invars if x is not found.out)
    return other


def _sources(graph: Graph, atom: Any) -> Iterator[Any]:
    """An array, and what it was before it was broadcast."""
    yield atom
    maker = graph.maker(atom)
    if maker is not None and graph.equations[maker].primitive is primitives.broadcast_in_dim_p:
        yield graph.equations[maker].invars[0]


def _is_bias(graph: Graph, found: Fusion, x: Any, added: Any) -> bool:
    """Whether x, broadcast as `added`, lies along the columns of the result."""
    shape, columns = x.aval.shape, found.columns
    count = len(columns)
    if shape[len(shape) - count :] != columns or prod(shape) != prod(columns):
        return False
    if x is added:
        return True
    broadcast: Any = graph.equations[graph.makers[added]].params
    rank = found.out.aval.ndim
    last = tuple(map(int, broadcast["broadcast_dimensions"][len(shape) - count :]))
    return len(broadcast["shape"]) == rank and last == tuple(range(rank - count, rank))


def _activation(graph: Graph, found: Fusion) -> Fusion | None:
    if found.activation is not None or found.residual is not None:
        return None
    x = found.out.aval
    for name, mapped in product(filter(None, ACTIVATIONS), range(x.ndim + 1)):
        part = occurrence(graph, found.out, _traced(name, mapped, x))
        if part is not None:
            out, eaten = part
            return found._replace(out=out, eaten=found.eaten | eaten, activation=name)
    return None


@cache
def _traced(name: str, mapped: int, x: Any) -> Jaxpr:
    """What JAX makes of an activation under so many `vmap`s: derivatives show them."""
    function = ACTIVATIONS[name]
    for _ in range(mapped):
        function = jax.vmap(function)
    jaxpr: Jaxpr = jax.make_jaxpr(function)(x).jaxpr
    return jaxpr


def _gate(graph: Graph, found: Fusion) -> Fusion | None:
    """Times another matmul of the same lhs, which nothing else reads."""
    use = graph.only_use(found.out, primitives.mul_p)
    is_plain = found.bias is None and found.c is None and found.residual is None
    if use is None or found.activation is None or not is_plain:
        return None
    other = _other(use[1], found)
    maker = graph.maker(other)
    up = None if maker is None else _matmul(graph, maker)
    if up is None or graph.only_use(up.out, primitives.mul_p) is None:
        return None
    (lhs, rhs), (same, other_rhs) = found.factors, up.factors
    types = [(x.aval.shape, x.aval.dtype) for x in (rhs, found.out)]
    if lhs is not same or types != [(x.aval.shape, x.aval.dtype) for x in (other_rhs, up.out)]:
        return None
    if (found.dims, found.precision, found.policy) != (up.dims, up.precision, up.policy):
        return None
    return found.takes(*use, up=other_rhs)._replace(eaten=found.eaten | up.eaten | {use[0]})


STEPS = (_transposition, _narrowing, _sum, _activation, _gate)
