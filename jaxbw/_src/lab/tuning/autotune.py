"""`jaxbw.autotune`: measures the matmuls of a function, and writes what is fastest."""

import math
from collections.abc import Callable
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp

from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.tuning import find, session
from jaxbw._src.lab.tuning.launching import Bench, Gpu
from jaxbw._src.lab.tuning.measure import Effort
from jaxbw._src.lab.tuning.session import Outcome
from jaxbw._src.log import LOGGER
from jaxbw._src.selection import devices
from jaxbw._src.selection.devices import Device


def autotune(
    function: Callable[..., Any],
    *args: Any,
    path: str | PathLike[str],
    lax: bool = False,
    configurations: int = Effort.count,
    budget_s: float = math.inf,
    group_sizes: str = group_sizes.DEFAULT,
    bench: Bench | None = None,
) -> list[Outcome]:
    """Measures the matmuls of a function on this machine's GPU, and stores the fastest.

    The function is traced, not run, and its matmuls are launched one by one, each in many
    configurations, for a second or less. Nothing is measured when programs are compiled or run:
    they use what lies in the file, under `jaxbw.use_tuned(path)` or JAXBW_TUNED=path.

    A matmul that the file has already is not measured again, so that a call that was stopped goes
    on where it was. Each is stored when it is done; several processes may share a file.

    Args:
      function: jittable. To tune a training step's gradients, too, pass the step.
      args: its arguments: arrays, or `jax.ShapeDtypeStruct`s of them.
      path: the table, a JSON file; created if it is not there.
      lax: also measure the matmuls that are `jax.lax.dot_general`'s.
      configurations: how many to try for each matmul.
      budget_s: seconds after which no matmul is begun; default no limit.
      group_sizes: how the rows of a grouped matmul (`ragged_dot`) fall into groups while it is
        measured: only the device knows it when it runs. "uniform", "zipf", "one" or "random";
        default "uniform". As many as the call's `rows_per_group` says, or else all rows.
      bench: what measures; default this machine's GPU, with such groups.

    Returns:
      What came of each matmul that was measured now. Its `str` is a line about it.

    Raises:
      ValueError: there is no GPU with kernels; the file is there and no tuned table; there are no
        such sizes.
      RuntimeError: it is called while a function is traced; a measurement failed.

    Example, on a GPU:

        jaxbw.autotune(train_step, params, batch, path="tuned.json")
        with jaxbw.use_tuned("tuned.json"):
            params = jax.jit(train_step)(params, batch)
    """
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise RuntimeError(
            "jaxbw.autotune: it measures, and a function is being traced; call it outside of jit"
        )
    device = measurable_device()
    problems = [each.problem for each in find.matmuls(function, *args, lax=lax)]
    outcomes: list[Outcome] = []

    def report(outcome: Outcome) -> None:
        LOGGER.info("%s", outcome)
        outcomes.append(outcome)

    if session.missing(problems, device, path):
        session.run(
            problems,
            device,
            bench or gpu(group_sizes),
            path,
            effort=Effort(count=configurations),
            budget_s=budget_s,
            report=report,
        )
    return outcomes


def gpu(sizes: str | group_sizes.Sizes = group_sizes.DEFAULT) -> Gpu:
    """What measures on this machine's GPU; `sizes` are as of `Gpu`.

    Raises:
      ValueError: JAX does not use it.
    """
    if jax.default_backend() != "gpu":
        raise ValueError(
            "there is a GPU and JAX does not use it; `python -m jaxbw doctor` says what to do"
        )
    return Gpu(sizes=sizes)


def measurable_device() -> Device:
    """This machine's GPU.

    Raises:
      ValueError: there is none that kernels run on.
    """
    device = devices.running_device()
    if device is None:
        fault = "there is no CUDA GPU on this machine"
    elif device.family is None:
        fault = f"there are no kernels for {device}"
    elif device.problem is not None:
        fault = f"{device.name}: {device.problem}"
    else:
        return device
    raise ValueError(f"{fault}; measure on a machine with one, `python -m jaxbw doctor` looks")
