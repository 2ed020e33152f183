"""Every use of JAX beyond its documented API, in one place.

Each has a test in tests/jax: test_compat.py, test_experimental.py or test_accelerate.py. Works on
jax 0.10.1 to 0.12. It is long since it is one place, to be looked through for each version of JAX.
Nothing here decides anything about matmuls.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, cast

import jax
import jaxlib.version
import numpy as np
from jax._src import ad_checkpoint as _ad_checkpoint
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src import source_info_util as _source_info
from jax._src import xla_bridge as _xla_bridge
from jax._src.array import ArrayImpl as _ArrayImpl
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.lax import lax as _lax
from jax._src.lax import parallel as _parallel
from jax._src.lib import xla_client as _xla_client  # type: ignore[attr-defined]
from jax._src.named_sharding import UnspecifiedValue as _Unspecified
from jax._src.numpy import error as _numpy_error
from jax._src.numpy import util as _numpy_util
from jax._src.sharding_impls import _internal_use_concrete_mesh as _use_concrete_mesh
from jax._src.sharding_impls import canonicalize_sharding as _canonicalize_sharding
from jax._src.xla_metadata_lib import current_xla_metadata as _current_metadata
from jax.ad_checkpoint import Offloadable, Recompute
from jax.experimental.xla_metadata import set_xla_metadata as _set_metadata
from jax.extend.core import ClosedJaxpr, Primitive
from jax.extend.core import primitives as _primitives
from jax.interpreters import mlir, xla
from jax.interpreters import partial_eval as _partial_eval

try:  # as the rules of jax_remat3, which not every version has
    from jax._src.interpreters import remat as _remat
except ImportError:
    _remat = None  # type: ignore[assignment]

# jit's argument that inlines a nested call while it is traced. From jax 0.12 on, True inlines it in
# lowering only, and what looks at a traced program would meet a call.
INLINED: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


class Block(contextlib.ContextDecorator):
    """A value of a JAX user context, with which `jit` keys its programs.

    As a decorator it holds for each call: as the function is traced, where that is under `jit`.
    """

    def __init__(self, context: Any, value: Any) -> None:
        self._context, self._value = context, value

    def _recreate_cm(self) -> "Block":
        return Block(self._context, self._value)  # calls may overlap, in threads or recursion

    def __enter__(self) -> None:
        """From here on the setting has the value."""
        self._entered = self._context(self._value)
        self._entered.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The setting has the value again that it had before."""
        self._entered.__exit__(kind, error, traceback)


def ensure_arraylike(name: str, *operands: Any) -> tuple[Any, ...]:
    """Operands as `jax.numpy` functions take them: lists are refused, NumPy is converted."""
    converted = _numpy_util.ensure_arraylike(name, *operands)
    return tuple(converted) if len(operands) > 1 else (converted,)


def without_error_checks() -> contextlib.AbstractContextManager[Any]:
    """In this block `jax.numpy` leaves out the checks of `jax_error_checking_behavior_nan`.

    They keep their findings in a mutable array, which a lowering rule cannot capture.
    """
    return _numpy_error.error_checking_behavior(all="ignore")


def abstract_type(x: Any) -> Any:
    """The abstract value of an array, or of anything that has a shape and a dtype."""
    return _core.shaped_abstractify(x)


def canonicalize_dtype(dtype: Any, name: str) -> np.dtype[Any]:
    """A dtype as given by a user, without 64 bits where JAX has them off."""
    return _dtypes.check_and_canonicalize_user_dtype(dtype, name)


def result_type(*operands: Any) -> tuple[np.dtype[Any], bool]:
    """`jnp.result_type`, and whether the type is weak."""
    dtype, is_weak = _dtypes.result_type(*operands, return_weak_type_flag=True)
    return dtype, is_weak


def canonicalize_precision(precision: Any) -> Any:
    """None, a pair of `lax.Precision`, or a dot algorithm."""
    return _lax.canonicalize_precision(precision)


def canonicalize_sharding(out_sharding: Any, name: str) -> Any:
    """An `out_sharding` argument as a NamedSharding of the abstract mesh, or None."""
    return _canonicalize_sharding(out_sharding, name)


def convert_element_type(x: Any, dtype: Any, weak_type: bool) -> Any:
    """`lax.convert_element_type` that can also set the weak type."""
    return _lax._convert_element_type(x, dtype, weak_type)


