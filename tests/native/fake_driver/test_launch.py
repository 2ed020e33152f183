"""What reaches the driver: tensor maps, grid, cluster, shared memory, parameters."""

import dataclasses
import math
from typing import Any

import pytest

from jaxbw import _native
from jaxbw._native import Violation, complete_config, limits
from jaxbw._src.selection.config import GemmConfig

from ...emulator.gemm_cases import INPUTS, MX_BLOCKS, cta_tile, gemms
from .conftest import KERNELS, Call, FakeDriver
from .matmul import DTYPES, PAIR, SM90, SM100, Matmul

U8, F16, BF16, F32, PADDED_U4 = 0, 6, 9, 7, 14  # CUtensorMapDataType
L2_128B = 2
# CUtensorMapSwizzle of a box, by the bytes of its rows.
SWIZZLES = {128: 3, 64: 2, 32: 1, 16: 0}
TMA, ROWS, COLUMNS = 0, 1, 2  # StorePath
STATIC, CLC, NONE = 0, 1, 2  # the scheduler attribute
GENERAL, CAST, ELEMENTWISE = 0, 1, 2  # EpiloguePath


def launched(fake: FakeDriver, matmul: Matmul) -> tuple[list[Call], Call]:
    """The tensor maps (A, B, then B_up, D, saved as far as there are), and the launch."""
    matmul.check()
    maps = fake.calls("cuTensorMapEncodeTiled")
    (launch,) = fake.launches()
    for tensor_map in maps:
        assert tensor_map["rank"] == 3
        assert tensor_map["element_strides"] == [1, 1, 1]
        assert tensor_map["interleave"] == 0
        assert tensor_map["promotion"] == L2_128B
        assert tensor_map["fill"] == 0  # zeros
        box_bytes = tensor_map["box"][0] * (4 if tensor_map["type"] == F32 else 2)
        assert tensor_map["swizzle"] == SWIZZLES[box_bytes]
    return maps, launch


def map_of(call: Call) -> tuple[Any, ...]:
    return call["type"], call["dims"], call["strides"], call["box"]


