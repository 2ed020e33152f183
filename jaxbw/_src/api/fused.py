"""A product with an epilogue, and its derivative, by jax.custom_vjp.

Forward it is one kernel, differentiated or not: where the gradient needs z = alpha * lhs @ rhs +
beta * c + bias (and u, of a gated product), the same kernel writes it beside d, in d's dtype.

- Without activation nothing is saved.
- "relu" without residual: the sign of d says where the gradient passes.
- Else z.

What is saved has a name for `jax.checkpoint`'s policies: `checkpoint_policies.PREACTIVATION`.

Backward, XLA computes the cotangents of z, u and bias (in float32, summed in a fixed order) from
that of d in one fusion, and the kernels multiply them: alpha is their epilogue's, and the two
products of a gated one's lhs are added up in place, as beta * c. Every product of the backward pass
is this operation or dot_general_p, hence differentiable again. Like every jax.custom_vjp it has no
forward-mode derivative.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxbw._src.epilogue import ACTIVATIONS, Epilogue, wide_dtype
from jaxbw._src.primitives.dot_general import dot_general
from jaxbw._src.primitives.fused_dot_general import bias_dimensions, fused_dot_general
from jaxbw._src.primitives.transposition import backward_params, transposition
from jaxbw._src.problem import Operands
from jaxbw.checkpoint_policies import PREACTIVATION


@dataclass(frozen=True)
class _Call:
    """What of an operation is known when it is traced.

    Attributes:
      params: the parameters of `primitives.dot_general.dot_general`, as items.
    """

    epilogue: Epilogue
    params: tuple[tuple[str, Any], ...]

    @property
    def needs_z(self) -> bool:
        """Whether the backward pass looks at z, or at what says as much of it."""
        return self.epilogue.gated or self.epilogue.activation is not None

    @property
    def d_will_do(self) -> bool:
        """Whether d says all that z would: relu has at its output the slope that it has at z."""
        e = self.epilogue
        return e.activation == "relu" and e.residual is None and not e.gated

    def saving(self) -> "_Call":
        """The call that also gives what the backward pass looks at."""
        if not self.needs_z or self.d_will_do:
            return self
        return replace(self, epilogue=self.epilogue.saving())

    def seen(self, results: Sequence[Any]) -> Sequence[Any]:
        """What the backward pass looks at, of the results of `saving`."""
        if not self.needs_z:
            return ()
        return results[:1] if self.d_will_do else results[1:]


def product(
    operands: Operands, epilogue: Epilogue, params: Mapping[str, Any], *, recompute: bool = False
) -> Any:
    """d, of operands as `primitives.fused_dot_general` has them.

    With `recompute` nothing but the operands is kept for the backward pass.
    """
    if epilogue.is_identity:
        return dot_general(operands.lhs, operands.rhs, **params)
    fused = partial(_fused, _Call(epilogue, tuple(params.items())))
    return (jax.checkpoint(fused) if recompute else fused)(operands)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(call: _Call, operands: Operands) -> tuple[Any, ...]:
    return fused_dot_general(operands, call.epilogue, **dict(call.params))


def _forward(call: _Call, operands: Operands) -> Any:
    factors = Operands(operands.lhs, operands.rhs, operands.rhs_up)
    results = _fused(call.saving(), operands)
    seen = [checkpoint_name(x, PREACTIVATION) for x in call.seen(results)]
    if call.needs_z and call.d_will_do:
        results = (*seen, *results[1:])  # one array, under the name wherever it is used
    return results[: call.epilogue.results], (factors, seen)


def _backward(call: _Call, kept: Any, cotangents: Sequence[Any]) -> tuple[Operands]:
    operands, seen = kept
    e, params = call.epilogue, dict(call.params)
    d_bar, *saved_bar = cotangents
    dtype, wide = d_bar.dtype, wide_dtype(d_bar.dtype)
    z_bar, *u_bar = _pull_back(call, [x.astype(wide) for x in seen], d_bar.astype(wide))
    if saved_bar:
        z_bar, *u_bar = (
            x + y.astype(wide) for x, y in zip((z_bar, *u_bar), saved_bar, strict=True)
        )
    bias_bar = None
    if e.bias is not None:
        ranks = (operands.lhs.ndim, operands.rhs.ndim)
        along = bias_dimensions(e, *ranks, params["dimension_numbers"])
        others = tuple(i for i in range(z_bar.ndim) if i not in along)
        bias_bar = z_bar.sum(axis=others).astype(e.bias)

    bars = [x.astype(dtype) for x in (z_bar, *u_bar)]
    rights = [operands.rhs, operands.rhs_up][: len(bars)]
    lhs_bar = _operand_bar(call, bars, rights, jax.typeof(operands.lhs), of_rhs=False)
    rights_bar = [
        _operand_bar(call, [bar], [operands.lhs], jax.typeof(right), of_rhs=True)
        for bar, right in zip(bars, rights, strict=True)
    ]
    return (
        Operands(lhs_bar, *rights_bar)._replace(
            c=None if e.c is None else (e.beta * z_bar).astype(e.c),
            bias=bias_bar,
            residual=None if e.residual is None else d_bar.astype(e.residual),
        ),
    )


_fused.defvjp(_forward, _backward)


def _pull_back(call: _Call, seen: Sequence[Any], d_bar: Any) -> tuple[Any, ...]:
    """The cotangents of z, and of u in a gated product, of that of d."""
    if not call.needs_z:
        return (d_bar,)
    activation = ACTIVATIONS[call.epilogue.activation]

    def outer(z: Any, *u: Any) -> Any:
        return activation(z) * u[0] if u else activation(z)

    _, pull_back = jax.vjp(outer, *seen)
    bars: tuple[Any, ...] = pull_back(d_bar)
    return bars


def _operand_bar(
    call: _Call, bars: Sequence[Any], others: Sequence[Any], x: Any, *, of_rhs: bool
) -> Any:
    """The cotangent of an operand of type x: the sum of alpha * bar times the other operand."""
    params = dict(call.params)
    ranks = (others[0].ndim, x.ndim) if of_rhs else (x.ndim, others[0].ndim)
    plan = transposition(ranks, params["dimension_numbers"], of_rhs=of_rhs)
    keywords = {
        **backward_params(params, plan),
        "dimension_numbers": plan.dimension_numbers,
        "out_sharding": plan.sharding(x),
    }
    total = None
    for bar, other in zip(bars, others, strict=True):
        epilogue = Epilogue(call.epilogue.alpha, c=None if total is None else total.dtype)
        operands = Operands(*plan.operands(bar, other), c=total)
        total = product(operands, epilogue, keywords)
    return plan.result(total, x)
