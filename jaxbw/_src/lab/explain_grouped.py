"""What a call of a grouped matmul asks of the selection, and what serves it, without a call."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxbw._src.api import ragged
from jaxbw._src.lab.tuning import find
from jaxbw._src.primitives import ragged_dot, serve
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import devices
from jaxbw._src.selection.choice import Refusal
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.ragged import RaggedChoice


def examined(
    call: str,
    lhs: Any,
    rhs: Any,
    rhs_up: Any = None,
    *,
    groups: int,
    dimension_numbers: Any = None,
    device: str | None = None,
    **options: Any,
) -> tuple[RaggedChoice | Refusal, RaggedProblem, Device | None]:
    """The choice, the problem, and for which device, of a call of this name.

    Args:
      lhs, rhs, rhs_up: arrays or `jax.ShapeDtypeStruct`s: of `ragged_dot`, with rhs_up of
        `gated_ragged_dot`, and with dimension_numbers, which are a `RaggedDotDimensionNumbers`, of
        `ragged_dot_general`.
      groups: how many sizes there are.
      device: a name that `target` takes; default None.
      options: other arguments of these.

    Raises:
      TypeError, ValueError, NotImplementedError: as the call; ValueError where it is no grouped
        matmul of a kernel's kind.
    """
    arrays = {name: x for name, x in options.items() if hasattr(x, "shape")}
    others = {name: x for name, x in options.items() if name not in arrays}
    if rhs_up is not None:
        arrays["up"] = rhs_up

    def function(lhs: Any, rhs: Any, sizes: Any, arrays: dict[str, Any]) -> Any:
        up = arrays.pop("up", None)
        if up is not None:
            return ragged.gated_ragged_dot(lhs, rhs, up, sizes, **arrays, **others)
        if dimension_numbers is None:
            return ragged.ragged_dot(lhs, rhs, sizes, **arrays, **others)
        return ragged.ragged_dot_general(lhs, rhs, sizes, dimension_numbers, **arrays, **others)

    sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)
    named = None if device is None else devices.known(device, f"{call}(device=")
    found = [*find.ragged_matmuls_in(jax.make_jaxpr(function)(lhs, rhs, sizes, arrays).jaxpr)]
    if len(found) != 1:
        raise ValueError(f"{call}: this is no one grouped matmul, but {len(found)}")
    ((problem, equation, _),) = found
    choice, on = served(problem, equation, named)
    return choice, problem, on


def served(
    problem: RaggedProblem, equation: JaxprEqn, target: str | None
) -> tuple[RaggedChoice | Refusal, Device | None]:
    """What serves a grouped matmul of a program, and on which device; `target` where it has none.

    As of `explain`: a strict implementation stands for a device of its family.
    """
    policy = equation.params["policy"]
    names, target = policy.implementation, policy.target or target
    has_device = names is not None or target is not None or jax.default_backend() == "gpu"
    on = serve.device_for(names, target) if has_device else None
    operands = [each.aval for each in equation.invars]
    choice: RaggedChoice | Refusal
    choice = ragged_dot.chosen(problem, operands, on, policy, equation.params)
    return choice, on