def insert_reshard(*operands: Any) -> tuple[Any, ...]:
    """What `lax` does to operands before it binds a primitive.

    Under `shard_map(check_vma=True)` it makes them vary over the same mesh axes.
    """
    return tuple(_core.auto_insert_reshard(*operands))


def vary(x: Any, axis_name: str | tuple[str, ...]) -> Any:
    """What `lax` does to the operand of a collective: it varies over these mesh axes from here on.

    Only under `shard_map(check_vma=True)`, and where it does not vary yet.
    """
    return _parallel.insert_collective_pvary(axis_name, x)


def max_over(x: Any, *, like: Any) -> Any:
    """x as its largest value over the mesh axes that it varies over, and `like` does not."""

    def varying(x: Any) -> frozenset[Any]:
        aval = jax.typeof(x)
        # Older versions have it on the type itself.
        kind = getattr(aval, "manual_axis_type", None)
        axes: frozenset[Any] = aval.vma if kind is None else kind.varying
        return axes

    axes = tuple(varying(x) - varying(like))
    return jax.lax.pmax(x, axes) if axes else x


def spec_entries(x: Any) -> tuple[Any, ...]:
    """How each dimension of an array is sharded in explicit mode; None where it is not."""
    spec = abstract_type(x).sharding.spec
    return tuple(getattr(spec, "partitions", spec))


def permuted_sharding(aval: Any, axes: tuple[int, ...]) -> Any:
    """The sharding that an array of this type has after a transposition; None without a mesh."""
    sharding = aval.sharding
    if sharding.mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty:
            return None
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*[None] * len(axes)))
    entries = tuple(getattr(sharding.spec, "partitions", sharding.spec))
    permuted = tuple(entries[axis] for axis in axes)
    if hasattr(sharding.spec, "update"):
        return sharding.update(spec=sharding.spec.update(partitions=permuted))
    return sharding.update(spec=jax.sharding.PartitionSpec(*permuted))


def unsharded(aval: Any, axes: tuple[int, ...]) -> Any:
    """The explicit sharding of an array without that of these dimensions."""
    spec = aval.sharding.spec
    entries = tuple(getattr(spec, "partitions", spec))
    kept = tuple(None if i in axes else entry for i, entry in enumerate(entries))
    if hasattr(spec, "update"):
        return aval.sharding.update(spec=spec.update(partitions=kept))
    return aval.sharding.update(spec=jax.sharding.PartitionSpec(*kept))


def in_whole(x: Any, units: Mapping[int, int]) -> Any:
    """An array of an explicit mesh, without the sharding of what it does not divide in whole units.

    Args:
      units: by dimension, counted from the end.
    """
    aval = abstract_type(x)
    if not is_explicit(aval):
        return x
    entries, shape = spec_entries(x), aval.sharding.mesh.shape

    def is_cut(axis: int, unit: int) -> bool:
        names = entries[axis] if isinstance(entries[axis], tuple) else (entries[axis],)
        parts = math.prod(shape[name] for name in names)
        return bool(x.shape[axis] % (parts * unit))

    cut = tuple(
        x.ndim + axis
        for axis, unit in units.items()
        if entries[axis] is not None and is_cut(axis, unit)
    )
    return jax.sharding.reshard(x, unsharded(aval, cut)) if cut else x


def explicit_sharding(x: Any) -> Any:
    """The sharding that is a part of an array's type; None without an explicit mesh."""
    aval = abstract_type(x)
    return aval.sharding if is_explicit(aval) else None


def vmapped_sharding(axis_data: Any, out_sharding: Any, dimension: int) -> Any:
    """An `out_sharding` with the dimension that `vmap` adds."""
    if out_sharding is None:
        return None
    return _batching.get_sharding_for_vmap(axis_data, out_sharding, dimension)


# Calls whose function is their "jaxpr": from jax 0.12 on also the tangents of inlined functions.
_CALLS = ("jit", "pjit", "vjp_node[jit]")


def is_traced(x: Any) -> bool:
    """Whether x stands for an array in a trace that is in progress."""
    return isinstance(x, jax.core.Tracer)


