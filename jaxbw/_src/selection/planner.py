"""The planner of cuda/host, as the selection asks it, and what it refuses, in a user's words.

What a launch does, and whether it is legal, is decided there alone (cuda/host/gemm_plan.cc and
gemm_rules.cc): nothing of it is computed here.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from jaxbw import _native
from jaxbw._native import DataType, Major, Plan, Problem, Violation
from jaxbw._src.problem import GemmProblem, describe
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.config import GemmConfig

# By the code of a rule. Fields are those of the violation and of GemmConfig; `takes` is a list,
# `array` names an operand. (A rule that is not here cannot be broken by a GemmConfig.)
MESSAGES: Mapping[str, str] = {
    # of a problem
    "empty": "a dimension is 0; there is nothing to launch",
    "gated_c": "the matmul is gated and has a c; add c as the residual",
    "out_scale": "the result has not 8 bits; only such a one has a scale",
    "block_scales_sm100": "scales of blocks of 128 are for sm90, unless both operands are float8 "
    "and have powers of two: jaxbw.quantize(..., block=128, scale_dtype='float8_e8m0fnu')",
    "block_scales_8bit": "scales of blocks of 128 are for operands of which both have 8 bits",
    "block_scales_gated": "the matmul is gated and has scales of blocks of 128: take two matmuls",
    "block_scales_columns": "each column of rhs has scales of its own along k; kernels take those "
    "of 128x128 blocks, and of rows of lhs: swap the operands, or leave it to XLA",
    "mx": "MX formats are for sm100, for operands of 8 or 4 bits, and go without other scales",
    "mx_block": "{block} numbers share a scale; of 8 bits that is 32, of 4 bits 16 or 32",
    "mx_4bit": "{array} has 4 bits; of these kernels take what jaxbw.quantize makes, K-major, with "
    "scales, and k a multiple of {step}",
    "out_mx": "a result in mxfp8 is for sm100, for operands of which both have an MX format, and "
    "goes without out_scale",
    "extent": "{array} has a dimension of 2^31 or more; TMA coordinates are int32",
    "stride": "{array} has matrices of 2^40 bytes or more, the largest stride of TMA",
    "address_space": "{array} is larger than any address space",
    "grouped_epilogue": "of grouped rows kernels take alpha, bias, gate and short activations, and "
    "scales of 8 bits, of a grouped contraction alpha and a float32 c of a float32 result",
    "grouped_8bit_major": "rhs has n as its last dimension, and of 8 bits {family} takes k: pass "
    "the mT of weights [groups, n, k], or what jaxbw.quantize(..., both=True) returns",
    "grouped_alignment": "{array} has rows of {bytes} bytes; of grouped matmuls kernels take "
    "multiples of {unit}",
    "grouped_mx": "in block-scaled formats kernels multiply rows in groups, of one group_sizes, as "
    "they lie, and beside 8 bits rhs may have 4, but not lhs",
    "gathered": "kernels gather the rows of one grouped matmul, not of a batch of them",
    "grouped_rows": "{batch} x {rows} rows; grouped are up to {most}, and fewer than 2^31 in all",
    # of a configuration
    "block_k": "block_k is {block_k}; operands of {itemsize} bytes take multiples of {span} up to "
    "{most}, or None for {span}",
    "block_k_of_any": "block_k is {block_k}; it is 1 to {spans} spans: of 32 elements of f32, 64 "
    "of 16 bits, 128 of 8, or 256 of 4",
    "block_k_sm90": "block_k is {block_k}; sm90 kernels have {span}",
    "pingpong_sm100": "pingpong is True; it is for sm90",
    "swizzle": "swizzle is {swizzle}; it is 1 to {most}",
    "split_k": "split_k is {split_k}; on {family} it is 1 to {most}",
    "split_tail_whole": "split_tail is True and split_k 1: say into how many parts, 2 or more",
    "batch_invariant_tail": "split_tail and batch_invariant are True: which tiles are split would "
    "follow m",
    "accumulators": "accumulators is {accumulators}; it is 1 or 2",
    "accumulators_sm90": "accumulators is {accumulators}; sm90 has 1, in registers",
    "accumulators_full": "accumulators is 1; a tile of {block_m} rows fills both: leave it None",
    "scheduler_clc": "scheduler is {scheduler!r}; {family} takes 'static' or 'none' or 'dynamic'",
    "cta_group_sm90": "cta_group is {cta_group}; sm90 takes 1",
    "block_m_sm90": "block_m is {block_m}; sm90 takes {takes} with pingpong {pingpong}",
    "block_n_sm90": "block_n is {block_n}; sm90 takes {listed} here",
    "cta_group": "cta_group is {cta_group}; sm100 takes 1 or 2",
    "block_m": "block_m is {block_m}; cta_group {cta_group} computes {takes} rows",
    "block_n": "block_n is {block_n}; {block_m} rows with cta_group {cta_group} take multiples of "
    "{step} from {step} to {most}",
    "cluster": "cluster is {cluster}; on {family} it has 1 to {most} CTAs",
    "cluster_group": "cluster {cluster}: its first number is not a multiple of cta_group "
    "{cta_group}",
    "cluster_k": "cluster_k is {cluster_k}; {family} takes {listed}",
    "cluster_size": "cluster {cluster} with cluster_k {cluster_k} has {ctas} CTAs; up to {most}",
    "cluster_slices": "cluster_k is {cluster_k}; the CTAs share whole slices of {rows} rows, and "
    "block_m is {block_m}",
    "cluster_sums": "cluster_k is {cluster_k}; shared memory does not hold the sums of a "
    "{block_m}x{block_n} tile twice: take a smaller tile",
    "cluster_k_sm100": "cluster_k is {cluster_k}; sm100 takes it with swap_ab True, split_k 1 and "
    "cta_group 1",
    "cluster_sums_sm100": "cluster_k is {cluster_k}; staging buffers do not hold the sums of a "
    "{block_m}x{block_n} tile from all parts: take a smaller tile, or fewer parts",
    "stage": "block_k is {block_k}; one such stage does not fit shared memory: take a smaller",
    "stages": "stages is {stages}; this tile takes {least} to {most}, or None for as many as fit",
    # of both
    "skinny": "block_m is {block_m}, few rows; sm90 takes that without cluster, split_k and "
    "swap_ab, and with cluster_k for parts of K",
    "skinny_epilogue": "block_m is {block_m}, whose kernels have alpha, bias, a short "
    "activation, a gate, and a residual, and results of 16 bits and more: take a larger one",
    "skinny_row": "{array} is one row of {bytes} bytes; where block_m is {block_m}, few rows, sm90 "
    "takes multiples of {unit}: take a larger one",
    "grouped_config": "the configuration has a cluster, split_k, swap_ab or raster 'n'; these "
    "are not for grouped matmuls, but for split_k up to 4 with split_tail of a contraction on sm90",
    "grouped_config_sm100": "the configuration has scheduler 'clc', a block_k of several spans, "
    "more than 128 rows of a CTA, or of a pair fewer, or columns that are no multiple of 32; these "
    "are not for grouped matmuls",
    "no_kernel": "there is no kernel for this tile, dtype and layout",
    "block_n_of_operands": "block_n is {block_n}; of such operands {family} takes {listed} here",
    "whole_tiles": "a tile of {block_m}x{block_n} takes no split_k, cluster_k, swap_ab, c, "
    "residual or gate, saves nothing, and stores rows of multiples of 16 bytes",
    "block_scales_swap": "swap_ab is True and there are scales of blocks of 128: leave it False",
    "mx_gated": "block_n is {block_n}; of a gated matmul in an MX format, with cta_group "
    "{cta_group}, it is {takes}",
    "mx_rows": "block_m is {block_m}; in MX formats it is {takes}",
    "mx_columns": "block_n is {block_n}; in MX formats it is a multiple of {step}",
    "mx_accumulators": "{accumulators} accumulators of {block_n} columns leave no room for scales; "
    "set accumulators to 1",
    "mx_cluster_k": "cluster_k is not for MX formats; take split_k",
    "out_mx_swap": "swap_ab is True and the result is in mxfp8: leave it False",
    "out_mx_columns": "block_n is {block_n}; of a result in mxfp8 it is a multiple of {step}",
    "gated_swap": "swap_ab is True and the matmul is gated; that is not for gated matmuls",
    "gated_pair": "a gated matmul in 128 rows of a pair; take block_m 256, or cta_group 1",
    "gated_columns": "block_n is {block_n}; a gated matmul takes multiples of {step}, half of it "
    "the gate",
    "gated_columns_sm90": "block_n is {block_n}; a gated matmul on sm90 takes {takes}",
    "columns": "{array} is MN-major and a CTA's part of the tile is {extent} wide; it is loaded in "
    "columns of {step}",
    "columns_8bit": "block_n is {block_n}; {array} has 8 bits and is MN-major, which takes "
    "multiples of {step} with cta_group {cta_group}",
    "columns_of_result": "block_n is {block_n}; a result of 8 bits takes multiples of {step}",
    "shares": "{array} is shared by {peers} CTAs, which cannot load equal parts of {rows} rows in "
    "groups of {group}",
    "box_rows": "a CTA would load {rows} rows of {array} at once, more than {most}: take a cluster "
    "whose CTAs share it",
    "parts": "split_k is {split_k}; a contraction of {k} in stages of {block_k} has no more than "
    "{blocks} part{s}",
    "parts_of_cluster": "split_k is {split_k} and cluster_k {cluster_k}; a contraction of {k} in "
    "stages of {block_k} has no more than {blocks} part{s}",
    "grid": "{tiles_m}x{tiles_n} cluster tiles for each of {batch} batch indices are more than a "
    "grid holds: take larger tiles",
    "slices": "{slices} slices of split tiles are more than 32 bits count: take larger tiles",
}
_ARRAYS = ("lhs", "rhs", "the result")


def plan(
    problem: GemmProblem | RaggedProblem, family: str, config: GemmConfig, resident: int = 1
) -> Plan | Violation:
    """What a launch will do, or the rule that forbids it.

    Args:
      problem: of known sizes and of dtypes that kernels have.
      family: "sm90" or "sm100".
      config: has a tile.
      resident: clusters that the device runs at a time.
    """
    return _native.plan(family, problem.native, config, resident)


def config_refusal(config: GemmConfig, family: str) -> str | None:
    """Why no kernel of a family can be launched so, whatever the problem; None where one can."""
    if config.leaves_tile_open:
        if needing := config.needing_a_tile:
            return f"{', '.join(needing)} without a tile: give block_m and block_n"
        config = replace(config, block_m=128, block_n=128)  # which every family has
    if config.block_m is None or config.block_n is None:
        missing = "block_m" if config.block_m is None else "block_n"
        return f"{missing} is None: give both of block_m and block_n, or neither"
    found = _native.complete_config(family, config)
    return message(found, family, config) if isinstance(found, Violation) else None


def problem_refusal(problem: GemmProblem, family: str) -> str | None:
    """Why no kernel takes a problem, whatever the configuration; None where one may."""
    broken = _native.check_problem(family, problem.native)
    return None if broken is None else message(broken, family, GemmConfig(), problem)


def message(
    broken: Violation, family: str, config: GemmConfig, problem: GemmProblem | None = None
) -> str:
    """What is wrong, in terms of GemmConfig, and the way out."""
    fields = broken.fields
    values = {**vars(config), **fields, "family": family}
    for name in ("pingpong", "scheduler"):  # numbers to the runtime
        values[name] = getattr(config, name)
    values["s"] = "s" if fields.get("blocks") != 1 else ""
    values["listed"] = listed = ", ".join(map(str, broken.takes))
    values["takes"] = " or ".join(listed.rsplit(", ", 1))
    if "operand" in fields:
        values["array"] = _array(fields["operand"], problem)
    return MESSAGES[broken.rule].format_map(values)


def _array(operand: int, problem: GemmProblem | None) -> str:
    name = _ARRAYS[operand]
    if problem is None:
        return name
    dtypes = (problem.lhs_dtype, problem.rhs_dtype, problem.output)
    shapes = (problem.lhs_shape, problem.rhs_shape, problem.output_shape)
    return f"{name} {describe(dtypes[operand], shapes[operand])}"


def filled(config: GemmConfig, family: str, problem: Problem) -> GemmConfig:
    """A legal configuration that has a tile, its open fields as they are launched."""
    found = _native.complete_config(family, config, problem)
    assert not isinstance(found, Violation), str(found)
    return replace(config, **found)


@cache
def scheduler_on(scheduler: str | None, family: str) -> str:
    """The scheduler of a launch; one that the family does not have stays what it is."""
    config = GemmConfig(128, 128, scheduler=scheduler)
    found = _native.complete_config(family, config)
    return str(scheduler) if isinstance(found, Violation) else str(found["scheduler"])


def any_problem(
    input: DataType = DataType.BF16,
    lhs_major: Major = Major.K,
    rhs_major: Major = Major.K,
    *,
    gated: bool = False,
    mx: int = 0,
    out_mx: bool = False,
) -> Problem:
    """A problem of which no size breaks a rule."""
    return Problem(
        batch=1,
        m=4096,
        n=4096,
        k=2**16,
        lhs_major=lhs_major,
        rhs_major=rhs_major,
        lhs=input,
        rhs=input,
        gated=gated,
        mx=mx,
        out_mx=out_mx,
        output=DataType.E4M3 if out_mx else DataType.BF16,
    )
