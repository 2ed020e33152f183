"""Layers of `flax.nnx` with bias and activation in the matmul's kernel, and `swap_layers`.

Each is a subclass of Flax's own, with its arguments, defaults and parameters, and one argument
more: `activation`, of `jaxbw.matmul`. A layer that is given a `dot_general` of its own computes
with that, as Flax does.

Bias and activation are float32 up to the cast to the result's dtype: see `jaxbw.matmul`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype

from jaxbw._src.api.accelerate import accelerate
from jaxbw._src.api.block_scaled_training import mxfp8_dot_general, nvfp4_dot_general
from jaxbw._src.api.experts import through_experts
from jaxbw._src.api.fp8_training import Meta, State, delayed_dot_general, fp8_dot_general
from jaxbw._src.api.matmul import dot_general
from jaxbw._src.api.pending import dot_general as deferred
from jaxbw._src.api.pending import einsum, run, run_gated

__all__ = [
    "MLP",
    "TRAINED",
    "Einsum",
    "Fp8DotGeneral",
    "Linear",
    "LinearGeneral",
    "MoE",
    "Nvfp4DotGeneral",
    "Optimizer",
    "OverwriteWithGradient",
    "accumulate",
    "swap_layers",
]


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
    they are: SwiGLU with "silu", GEGLU with "gelu". Its layers are `gate`, `up` and `down`. With an
    `Fp8DotGeneral` each, or `mxfp8_dot_general`, its hidden layer is that and nothing else, unless
    gated with biases.

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
        layers = [x for x in (self.gate, self.up, self.down) if x is not None]
        is_float8 = all(type(layer.dot_general) is Fp8DotGeneral for layer in layers)
        is_mxfp8 = all(layer.dot_general is mxfp8_dot_general for layer in layers)
        if (is_float8 or is_mxfp8) and (self.gate is None or self.up.bias is None):
            return _in_float8(layers, inputs, is_mxfp8=is_mxfp8)
        if self.gate is None:
            hidden = self.up(inputs)
        else:
            # Flax's own call leaves the matmuls pending.
            gate, up = (nnx.Linear.__call__(layer, inputs) for layer in (self.gate, self.up))
            hidden = run_gated(_name(self), gate, up, self.gate.activation)
        result: jax.Array = self.down(hidden)
        return result


def _in_float8(layers: list[Any], inputs: jax.Array, *, is_mxfp8: bool) -> jax.Array:
    """`down` of the activation of the first one, perhaps times the second, in one pass."""
    first, last = layers[0], layers[-1]
    given = [None if x is None else x[...] for each in layers for x in (each.kernel, each.bias)]
    x, *arrays = first.promote_dtype((inputs, *given), dtype=first.dtype)
    if is_mxfp8:
        from jaxbw._src.api.mxfp8_mlp import mxfp8_mlp

        result = mxfp8_mlp(x, arrays, first.activation)
    else:
        from jaxbw._src.api.fp8_mlp import delayed_mlp

        states = [layer.dot_general.state() for layer in layers]
        result = delayed_mlp(x, arrays, states, first.activation)
    activated: jax.Array = run(_name(last), result, last.activation)
    return activated


_default_experts_init = nnx.initializers.lecun_normal(batch_axis=0)


class MoE(nnx.Module):
    """A mixture of experts: the sum of each token's `top_k` feed-forward blocks, by their weights.

    An expert is `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))`. No token is
    dropped, however many go to one expert: grouped matmuls (`jaxbw.ragged_dot`) compute them all.
    `router` is an `nnx.Linear` without bias, in float32; `gate`, `up` and `down` are parameters, a
    matrix for each expert.

    Args:
      in_features: width of the inputs.
      hidden_features: width of `up` and `gate`.
      out_features: width of `down`; default None, `in_features`.
      num_experts: how many there are.
      top_k: how many serve a token; default 2.
      activation: as of `Linear`; default "silu".
      gated: default True.
      normalize: whether the weights of a token's experts add up to 1; default True.
      dtype, param_dtype, precision: as of `flax.nnx.Linear`, for the experts.
      kernel_init: of the experts' matrices; default that of `flax.nnx.Linear`, for each.
      expert_axis: default None; or an axis of an enclosing `jax.shard_map` over which tokens and
        experts are divided: each device has its tokens, all of `router`, and its part of `gate`,
        `up` and `down`.
      dispatch: along `expert_axis`. Default "all_gather": tokens are gathered, and what experts
        make of them is scattered. "all_to_all": each token is sent to the devices of its experts,
        and back, by `jax.lax.ragged_all_to_all`, on CPUs by a padded `all_to_all`.
      rngs: as of `flax.nnx.Linear`; drawn from for the router, `up`, `gate`, `down`.

    Raises:
      ValueError: there is no such activation, or dispatch; when it is called.

    >>> block = MoE(4, 16, num_experts=8, rngs=nnx.Rngs(0))
    >>> block(jnp.ones((3, 4))).shape
    (3, 4)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        num_experts: int,
        top_k: int = 2,
        activation: str | None = "silu",
        gated: bool = True,
        normalize: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Any = _default_experts_init,
        expert_axis: str | None = None,
        dispatch: str = "all_gather",
        rngs: nnx.Rngs,
    ) -> None:
        def matrices(*shape: int) -> nnx.Param[jax.Array]:
            return nnx.Param(kernel_init(rngs.params(), (num_experts, *shape), param_dtype))

        self.router = nnx.Linear(
            in_features, num_experts, use_bias=False, dtype=jnp.float32, rngs=rngs
        )
        self.up = matrices(in_features, hidden_features)
        self.gate = matrices(in_features, hidden_features) if gated else None
        self.down = matrices(hidden_features, out_features or in_features)
        self.top_k, self.normalize, self.activation = top_k, normalize, activation
        self.dtype, self.precision = dtype, precision
        self.expert_axis, self.dispatch = expert_axis, dispatch

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The block's outputs, `[..., out_features]`."""
        tokens = inputs.reshape(-1, inputs.shape[-1])
        logits = self.router(tokens)
        gate = None if self.gate is None else self.gate[...]
        tokens, gate, up, down = promote_dtype(
            (tokens, gate, self.up[...], self.down[...]), dtype=self.dtype
        )
        outputs = through_experts(
            *(tokens, logits, gate, up, down),
            top_k=self.top_k,
            normalize=self.normalize,
            activation=self.activation,
            precision=self.precision,
            axis=self.expert_axis,
            dispatch=self.dispatch,
        )
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])


