"""`jaxbw.accelerate`: all matmuls of a function, whoever wrote it, on jaxbw's kernels."""

from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVar, cast, overload

from jaxbw._src.compat import Block
from jaxbw._src.primitives import accelerate as matmuls
from jaxbw._src.primitives.fusing import fusing

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Fusing:
    """`accelerate(fuse=True)`: a decorator, and no block."""

    def __call__(self, function: _Function) -> _Function:
        """The function, accelerated and fused."""
        return cast(_Function, fusing(_checked(function)))

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "jaxbw.accelerate: fuse=True rewrites a function, which a block is not; "
            "use jaxbw.accelerate(function, fuse=True)"
        )

    def __exit__(self, *_: object) -> None:
        """A block needs it, to be refused."""


@overload
def accelerate(function: None = None, *, fuse: Literal[False] = False) -> Block: ...


@overload
def accelerate(function: None = None, *, fuse: Literal[True]) -> Fusing: ...


@overload
def accelerate(function: _Function, *, fuse: bool = False) -> _Function: ...


def accelerate(
    function: _Function | None = None, *, fuse: bool = False
) -> _Function | Block | Fusing:
    """Serves every `lax.dot_general` of a function, or of a block of code, as `jaxbw.dot_general`.

    So also those of `jnp.matmul`, `@`, `jnp.einsum`, `jnp.tensordot`, and of other libraries'
    layers. It reaches through `jit`, `grad`, `vmap`, `scan`, `cond`, `remat`, `custom_vjp` and
    `shard_map`, whichever is outside: `jax.grad(accelerate(loss))` has the gradient's matmuls on
    kernels, too. They stay `lax.dot_general` in every trace, so all of JAX's transformations and
    checkpoint policies treat them as ever. What no kernel takes is lowered by JAX's own rule.

    `implementation`, `target` and `batch_invariant` apply inside; a strict implementation is not
    strict here, since XLA serves what it does not take. `explain_function` shows what is served.

    With `fuse`, a bias, an activation of `matmul`'s list, a residual, or the gate of `gated_matmul`
    that follows a matmul, and is all that reads it, joins it in one kernel. These matmuls are
    `jaxbw`'s in traces: see `jaxbw.checkpoint_policies`. Between matmul and result nothing is
    rounded, so 16-bit results differ in the last place. Differentiate the accelerated function,
    `jax.grad(accelerate(loss, fuse=True))`: where the gradient is inside, it reads what would be
    fused. The function is traced, as by `jax.jit`; call it under `jit`, which does so once.

    Args:
      function: any callable; default None, for a context manager or a decorator of this name with
        parentheses. What it was traced to before, under `jit` and outside of a block, it is traced
        to again within.
      fuse: default False. A block cannot: it is for a function, or a decorator.

    Returns:
      The function, in such a block at each call; or the block, or decorator.

    Raises:
      TypeError: no callable; a block that would fuse.

    >>> layer = jaxbw.accelerate(lambda x, w: jnp.tanh(x @ w))
    >>> layer(jnp.zeros((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    >>> with jaxbw.accelerate():
    ...     gradient = jax.grad(lambda x: jnp.einsum("ij,ij->", x, x))(jnp.ones((2, 2)))
    >>> block = jaxbw.accelerate(lambda x, w, b: jax.nn.relu(x @ w + b) + x, fuse=True)
    >>> shapes = ((64, 64), (64, 64), (64,))
    >>> args = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    >>> jaxbw.explain_function(block, *args, device="B200").matmuls[0].fused
    ('bias', 'relu', 'residual')
    """
    if function is not None:
        _checked(function)
    if fuse:
        return Fusing() if function is None else Fusing()(function)
    block = matmuls.block()
    return block if function is None else block(function)


def _checked(function: _Function) -> _Function:
    if not callable(function):
        raise TypeError(f"jaxbw.accelerate: function is {function!r}; it is a callable, or None")
    return function
