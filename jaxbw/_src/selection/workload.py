"""Workload: a problem as the kernel sees it, straight or with its operands exchanged (swap-AB)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxbw._native import Activation, DataType, Major, Problem
from jaxbw._src.problem import DATA_TYPES, GemmProblem, itemsize
from jaxbw._src.selection.config import CANONICAL_M
from jaxbw._src.selection.eligibility import ALIGNMENT, effective_major, repacked

_SIZES = {DataType.F32: 4, DataType.E4M3: 1, DataType.E5M2: 1, DataType.E2M1: 0.5}
_OF_SIZE = {1: DataType.E4M3, 2: DataType.BF16, 4: DataType.F32}
LINE = 128  # hardware: bytes of a line of L2; copies have a pitch of whole lines


@dataclass(frozen=True)
class Workload:
    """What the cost of a matmul depends on, beside machine and configuration.

    Attributes:
      batch, m, n, k: extents; m and n exchanged where `swapped`.
      a_major, b_major: layouts, after any repacking.
      a_batched, b_batched: whether each batch index has a matrix of its own.
      input: dtype of the operands in shared memory; output_size: bytes of an element of the result.
      extra_bytes: per element of the result, that the epilogue reads and writes beside it.
      activated, gated, swapped: whether it is.
      general: whether the epilogue reads arrays that are shaped as the result, or has a long
        activation.
      saves: whether the epilogue saves arrays for a gradient.
      residual_by_tma: whether all that it reads is a residual that TMA can bring.
      tma_rows: whether TMA can store the result's rows.
      a_straddles, b_straddles: whether an operand's rows, as they are loaded, do not begin at lines
        of 128 bytes.
      repack_bytes, repacks: what is read and written ahead of the matmul, and by how many kernels:
        one copies all operands that have to be, and one each splits float32 operands in pieces.
      lhs_scaled, rhs_scaled: whether rows of lhs, and columns of rhs, have scales, which not every
        kernel holds in registers.
      promoted: whether sums of 8 bits must be as accurate as float32's.
      mx: numbers of k that share a scale, where the operands have an MX format; else 0.
      a_share, b_share: of the bytes of shared memory, those that are loaded: 0.5 of an operand of 4
        bits beside one of 8.
      out_mx: whether the result is in MXFP8.
    """

    batch: int
    m: int
    n: int
    k: int
    a_major: Major
    b_major: Major
    a_batched: bool
    b_batched: bool
    input: DataType
    output_size: int
    extra_bytes: int
    activated: bool
    gated: bool
    general: bool
    saves: bool
    residual_by_tma: bool
    swapped: bool
    tma_rows: bool
    a_straddles: bool
    b_straddles: bool
    repack_bytes: int
    repacks: int
    lhs_scaled: bool = False
    rhs_scaled: bool = False
    promoted: bool = False
    mx: int = 0
    a_share: float = 1.0
    b_share: float = 1.0
    out_mx: bool = False

    @property
    def itemsize(self) -> float:
        """Bytes of an element of an operand, in shared memory."""
        return _SIZES.get(self.input, 2)

    @property
    def native(self) -> Problem:
        """The problem that it is of, as far as it matters to a plan: not as it is launched."""
        sides = [(self.m, self.a_major, self.a_batched), (self.n, self.b_major, self.b_batched)]
        lhs, rhs = reversed(sides) if self.swapped else sides
        return Problem(
            batch=self.batch,
            m=lhs[0],
            n=rhs[0],
            k=self.k,
            lhs_batched=lhs[2],
            rhs_batched=rhs[2],
            lhs_major=lhs[1],
            rhs_major=rhs[1],
            lhs=self.input,
            rhs=self.input,
            promoted=self.promoted,
            mx=self.mx,
            out_mx=self.out_mx,
            output=_OF_SIZE[self.output_size],
            activation=self._activation,
            residual=DataType.BF16 if self.residual_by_tma else None,
            save=self.saves,
            gated=self.gated,
            lhs_scale=self.lhs_scaled,
            rhs_scale=self.rhs_scaled,
        )

    @property
    def _activation(self) -> Activation:
        """One that stands for all that take the same way; a long one for whatever is general."""
        if self.general and not (self.residual_by_tma or self.out_mx):
            return Activation.GELU_EXACT
        return Activation.RELU if self.activated else Activation.NONE


def workload(problem: GemmProblem, family: str, *, swapped: bool) -> Workload:
    """The workload of a problem, to the kernels of a family."""
    p, epilogue = problem, problem.epilogue
    read = [dtype.itemsize for dtype in (epilogue.c, epilogue.residual) if dtype is not None]
    saved = [dtype.itemsize for _, dtype in p.results[1 : 1 + epilogue.saves]]
    repacked_here = repacked(p, family)
    copies, splits = list(_repacked_bytes(p, repacked_here)), list(_split_bytes(p))
    lhs = effective_major(p.lhs_dtype, p.lhs_major, family), p.lhs_batched
    rhs = effective_major(p.rhs_dtype, p.rhs_major, family), p.rhs_batched
    (a_major, a_batched), (b_major, b_batched) = (rhs, lhs) if swapped else (lhs, rhs)
    straddles = [name not in repacked_here and _straddles(p, name) for name in ("lhs", "rhs")]
    a_straddles, b_straddles = reversed(straddles) if swapped else straddles
    wide = max(p.lhs_dtype, p.rhs_dtype, key=itemsize)
    shares = [itemsize(dtype) / itemsize(wide) for dtype in (p.lhs_dtype, p.rhs_dtype)]
    a_share, b_share = reversed(shares) if swapped else shares
    return Workload(
        batch=p.batch,
        m=p.n if swapped else p.m,
        n=p.m if swapped else p.n,
        k=p.k,
        a_major=a_major,
        b_major=b_major,
        a_batched=a_batched,
        b_batched=b_batched,
        input=DATA_TYPES[wide.name],
        output_size=p.output.itemsize,
        extra_bytes=sum(read) + sum(saved),
        activated=epilogue.activation is not None,
        gated=epilogue.gated,
        general=bool(read) or epilogue.activation == "gelu_exact",
        saves=bool(saved),
        residual_by_tma=_residual_by_tma(p) and not swapped,
        swapped=swapped,
        tma_rows=epilogue.out_format is not None or p.n * p.output.itemsize % ALIGNMENT == 0,
        a_straddles=a_straddles,
        b_straddles=b_straddles,
        repack_bytes=sum(copies) + sum(splits),
        repacks=int(bool(copies)) + len(splits),
        lhs_scaled=epilogue.lhs_scale,
        rhs_scaled=epilogue.rhs_scale,
        promoted=p.promoted,
        mx=p.mx,
        a_share=a_share,
        b_share=b_share,
        out_mx=epilogue.out_format is not None,
    )


def canonical(work: Workload) -> Workload:
    """The one workload that stands for all that differ in m and batch; for straight ones only."""
    values = work.__dict__ | {"m": CANONICAL_M, "batch": 1, "a_batched": True, "b_batched": True}
    return Workload(**(values | {"a_straddles": False, "repack_bytes": 0, "repacks": 0}))


def _residual_by_tma(p: GemmProblem) -> bool:
    e = p.epilogue
    alone = e.c is None and not e.is_scaled and e.results == 1 and e.activation != "gelu_exact"
    size = 0 if e.residual is None else e.residual.itemsize
    return alone and size == 2 and p.n * size % ALIGNMENT == 0


def _straddles(p: GemmProblem, name: str) -> bool:
    lhs, rhs = (p.lhs_shape, p.lhs_dtype), (p.rhs_shape, p.rhs_dtype)
    (_, outer, contiguous), dtype = lhs if name == "lhs" else rhs
    return outer > 1 and contiguous * itemsize(dtype) % LINE != 0


def _repacked_bytes(p: GemmProblem, names: Sequence[str]) -> Iterator[int]:
    """For each array that is repacked, the bytes that are read and written."""
    arrays = {"lhs": (p.lhs_shape, p.lhs_dtype), "rhs": (p.rhs_shape, p.rhs_dtype)}
    for name in names:
        shape, dtype = arrays[name]
        for _ in range(2 if name == "rhs" and p.epilogue.gated else 1):
            yield int(2 * math.prod(shape) * itemsize(dtype))


def _split_bytes(p: GemmProblem) -> Iterator[int]:
    """For each array that is split in pieces, the bytes that are read and written."""
    if p.pieces is None:
        return
    given = p.unsplit
    shapes = [
        (given.lhs_shape, p.lhs_shape),
        *[(given.rhs_shape, p.rhs_shape)] * (1 + p.epilogue.gated),
    ]
    for read, written in shapes:
        yield given.lhs_dtype.itemsize * math.prod(read) + p.lhs_dtype.itemsize * math.prod(written)
