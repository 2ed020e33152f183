"""Layers of `flax.nnx` with bias and activation in the matmul's kernel, and `swap_layers`.

Each is a subclass of Flax's own, with its arguments, defaults and parameters, and one argument
more: `activation`, of `jaxbw.matmul`. A layer that is given a `dot_general` of its own computes
with that, as Flax does.

Bias and activation are float32 up to the cast to the result's dtype: see `jaxbw.matmul`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxbw._src.api.accelerate import accelerate
from jaxbw._src.api.matmul import dot_general
from jaxbw._src.api.pending import dot_general as deferred
from jaxbw._src.api.pending import einsum, run, run_gated

__all__ = ["MLP", "Einsum", "Linear", "LinearGeneral", "swap_layers"]


def _name(module: nnx.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _run(module: Any, result: Any) -> Any:
    """What a layer of Flax's returned, with the activation of ours."""
    return run(_name(module), result, module.activation)


class Linear(nnx.Linear):
    """`activation(inputs @ kernel + bias)`, of `[..., in_features]` to `[..., out_features]`.

    Args:
      activation: None, "relu", "silu", "gelu" (tanh approximation) or "gelu_exact"; default None.
      others: as of `flax.nnx.Linear`.

    Raises:
      ValueError: there is no such activation; when it is called.

    >>> layer = Linear(4, 8, activation="gelu", rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 4))).shape
    (2, 8)
    """

    def __init__(
        self,
        *args: Any,
        activation: str | None = None,
        dot_general: Any = deferred,
        **keywords: Any,
    ) -> None:
        super().__init__(*args, dot_general=dot_general, **keywords)
        self.activation = activation

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The layer's outputs; the arguments are those of `flax.nnx.Linear`."""
        return _run(self, super().__call__(*args, **keywords))


class LinearGeneral(nnx.LinearGeneral):
    """`Linear` along any axes, to features of any number of dimensions.

    With `batch_axis` the bias is added, and the activation applied, behind the matmul.

    Args:
      activation: as of `Linear`; default None.
      others: as of `flax.nnx.LinearGeneral`.

    Raises:
      ValueError: there is no such activation; when it is called.

    >>> layer = LinearGeneral((4, 5), (2, 8), axis=(-2, -1), activation="relu", rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((3, 4, 5))).shape
    (3, 2, 8)
    """

    def __init__(
        self,
        *args: Any,
        activation: str | None = None,
        dot_general: Any = None,
        **keywords: Any,
    ) -> None:
        super().__init__(*args, dot_general=dot_general or deferred, **keywords)
        self.activation = activation

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The layer's outputs; the arguments are those of `flax.nnx.LinearGeneral`."""
        return _run(self, super().__call__(*args, **keywords))


class Einsum(nnx.Einsum):
    """`activation(einsum(inputs, kernel) + bias)`.

    An equation that is one matmul runs as such: no label is repeated within an operand, or summed
    over in one alone. The rest is `jnp.einsum`'s. A bias along a batch dimension is added behind
    the matmul.

    Args:
      activation: as of `Linear`; default None.
      others: as of `flax.nnx.Einsum`.

    Raises:
      ValueError: there is no such activation; when it is called.

    >>> layer = Einsum("btd,dnh->btnh", (5, 2, 8), (2, 8), activation="silu", rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((3, 4, 5))).shape
    (3, 4, 2, 8)
    """

    def __init__(
        self,
        *args: Any,
        activation: str | None = None,
        einsum_op: Any = einsum,
        **keywords: Any,
    ) -> None:
        super().__init__(*args, einsum_op=einsum_op, **keywords)
        self.activation = activation

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The layer's outputs; the arguments are those of `flax.nnx.Einsum`."""
        return _run(self, super().__call__(*args, **keywords))


