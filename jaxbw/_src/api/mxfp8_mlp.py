"""A feed-forward block in MXFP8, whose hidden layer is nothing else.

The first matmul adds the bias, applies the activation, and quantizes along its columns: its result
is what the second one takes. Backward the preactivation is computed again, from MXFP8 operands, and
the hidden layer quantized along its rows.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxbw._src import compat
from jaxbw._src.api.block_scaled import BlockScaled
from jaxbw._src.api.matmul import gated_matmul, matmul
from jaxbw._src.api.quantize import quantize
from jaxbw._src.primitives.fused_tangent import outer


class Layer(NamedTuple):
    """Parameters of a layer, bias perhaps None."""

    kernel: Any
    bias: Any


class _Kept(NamedTuple):
    x: BlockScaled
    kernels: tuple[BlockScaled, ...]
    biases: tuple[Any, ...]


def mxfp8_mlp(x: Any, arrays: Sequence[Any], activation: str | None) -> jax.Array:
    """`down(activation(up(x)))`, or of three layers, `down(activation(gate(x)) * up(x))`.

    Its gradients are those of the recipe "mxfp8", of a hidden layer that is rounded once.

    Args:
      x: `[..., in]`, as the kernels of the dtype of the result.
      arrays: of each layer, `down` the last one, the kernel, `[in, out]`, and the bias or None;
        gate and up have none.
    """
    layers = tuple(map(Layer, arrays[::2], arrays[1::2]))
    assert len(layers) == 2 or all(layer.bias is None for layer in layers[:-1])
    x, *_ = compat.insert_reshard(x, *arrays[::2])
    result = _mlp(activation, x.reshape(-1, x.shape[-1]), layers)
    return result.reshape(*x.shape[:-1], result.shape[-1])


def _quantized(x: Any, axis: int, *, both: bool = False) -> BlockScaled:
    found = quantize(x, "mxfp8", axis=axis, both=both)
    assert isinstance(found, BlockScaled)
    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(activation: str | None, x: Any, layers: tuple[Layer, ...]) -> jax.Array:
    result: jax.Array = _forward(activation, x, layers)[0]
    return result


def _forward(activation: str | None, x: Any, layers: tuple[Layer, ...]) -> Any:
    left = _quantized(x, -1, both=True)
    *ups, down = (_quantized(each.kernel, -2, both=True) for each in layers)
    biases = tuple(layer.bias for layer in layers)
    options: Any = {"activation": activation, "out_format": "mxfp8"}
    if len(ups) == 1:
        hidden = matmul(left, ups[0], bias=biases[0], **options)
    else:
        hidden = gated_matmul(left, *ups, **options)
    result = matmul(hidden, down, bias=biases[-1], preferred_element_type=x.dtype)
    return result, _Kept(left, (*ups, down.along(-1).alone()), biases)


def _backward(activation: str | None, kept: _Kept, bar: Any) -> Any:
    x, (*ups, down), biases = kept

    def through(left: BlockScaled, right: BlockScaled, bias: Any, bar: Any) -> tuple[Any, Layer]:
        """The cotangents of a layer's input, and of the layer; `left` in blocks along its rows."""
        q = _quantized(bar, -1, both=True)
        if bias is not None:
            bias = bar.astype(jnp.float32).sum(0).astype(bias.dtype)
        of_kernel = matmul(left.mT, q, preferred_element_type=right.dtype)
        return matmul(q, right.mT, preferred_element_type=x.dtype), Layer(of_kernel, bias)

    seen = [
        matmul(x, up, bias=bias, preferred_element_type=jnp.float32)
        for up, bias in zip(ups, biases[:-1], strict=True)
    ]
    hidden, pull_back = jax.vjp(partial(outer, activation), *seen)
    hidden_bar, of_down = through(_quantized(hidden, -2), down, biases[-1], bar)
    bars = [each.astype(x.dtype) for each in pull_back(hidden_bar.astype(jnp.float32))]
    across = x.along(-2)
    found = [through(across, *each) for each in zip(ups, biases[:-1], bars, strict=True)]
    of_inputs, of_ups = zip(*found, strict=True)
    return sum(of_inputs[1:], of_inputs[0]), (*of_ups, of_down)


_mlp.defvjp(_forward, _backward)
