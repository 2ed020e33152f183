"""Workloads for tests of the model alone: no JAX, no installed kernels."""

from typing import Any

from jaxbw._native import DataType, Major, kernel_names
from jaxbw._src.selection.config import ANY, GemmConfig
from jaxbw._src.selection.machine import Machine, machines
from jaxbw._src.selection.search import KEPT, Instances, Ranked, search
from jaxbw._src.selection.workload import Workload

ALL: Instances = frozenset(kernel_names())


def workload(
    m: int, n: int, k: int, layout: str = "nt", *, swapped: bool = False, **changes: Any
) -> Workload:
    """bf16 [m, k] @ [k, n] in layouts as kernels.toml writes them."""
    lhs = Major.K if layout[0] == "n" else Major.MN
    rhs = Major.MN if layout[1] == "n" else Major.K
    values: dict[str, Any] = {
        "batch": 1,
        "m": n if swapped else m,
        "n": m if swapped else n,
        "k": k,
        "a_major": rhs if swapped else lhs,
        "b_major": lhs if swapped else rhs,
        "a_batched": True,
        "b_batched": True,
        "input": DataType.BF16,
        "output_size": 2,
        "extra_bytes": 0,
        "activated": False,
        "gated": False,
        "general": False,
        "saves": False,
        "residual_by_tma": False,
        "swapped": swapped,
        "tma_rows": n % 8 == 0,
        "a_straddles": False,
        "b_straddles": False,
        "repack_bytes": 0,
        "repacks": 0,
    }
    return Workload(**(values | changes))


def ranking(
    machine: str | Machine,
    m: int,
    n: int,
    k: int,
    layout: str = "nt",
    *,
    wanted: GemmConfig = ANY,
    kept: int = KEPT,
    **changes: Any,
) -> tuple[Ranked, ...]:
    """The best candidates, with every kernel there could be."""
    if isinstance(machine, str):
        machine = machines()[machine]
    straight = workload(m, n, k, layout, **changes)
    exchanged = None
    if not (wanted.batch_invariant or straight.gated):
        exchanged = (workload(m, n, k, layout, swapped=True, **changes), ALL)
    _, ranked = search(
        machine.family,
        machine,
        (straight, ALL),
        exchanged,
        wanted=wanted,
        kept=kept,
    )
    return ranked