class OverwriteWithGradient(nnx.Variable[jax.Array]):
    """State whose gradient is its next value: scales and amax histories of float8 layers."""


# What `nnx.grad` differentiates with respect to: `nnx.DiffState(0, TRAINED)`.
TRAINED = nnx.Any(nnx.Param, OverwriteWithGradient)


class Fp8DotGeneral(nnx.Module):
    """`lax.dot_general` in float8 with delayed scaling, for a layer's `dot_general`.

    Its variables have the names and shapes of those of linen's `Fp8DirectDotGeneralOp`.

    Args:
      amax_history_length: how many steps back amax is the largest of; default 1024.

    >>> layer = Linear(4, 8, dot_general=Fp8DotGeneral(), rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 4))).shape
    (2, 8)
    """

    def __init__(self, amax_history_length: int = 1024) -> None:
        for name in State._fields:
            scale = OverwriteWithGradient(jnp.ones(1))
            history = OverwriteWithGradient(jnp.zeros(amax_history_length))
            setattr(self, f"{name}_scale", scale)
            setattr(self, f"{name}_amax_history", history)

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        *,
        out_sharding: Any = None,
    ) -> jax.Array:
        """As `lax.dot_general`; the precision is not looked at.

        Raises:
          NotImplementedError: an out_sharding.
        """
        if out_sharding is not None:
            raise NotImplementedError(f"{_name(self)}: out_sharding is to be None")
        dims = dimension_numbers
        return delayed_dot_general(lhs, rhs, dims, self.state(), preferred_element_type)

    def state(self) -> State:
        """Its variables."""
        return State(
            *(
                Meta(
                    getattr(self, f"{name}_scale")[...], getattr(self, f"{name}_amax_history")[...]
                )
                for name in State._fields
            )
        )


class Nvfp4DotGeneral(nnx.Module):
    """`jaxbw.nvfp4_dot_general` with another key at each call, for a layer's `dot_general`.

    Args:
      rngs: whose stream "nvfp4", or default one, is forked.

    >>> layer = Linear(4, 8, dot_general=Nvfp4DotGeneral(nnx.Rngs(1)), rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 4))).shape
    (2, 8)
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rngs = rngs["nvfp4"].fork()

    def __call__(self, *args: Any, **options: Any) -> jax.Array:
        """As `jaxbw.nvfp4_dot_general`, without its key."""
        return nvfp4_dot_general(*args, **options, key=self.rngs())


class Optimizer(nnx.Optimizer):  # type: ignore[type-arg]
    """`nnx.Optimizer`, which also gives the float8 layers their next state.

    Raises:
      ValueError: gradients that lack the state; when it is updated.

    >>> import optax
    >>> model = Linear(4, 8, dot_general=Fp8DotGeneral(), rngs=nnx.Rngs(0))
    >>> optimizer = Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    >>> loss = lambda model: model(jnp.ones((2, 4))).sum()
    >>> gradients = nnx.grad(loss, argnums=nnx.DiffState(0, TRAINED))(model)
    >>> _ = optimizer.update(model, gradients)
    >>> model.dot_general.input_amax_history[0]
    Array(1., dtype=float32)
    """

    def update(self, model: Any, grads: Any, /, **keywords: Any) -> Any:
        """As of `nnx.Optimizer`; of `grads`, the state of float8 layers replaces the model's."""
        following = nnx.state(grads, OverwriteWithGradient)
        state = nnx.state(model, OverwriteWithGradient)
        if {*nnx.to_flat_state(state).paths} != {*nnx.to_flat_state(following).paths}:
            raise ValueError(
                f"{type(self).__module__}.Optimizer: the gradients lack the state of the float8 "
                "layers; pass argnums=nnx.DiffState(0, jaxbw.flax.nnx.TRAINED) to nnx.grad"
            )
        result = super().update(model, grads, **keywords)
        nnx.update(model, following)
        return result


