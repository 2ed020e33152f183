"""Layers of `flax.linen` with bias and activation in the matmul's kernel, and the rest of linen.

A name that is not defined here is that of `flax.linen`, so that this module can be imported in its
place. Each layer has the name, the attributes, the defaults and the parameters of Flax's own,
of which it is a subclass, and one attribute more: `activation`, of `jaxbw.matmul`. A layer that is
given a `dot_general` of its own computes with that, as Flax does.

Bias and activation are float32 up to the cast to the result's dtype: see `jaxbw.matmul`.
"""

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import fp8_ops, module
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import default_kernel_init
from flax.linen.module import merge_param

from jaxbw._src.api.block_scaled_training import mxfp8_dot_general
from jaxbw._src.api.experts import through_experts
from jaxbw._src.api.fp8_training import Meta, State, delayed_dot_general
from jaxbw._src.api.pending import dot_general as deferred
from jaxbw._src.api.pending import einsum, run, run_gated

__all__ = [
    "MLP",
    "Dense",
    "DenseGeneral",
    "Einsum",
    "Fp8DirectDotGeneralOp",
    "MoE",
    "MultiHeadAttention",
    "MultiHeadDotProductAttention",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(nn, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(nn)})


# Flax's methods without what linen wraps around each call of one: a layer is called once.
_dense = inspect.unwrap(nn.Dense.__call__)
_dense_general = inspect.unwrap(nn.DenseGeneral.__call__)
_attention = inspect.unwrap(nn.MultiHeadDotProductAttention.__call__)


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


class Dense(nn.Dense):
    """`activation(inputs @ kernel + bias)`, of `[..., in]` to `[..., features]`.

    Attributes:
      activation: None, "relu", "silu", "gelu" (tanh approximation) or "gelu_exact"; default None.
      others: as of `flax.linen.Dense`.

    Raises:
      ValueError: there is no such activation.

    >>> layer = Dense(8, activation="gelu")
    >>> variables = layer.init(jax.random.key(0), jnp.ones((2, 4)))
    >>> layer.apply(variables, jnp.ones((2, 4))).shape
    (2, 8)
    """

    activation: str | None = None
    dot_general: Any = deferred

    def __post_init__(self) -> None:
        if self.dot_general is None:
            self.dot_general = deferred
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The layer's outputs."""
        result: jax.Array = run(_name(self), _dense(self, inputs), self.activation)
        return result


class DenseGeneral(nn.DenseGeneral):
    """`Dense` along any axes, to features of any number of dimensions.

    With `batch_dims` the bias is added, and the activation applied, behind the matmul.

    Attributes:
      activation: as of `Dense`; default None.
      others: as of `flax.linen.DenseGeneral`.

    Raises:
      ValueError: there is no such activation.

    >>> layer = DenseGeneral((2, 8), axis=(-2, -1), activation="relu")
    >>> variables = layer.init(jax.random.key(0), jnp.ones((3, 4, 5)))
    >>> variables["params"]["kernel"].shape
    (4, 5, 2, 8)
    """

    activation: str | None = None
    dot_general: Any = deferred

    def __post_init__(self) -> None:
        if self.dot_general is None:
            self.dot_general = deferred
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The layer's outputs."""
        result: jax.Array = run(_name(self), _dense_general(self, inputs), self.activation)
        return result


class Einsum(nn.Einsum):
    """`activation(einsum(inputs, kernel) + bias)`.

    An equation that is one matmul runs as such: no label is repeated within an operand, or summed
    over in one alone. The rest is `jnp.einsum`'s. A bias along a batch dimension is added behind
    the matmul.

    Attributes:
      activation: as of `Dense`; default None.
      others: as of `flax.linen.Einsum`.

    Raises:
      ValueError: there is no such activation.

    >>> layer = Einsum((5, 2, 8), "btd,dnh->btnh", activation="silu")
    >>> variables = layer.init(jax.random.key(0), jnp.ones((3, 4, 5)))
    >>> layer.apply(variables, jnp.ones((3, 4, 5))).shape
    (3, 4, 2, 8)
    """

    activation: str | None = None

    @nn.compact
    def __call__(self, inputs: Any, einsum_str: str | None = None) -> jax.Array:
        """The layer's outputs."""
        equation = merge_param("einsum_str", self.einsum_str, einsum_str).replace(" ", "")
        if "->" not in equation or equation.count(",") != 1:
            raise ValueError(
                f"{_name(self)}: einsum_str is {equation!r}; it has two operands and an explicit "
                'result, as in "btd,dh->bth"'
            )
        kernel = self.param("kernel", self.kernel_init, self.shape, self.param_dtype)
        bias, broadcast = None, ()
        if self.use_bias:
            shape, broadcast = self._get_bias_shape(equation, inputs, kernel)
            bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        inputs, kernel, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        result = einsum(
            equation,
            inputs,
            kernel,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
        )
        if bias is not None:
            result = result + jnp.reshape(bias, broadcast)
        activated: jax.Array = run(_name(self), result, self.activation)
        return activated