def is_concrete(x: Any) -> bool:
    """Whether x is an array of JAX's, with values: nothing to be converted, and no tracer."""
    return type(x) is _ArrayImpl


def is_eager() -> bool:
    """Whether no trace is in progress: what is called now is computed now."""
    return bool(_core.trace_state_clean())


def before_transposition(x: Any) -> tuple[Any, tuple[int, ...] | None]:
    """The array that x is a transposition of, as the trace in progress knows, and the permutation.

    What is differentiated or mapped is looked into. x itself and None where no transposition is
    known: always outside of `jit`.
    """
    if not is_traced(x):
        return x, None
    if isinstance(x, _batching.BatchTracer):
        return _before_batched_transposition(x)
    if isinstance(x, _ad.JVPTracer | _ad.LinearizeTracer):
        primal, permutation = before_transposition(x.primal)
        if permutation is None:
            return x, None
        tangent, tangent_permutation = before_transposition(x.tangent)
        if tangent_permutation != permutation:
            return _lax.transpose(x, np.argsort(permutation).tolist()), permutation
        return type(x)(x._trace, primal, tangent), permutation
    equation: Any = getattr(x, "parent", None)
    permutation = None if equation is None else _permutation(equation)
    if permutation is None:
        return x, None
    original, before = before_transposition(equation.in_tracers[0])
    return original, permutation if before is None else tuple(before[i] for i in permutation)


def _permutation(equation: Any) -> tuple[int, ...] | None:
    """What an equation transposes by, if that is all it does; also in a function of its own."""
    if equation.primitive is _lax.transpose_p:
        return tuple(equation.params["permutation"])
    if equation.primitive.name not in _CALLS:
        return None
    called = equation.params["jaxpr"]
    if len(called.eqns) != 1:
        return None
    (inner,) = called.eqns
    is_all = (inner.invars, inner.outvars) == (called.jaxpr.invars, called.jaxpr.outvars)
    return _permutation(inner) if is_all else None


def _before_batched_transposition(x: Any) -> tuple[Any, tuple[int, ...] | None]:
    value, permutation = before_transposition(x.val)
    if permutation is None or x.batch_dim is None:
        return x, None
    mapped = permutation[x.batch_dim]
    own = (dim for i, dim in enumerate(permutation) if i != x.batch_dim)
    original = _batching.BatchTracer(x._trace, value, mapped, x.source_info)
    return original, tuple(dim - (dim > mapped) for dim in own)


