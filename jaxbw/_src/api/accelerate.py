"""`jaxbw.accelerate`: all matmuls of a function, whoever wrote it, on jaxbw's kernels."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from jaxbw._src.compat import Block
from jaxbw._src.primitives import accelerate as matmuls

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def accelerate(function: None = None) -> Block: ...


@overload
def accelerate(function: _Function) -> _Function: ...


def accelerate(function: _Function | None = None) -> _Function | Block:
    """Serves every `lax.dot_general` of a function, or of a block of code, as `jaxbw.dot_general`.

    So also those of `jnp.matmul`, `@`, `jnp.einsum`, `jnp.tensordot`, and of other libraries'
    layers. It reaches through `jit`, `grad`, `vmap`, `scan`, `cond`, `remat`, `custom_vjp` and
    `shard_map`, whichever is outside: `jax.grad(accelerate(loss))` has the gradient's matmuls on
    kernels, too. They stay `lax.dot_general` in every trace, so all of JAX's transformations and
    checkpoint policies treat them as ever. What no kernel takes is lowered by JAX's own rule.

    `implementation`, `target` and `batch_invariant` apply inside; a strict implementation is not
    strict here, since XLA serves what it does not take. What follows a matmul is not fused with it:
    `jaxbw.matmul` takes bias, activation and residual. `explain_function` shows what is served.

    Args:
      function: any callable; default None, for a context manager or a decorator of this name with
        parentheses. What it was traced to before, under `jit` and outside of a block, it is traced
        to again within.

    Returns:
      The function, in such a block at each call; or the block.

    Raises:
      TypeError: no callable.

    >>> layer = jaxbw.accelerate(lambda x, w: jnp.tanh(x @ w))
    >>> layer(jnp.zeros((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    >>> with jaxbw.accelerate():
    ...     gradient = jax.grad(lambda x: jnp.einsum("ij,ij->", x, x))(jnp.ones((2, 2)))
    """
    if function is not None and not callable(function):
        raise TypeError(f"jaxbw.accelerate: function is {function!r}; it is a callable, or None")
    block = matmuls.block()
    return block if function is None else block(function)
