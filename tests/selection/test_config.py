"""Which configurations there are: every rule has a value that breaks it and a way out."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jaxbw
from jaxbw import _native
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection import planner
from jaxbw._src.selection.config import GemmConfig

K, MN = _native.Major.K, _native.Major.MN
SINGLE = GemmConfig(128, 128)
PAIR = GemmConfig(256, 128, cta_group=2, cluster=(2, 1))
BASE = {"sm90": SINGLE, "sm100": PAIR, "sm100 single": SINGLE}


@pytest.mark.parametrize(
    ("base", "change", "reason"),
    [
        ("sm90", {"block_m": 64}, "block_m is 64; sm90 takes 8, 16, 32, 128, 192 or 256"),
        ("sm90", {"block_n": 80}, "sm90 takes 32, 64, 96, 128, 160, 192, 256, 320"),
        ("sm90", {"block_m": 256, "block_n": 256}, "sm90 takes 32, 128 here"),
        ("sm90", {"block_k": 16}, "block_k is 16; sm90 kernels have 64"),
        ("sm90", {"block_k": 192}, "block_k is 192; sm90 kernels have 64"),
        ("sm90", {"cta_group": 2}, "sm90 takes 1"),
        ("sm90", {"cluster": (4, 4)}, "1 to 8 CTAs"),
        ("sm90", {"cluster": (0, 1)}, "1 to 8 CTAs"),
        ("sm90", {"cluster_k": 3}, "cluster_k is 3; sm90 takes 1, 2, 4, 8"),
        ("sm90", {"cluster_k": 4, "cluster": (2, 2)}, "has 16 CTAs; up to 8"),
        ("sm90", {"cluster_k": 8, "block_m": 64, "pingpong": True}, "whole slices of 16 rows"),
        ("sm90", {"cluster_k": 2, "stages": 3}, "stages is 3; this tile takes 4"),
        (
            "sm90",
            {"cluster_k": 2, "block_n": 192},
            "does not hold the sums of a 128x192 tile twice",
        ),
        ("sm90", {"stages": 1}, "takes 2 to"),
        ("sm90", {"stages": 99}, "None for as many as fit"),
        ("sm90", {"swizzle": 0}, "1 to 16"),
        ("sm90", {"swizzle": 17}, "1 to 16"),
        ("sm90", {"split_k": 65}, "split_k is 65; on sm90 it is 1 to 64"),
        ("sm100", {"split_k": 17}, "split_k is 17; on sm100 it is 1 to 16"),
        ("sm90", {"split_tail": True}, "2 or more"),
        ("sm90", {"scheduler": "clc"}, "'static' or 'none' or 'dynamic'"),
        ("sm90", {"accumulators": 2}, "in registers"),
        ("sm90", {"block_n": None}, "give both of block_m and block_n"),
        ("sm100", {"cluster": (1, 1)}, "not a multiple of cta_group 2"),
        ("sm100", {"cluster": (6, 3)}, "1 to 16 CTAs"),
        ("sm100", {"cluster_k": 2}, "swap_ab True, split_k 1 and cta_group 1"),
        ("sm100 single", {"cluster_k": 17}, "cluster_k is 17; sm100 takes 1, 2, 3, 4"),
        ("sm100 single", {"cluster_k": 2, "swap_ab": True}, "take a smaller tile, or fewer parts"),
        ("sm100", {"block_m": 64}, "128, 256 or 512 rows"),
        ("sm100", {"block_n": 40}, "multiples of 16"),
        ("sm100", {"block_n": 272}, "to 256"),
        ("sm100", {"block_m": 128, "block_n": 48}, "multiples of 32"),
        ("sm100", {"cta_group": 4}, "1 or 2"),
        ("sm100", {"block_k": 48}, "1 to 4 spans"),
        ("sm100", {"block_k": 320}, "128 of 8, or 256 of 4"),
        ("sm100", {"accumulators": 3}, "1 or 2"),
        ("sm100", {"block_m": 512, "accumulators": 1}, "fills both"),
        ("sm100", {"split_k": 2, "split_tail": True, "batch_invariant": True}, "follow m"),
        ("sm100 single", {"block_m": 512}, "64, 128 or 256 rows"),
        ("sm100 single", {"block_n": 8}, "from 16"),
        ("sm100 single", {"block_m": 64, "block_n": 4}, "multiples of 8 from 8"),
    ],
)
def test_refused(base: str, change: Any, reason: str) -> None:
    family = base.split()[0]
    assert planner.config_refusal(BASE[base], family) is None
    found = planner.config_refusal(dataclasses.replace(BASE[base], **change), family)
    assert reason in (found or "")


def test_a_chosen_configuration_changes_nothing_else() -> None:
    assert planner.config_refusal(GemmConfig(), "sm100") is None
    assert planner.config_refusal(GemmConfig(batch_invariant=True), "sm90") is None
    assert planner.config_refusal(GemmConfig(scheduler="none"), "sm90") is None
    assert "sm90 takes 'static'" in (
        planner.config_refusal(GemmConfig(scheduler="clc"), "sm90") or ""
    )
    assert "give block_m and block_n" in (
        planner.config_refusal(GemmConfig(stages=3), "sm100") or ""
    )


# The legal shapes of tcgen05.mma and of its accumulators, by the PTX ISA (section 9.7.16).
TILES = {
    ("sm90", 1, 128): (32, 64, 96, 128, 160, 192, 256, 320),
    ("sm90", 1, 192): (192,),
    ("sm90", 1, 256): (32, 128),
    ("sm100", 1, 64): range(8, 257, 8),
    ("sm100", 1, 128): range(16, 257, 16),
    ("sm100", 1, 256): range(16, 257, 16),
    ("sm100", 2, 128): range(32, 257, 32),
    ("sm100", 2, 256): range(16, 257, 16),
    ("sm100", 2, 512): range(16, 257, 16),
}


@pytest.mark.parametrize(("family", "group", "block_m"), TILES)
def test_every_legal_tile(family: str, group: int, block_m: int) -> None:
    legal = {
        block_n
        for block_n in range(1, 400)
        if planner.config_refusal(
            GemmConfig(block_m, block_n, cta_group=group, cluster=(group, 1)), family
        )
        is None
    }
    assert legal == set(TILES[family, group, block_m])


@pytest.mark.parametrize(
    ("config", "majors", "keywords", "reason"),
    [
        (GemmConfig(256, 224, cta_group=2, cluster=(2, 1)), (K, K), {}, None),
        (GemmConfig(256, 224, cta_group=2, cluster=(2, 1)), (K, MN), {}, None),
        (GemmConfig(256, 160, cta_group=2, cluster=(2, 1), stages=7), (K, K), {}, None),
        (GemmConfig(256, 160, cta_group=2, cluster=(2, 1), stages=7), (K, MN), {}, "1 to 6"),
        (GemmConfig(256, 112, cta_group=2, cluster=(2, 1)), (K, K), {}, None),
        (GemmConfig(128, 96), (K, MN), {}, None),
        (GemmConfig(128, 96), (MN, K), {}, None),
        (GemmConfig(128, 160, swap_ab=True, stages=5), (MN, K), {}, "1 to 4"),
        (GemmConfig(128, 160, swap_ab=True, stages=5), (K, MN), {}, None),
        (GemmConfig(128, 128, cta_group=2, cluster=(2, 1)), (MN, K), {}, None),
        (GemmConfig(128, 96, cluster=(8, 1)), (K, K), {}, "equal parts of 96 rows"),
        (GemmConfig(128, 128, cluster=(8, 1)), (K, MN), {}, None),
        (GemmConfig(128, 128, cluster=(16, 1)), (K, MN), {}, "equal parts of 64 rows"),
        (GemmConfig(128, 128, block_k=128, cluster=(16, 1)), (K, MN), {}, None),
        (GemmConfig(128, 128, split_k=4), (K, K), {"k": 200}, None),
        (GemmConfig(128, 128, split_k=4), (K, K), {"k": 192}, "no more than 3 parts"),
        (GemmConfig(128, 128, split_k=2, block_k=256), (K, K), {"k": 256}, "than 1 part"),
        (GemmConfig(128, 128, block_k=32), (K, K), {}, "multiples of 64"),
        (GemmConfig(128, 128, block_k=32), (K, K), {"itemsize": 4}, None),
        (GemmConfig(128, 128, block_k=256), (K, K), {"itemsize": 4}, "up to 128"),
        (GemmConfig(128, 128, block_k=128, stages=3), (K, K), {"itemsize": 4}, "takes 1 to"),
        (GemmConfig(128, 128), (K, MN), {"gated": True}, None),
        (GemmConfig(128, 64), (K, MN), {"gated": True}, "32 wide"),
        (GemmConfig(128, 64), (K, K), {"gated": True}, None),
        (GemmConfig(128, 48), (K, K), {"gated": True}, "multiples of 32"),
        (GemmConfig(128, 128, swap_ab=True), (K, K), {"gated": True}, "not for gated"),
        (
            GemmConfig(128, 128, cta_group=2, cluster=(2, 1)),
            (K, K),
            {"gated": True},
            "take block_m 256",
        ),
        (GemmConfig(128, 192), (K, K), {"gated": True, "family": "sm90"}, "128 or 256"),
        (GemmConfig(128, 128), (K, MN), {"gated": True, "family": "sm90"}, None),
    ],
)
def test_what_tiles_take_which_matmuls(
    config: GemmConfig, majors: Any, keywords: Any, reason: str | None
) -> None:
    family = keywords.get("family", "sm100")
    dtype = np.dtype(np.float32 if keywords.get("itemsize") == 4 else ml_dtypes.bfloat16)
    epilogue = Epilogue(gated=keywords.get("gated", False))
    sizes = (1, 4096, 4096, keywords.get("k", 4096))
    problem = GemmProblem(*sizes, True, True, majors[0], majors[1], dtype, dtype, dtype, epilogue)
    assert planner.config_refusal(config, family) is None
    found = planner.plan(problem, family, config)
    if reason is None:
        assert isinstance(found, _native.Plan), str(found)
    else:
        assert isinstance(found, _native.Violation)
        assert reason in planner.message(found, family, config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cluster", [2, 1], "a pair of integers"),
        ("block_m", 128.0, "an integer"),
        ("split_k", True, "an integer"),
        ("split_k", None, "an integer"),
        ("swap_ab", 1, "True or False"),
        ("raster", "k", '"m" or "n"'),
        ("scheduler", "stream", "'clc', 'static', 'none', 'dynamic' or None"),
    ],
)
def test_other_types(field: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"{field} is .*; it is {message}"):
        GemmConfig(**({"block_m": 128, "block_n": 128} | {field: value}))


def test_a_configuration_prints_what_is_unusual() -> None:
    assert str(PAIR).endswith("swizzle 1 along m, split_k 1, swap_ab False")
    text = str(dataclasses.replace(PAIR, scheduler="none", accumulators=1))
    assert text.endswith(", accumulators 1, scheduler none")
    assert str(GemmConfig(batch_invariant=True)) == "batch-invariant, chosen"
    assert str(GemmConfig(scheduler="dynamic")) == "chosen, scheduler dynamic"


def test_every_rule_that_a_configuration_can_break_has_words() -> None:
    """The others are of what Python's types do not let pass."""
    typed = {"dtype", "activation", "k_spans", "k_spans_sm90", "pingpong", "raster", "split_tail"}
    typed |= {"wave", "swap_ab", "scheduler", "block_scales_rows"}
    assert set(planner.MESSAGES) == set(_native.rules()) - typed


def test_it_is_public() -> None:
    assert jaxbw.GemmConfig is GemmConfig
