"""A feed-forward block in float8 with delayed scaling, whose hidden layer is nothing else.

The scale of a tensor is known before the tensor, by its history: so the first matmul adds the bias,
applies the activation, and divides by the scale of its result, `out_scale`, whose amax it gives for
the history. Backward the preactivation is computed again, from float8 operands.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.api import fp8_training as fp8
from jaxbw._src.api.arguments import Quantized
from jaxbw._src.api.fp8_training import State
from jaxbw._src.api.matmul import dot_general, gated_matmul
from jaxbw._src.primitives.fused_tangent import outer


class Layer(NamedTuple):
    """Parameters of a layer, bias perhaps None, and its state."""

    kernel: Any
    bias: Any
    state: State


class _Static(NamedTuple):
    activation: str | None
    dtype: Any


class _Scaled(NamedTuple):
    data: Any
    scale: Any


def delayed_mlp(
    x: Any, arrays: Sequence[Any], states: Sequence[State], activation: str | None
) -> jax.Array:
    """`down(activation(up(x)))`, or of three, `down(activation(gate(x)) * up(x))`.

    Args:
      x: `[..., in]`, as the kernels of the dtype of the result.
      arrays: of each layer, `down` the last one, the kernel, `[in, out]`, and the bias or None;
        gate and up have none.
      states: of each layer. Their cotangents are those of the next step.
    """
    *ups, down = map(Layer, arrays[::2], arrays[1::2], states)
    assert len(ups) == 1 or all(layer.bias is None for layer in ups)
    x, *_ = compat.insert_reshard(x, *arrays[::2])
    result: jax.Array = _mlp(_Static(activation, x.dtype), x, tuple(ups), down)
    return result


def _static(static: _Static, rank: int) -> fp8.Static:
    return fp8.Static((((rank - 1,), (0,)), ((), ())), static.dtype, static.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(static: _Static, x: Any, ups: tuple[Layer, ...], down: Layer) -> jax.Array:
    result: jax.Array = _forward(static, x, ups, down)[0]
    return result


def _through(static: fp8.Static, x: _Scaled, kernel: _Scaled, bias: Any) -> jax.Array:
    return fp8.forward(static, x.data, kernel.data, x.scale * kernel.scale, bias)


def _forward(static: _Static, x: Any, ups: tuple[Layer, ...], down: Layer) -> Any:
    plain = _static(static, x.ndim)

    def scaled(x: Any, meta: fp8.Meta) -> tuple[_Scaled, fp8.Meta]:
        data, new = fp8.by_history(x, "e4m3", meta, static.dtype)
        return _Scaled(data, fp8.scalar(new)), new

    inputs, input_metas = zip(*(scaled(x, layer.state.input) for layer in ups), strict=True)
    kernels, kernel_metas = zip(
        *(scaled(layer.kernel, layer.state.kernel) for layer in (*ups, down)), strict=True
    )
    hidden_scale = fp8.next_scale("e4m3", down.state.input)
    options: Any = {
        "precision": lax.Precision.DEFAULT,
        "preferred_element_type": "float8_e4m3fn",
        "activation": static.activation,
        "out_scale": hidden_scale,
    }
    left, right = inputs[0], kernels[0]
    hidden: Quantized
    if len(ups) == 1:
        options |= {"alpha": left.scale * right.scale, "bias": ups[0].bias}
        hidden = dot_general(left.data, right.data, plain.dims, **options)
    else:
        scales = {"rhs_gate_scale": right.scale, "rhs_up_scale": kernels[1].scale}
        options |= {"lhs_scale": left.scale, **scales}
        hidden = gated_matmul(left.data, right.data, kernels[1].data, **options)
    hidden_meta = fp8.next_state(down.state.input, hidden_scale, hidden.amax)
    lefts = left, _Scaled(hidden.data, fp8.scalar(hidden_meta))
    result = _through(plain, lefts[1], kernels[-1], down.bias)
    metas = [*zip((*input_metas, hidden_meta), kernel_metas, strict=True)]
    states = [layer.state.output_grad for layer in (*ups, down)]
    biases = [layer.bias for layer in (*ups, down)]
    nothings = fp8.nothing(x), [fp8.nothing(layer.kernel) for layer in (*ups, down)]
    return result, (lefts, kernels, biases, metas, states, nothings)


def _backward(static: _Static, kept: Any, bar: Any) -> Any:
    (x, hidden), kernels, biases, metas, grads, (of_x, of_kernels) = kept
    plain = _static(static, x.data.ndim)

    def through(left: _Scaled, of_left: Any, index: int, bar: Any) -> Any:
        """The cotangents of a layer's input, and of the layer."""
        data, meta = fp8.by_history(bar, "e5m2", grads[index], static.dtype)
        kernel = kernels[index]
        types = fp8.types_of((left, kernel), (of_left, of_kernels[index]))
        of_input, of_kernel = fp8.backward(plain, types, (left, kernel), (data, fp8.scalar(meta)))
        bias = biases[index]
        if bias is not None:
            wide = bar.astype(jnp.float32)
            bias = wide.sum(tuple(range(bar.ndim - 1))).astype(bias.dtype)
        return of_input, Layer(of_kernel, bias, State(metas[index][0], metas[index][1], meta))

    hidden_bar, down = through(hidden, np.zeros(0, static.dtype), -1, bar)
    seen = [
        _through(plain, x, kernel, bias).astype(jnp.float32)
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True)
    ]
    _, pull_back = jax.vjp(partial(outer, static.activation), *seen)
    bars = [each.astype(static.dtype) for each in pull_back(hidden_bar.astype(jnp.float32))]
    found = [through(x, of_x, i, each) for i, each in enumerate(bars)]
    of_inputs, ups = zip(*found, strict=True)
    return sum(of_inputs[1:], of_inputs[0]), tuple(ups), down


_mlp.defvjp(_forward, _backward)