def _awaited(layer: nn.Dense, inputs: jax.Array) -> Any:
    """What a deferred layer returns, to be run with what follows it.

    Whoever looks at the results of layers, by `capture_intermediates` or `nn.intercept_methods`,
    sees an array; if an interceptor returns another one, that counts.
    """
    # Flax has no public way to ask. Unwatched, the array would be one more matmul to trace.
    if not (module._global_interceptor_stack or any(module._context.capture_stack[-1:])):
        return layer(inputs)
    seen: list[Any] = []

    def see(method: Any, args: Any, keywords: Any, context: Any) -> Any:
        result = method(*args, **keywords)
        seen[:] = result, run(_name(context.module), result, None)
        return seen[1]

    with nn.intercept_methods(see):
        returned = layer(inputs)
    return seen[0] if seen and returned is seen[1] else returned


class MLP(nn.Module):
    """The feed-forward block, `down(activation(up(x)))`, or `down(activation(gate(x)) * up(x))`.

    Gated without biases, `activation(gate(x)) * up(x)` is one kernel that reads both weights where
    they are: SwiGLU with "silu", GEGLU with "gelu". The parameters are those of Flax's `Dense`
    layers named `gate`, `up` and `down`.

    Attributes:
      hidden_features: width of `up` and `gate`.
      out_features: width of `down`; default None, that of the inputs.
      activation: as of `Dense`; default "gelu".
      gated: default False.
      use_bias: of all layers; default True.
      dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype, dot_general,
        dot_general_cls: as of `flax.linen.Dense`, for all layers. With `Fp8DirectDotGeneralOp`, or
        a dot_general that is `jaxbw.mxfp8_dot_general`, the hidden layer is that and nothing else,
        but for a gated one with biases.

    Raises:
      ValueError: there is no such activation.

    >>> block = MLP(16, activation="silu", gated=True, use_bias=False)
    >>> variables = block.init(jax.random.key(0), jnp.ones((3, 4)))
    >>> jax.tree.map(jnp.shape, variables["params"])
    {'down': {'kernel': (16, 4)}, 'gate': {'kernel': (4, 16)}, 'up': {'kernel': (4, 16)}}
    """

    hidden_features: int
    out_features: int | None = None
    activation: str | None = "gelu"
    gated: bool = False
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Any = default_kernel_init
    bias_init: Any = nn.initializers.zeros_init()
    promote_dtype: Any = promote_dtype
    dot_general: Any = None
    dot_general_cls: Any = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The block's outputs, `[..., out_features]`."""
        is_float8 = self.dot_general_cls is Fp8DirectDotGeneralOp
        is_mxfp8 = self.dot_general_cls is None and self.dot_general is mxfp8_dot_general
        if (is_float8 or is_mxfp8) and not (self.gated and self.use_bias):
            return self._in_float8(inputs, is_mxfp8=is_mxfp8)
        pending = deferred if self.dot_general_cls is None else None
        dense = partial(
            nn.Dense,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            promote_dtype=self.promote_dtype,
            dot_general=self.dot_general or pending,
            dot_general_cls=self.dot_general_cls,
        )
        up = _awaited(dense(self.hidden_features, name="up"), inputs)
        if self.gated:
            gate = _awaited(dense(self.hidden_features, name="gate"), inputs)
            hidden = run_gated(_name(self), gate, up, self.activation)
        else:
            hidden = run(_name(self), up, self.activation)
        out_features = self.out_features or inputs.shape[-1]
        down = _awaited(dense(out_features, name="down"), hidden)
        result: jax.Array = run(_name(self), down, None)
        return result

    def _in_float8(self, inputs: jax.Array, *, is_mxfp8: bool) -> jax.Array:
        """The same in one pass, of the parameters and states that the layers would have."""
        features, hidden = inputs.shape[-1], self.hidden_features
        shapes = {"gate": (features, hidden)} if self.gated else {}
        shapes |= {"up": (features, hidden), "down": (hidden, self.out_features or features)}
        bias_init = self.bias_init if self.use_bias else None
        layers = [
            _Parameters(
                shape, self.kernel_init, bias_init, self.param_dtype, not is_mxfp8, name=name
            )()
            for name, shape in shapes.items()
        ]
        given = [x for kernel, bias, _ in layers for x in (kernel, bias)]
        inputs, *arrays = self.promote_dtype(inputs, *given, dtype=self.dtype)
        if is_mxfp8:
            from jaxbw._src.api.mxfp8_mlp import mxfp8_mlp

            return mxfp8_mlp(inputs, arrays, self.activation)
        from jaxbw._src.api.fp8_mlp import delayed_mlp

        states = [state for *_, state in layers if state is not None]
        return delayed_mlp(inputs, arrays, states, self.activation)