class MLP(nnx.Module):
    """The feed-forward block, `down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))`.

    Gated without biases, `activation(gate(x)) * up(x)` is one kernel that reads both weights where
    they are: SwiGLU with "silu", GEGLU with "gelu". Its layers are `gate`, `up` and `down`.

    Args:
      in_features: width of the inputs.
      hidden_features: width of `up` and `gate`.
      out_features: width of `down`; default None, `in_features`.
      activation: as of `Linear`; default "gelu".
      gated: default False.
      rngs: as of `flax.nnx.Linear`; drawn from for `up`, `gate`, `down`.
      others: keywords of `flax.nnx.Linear`, for all layers.

    Raises:
      ValueError: there is no such activation; when it is called.

    >>> block = MLP(4, 16, activation="silu", gated=True, use_bias=False, rngs=nnx.Rngs(0))
    >>> block(jnp.ones((3, 4))).shape
    (3, 4)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        activation: str | None = "gelu",
        gated: bool = False,
        rngs: nnx.Rngs,
        **others: Any,
    ) -> None:
        up_activation = None if gated else activation
        self.up = Linear(
            in_features, hidden_features, activation=up_activation, rngs=rngs, **others
        )
        self.gate = (
            Linear(in_features, hidden_features, activation=activation, rngs=rngs, **others)
            if gated
            else None
        )
        self.down = Linear(hidden_features, out_features or in_features, rngs=rngs, **others)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The block's outputs, `[..., out_features]`."""
        if self.gate is None:
            hidden = self.up(inputs)
        else:
            # Flax's own call leaves the matmuls pending.
            gate, up = (nnx.Linear.__call__(layer, inputs) for layer in (self.gate, self.up))
            hidden = run_gated(_name(self), gate, up, self.gate.activation)
        result: jax.Array = self.down(hidden)
        return result


def swap_layers(model: nnx.Module) -> tuple[str, ...]:
    """Makes the linear layers of a model jaxbw's, in place; their parameters stay as they are.

    Every `nnx.Linear`, `nnx.LinearGeneral` and `nnx.Einsum` becomes the layer of that name here,
    without an activation. `nnx.MultiHeadAttention` has its projections swapped, and the matmuls of
    its attention served by `jaxbw.accelerate`. A layer keeps its identity, so that what is shared
    stays shared, and its variables, so that optimizers and checkpoints know them. Left alone are
    subclasses, and layers that were given a `dot_general`, an `einsum_op` or an `attention_fn` of
    their own. A second call finds nothing more to do. What a model computes between its layers is
    code, which this does not read: activations and gates stay where they are.

    Args:
      model: any module, a single layer too. Call this outside of `nnx.jit`.

    Returns:
      The paths of the layers that were swapped, such as "blocks.0.attention.query".

    Raises:
      TypeError: the model is no `nnx.Module`.

    >>> model = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    >>> swap_layers(model)
    ('key', 'out', 'query', 'value', '')
    >>> swap_layers(model)
    ()
    """
    if not isinstance(model, nnx.Module):
        raise TypeError(
            f"jaxbw.flax.nnx.swap_layers: {type(model).__name__} is no nnx.Module; the layers of "
            "linen are replaced where they are written, by those of jaxbw.flax.linen"
        )
    swapped = []
    for path, module in list(nnx.iter_modules(model, graph=True)):
        if _swap(module):
            swapped.append(".".join(map(str, path)))
    return tuple(swapped)


# What a layer of Flax's computes with if it is not told; what is on jaxbw already is taken, too.
_DEFAULTS = (None, jax.lax.dot_general, jnp.einsum, dot_general)
_attention = accelerate(nnx.dot_product_attention)


def _swap(module: Any) -> bool:
    """Swaps one layer; false where it is to be left alone."""
    if type(module) is nnx.MultiHeadAttention:
        is_default = module.attention_fn is nnx.dot_product_attention
        if is_default:
            module.attention_fn = _attention
        return is_default
    ours: dict[type, type] = {
        nnx.Linear: Linear,
        nnx.LinearGeneral: LinearGeneral,
        nnx.Einsum: Einsum,
    }
    layer = ours.get(type(module))
    if layer is None or getattr(module, "dot_general_cls", None) is not None:
        return False
    name, pending = ("einsum_op", einsum) if layer is Einsum else ("dot_general", deferred)
    if getattr(module, name) not in _DEFAULTS:
        return False
    setattr(module, name, pending)
    module.activation = None
    object.__setattr__(module, "__class__", layer)  # nnx.Module sets attributes in its own way
    return True
