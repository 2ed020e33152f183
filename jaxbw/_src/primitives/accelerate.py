"""lax.dot_general as JAX binds it, served as dot_general_p is, in a block or a function.

It stays lax.dot_general in every trace, so that all of JAX's transformations, and what knows the
primitive, as checkpoint policies do, stay as they are. Three things are added, where the block is:

- an equation is marked with the policy. JAX keeps the mark through whatever it makes of the
  equation, also outside of the block: the backward pass of a function that was differentiated has
  those of the forward pass. The lowering rule looks for it.
- an operand that is transposed is read where it lies (originals.py). What jax.numpy has jitted is
  inlined for that, before it is differentiated and not behind.
- the cotangents of operands are computed as they lie (transposition.py).

To load this module changes some of JAX's rules, by what does nothing outside of such a block.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun, primitives

from jaxbw._src import compat
from jaxbw._src.compat import Block
from jaxbw._src.primitives import dot_general, serve
from jaxbw._src.primitives.originals import read_in_place
from jaxbw._src.problem import DimensionNumbers, Operands
from jaxbw._src.selection.policy import Policy, policy_of

_MARK = "jaxbw"
_RULES_MARK = "jaxbw_rules"  # of a jax.custom_vjp, whose backward pass has matmuls of its own

_on = jax.make_user_context(False)
_policies: dict[str, Policy] = {}  # by mark


def block() -> Block:
    """In it lax.dot_general is served by the policy of the present contexts."""
    return Block(_on, True)


def policy_of_equation(equation: Any) -> Policy | None:
    """What an equation of lax.dot_general is to be served by; None where it is JAX's own.

    Args:
      equation: or, in a lowering rule, the context that it is given.
    """
    mark = compat.mark_of(equation, _MARK)
    return None if mark is None else _policies[mark]


def _current_policy() -> Policy | None:
    """That of the equation that is about to be bound.

    A mark is there already where JAX transforms a marked equation: it knows its policy, while the
    block may be left.
    """
    if (mark := compat.current_mark(_MARK)) is not None:
        return _policies[mark]
    if _on.value:
        # As those of gradients, these matmuls may be any: what is strict about kernels is not met.
        return policy_of(None, None, "jaxbw.accelerate").for_gradients
    mark = compat.current_mark(_RULES_MARK)
    return None if mark is None else _policies[mark]


def _mark(policy: Policy) -> str:
    """The policy as text, the same in every process: it is found in the program."""
    mark = f"{','.join(policy.implementation or ('free',))}"
    if policy.target is not None:
        mark += f" for {policy.target}"
    if policy.config is not None:
        mark += f" in {policy.config}"
    if policy.tuned is not None:
        mark += f" by {policy.tuned.digest}"
    _policies[mark] = policy
    return mark


def _bind(
    bind: Callable[..., Any],
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DimensionNumbers,
    **params: Any,
) -> Any:
    policy = _current_policy()
    if policy is None:
        return bind(lhs, rhs, dimension_numbers=dimension_numbers, **params)
    operands, dims = read_in_place(Operands(lhs, rhs), dimension_numbers, policy.config)
    with compat.marked(_MARK, _mark(policy)):
        return bind(operands.lhs, operands.rhs, dimension_numbers=dims, **params)


def _bind_jit(bind: Callable[..., Any], *args: Any, **params: Any) -> Any:
    if _current_policy() is not None and any(map(compat.is_traced, args)):
        inlined = compat.inlined(params)
        if inlined is not None and any(
            each.primitive is primitives.dot_general_p for each in inlined.eqns
        ):
            return jaxpr_as_fun(inlined)(*args)
    return bind(*args, **params)


def _bind_custom_vjp(bind: Callable[..., Any], *args: Any, **params: Any) -> Any:
    policy = _current_policy()
    if policy is None:
        return bind(*args, **params)
    with compat.marked(_RULES_MARK, _mark(policy)):
        return bind(*args, **params)


def _multiply(*args: Any, policy: Policy, **params: Any) -> Any:
    del policy  # the mark knows it
    return jax.lax.dot_general(*args, **params)


def _transposition(of_rhs: bool, own: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*args: Any, **params: Any) -> Any:
        policy = _current_policy()
        if policy is None:
            return own(*args, **params)
        return dot_general.transpose_rule(_multiply, of_rhs, *args, **params, policy=policy)

    return rule


def _lower(platform: str, own: Callable[..., Any], ctx: Any, *operands: Any, **params: Any) -> Any:
    policy = policy_of_equation(ctx)
    if policy is None:
        return own(ctx, *operands, **params)
    return dot_general.lower(platform, ctx, *operands, **params, policy=policy)


compat.intercept(primitives.dot_general_p, _bind)
compat.intercept(primitives.jit_p, _bind_jit)
compat.intercept(primitives.custom_vjp_call_p, _bind_custom_vjp)
compat.choose_transposition(primitives.dot_general_p, _transposition)
compat.override_lowering(primitives.dot_general_p, tuple(serve.SERVED), _lower)