class _Parameters(nn.Module):
    """What a `Dense` has: kernel, bias or None; with `Fp8DirectDotGeneralOp` state, else None."""

    shape: tuple[int, int]
    kernel_init: Any
    bias_init: Any  # None: there is none
    param_dtype: Any
    has_state: bool

    @nn.compact
    def __call__(self) -> tuple[Any, Any, State | None]:
        kernel = self.param("kernel", self.kernel_init, self.shape, self.param_dtype)
        bias = None
        if self.bias_init is not None:
            bias = self.param("bias", self.bias_init, self.shape[-1:], self.param_dtype)
        if not self.has_state:
            return kernel, bias, None
        return kernel, bias, Fp8DirectDotGeneralOp(name="Fp8DirectDotGeneralOp_0").state()


class MoE(nn.Module):
    """A mixture of experts: the sum of each token's `top_k` feed-forward blocks, by their weights.

    An expert is `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))`. No token is
    dropped, however many go to one expert: grouped matmuls (`jaxbw.ragged_dot`) compute them all.
    The parameters are `router`, a `Dense` without bias, in float32, and `gate`, `up` and `down`,
    arrays of a matrix for each expert. The router's logits are sown as "router_logits" into
    "intermediates", for losses that balance the experts.

    Attributes:
      num_experts: how many there are.
      hidden_features: width of `up` and `gate`.
      top_k: how many serve a token; default 2.
      out_features: width of `down`; default None, that of the inputs.
      activation: as of `Dense`; default "silu".
      gated: default True.
      normalize: whether the weights of a token's experts add up to 1; default True.
      dtype, param_dtype, precision: as of `flax.linen.Dense`, for the experts.
      kernel_init: of the experts' matrices; default that of `flax.linen.Dense`, for each.
      expert_axis: default None; or an axis of an enclosing `jax.shard_map` over which tokens and
        experts are divided: each device has its tokens, all of `router`, and its part of `gate`,
        `up` and `down`.
        `init` is called outside, and makes all.
      dispatch: along `expert_axis`. Default "all_gather": tokens are gathered, and what experts
        make of them is scattered. "all_to_all": each token is sent to the devices of its experts,
        and back, by `jax.lax.ragged_all_to_all`, on CPUs by a padded `all_to_all`.

    Raises:
      ValueError: there is no such activation, or dispatch.

    >>> block = MoE(num_experts=8, hidden_features=16)
    >>> variables = block.init(jax.random.key(0), jnp.ones((3, 4)))
    >>> jax.tree.map(jnp.shape, variables["params"])["up"]
    (8, 4, 16)
    >>> block.apply(variables, jnp.ones((3, 4))).shape
    (3, 4)
    """

    num_experts: int
    hidden_features: int
    top_k: int = 2
    out_features: int | None = None
    activation: str | None = "silu"
    gated: bool = True
    normalize: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Any = nn.initializers.lecun_normal(batch_axis=0)
    expert_axis: str | None = None
    dispatch: str = "all_gather"

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The block's outputs, `[..., out_features]`."""
        features = inputs.shape[-1]
        tokens = inputs.reshape(-1, features)
        logits = nn.Dense(self.num_experts, use_bias=False, dtype=jnp.float32, name="router")(
            tokens
        )
        self.sow("intermediates", "router_logits", logits)

        axis = None if self.is_initializing() else self.expert_axis
        here = self.num_experts // (1 if axis is None else jax.lax.axis_size(axis))

        def matrices(name: str, *shape: int) -> Any:
            return self.param(name, self.kernel_init, (here, *shape), self.param_dtype)

        up = matrices("up", features, self.hidden_features)
        gate = matrices("gate", features, self.hidden_features) if self.gated else None
        down = matrices("down", self.hidden_features, self.out_features or features)
        tokens, gate, up, down = promote_dtype(tokens, gate, up, down, dtype=self.dtype)
        outputs = through_experts(
            *(tokens, logits, gate, up, down),
            top_k=self.top_k,
            normalize=self.normalize,
            activation=self.activation,
            precision=self.precision,
            axis=axis,
            dispatch=self.dispatch,
        )
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])