# Worked out by hand from m = 136, n = 264, k = 72, block 128 x 128.
A_K_MAJOR = (BF16, [72, 136, 1], [144, 144 * 136])
A_MN_MAJOR = (BF16, [136, 72, 1], [272, 272 * 72])
B_K_MAJOR = (BF16, [72, 264, 1], [144, 144 * 264])
B_MN_MAJOR = (BF16, [264, 72, 1], [528, 528 * 72])


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("nn", (*A_K_MAJOR, [64, 128, 1]), (*B_MN_MAJOR, [64, 64, 1])),
        ("nt", (*A_K_MAJOR, [64, 128, 1]), (*B_K_MAJOR, [64, 128, 1])),
        ("tn", (*A_MN_MAJOR, [64, 64, 1]), (*B_MN_MAJOR, [64, 64, 1])),
        ("tt", (*A_MN_MAJOR, [64, 64, 1]), (*B_K_MAJOR, [64, 128, 1])),
    ],
)
def test_layouts(fake: FakeDriver, layout: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    (map_a, map_b, map_d), launch = launched(fake, Matmul(layout=layout))
    assert map_of(map_a) == a
    assert map_of(map_b) == b
    assert map_of(map_d) == (F32, [264, 136, 1], [264 * 4, 264 * 4 * 136], [32, 16, 1])
    assert launch["kernel"] == f"jaxbw_sm90_bf16_{layout}_64x128"
    assert launch["majors"] == [int(layout[0] == "t"), int(layout[1] == "n")]
    assert launch["strides"] == [264, 1, 264 * 136]


@pytest.mark.parametrize(
    ("layout", "cluster", "a_rows", "b_rows"),
    [
        ("nt", (2, 1), 128, 64),  # B is shared along M, A along N
        ("nt", (1, 2), 64, 128),
        ("nt", (2, 4), 32, 64),
        ("tn", (2, 1), 64, 32),  # of the 64 rows of K
        ("tn", (4, 2), 32, 16),
        ("tn", (8, 1), 64, 8),
    ],
)
def test_cluster_shares_divide_the_boxes(
    fake: FakeDriver, layout: str, cluster: tuple[int, int], a_rows: int, b_rows: int
) -> None:
    config = SM90 | {"cluster_m": cluster[0], "cluster_n": cluster[1]}
    (a, b, _), launch = launched(fake, Matmul(layout=layout, config=config))
    assert a["box"] == [64, a_rows, 1]
    assert b["box"] == [64, b_rows, 1]
    assert launch["cluster"] == math.prod(cluster)
    assert launch["grid"][0] % launch["cluster"] == 0
    assert launch["config"][2:4] == list(cluster)


# (attributes, box of A, of B, of D, cluster tiles) of bf16 264 x 264 x 72, rhs K-major.
SM100_TILES = [
    ({"block_n": 256}, [64, 128, 1], [64, 256, 1], [64, 32, 1], [3, 2]),
    ({"cluster_m": 2}, [64, 128, 1], [64, 64, 1], [64, 32, 1], [2, 3]),
    ({"block_m": 64}, [64, 64, 1], [64, 128, 1], [64, 16, 1], [5, 3]),
    ({"block_m": 64, "block_n": 8}, [64, 64, 1], [64, 8, 1], [8, 16, 1], [5, 33]),
    ({"block_n": 48}, [64, 128, 1], [64, 48, 1], [16, 32, 1], [3, 6]),
    ({"block_m": 256, "stages": 2}, [64, 256, 1], [64, 128, 1], [64, 32, 1], [2, 3]),
    ({"k_spans": 2, "stages": 3}, [64, 128, 1], [64, 128, 1], [64, 32, 1], [3, 3]),
    (PAIR, [64, 128, 1], [64, 64, 1], [64, 32, 1], [2, 3]),
    (PAIR | {"block_m": 128, "block_n": 96}, [64, 64, 1], [64, 48, 1], [16, 32, 1], [3, 3]),
    (PAIR | {"block_m": 512}, [64, 256, 1], [64, 64, 1], [64, 32, 1], [1, 3]),
    (PAIR | {"cluster_m": 4}, [64, 128, 1], [64, 32, 1], [64, 32, 1], [1, 3]),
    (PAIR | {"cluster_n": 2}, [64, 64, 1], [64, 64, 1], [64, 32, 1], [2, 2]),
    (PAIR | {"cluster_m": 4, "cluster_n": 4}, [64, 32, 1], [64, 32, 1], [64, 32, 1], [1, 1]),
]


@pytest.mark.parametrize(("config", "a_box", "b_box", "d_box", "tiles"), SM100_TILES)
def test_sm100_tiles(
    fake: FakeDriver,
    config: dict[str, int],
    a_box: list[int],
    b_box: list[int],
    d_box: list[int],
    tiles: list[int],
) -> None:
    matmul = Matmul(264, 264, 72, layout="nt", output="bf16", family="sm100", config=SM100 | config)
    (a, b, d), launch = launched(fake, matmul)
    assert (a["box"], b["box"], d["box"]) == (a_box, b_box, d_box)
    assert launch["tiles"] == tiles
    assert launch["block"] == [256, 1, 1]
    # A cluster for each tile: the hardware hands out the work (CLC).
    cluster = launch["cluster"]
    assert launch["grid"] == [math.prod(tiles) * cluster, 1, 1]
    assert launch["scheduler"] == CLC
    assert launch["formula"] == CAST


def test_a_tile_of_two_mmas_takes_both_accumulators(fake: FakeDriver) -> None:
    one = Matmul(layout="nt", family="sm100", config=PAIR | {"accumulators": 1})
    assert launched(fake, one)[-1]["accumulators"] == 1
    with pytest.raises(ValueError, match="a tile of 512 rows fills both"):
        dataclasses.replace(one, config={**one.config, "block_m": 512}).launch()


def test_an_mn_major_box_has_all_of_a_stage(fake: FakeDriver) -> None:
    config = PAIR | {"k_spans": 3, "stages": 2, "cluster_m": 4}
    (a, b, _), launch = launched(fake, Matmul(layout="tn", family="sm100", config=config))
    assert a["box"] == [64, 192, 1]
    assert b["box"] == [64, 96, 1]  # shared by two pairs
    assert launch["k_spans"] == 3


def test_a_span_of_tf32_has_32_elements(fake: FakeDriver) -> None:
    config = SM100 | {"k_spans": 2, "stages": 3}
    matmul = Matmul(layout="nt", dtype="f32", family="sm100", config=config)
    (a, b, d), launch = launched(fake, matmul)
    assert map_of(a) == (F32, [72, 136, 1], [288, 288 * 136], [32, 128, 1])
    assert map_of(b) == (F32, [72, 264, 1], [288, 288 * 264], [32, 128, 1])
    assert d["box"] == [32, 32, 1]
    assert launch["kernel"] == "jaxbw_sm100_tf32_1cta"


def test_columns_that_are_loaded_and_not_multiplied_have_room(fake: FakeDriver) -> None:
    config = PAIR | {"block_n": 160}
    (_, b, _), launch = launched(fake, Matmul(264, 264, 72, family="sm100", config=config))
    assert (b["box"], b["swizzle"]) == ([64, 64, 1], 3)
    assert launch["shared_memory"] == _native.shared_memory_bytes("sm100", 256, 256, 2, 4)
    (asked,) = fake.calls("cuOccupancyMaxActiveClusters")
    assert asked["shared_memory"] == launch["shared_memory"]


def test_the_static_grid_is_one_wave(fake: FakeDriver) -> None:
    few = launched(fake, Matmul(264, 264, 72))[-1]
    assert few["tiles"] == [3, 3]
    assert few["grid"] == [9, 1, 1]
    assert few["block"] == [384, 1, 1]
    assert few["shared_memory"] == _native.shared_memory_bytes("sm90", 128, 128, 1, 4)
    fake.log.unlink()
    config = SM90 | {"block_n": 64, "cluster_m": 2}
    fake.launch_only()
    many = Matmul(2560, 1280, 8, batch=2, config=config)
    many.launch()
    (launch,) = fake.launches()
    assert launch["tiles"] == [10, 20]
    assert launch["grid"] == [66 * 2, 1, 1]  # 400 clusters of work, 66 resident


@pytest.mark.parametrize(
    ("scheduler", "grid", "seen"), [(STATIC, 148, STATIC), (CLC, 320, CLC), (NONE, 320, STATIC)]
)
def test_schedulers(fake: FakeDriver, scheduler: int, grid: int, seen: int) -> None:
    fake.launch_only()
    config = SM100 | {"scheduler": scheduler, "raster": 1, "swizzle": 3}
    Matmul(2048, 2560, 8, family="sm100", config=config).launch()
    (launch,) = fake.launches()
    assert launch["tiles"] == [16, 20]
    assert launch["grid"] == [grid, 1, 1]
    assert (launch["scheduler"], launch["raster"], launch["config"][-1]) == (seen, 1, 3)


def test_batches_and_shared_operands(fake: FakeDriver) -> None:
    matmul = Matmul(batch=3, shared=("rhs",), output="bf16")
    (a, b, d), launch = launched(fake, matmul)
    assert map_of(a) == (BF16, [72, 136, 3], [144, 144 * 136], [64, 128, 1])
    assert map_of(b) == (*B_MN_MAJOR, [64, 64, 1])
    assert map_of(d) == (BF16, [264, 136, 3], [528, 528 * 136], [64, 16, 1])
    assert launch["problem"] == [3, 136, 264, 72]
    assert launch["batched"] == [1, 0]


@pytest.mark.parametrize(
    ("matmul", "a", "b", "d"),
    [
        # One row that is read, of no multiple of 16 bytes: its stride is not used, and rounded up.
        (Matmul(1, 4, 1), ([1, 1, 1], 16), ([4, 1, 1], 16), ([4, 1, 1], 16)),
        (Matmul(3, 8, 1, layout="tn"), ([3, 1, 1], 16), ([8, 1, 1], 16), ([8, 3, 1], 32)),
    ],
    ids=["1x4x1", "3x8x1"],
)
def test_dimensions_of_one(fake: FakeDriver, matmul: Matmul, a: Any, b: Any, d: Any) -> None:
    maps, _ = launched(fake, matmul)
    for tensor_map, (dims, stride) in zip(maps, (a, b, d), strict=True):
        assert tensor_map["dims"] == dims
        assert tensor_map["strides"] == [stride, stride * dims[1]]
    assert not fake.repacks()


def test_every_gemm_kernel_of_the_table_is_launched_under_its_name(fake: FakeDriver) -> None:
    fake.launch_only()
    for kernel in gemms(KERNELS, has_mx=True):
        config = dict(SM90 if kernel.family == "sm90" else PAIR if kernel.cta_group == 2 else SM100)
        tile = {"block_n": kernel.block_n or 128}
        if kernel.role == "skinny":
            tile = cta_tile(kernel)
            complete = complete_config("sm90", GemmConfig(tile["block_m"], tile["block_n"]))
            assert not isinstance(complete, Violation)
            tile |= {"stages": complete["stages"], "k_spans": complete["block_k"] // 64}
        elif kernel.block_m is not None:  # of one of the two warpgroups
            tile = cta_tile(kernel, pingpong=True) | {"pingpong": True, "stages": 3}
        dtype, _ = INPUTS[kernel.input][0]
        layout = "nt" if dtype == "e2m1" else "nn"
        # What kernels for some launches are for.
        tile |= {"split_k": 2} if kernel.role == "cast" else {}
        matmul = Matmul(
            k=96,
            layout=layout if kernel.layout == "any" else kernel.layout,
            dtype=dtype,
            promoted=kernel.input == "8bit_promoted",
            mx=MX_BLOCKS.get(kernel.input, (0,))[0],
            activation="relu" if kernel.role == "elementwise" else "none",
            residual="bf16" if kernel.role == "fused" else None,
            family=kernel.family,
            config=config | tile | {"kernel": kernel.name},
        )
        matmul.launch()
        launch = fake.launches()[-1]
        assert launch["kernel"] == kernel.name
        assert launch["block"] == [kernel.threads, 1, 1]
        assert launch["stream"] == 0


def test_a_gated_matmul_of_mxfp8_whose_result_is_in_mxfp8(fake: FakeDriver) -> None:
    """Rows of whole blocks, boxes of one, and a result of tiles of scales: 2x2 of 136x140."""
    fake.launch_only()
    config = PAIR | {"block_n": 256, "accumulators": 1, "stages": 2}
    matmul = Matmul(
        *(136, 140, 160),
        layout="nt",
        dtype="e4m3",
        mx=32,
        output="e4m3",
        out_mx=True,
        gated=True,
        activation="silu",
        family="sm100",
        config=config,
    )
    operands = matmul.operands()
    data, tiles = _native.launch_gemm(
        [x.view(f"u{x.itemsize}") for x in operands],
        [DTYPES[name][1] for name in matmul.dtypes],
        DTYPES["e4m3"][1],
        matmul.attributes,
        device=1,
    )
    assert (data.size, tiles.size) == (136 * 160, 2 * 2 * 512)
    maps = [map_of(call) for call in fake.calls("cuTensorMapEncodeTiled")]
    assert maps.count((U8, [160, 136, 1], [160, 160 * 136], [32, 32, 1])) == 1
    (launch,) = fake.launches()
    assert launch["kernel"] == "jaxbw_sm100_8bit_mx_2cta"


@pytest.mark.parametrize("k", [256, 160])
def test_4_bits_beside_8(fake: FakeDriver, k: int) -> None:
    """Rows of whole boxes of 128 numbers, 64 bytes: those of 80 are copied to 128."""
    fake.launch_only()
    matmul = Matmul(
        *(136, 264, k),
        layout="nt",
        dtype="e4m3",
        rhs_dtype="e2m1",
        mx=32,
        family="sm100",
        config=SM100,
    )
    matmul.launch()
    maps = [map_of(call) for call in fake.calls("cuTensorMapEncodeTiled")]
    assert maps[0] == (U8, [k, 136, 1], [k, k * 136], [128, 128, 1])
    assert maps[1] == (PADDED_U4, [256, 264, 1], [128, 128 * 264], [128, 128, 1])
    assert len(fake.repacks()) == (k % 128 != 0)


@pytest.mark.parametrize("raster", [0, 1])
def test_swizzle_is_bounded_by_the_tiles(fake: FakeDriver, raster: int) -> None:
    config = SM90 | {"swizzle": 16, "raster": raster}
    launch = launched(fake, Matmul(264, 392, 72, config=config))[-1]
    assert launch["tiles"] == [3, 4]
    assert launch["config"][-1] == (4 if raster else 3)


def test_a_cluster_of_16_is_allowed_for(fake: FakeDriver) -> None:
    config = PAIR | {"cluster_m": 4, "cluster_n": 4, "stages": 3}
    launch = launched(fake, Matmul(layout="nt", family="sm100", config=config))[-1]
    assert launch["cluster"] == 16


# --- the epilogue


@pytest.mark.parametrize("bias", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_bias_and_activation(fake: FakeDriver, bias: str, activation: str) -> None:
    for output in ("bf16", "f16", "f32"):
        Matmul(40, 40, 72, bias=bias, activation=activation, output=output).check()
        launch = fake.launches()[-1]
        assert launch["has_bias"] == 1
        assert launch["formula"] == ELEMENTWISE


@pytest.mark.parametrize(
    ("activation", "gated", "block_n", "formula"),
    [
        ("silu", False, 64, ELEMENTWISE),
        ("silu", True, 128, ELEMENTWISE),
        ("gelu_exact", False, 128, GENERAL),
    ],
)
def test_what_is_computed_in_registers(
    fake: FakeDriver, activation: str, gated: bool, block_n: int, formula: int
) -> None:
    config = SM90 | {"block_n": block_n}
    fake.launch_only()
    Matmul(136, 200, 72, layout="nt", gated=gated, activation=activation, config=config).launch()
    assert fake.launches()[-1]["formula"] == formula


@pytest.mark.parametrize(
    "terms",
    [
        {"alpha": 0.5},
        {"c": "bf16", "beta": 2.0},
        {"residual": "f16", "activation": "relu"},
        {"bias": "f32", "bias_along_m": True},
        {"c": "f32", "beta": -1.0, "bias": "bf16", "residual": "f32", "alpha": 0.5},
        {"save": True, "activation": "relu", "bias": "f32"},
        {"gated": True, "activation": "relu"},
        {"gated": True, "bias": "f32", "residual": "bf16", "save": True, "alpha": 2.0},
        {"in_memory": True},  # though alpha is 1
        {"in_memory": True, "alpha": 0.5, "c": "bf16", "beta": -2.0},
        {"lhs_scale": True, "bias": "f32", "activation": "relu"},
        {"rhs_scale": True, "in_memory": True, "c": "bf16", "beta": 2.0, "alpha": -0.5},
        {"lhs_scale": True, "rhs_scale": True, "shared": ("rhs",), "residual": "bf16"},
        {"lhs_scale": True, "rhs_scale": True, "gated": True, "activation": "relu", "save": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_epilogues(fake: FakeDriver, terms: dict[str, Any], family: str) -> None:
    config = SM90 if family == "sm90" else PAIR
    Matmul(output="bf16", batch=2, family=family, config=config, **terms).check()
    arrays = (
        terms.keys() & {"c", "save", "lhs_scale", "rhs_scale"} or terms.get("residual") == "f32"
    )
    in_registers = family == "sm90" and not arrays
    assert fake.launches()[-1]["formula"] == (ELEMENTWISE if in_registers else GENERAL)


@pytest.mark.parametrize("shared", [(), ("lhs",), ("rhs",)])
def test_scales_of_blocks(fake: FakeDriver, shared: tuple[str, ...]) -> None:
    config = SM90 | {"block_n": 64}
    matmul = Matmul(m=70, n=264, k=272, batch=2, shared=shared, config=config, layout="nt")
    dataclasses.replace(matmul, dtype="e4m3", promoted=True, blocks=True, output="f32").check()
    assert "promoted" in fake.launches()[-1]["kernel"]


@pytest.mark.parametrize(
    ("family", "config", "b_box", "d_box"),
    [
        ("sm90", SM90, [64, 64, 1], [64, 16, 1]),
        ("sm100", SM100, [64, 64, 1], [32, 32, 1]),
        ("sm100", SM100 | {"block_n": 96, "cluster_m": 2}, [64, 24, 1], [16, 32, 1]),
        ("sm100", PAIR, [64, 64, 1], [32, 32, 1]),
    ],
)
def test_a_gated_tile_is_half_gate_half_up(
    fake: FakeDriver, family: str, config: dict[str, int], b_box: list[int], d_box: list[int]
) -> None:
    matmul = Matmul(layout="nt", gated=True, save=True, output="bf16", family=family, config=config)
    maps, launch = launched(fake, matmul)
    _, b, b_up, *results = maps
    assert b["box"] == b_up["box"] == b_box
    assert [map_of(result) for result in results] == [map_of(results[0])] * 3
    assert all(result["box"] == d_box for result in results)
    assert launch["tile_columns"] == config["block_n"] // 2
    columns = launch["tile_columns"] * config.get("cluster_n", 1)
    assert launch["tiles"][1] == math.ceil(264 / columns)


# --- how results leave


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, TMA),
        ({"n": 263}, ROWS),  # 1052 bytes
        ({"n": 260}, TMA),
        ({"n": 260, "output": "bf16"}, ROWS),  # 520 bytes
        ({"m": 1, "n": 3}, ROWS),  # 16 bytes would be stored behind the last element
        ({"config": SM90 | {"swap_ab": 1}, "layout": "tt"}, COLUMNS),
    ],
    ids=str,
)
def test_store_paths(fake: FakeDriver, changes: dict[str, Any], path: int) -> None:
    matmul = Matmul(**changes)
    if path == COLUMNS:
        matmul = Matmul(**changes | {"family": "sm100", "config": SM100 | {"swap_ab": 1}})
    maps, launch = launched(fake, matmul)
    assert launch["store_path"] == path
    results = len(maps) - 2
    assert results == (1 if path == TMA else 0)


@pytest.mark.parametrize(("family", "path", "results"), [("sm90", ROWS, 0), ("sm100", TMA, 2)])
def test_what_sm90_does_not_only_cast_leaves_without_tma(
    fake: FakeDriver, family: str, path: int, results: int
) -> None:
    config = SM90 if family == "sm90" else SM100
    matmul = Matmul(bias="f32", save=True, family=family, config=config)
    maps, launch = launched(fake, matmul)
    assert (launch["store_path"], len(maps) - 2) == (path, results)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_swap_ab_computes_the_transposed_matmul(fake: FakeDriver, layout: str) -> None:
    matmul = Matmul(
        *(24, 264, 72),
        batch=2,
        shared=("rhs",),
        layout=layout,
        bias="f32",
        c="bf16",
        beta=1.0,
        residual="f32",
        save=True,
        family="sm100",
        config=SM100 | {"swap_ab": 1, "block_n": 64},
    )
    maps, launch = launched(fake, matmul)
    assert launch["problem"] == [2, 264, 24, 72]
    assert launch["batched"] == [0, 1]
    assert launch["tiles"] == [3, 1]
    assert launch["strides"] == [1, 264, 24 * 264]
    # The kernel's A is rhs: its dims are those of rhs as it lies in memory.
    assert maps[0]["dims"] == ([264, 72, 1] if layout[1] == "n" else [72, 264, 1])
    assert launch["majors"] == [int(layout[1] == "n"), int(layout[0] == "t")]


# --- what comes before


def section(size: int) -> int:
    return math.ceil(size / 256) * 256


def workspace(matmul: Matmul) -> int:
    lhs, rhs = matmul.operands()[:2]
    dtype = {"bf16": _native.DataType.BF16, "f32": _native.DataType.F32}[matmul.dtype]
    return _native.scratch(lhs.shape, rhs.shape, dtype, matmul.attributes)[0]


def test_nothing_comes_before_an_aligned_matmul(fake: FakeDriver) -> None:
    launch = launched(fake, Matmul())[-1]
    assert workspace(Matmul()) == 0
    assert not fake.repacks()
    assert not fake.calls("cuMemsetD32Async")
    assert (launch["overlaps"], launch["b_is_ready"]) == (0, 0)


@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_unaligned_rows_are_repacked(fake: FakeDriver, family: str) -> None:
    matmul = Matmul(
        *(37, 21, 75), batch=3, shared=("rhs",), family=family,
        config=SM90 if family == "sm90" else SM100,
    )  # fmt: skip
    (a, b), launch = launched(fake, matmul)
    (repack,) = fake.repacks()  # of both
    assert repack["kernel"] == f"jaxbw_{family}_repack_16bit"
    assert repack["shapes"] == [[3, 37, 75], [1, 75, 21]]
    assert (repack["pitches"], repack["transposed"]) == ([128, 32], [0, 0])
    assert (repack["overlaps"], launch["overlaps"]) == (0, 1)
    assert launch["b_is_ready"] == 0
    assert map_of(a)[1:3] == ([75, 37, 3], [256, 256 * 37])
    assert map_of(b)[1:3] == ([21, 75, 1], [64, 64 * 75])
    assert workspace(matmul) == section(3 * 37 * 256) + section(75 * 64)


@pytest.mark.parametrize(
    ("k", "pitch"),  # elements: at least 16 bytes, a power of two up to a line, then whole lines
    [(2, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 192), (4100, 4160), (4097, 4160)],
)
def test_rows_of_a_copy_straddle_no_line_without_need(fake: FakeDriver, k: int, pitch: int) -> None:
    launched(fake, Matmul(5, 16, k))
    (repack,) = fake.repacks()
    assert repack["pitches"] == [pitch]


def test_only_what_needs_it_is_repacked(fake: FakeDriver) -> None:
    matmul = Matmul(37, 24, 75)
    launch = launched(fake, matmul)[-1]
    (repack,) = fake.repacks()
    assert repack["shapes"] == [[1, 37, 75]]
    assert launch["b_is_ready"] == 1
    assert workspace(matmul) == section(37 * 256)


def test_both_right_operands_of_a_gated_matmul_are_repacked(fake: FakeDriver) -> None:
    matmul = Matmul(32, 21, 72, gated=True, output="bf16")
    _, launch = launched(fake, matmul)
    (repack,) = fake.repacks()
    assert repack["shapes"] == [[1, 72, 21], [1, 72, 21]]
    assert launch["b_is_ready"] == 0
    assert workspace(matmul) == 2 * section(72 * 64)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_tf32_operands_become_k_major(fake: FakeDriver, layout: str) -> None:
    matmul = Matmul(36, 20, 72, layout=layout, dtype="f32", family="sm100", config=SM100)
    (a, b, _), launch = launched(fake, matmul)
    assert launch["majors"] == [0, 0]
    assert (a["dims"], b["dims"]) == ([72, 36, 1], [72, 20, 1])
    expected = [[1, 36, 72]] * (layout[0] == "t") + [[1, 20, 72]] * (layout[1] == "n")
    assert [call["shapes"] for call in fake.repacks()] == [expected] * bool(expected)
    assert all(call["transposed"] == [1] * len(expected) for call in fake.repacks())
    assert all(call["kernel"] == "jaxbw_sm100_repack_32bit" for call in fake.repacks())
    assert launch["b_is_ready"] == int(layout == "tt")


# (attributes, whole tiles, work items) of 4 x 5 cluster tiles.
SPLITS = [
    ({"split_k": 3}, 0, 60),
    ({"split_k": 3, "split_tail": 1, "wave": 8}, 16, 16 + 4 * 3),
    ({"split_k": 2, "split_tail": 1, "wave": 10}, 20, 20),
    ({"split_k": 2, "split_tail": 1, "wave": 132}, 0, 40),
]


@pytest.mark.parametrize(("split", "whole", "items"), SPLITS)
@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_split_tiles(
    fake: FakeDriver, split: dict[str, int], whole: int, items: int, family: str
) -> None:
    config = SM90 if family == "sm90" else SM100
    matmul = Matmul(512, 640, 200, layout="nt", family=family, config=dict(config) | split)
    fake.launch_only()
    matmul.launch()
    (launch,) = fake.launches()
    assert launch["work"] == [whole, split["split_k"], items]
    assert launch["grid"] == [min(items, 132), 1, 1]
    # The Hopper kernel asks of each tile whether it is split.
    assert launch["formula"] == (CAST if family == "sm90" else GENERAL)
    # A counter for each epilogue warp of each split tile, and its sums of every part.
    slices = (20 - whole) * (8 if family == "sm90" else 4)
    rows = 16 if family == "sm90" else 32
    assert workspace(matmul) == section(slices * split["split_k"] * rows * 128 * 4)
    assert matmul.counters == slices
    assert (launch["counters"] != 0) == (slices > 0)
    assert not fake.calls("cuMemsetD32Async")
    assert not fake.reductions()


@pytest.mark.parametrize(
    ("split", "m", "chunks"),
    [
        ({}, 512, 20 * 8 * 4),
        ({}, 72, 5 * 8 * 4),  # rows beyond the matrix count as others do
        ({"cluster_m": 2}, 512, 20 * 8 * 4),
        ({"cluster_k": 2}, 512, 20 * 8 * 4),
        ({"split_tail": 1, "wave": 8}, 512, 4 * 8 * 4),
        ({"split_tail": 1, "wave": 10}, 512, 0),
    ],
)
def test_many_parts_are_added_up_apart(
    fake: FakeDriver, split: dict[str, int], m: int, chunks: int
) -> None:
    config = SM90 | {"split_k": limits("sm90")["min_reduced_parts"]} | split
    matmul = Matmul(m, 640, 64 * 24, layout="nt", config=config)
    fake.launch_only()
    matmul.launch()
    (launch,) = fake.launches()
    assert launch["counters"] == 0
    sums = chunks * 16 * 32 * config["split_k"] * 4
    assert workspace(matmul) == section(sums)
    assert [call["grid"] for call in fake.reductions()] == [[min(chunks, 132)]] * (chunks > 0)
    for call in fake.reductions():
        assert (call["block"], call["shared_memory"], call["overlaps"]) == ([512], 0, 1)


def test_fewer_parts_are_counted(fake: FakeDriver) -> None:
    Matmul(k=832, config=SM90 | {"split_k": limits("sm90")["min_reduced_parts"] - 1}).check()
    assert not fake.reductions()
    Matmul(k=832, config=SM90 | {"split_k": limits("sm90")["min_reduced_parts"]}).check()
    assert len(fake.reductions()) == 1


@pytest.mark.parametrize(("gated", "columns", "slices"), [(False, 256, 32), (True, 128, 16)])
def test_parts_of_k_in_a_cluster(fake: FakeDriver, gated: bool, columns: int, slices: int) -> None:
    # Every cluster has one work item: 2 x 2 cluster tiles, or 2 x 4, whole or in three parts.
    config = SM90 | {"cluster_n": 2, "cluster_k": 4, "stages": 4}
    for split_k in (1, 3):
        matmul = Matmul(256, 512, 64 * 12, gated=gated, config=config | {"split_k": split_k})
        fake.launch_only()
        matmul.launch()
        launch = fake.launches()[-1]
        tiles = 2 * 512 // columns
        assert (launch["cluster"], launch["grid"][0]) == (8, 8 * tiles * split_k)
        assert launch["formula"] == (ELEMENTWISE if gated else CAST)
        # Where parts are left in memory as well, a counter for 16 rows and 32 columns of D.
        assert matmul.counters == (tiles * 2 * slices if split_k > 1 else 0)
        assert workspace(matmul) == section(matmul.counters * 128 * 128 // slices * 3 * 4)


def test_a_launch_leaves_counters_as_the_next_one_wants_them(fake: FakeDriver) -> None:
    for family, config in (("sm90", SM90), ("sm100", PAIR), ("sm100", PAIR | {"block_m": 512})):
        split = config | {"split_k": 2}
        Matmul(layout="nt", family=family, config=split).check(repeats=2)
