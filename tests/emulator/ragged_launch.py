"""Launches grouped matmuls in the emulator, as the host does it there, and an oracle for them."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import _native, emulator
from jaxbw._native import Major, Plan, Violation
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.config import GemmConfig

from . import installed
from .gemm_launch import E2M1, packed, scale_tiles

Array = npt.NDArray[Any]
DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e2m1": E2M1,
}
ACTIVATIONS: dict[str | None, Any] = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
}
GUARD = 256  # elements in front of the result and behind it
POISON = 0xA5
NAN = 0xFF  # bytes of a NaN of any type


@dataclass(frozen=True)
class Ragged:
    """A grouped matmul: `sizes` of one batch index, or of each; the first matrix's is `offset`."""

    sizes: tuple[Any, ...]
    m: int = 200
    k: int = 72
    n: int = 136
    contraction: bool = False
    groups: int | None = None  # as many as there are sizes
    offset: int = 0
    shared: tuple[str, ...] = ()  # "lhs", "rhs": one for the whole batch
    transposed: bool = False
    dtype: str = "bf16"
    rhs_dtype: str | None = None  # as lhs
    promoted: bool = False
    scales: tuple[str, ...] = ()  # "lhs", "rhs": operands that have some
    output: str = "bf16"
    tile: tuple[int, int] = (128, 128)
    pingpong: bool = False
    stages: int | None = 3
    swizzle: int = 2
    scheduler: str | None = None
    split: int = 1  # parts of the last tiles of a group that has most of the rows
    sm_count: int = 3
    alpha: float = 1.0
    bias: str | None = None
    activation: str | None = None
    gated: bool = False
    adds: bool = False  # to a c
    source_rows: int | None = None  # lhs has so many, of which indices choose m
    indices: tuple[int, ...] = ()  # the first of them; others are drawn
    format: str | None = None  # block-scaled
    rhs_format: str | None = None  # as lhs's
    family: str = "sm90"
    cta_group: int = 1

    def on(self, kernel: str) -> "Ragged":
        """The same by a kernel of another family, which may have no turns of warpgroups, nor parts.

        Or, of "sm100 pairs", by as many pairs of CTAs.
        """
        if kernel == "sm90":
            return self
        case = replace(self, family="sm100", pingpong=False, split=1)
        if kernel == "sm100":
            return case
        tile = (256, self.tile[1])
        return replace(case, tile=tile, cta_group=2, sm_count=2 * self.sm_count)

    def of_8_bits(self, *, transposed: bool = True) -> "Ragged":
        """The same by float8 operands, whose rows are aligned.

        Weights are as Hopper's tensor cores take them, or as they lie.
        """
        dtype = self.dtype if self.dtype.startswith("e") else "e4m3"
        n = self.n if transposed else -(-self.n // 16) * 16
        return replace(self, dtype=dtype, transposed=transposed, k=-(-self.k // 16) * 16, n=n)

    @property
    def table(self) -> Array:
        """[batch, total groups]."""
        return np.atleast_2d(np.array(self.sizes, np.int64)).astype(np.int32)

    @property
    def problem(self) -> RaggedProblem:
        """What the planner is asked."""
        batch, total = self.table.shape
        return RaggedProblem(
            ragged_contraction=self.contraction,
            batch=batch,
            m=self.m,
            k=self.k,
            n=self.n,
            groups=total if self.groups is None else self.groups,
            total_groups=total,
            lhs_batched="lhs" not in self.shared,
            rhs_batched="rhs" not in self.shared,
            rhs_major=Major.K if self.transposed else Major.MN,
            lhs_dtype=DTYPES[self.dtype],
            rhs_dtype=DTYPES[self.rhs_dtype or self.dtype],
            output=DTYPES[self.output],
            promoted=self.promoted,
            epilogue=Epilogue(
                alpha=self.alpha,
                c=DTYPES["f32"] if self.adds else None,
                bias=None if self.bias is None else DTYPES[self.bias],
                activation=self.activation,
                gated=self.gated,
                lhs_scale="lhs" in self.scales,
                rhs_scale="rhs" in self.scales,
                lhs_format=self.format,
                rhs_format=self.rhs_format or self.format,
            ),
            source_rows=self.source_rows,
        )

    @property
    def config(self) -> GemmConfig:
        """The launch."""
        return GemmConfig(
            *self.tile,
            pingpong=self.pingpong,
            stages=self.stages,
            swizzle=self.swizzle,
            cta_group=self.cta_group,
            cluster=(self.cta_group, 1),
            scheduler=self.scheduler,
            split_k=self.split,
            split_tail=self.split > 1,
        )

    @property
    def kernel(self) -> str:
        """The name of the kernel that serves it."""
        return self.plan().kernel

    def planned(self) -> Plan | Violation:
        """What a launch will do, or why there is none."""
        clusters = self.sm_count // self.cta_group
        return _native.plan(self.family, self.problem.native, self.config, clusters)

    def plan(self) -> Plan:
        """The same of a legal one."""
        found = self.planned()
        assert isinstance(found, Plan), str(found)
        return found

    def bounds(self) -> Array:
        """[batch, groups, 2]: first row of a matrix's group, and its end."""
        problem = self.problem
        sizes = np.minimum(np.maximum(self.table.astype(np.int64), 0), self.m)
        ends = np.minimum(np.cumsum(sizes, axis=1), self.m)
        starts = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
        found = np.zeros((problem.batch, problem.groups, 2), np.int64)
        for matrix in range(problem.groups):
            if 0 <= (group := matrix + self.offset) < problem.total_groups:
                found[:, matrix] = np.stack([starts[:, group], ends[:, group]], axis=1)
        return found

    def operands(self, seed: int = 0) -> tuple[Array, Array]:
        """Small integers, and NaN in all rows that belong to no group of the matrices."""
        rng = np.random.default_rng(seed)
        lhs, rhs = (
            rng.integers(-3, 4, shape).astype(np.float32)
            for shape in (self.problem.lhs_shape, self.problem.rhs_shape)
        )
        if self.source_rows is None:
            for x in (lhs, rhs) if self.contraction else (lhs,):
                x[~self.used(x.shape[:2])] = np.nan
        else:
            wanted = self.chosen()[self.used((1, self.m))[0]]
            lhs[:, ~np.isin(np.arange(self.source_rows), wanted)] = np.nan
        return lhs, rhs

    def lhs_rows(self) -> Array:
        """A call's indices: whatever number for rows of no group, few beyond lhs for others."""
        rng = np.random.default_rng(2)
        assert self.source_rows is not None
        rows = rng.integers(-1, self.source_rows + 1, self.m)
        rows[: len(self.indices)] = self.indices
        unused = ~self.used((1, self.m))[0]
        rows[unused] = rng.choice([-(2**31), 2**31 - 1, 0], self.m)[unused]
        return rows.astype(np.int32)

    def chosen(self) -> Array:
        """The rows of lhs that indices say."""
        assert self.source_rows is not None
        return np.clip(self.lhs_rows(), 0, self.source_rows - 1)

    def terms(self) -> dict[str, Array]:
        """What the epilogue reads, in the order of a call: small integers, powers of two as scales.

        And NaN for rows that have no group, and for groups without rows.
        """
        rng = np.random.default_rng(1)
        problem, terms = self.problem, {}
        has_rows: Any = (self.bounds()[..., 1] > self.bounds()[..., 0]).any(axis=0)
        if self.gated:
            terms["rhs_up"] = rng.integers(-3, 4, problem.rhs_shape).astype(problem.rhs_dtype)
        if self.adds:
            terms["c"] = rng.integers(-9, 10, problem.output_shape).astype(np.float32)
        if self.bias is not None:
            shape = (problem.rhs_shape[0], problem.groups, problem.n)
            bias = rng.integers(-9, 10, shape).astype(np.float32)
            bias[:, ~has_rows] = np.nan
            terms["bias"] = bias.astype(DTYPES[self.bias])
        if "lhs" in self.scales:
            of_rows = np.exp2(rng.integers(-2, 3, problem.lhs_shape[:2])).astype(np.float32)
            of_rows[~self.used(of_rows.shape)] = np.nan
            terms["lhs_scale"] = of_rows
        for name in ("rhs", *["rhs_up"] * self.gated) if "rhs" in self.scales else ():
            shape = (problem.rhs_shape[0], problem.groups, problem.n)
            of_columns = np.exp2(rng.integers(-2, 3, shape)).astype(np.float32)
            of_columns[:, ~has_rows] = np.nan
            terms[f"{name}_scale"] = of_columns
        if self.format is not None:
            names = ("rhs", *["rhs_up"] * self.gated)
            terms["lhs_tiles"] = self._tiles_of_entries()
            terms |= {f"{name}_tiles": self._tiles_of_matrices(name, has_rows) for name in names}
        return terms

    @property
    def block(self) -> int:
        """Numbers along k that share a scale."""
        return 16 if self.format == "nvfp4" else 32

    def exponents(self, of: str) -> Array:
        """Of the scales of an operand, `[m, blocks]` or `[groups, n, blocks]`."""
        rng = np.random.default_rng(len(of))
        rows = (self.m,) if of == "lhs" else (self.problem.groups, self.n)
        return rng.integers(-2, 3, (*rows, -(-self.k // self.block)))

    def scaled(self, x: Array, of: str) -> Array:
        """An operand, in float64, times its scales."""
        if self.format is None:
            return x.astype(np.float64)
        scale = np.exp2(self.exponents(of).astype(np.float64)).repeat(self.block, axis=-1)
        scale = scale[..., : self.k]
        is_turned = of != "lhs" and not self.transposed
        return x.astype(np.float64) * (scale.swapaxes(-1, -2) if is_turned else scale)

    def _tiles_of_entries(self) -> Array:
        """Those of each tile of D, by 128 rows of a group, and NaN for all other rows."""
        exponents, tiles, height = self.exponents("lhs"), [], self.tile[0]
        used = self.used((1, self.m))[0]
        edges = np.minimum(np.cumsum(np.maximum(self.table[0].astype(np.int64), 0)), self.m)
        for first, end in itertools.pairwise([0, *edges.tolist(), self.m]):
            for row in range(first, first + -(-(end - first) // height) * height, 128):
                rows = min(max(end - row, 0), 128) if used[first] else 0
                found = scale_tiles(exponents[None, min(row, self.m - 1) :][:, :128], self.block)[0]
                tiles.append(self._with_nan(found, rows))
        while len(tiles) < self.plan().tiles_m * height // 128:
            tiles.append(self._with_nan(scale_tiles(exponents[None, :1], self.block)[0], 0))
        return np.concatenate(tiles)[None]

    def _tiles_of_matrices(self, of: str, has_rows: Array) -> Array:
        """Those of each matrix, and NaN where its group has no rows."""
        tiles = scale_tiles(self.exponents(of), self.block)
        for matrix in np.flatnonzero(~has_rows):
            tiles[matrix] = self._with_nan(tiles[matrix], 0)
        return tiles

    def _with_nan(self, tiles: Array, rows: int) -> Array:
        """A row of tiles, with NaN behind so many rows."""
        row = np.arange(128)
        places = (row % 32 * 16 + row // 32 * 4)[rows:, None] + np.arange(4)
        tiles.view(np.uint8)[..., places] = NAN if self.block == 32 else 0x7F
        return tiles

    def used(self, shape: tuple[int, ...]) -> Array:
        """Which rows of an array [batch|1, m] belong to a group of the matrices."""
        used = np.zeros(shape, bool)
        for batch, groups in enumerate(self.bounds()):
            for first, end in groups:
                used[batch if len(used) > 1 else 0, first:end] = True
        return used

    def expected(self, lhs: Array, rhs: Array) -> Array:
        """The formula in float64, rounded once."""
        problem, terms = self.problem, self.terms()
        lhs = lhs if self.source_rows is None else lhs[:, self.chosen()]
        out = terms.get("c", np.zeros(problem.output_shape)).astype(np.float64)
        for batch, groups in enumerate(self.bounds()):
            a, *bs = (
                self.scaled(x[batch if len(x) > 1 else 0], of)
                for of, x in (("lhs", lhs), ("rhs", rhs), ("rhs_up", terms.get("rhs_up", rhs)))
            )
            for matrix, (first, end) in enumerate(groups):
                rows = a[first:end]
                if self.contraction:
                    out[batch, matrix] += self.alpha * (rows.T @ bs[0][first:end])
                    continue
                z, up = (
                    self.alpha * (rows @ (b[matrix].T if self.transposed else b[matrix]))
                    for b in bs
                )
                if "lhs_scale" in terms:
                    of_lhs = terms["lhs_scale"]
                    of_rows = of_lhs[batch if len(of_lhs) > 1 else 0, first:end, None]
                    z, up = z * of_rows, up * of_rows
                if "rhs_scale" in terms and first < end:
                    of_rhs = [terms["rhs_scale"], terms.get("rhs_up_scale", terms["rhs_scale"])]
                    z, up = (
                        x * scale[batch if len(scale) > 1 else 0, matrix]
                        for x, scale in zip((z, up), of_rhs, strict=True)
                    )
                if "bias" in terms and first < end:
                    bias = terms["bias"][batch if len(terms["bias"]) > 1 else 0, matrix]
                    z = z + bias.astype(np.float64)
                z = ACTIVATIONS[self.activation](z)
                out[batch, first:end] = z * up if self.gated else z
        return out.astype(np.float32).astype(problem.output)

    def compare(self, result: Array) -> None:
        """Raises where a result of the operands is not what is expected."""
        expected = self.expected(*self.operands()).astype(np.float32)
        got = result.astype(np.float32)
        if self.activation == "silu":  # by approximations of 2 ulp, then rounded
            error = max(2.0**-21, {"bf16": 2.0**-8, "f16": 2.0**-11}.get(self.output, 0))
            np.testing.assert_allclose(got, expected, rtol=error, atol=2.0**-21)
        else:
            np.testing.assert_array_equal(got, expected)


def launch(
    case: Ragged,
    lhs: Array,
    rhs: Array,
    kernel: emulator.Module | None = None,
    more_buffers: Iterable[Array] = (),
    **options: Any,
) -> tuple[Array, Array, list[emulator.Report]]:
    """The result, the workspace, and the reports of the table's kernel and the matmul's.

    Of them `kernel` takes the place of the one that has its name; it may access `more_buffers`.

    Raises:
      AssertionError: something around the result has changed.
    """
    problem, plan, terms = case.problem, case.plan(), case.terms()
    c = terms.pop("c", None)
    operands = {
        "lhs": lhs.astype(problem.lhs_dtype),
        "rhs": rhs.astype(problem.rhs_dtype),
        **terms,
        **({} if case.source_rows is None else {"lhs_rows": case.lhs_rows()}),
        "group_sizes": case.table,
        "group_offset": np.array(case.offset, np.int64).astype(np.int32),
    }
    placed: dict[str, Array] = {}
    for name, values in operands.items():
        values = packed(values) if values.dtype == E2M1 else values
        placed[name] = emulator.empty(values.shape, values.dtype)
        placed[name][...] = values
        placed[name].flags.writeable = False
    guarded = emulator.empty(int(np.prod(problem.output_shape)) + 2 * GUARD, problem.output)
    guarded.view(np.uint8)[...] = POISON
    result = guarded[GUARD:-GUARD].reshape(problem.output_shape)
    result.view(np.uint8)[...] = NAN
    if c is not None:
        result[...] = c
    workspace = emulator.empty(plan.workspace_bytes, np.uint8)
    workspace[...] = NAN
    arrays = placed | {"result": result, "workspace": workspace}
    counters = emulator.empty(plan.counters, np.uint32)
    counters[...] = 0
    if counters.size:
        arrays["counters"] = counters
    if c is not None:
        arrays["c"] = result
    addresses = {name: array.ctypes.data for name, array in arrays.items()}
    calls = [
        call
        for call in _native.emulated_launches(plan, addresses, sm_count=case.sm_count)
        if call is not None
    ]
    modules = [installed.load(call.kernel) for call in calls]
    if kernel is not None:
        (place,) = (i for i, module in enumerate(modules) if module.entries() == kernel.entries())
        modules[place] = kernel
    reports = []
    for call, module in zip(calls, modules, strict=True):
        report = module.launch(
            module.entries()[0],
            grid=call.blocks,
            block=call.threads,
            cluster=call.cluster_ctas,
            dynamic_smem=call.shared_memory,
            args=[call.parameters],
            buffers=[guarded, workspace, counters, *placed.values(), *more_buffers],
            sm_count=case.sm_count,
            **options,
        )
        reports.append(report)
    edges = np.concatenate([guarded[:GUARD], guarded[-GUARD:]])
    assert (edges.view(np.uint8) == POISON).all(), "the kernel wrote outside the result"
    assert not counters.any(), "the next launch expects counters of zero"
    return result, workspace, reports


def check(case: Ragged, **options: Any) -> list[emulator.Report]:
    """Runs a case and compares every element with the oracle; the reports, without findings."""
    result, _, reports = launch(case, *case.operands(), **options)
    for report in reports:
        assert not report.findings, report.findings
    case.compare(result)
    return reports