def accumulate(total: Any, gradients: Any, weight: float = 1.0) -> Any:
    """`total + weight * gradients`; of the state of float8 layers the larger, element by element.

    Args:
      total, gradients: gradients with respect to `TRAINED`, of nnx, or of all variables of a linen
        model; a total to begin with may be zeros.
      weight: one by the number of batches, for the mean; default 1.

    Returns:
      As `gradients`.

    >>> tree = {"params": jnp.array([2.0]), "_overwrite_with_gradient": jnp.array([4.0])}
    >>> accumulate(jax.tree.map(jnp.zeros_like, tree), tree, 0.5)["params"]
    Array([1.], dtype=float32)
    """

    def is_variable(x: Any) -> bool:
        return isinstance(x, nnx.Variable)

    def add(path: Any, old: Any, new: Any) -> Any:
        in_linen = any(getattr(key, "key", None) == "_overwrite_with_gradient" for key in path)
        if in_linen or isinstance(new, OverwriteWithGradient):
            return jax.tree.map(jnp.maximum, old, new)
        return jax.tree.map(lambda x, y: x + weight * y, old, new)

    return jax.tree_util.tree_map_with_path(add, total, gradients, is_leaf=is_variable)


def swap_layers(
    model: nnx.Module, recipe: str | None = None, *, rngs: nnx.Rngs | None = None
) -> tuple[str, ...]:
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
      recipe: None: the layers compute in their dtypes. "fp8_delayed": `Linear` and `LinearGeneral`,
        jaxbw's too, multiply in float8 by an `Fp8DotGeneral`, whose state is new variables of the
        model; without state "fp8_current": by `jaxbw.fp8_dot_general`, "mxfp8" and "nvfp4": by
        `jaxbw.mxfp8_dot_general` and `jaxbw.nvfp4_dot_general`. `Einsum` stays as it is. Default
        None.
      rngs: of "nvfp4": layers multiply by an `Nvfp4DotGeneral` each, whose gradients are rounded
        stochastically; its stream is new variables of the model. Default None.

    Returns:
      The paths of the layers that were swapped, such as "blocks.0.attention.query".

    Raises:
      TypeError: the model is no `nnx.Module`.
      ValueError: an unknown recipe; rngs for another than "nvfp4".

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
    if recipe not in _RECIPES:
        raise ValueError(
            f"jaxbw.flax.nnx.swap_layers: recipe is {recipe!r}; it is one of "
            f"{', '.join(map(repr, _RECIPES))}"
        )
    made = _RECIPES[recipe]
    if rngs is not None:
        if recipe != "nvfp4":
            raise ValueError(
                f"jaxbw.flax.nnx.swap_layers: recipe is {recipe!r}, which takes no rngs; only "
                "'nvfp4' rounds stochastically"
            )
        made = partial(Nvfp4DotGeneral, rngs)
    swapped = []
    for path, module in list(nnx.iter_modules(model, graph=True)):
        if _swap(module, made):
            swapped.append(".".join(map(str, path)))
    return tuple(swapped)


# What a layer of Flax's computes with if it is not told; what is on jaxbw already is taken, too.
_DEFAULTS = (None, jax.lax.dot_general, jnp.einsum, dot_general)
_attention = accelerate(nnx.dot_product_attention)


# What makes the dot_general of a layer.
_RECIPES: dict[str | None, Callable[[], Any] | None] = {
    None: None,
    "fp8_delayed": Fp8DotGeneral,
    "fp8_current": lambda: fp8_dot_general,
    "mxfp8": lambda: mxfp8_dot_general,
    "nvfp4": lambda: nvfp4_dot_general,
}


def _swap(module: Any, recipe: Callable[[], Any] | None) -> bool:
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
    in_float8 = recipe is not None and (layer or type(module)) in (Linear, LinearGeneral)
    if (layer is None and not in_float8) or getattr(module, "dot_general_cls", None) is not None:
        return False
    name, pending = ("einsum_op", einsum) if layer is Einsum else ("dot_general", deferred)
    given = getattr(module, name)
    if isinstance(given, nnx.Module) or given not in (*_DEFAULTS, *[deferred] * in_float8):
        return False
    made = recipe() if in_float8 and recipe is not None else pending
    setattr(module, name, nnx.data(made) if isinstance(made, nnx.Module) else made)
    if layer is not None:
        module.activation = None
        object.__setattr__(module, "__class__", layer)  # nnx.Module sets attributes in its own way
    return True