class MultiHeadDotProductAttention(nn.MultiHeadDotProductAttention):
    """Flax's attention; the biases of its projections are added in their kernels.

    The matmuls with the attention weights stay with `attention_fn`.

    Attributes:
      all: as of `flax.linen.MultiHeadDotProductAttention`.

    >>> layer = MultiHeadDotProductAttention(num_heads=2)
    >>> variables = layer.init(jax.random.key(0), jnp.ones((3, 5, 8)))
    >>> layer.apply(variables, jnp.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    qkv_dot_general: Any = deferred
    out_dot_general: Any = deferred

    def __post_init__(self) -> None:
        if self.qkv_dot_general is None:
            self.qkv_dot_general = deferred
        if self.out_dot_general is None:
            self.out_dot_general = deferred
        super().__post_init__()

    @nn.compact
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """As of `flax.linen.MultiHeadDotProductAttention`."""
        with nn.intercept_methods(_run_projection):
            return _attention(self, *args, **keywords)


class MultiHeadAttention(MultiHeadDotProductAttention):
    """`MultiHeadDotProductAttention`, as in Flax by another name.

    >>> layer = MultiHeadAttention(num_heads=2, use_bias=False)
    >>> layer.init(jax.random.key(0), jnp.ones((3, 5, 8)))["params"]["out"]["kernel"].shape
    (2, 4, 8)
    """


def _run_projection(method: Any, args: Any, keywords: Any, context: Any) -> Any:
    """Flax's attention takes the results of its projections for arrays: here they become some."""
    return run(_name(context.module), method(*args, **keywords), None)


class Fp8DirectDotGeneralOp(fp8_ops.Fp8DirectDotGeneralOp):
    """Flax's `dot_general_cls` for float8 with delayed scaling, on jaxbw's matmuls.

    State, names, shapes and collection are Flax's, so that checkpoints move both ways. It computes
    what Flax's does, but that the result is rounded to its dtype once, behind the scales. In a
    `jax.shard_map` the amax is that of all devices that share the state. `precision` is not looked
    at. Of the state, the gradient is the next state: see docs/flax.md.

    Attributes:
      amax_history_length: default 1024, as in Flax.

    Raises:
      ValueError: other formats than e4m3 and e5m2.

    >>> layer = Dense(8, dot_general_cls=Fp8DirectDotGeneralOp)
    >>> variables = layer.init(jax.random.key(0), jnp.ones((2, 4)))
    >>> sorted(variables)
    ['_overwrite_with_gradient', 'params']
    """

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
    ) -> jax.Array:
        """As `lax.dot_general`."""
        if (self.e4m3_dtype, self.e5m2_dtype) != (jnp.float8_e4m3fn, jnp.float8_e5m2):
            raise ValueError(
                f"{_name(self)}: e4m3_dtype is {self.e4m3_dtype}, e5m2_dtype {self.e5m2_dtype}; "
                "they are float8_e4m3fn and float8_e5m2"
            )
        state = self.state()
        return delayed_dot_general(lhs, rhs, dimension_numbers, state, preferred_element_type)

    def state(self) -> State:
        """Its variables."""
        return State(
            Meta(self.input_scale.value, self.input_amax_history.value),
            Meta(self.kernel_scale.value, self.kernel_amax_history.value),
            Meta(self.output_grad_scale.value, self.output_grad_amax_history.value),
        )