def dot_general_type(lhs: Any, rhs: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Abstract value and effects of `lax.dot_general`; also its errors."""
    return cast("tuple[Any, Any]", _primitives.dot_general_p.abstract_eval(lhs, rhs, **params))


def ragged_dot_general_type(
    lhs: Any, rhs: Any, group_sizes: Any, params: Mapping[str, Any]
) -> jax.ShapeDtypeStruct:
    """Shape and dtype of `lax.ragged_dot_general`; also its errors. Of shapes and dtypes alone."""
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        given = (_core.ShapedArray(x.shape, x.dtype) for x in (lhs, rhs, group_sizes))
        primitive = _lax.ragged_dot_general_p
        result, _ = primitive.abstract_eval(*given, **params, group_offset=None, out_sharding=None)
    return jax.ShapeDtypeStruct(result.shape, result.dtype)


def lax_dot_general(lhs: Any, rhs: Any, params: Mapping[str, Any]) -> Any:
    """`lax.dot_general` with parameters that are already canonical, and XLA's in any case.

    It is neither intercepted nor marked.
    """
    primitive = _primitives.dot_general_p
    with _set_metadata(**dict.fromkeys(_marks)):
        return type(primitive).bind(primitive, lhs, rhs, **params)


# Equations are marked by metadata for XLA: JAX keeps it with an equation through all that it makes
# of it, derivatives, batches, recomputations, and the lowering.
_marks: set[str] = set()


def marked(name: str, value: str) -> contextlib.AbstractContextManager[Any]:
    """In this block equations are marked with a value, under a name."""
    _marks.add(name)
    return cast("contextlib.AbstractContextManager[Any]", _set_metadata(**{name: value}))


def current_mark(name: str) -> str | None:
    """What the next equation is marked with under this name."""
    return (_current_metadata() or {}).get(name)


def mark_of(equation: Any, name: str) -> str | None:
    """What an equation is marked with; or, in a lowering rule, the one that it is given."""
    context = equation.ctx if hasattr(equation, "ctx") else equation.jaxpr_eqn_ctx
    return ((context and context.xla_metadata) or {}).get(name)


def intercept(primitive: Primitive, around: Callable[..., Any]) -> None:
    """Has `around` called for each use of a primitive of JAX's: with its `bind`, and the rest."""
    primitive.bind = partial(around, primitive.bind)  # type: ignore[method-assign]


def inlined(params: Mapping[str, Any]) -> Any:
    """The program of a jitted function that JAX inlines into the trace it is called in; else None.

    Args:
      params: of the function's primitive.
    """
    return params["jaxpr"] if params["inline"] is INLINED and is_unplaced(params) else None


def is_unplaced(params: Mapping[str, Any]) -> bool:
    """Whether a jitted function, by its primitive's parameters, says nothing of shardings."""
    names = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    return all(x is None or isinstance(x, _Unspecified) for name in names for x in params[name])


def is_on_device(equation: Any) -> bool:
    """Whether an equation is computed where the others are, and not by `compute_on`."""
    return getattr(equation.ctx, "compute_type", None) is None


def is_explicit(aval: Any) -> bool:
    """Whether an array lies in a mesh that has axes of the explicit mode."""
    return jax.sharding.AxisType.Explicit in aval.sharding.mesh.axis_types


def closed(program: Any) -> Any:
    """A jaxpr in an equation's parameters, as one with its constants; from jax 0.12 on all are."""
    return program if hasattr(program, "consts") else ClosedJaxpr(program, ())


def bind_equation(equation: Any, read: Callable[[Any], Any]) -> list[Any]:
    """The results of an equation, bound as it was traced: its marks, scopes, and source."""
    operands = map(read, equation.invars)
    name_stack = _source_info.current_name_stack() + equation.source_info.name_stack
    with (
        _source_info.user_context(equation.source_info.traceback, name_stack=name_stack),
        equation.ctx.manager,
    ):
        given = equation.primitive.get_bind_params(equation.params)
        functions, params = given if isinstance(given, tuple) else ((), given)
        results = equation.primitive.bind(*functions, *operands, **params)
    return list(results) if equation.primitive.multiple_results else [results]


def retraced(function: Callable[..., Any], program: Any) -> Any:
    """A program by another function, of the same kind; itself where types would not be the same."""
    before = closed(program)
    after = jax.make_jaxpr(function)(*before.in_avals)
    is_same = (after.in_avals, after.out_avals, after.effects) == (
        before.in_avals,
        before.out_avals,
        before.effects,
    )
    if not is_same or len(after.consts):
        return program
    return after if hasattr(program, "consts") else after.jaxpr


def choose_transposition(primitive: Primitive, choose: Callable[..., Any]) -> None:
    """Lets `choose` pick the transposition rules of a bilinear primitive of JAX's.

    Args:
      choose: of whether it is that of the second operand, and JAX's own rule, to a rule.
    """
    rules = _ad.primitive_transposes[primitive].args  # type: ignore[attr-defined]
    _ad.defbilinear(primitive, *(choose(bool(i), rule) for i, rule in enumerate(rules)))


def override_lowering(
    primitive: Primitive, platforms: Sequence[str], rule: Callable[..., Any]
) -> None:
    """Gives a primitive of JAX's a lowering rule: of platform, JAX's own, and its arguments."""
    for platform in platforms:
        own = _mlir._platform_specific_lowerings[platform].get(primitive)
        own = _mlir._lowerings[primitive] if own is None else own
        mlir.register_lowering(primitive, partial(rule, platform, own.rule), platform=platform)


def apply_eagerly(primitive: Primitive) -> None:
    """Lets a primitive run outside of `jit`: as a compiled program of that one operation."""
    primitive.def_impl(partial(xla.apply_primitive, primitive))


def without_dead_code(jaxpr: Any) -> Any:
    """A program without what its results do not need, as it is compiled."""
    return _partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def register_dead_code_rule(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Lets `rule` remove results that nothing uses from an equation of a primitive.

    Args:
      rule: from which results are used, and the equation, to which operands are, and the equation
        that is left; None for none.
    """

    def versioned(used: list[bool], *rest: Any) -> Any:
        *_, equation = rest  # from jax 0.12 on behind which operands are live, which is for Refs
        return rule(used, equation)

    _partial_eval.dce_rules[primitive] = versioned


def register_remat_rule(
    primitive: Primitive,
    save: Callable[..., tuple[Any, Any]] | None = None,
    restore: Callable[..., Any] | None = None,
) -> None:
    """Lets a policy keep a primitive's results under `jax_remat3`, whose policies know primitives.

    Without a rule nothing is kept there, whatever the policy says.

    Args:
      save: of operands and parameters, to the results, and to what is kept; default the results.
      restore: of what is kept, operands, and parameters, to the results again: with the values that
        are kept, and derivatives by the operands. By default as the primitive has them, which then
        may look at nothing but operands.
    """

    def rule(trace: Any, /, *operands: Any, **params: Any) -> Any:
        policy = getattr(trace, "policy", trace)  # before jax 0.11 the policy itself
        bind = partial(primitive.bind, **params)
        case = policy is not None and policy(primitive, *map(_core.typeof, operands), **params)
        if case is False or case is Recompute:
            return _remat_result(bind(*operands), (), lambda _, *again: bind(*again))
        out, kept = (bind(*operands),) * 2 if save is None else save(*operands, **params)
        out, kept = jax.tree.map(_remat.reduce_precision, (out, kept))
        if isinstance(case, Offloadable):
            kept = _move(kept, case.dst)

        def load(kept: Any, *again: Any) -> Any:
            out = _move(kept, case.src) if isinstance(case, Offloadable) else kept
            if restore is not None:
                return restore(out, *again, **params)
            return _ad_checkpoint.primal_left_tangent_right(out, bind(*again))

        return _remat_result(out, kept, load)

    if _remat is not None:
        _remat.rules[primitive] = rule


def _remat_result(out: Any, kept: Any, again: Callable[..., Any]) -> tuple[Any, ...]:
    """What a remat rule returns: from jax 0.12 on what it keeps is named."""
    names_kept = jax.__version_info__ >= (0, 12)
    return (out, kept, again) if names_kept else (out, partial(again, kept))


def _move(x: Any, memory_kind: str) -> Any:
    return jax.device_put(x, _core.mem_kind_to_space(memory_kind), may_alias=False)


def experimental(module: str) -> Any:
    """The module `jax.experimental.<module>`; None where this program has not loaded it."""
    return sys.modules.get(f"jax.experimental.{module}")


def register_float_check(primitive: Primitive) -> None:
    """Lets checkify's float checks look at a primitive's results, once a program has loaded it."""
    if (checkify := sys.modules.get("jax._src.checkify")) is not None:
        check = partial(checkify.nan_error_check, primitive)
        checkify.error_checks.setdefault(primitive, check)


# XLA's dynamic-slice fusion moves a custom call into the fusion that stores its result in a stacked
# array, as a scan does with what the backward pass needs. The version in jaxlib 0.11.2 does not ask
# whether anything else reads the result: for that the call stays where it was, and runs twice.
# 0.11.1 lets the others read the stacked array, 0.12 leaves such a call alone.
_REPEATS_STORED_CALLS = (0, 11, 2) <= jaxlib.version.__version_info__ < (0, 12)


def computed_once(x: Any) -> Any:
    """The result of a custom call, so that XLA for GPUs makes one call of it.

    Where XLA would make two it is kept from looking for the store, by an optimization barrier. The
    slices that the call reads are still read in place; its result is copied into a stacked array.
    """
    return jax.lax.optimization_barrier(x) if _REPEATS_STORED_CALLS else x


def is_one_device(ctx: Any) -> bool:
    """Whether the operation being lowered sees whole arrays on one device.

    True for programs of one device, and inside a `shard_map` over every axis of its mesh.
    """
    axis_context = ctx.module_context.axis_context
    mesh = getattr(axis_context, "mesh", None)
    if mesh is not None:
        return mesh.size == 1 or set(axis_context.manual_axes) == set(mesh.axis_names)
    return getattr(axis_context, "num_devices", 1) == 1


def partly_manual_mesh(ctx: Any) -> tuple[tuple[int, bool], ...] | None:
    """Size of each mesh axis, and whether it is manual, inside a `shard_map` over some axes.

    None elsewhere.
    """
    axis_context = ctx.module_context.axis_context
    manual = getattr(axis_context, "manual_axes", None)
    if not manual:
        return None
    return tuple((size, name in manual) for name, size in axis_context.mesh.shape.items())


def auto_mesh(ctx: Any) -> jax.sharding.AbstractMesh:
    """The mesh there, for sharding constraints: Auto in all axes that are not manual."""
    axis_context = ctx.module_context.axis_context
    mesh, types = axis_context.mesh, jax.sharding.AxisType
    kinds = (types.Manual if x in axis_context.manual_axes else types.Auto for x in mesh.axis_names)
    return jax.sharding.AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=tuple(kinds))


def partition_refusal(ctx: Any) -> str | None:
    """Why XLA's partitioner could not be asked about an operation; None where it can."""
    if not jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        return "XLA partitions this program by GSPMD; leave jax_use_shardy_partitioner on"
    if any(getattr(x.sharding.spec, "unreduced", None) for x in (*ctx.avals_in, *ctx.avals_out)):
        return "an array is unreduced; kernels sum over the devices at once"
    return None


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Outside of every mesh: what is lowered in this block is a program of one device."""
    nothing = np.empty((), object)
    with (
        _use_concrete_mesh(jax.sharding.Mesh(nothing, ())),
        jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())),
    ):
        yield


def lower_unplaced(function: Callable[..., Any], ctx: Any, operands: Sequence[Any]) -> Any:
    """Lowers a function, of one result, as if of one device.

    Nothing in it says over which mesh axes an array varies, or how it is sharded: so a loop may
    begin with zeros.
    """
    with without_mesh():
        avals = [_core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
        plain = ctx.replace(primitive=None, avals_in=avals, avals_out=None)
        with without_error_checks():
            return mlir.lower_fun(function, multiple_results=False)(plain, *operands)


def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """Has XLA ask `partition` what a device does of a custom call, on the CPU and in plugins.

    Args:
      partition: of shapes and shardings of the operands, shape and sharding of the results, and the
        call's text, to StableHLO bytecode, shardings of the operands, sharding of the results.
    """
    register = partial(
        _xla_client.register_custom_call_partitioner,
        name=target,
        prop_user_sharding=_not_asked,
        partition=partition,
        infer_sharding_from_operands=_not_asked,
    )
    register()
    _xla_bridge.register_plugin_callbacks(register)


def _not_asked(*_: Any) -> None:
    """GSPMD's propagation would ask this; Shardy's has a rule."""


def tile_assignment(sharding: Any) -> np.ndarray | None:
    """The device of each tile of an XLA sharding; None where all devices have the whole array.

    Dimensions behind those of the array are of replicas.

    Raises:
      ValueError: no such sharding.
    """
    if sharding is None or sharding.is_replicated():
        return None
    replicas = {_xla_client.OpSharding.Type.REPLICATED}
    if not sharding.is_tiled() or not replicas.issuperset(sharding.subgroup_types()):
        raise ValueError(f"jaxbw: a matmul of an array that is sharded {sharding}")
    dims: list[int] = sharding.tile_assignment_dimensions()
    return np.asarray(sharding.tile_assignment_devices()).reshape(dims)


def hlo_sharding(axes: Sequence[int], tiling: Sequence[Sequence[int]]) -> Any:
    """An XLA sharding.

    Args:
      axes: the sizes of the digits of a device's number.
      tiling: for each dimension of the array those that divide it.
    """
    used = [axis for dim in tiling for axis in dim]
    others = [axis for axis in range(len(axes)) if axis not in used]
    if not used:
        return _xla_client.HloSharding.replicate()
    tiles = [math.prod(axes[axis] for axis in dim) for dim in (*tiling, others)]
    replicas = _xla_client.OpSharding.Type.REPLICATED
    return _xla_client.HloSharding.iota_tile(
        dims=tiles,
        reshape_dims=list(axes),
        transpose_perm=[*used, *others],
        subgroup_types=[replicas],
    )


def hlo_tuple_sharding(shape: Any, shardings: Sequence[Any]) -> Any:
    """The XLA sharding of a tuple."""
    return _xla_client.HloSharding.tuple_sharding(shape, list(shardings))
