"""What reaches the driver: tensor maps, grid, cluster, shared memory, parameters."""

import math
from typing import Any

import pytest

from jaxbw import _native

from ...gpu import direct
from ...gpu.direct import Case
from .conftest import Call, FakeDriver

F16, BF16, F32 = 6, 9, 7  # CUtensorMapDataType
SWIZZLE_64B, SWIZZLE_128B, L2_256B = 2, 3, 3


def launched(fake: FakeDriver, case: Case) -> tuple[Call, Call, Call, Call]:
    """The tensor maps of A, B and D, and the launch."""
    direct.check(case)
    a, b, d = fake.calls("cuTensorMapEncodeTiled")
    (launch,) = fake.calls("cuLaunchKernelEx")
    for tensor_map in (a, b, d):
        assert tensor_map["rank"] == 3
        assert tensor_map["element_strides"] == [1, 1, 1]
        assert tensor_map["interleave"] == 0
        box_bytes = tensor_map["box"][0] * (4 if tensor_map["type"] == F32 else 2)
        assert tensor_map["swizzle"] == {64: SWIZZLE_64B, 128: SWIZZLE_128B}[box_bytes]
        assert tensor_map["promotion"] == L2_256B
        assert tensor_map["fill"] == 0  # zeros
    return a, b, d, launch


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
    map_a, map_b, map_d, launch = launched(fake, Case(136, 264, 72, layout=layout))
    assert map_of(map_a) == a
    assert map_of(map_b) == b
    assert map_of(map_d) == (F32, [264, 136, 1], [264 * 4, 264 * 4 * 136], [32, 16, 1])
    assert launch["kernel"] == f"jaxbw_sm90_bf16_{layout}_128x128x64"
    assert launch["majors"] == [int(layout[0] == "t"), int(layout[1] == "n")]


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
    a, b, _, launch = launched(fake, Case(136, 264, 72, layout=layout, cluster=cluster))
    assert a["box"] == [64, a_rows, 1]
    assert b["box"] == [64, b_rows, 1]
    assert launch["cluster"] == math.prod(cluster)
    assert launch["grid"][0] % launch["cluster"] == 0
    assert launch["config"][2:4] == list(cluster)


@pytest.mark.parametrize(
    ("cta_group", "cluster", "block_n", "a_rows", "b_rows", "tiles"),
    [
        (1, (1, 1), 256, 128, 256, [3, 2]),
        (1, (2, 1), 128, 128, 64, [2, 3]),
        (2, (2, 1), 256, 128, 128, [2, 2]),  # a pair: 128 rows of A and half of B each
        (2, (4, 1), 256, 128, 64, [1, 2]),  # two pairs share B
        (2, (2, 2), 64, 64, 32, [2, 3]),
    ],
)
def test_cta_groups(
    fake: FakeDriver,
    cta_group: int,
    cluster: tuple[int, int],
    block_n: int,
    a_rows: int,
    b_rows: int,
    tiles: list[int],
) -> None:
    case = Case(
        *(264, 264, 72),
        layout="nt",
        output="bf16",
        cta_group=cta_group,
        cluster=cluster,
        block_n=block_n,
        family="sm100",
    )
    a, b, d, launch = launched(fake, case)
    assert a["box"] == [64, a_rows, 1]
    assert b["box"] == [64, b_rows, 1]
    # A store is one tcgen05.ld wide: 32 columns, whatever their type.
    assert d["box"] == [32, 32, 1]
    assert (a["swizzle"], b["swizzle"], d["swizzle"]) == (SWIZZLE_128B, SWIZZLE_128B, SWIZZLE_64B)
    assert launch["kernel"] == f"jaxbw_sm100_16bit_{cta_group}cta"
    assert launch["block"] == [256, 1, 1]
    assert launch["tiles"] == tiles
    # A cluster for each tile: the hardware hands out the work (CLC).
    assert launch["grid"] == [math.prod(tiles) * math.prod(cluster), 1, 1]


def test_sm90_grid_is_one_wave(fake: FakeDriver) -> None:
    few = launched(fake, Case(264, 264, 72))[-1]
    assert few["tiles"] == [3, 3]
    assert few["grid"] == [9, 1, 1]
    assert few["block"] == [384, 1, 1]
    assert few["shared_memory"] == _native.shared_memory_bytes(
        "sm90", 128, 128, 1, few["config"][4]
    )
    fake.log.unlink()
    many = launched(fake, Case(2560, 1280, 8, cluster=(2, 1), block_n=64, batch=2))[-1]
    assert many["tiles"] == [10, 20]
    assert many["grid"] == [66 * 2, 1, 1]  # 400 clusters of work, 66 resident


def test_batches_and_shared_operands(fake: FakeDriver) -> None:
    case = Case(136, 264, 72, batch=3, shared=("rhs",), output="bf16")
    a, b, d, launch = launched(fake, case)
    assert map_of(a) == (BF16, [72, 136, 3], [144, 144 * 136], [64, 128, 1])
    assert map_of(b) == (*B_MN_MAJOR, [64, 64, 1])
    assert map_of(d) == (BF16, [264, 136, 3], [528, 528 * 136], [64, 16, 1])
    assert launch["problem"] == [3, 136, 264, 72]
    assert launch["batched"] == [1, 0]


@pytest.mark.parametrize(
    ("case", "a", "b", "d"),
    [
        # One row that is read, of no multiple of 16 bytes: its stride is not used, and rounded up.
        (Case(1, 4, 1), ([1, 1, 1], 16), ([4, 1, 1], 16), ([4, 1, 1], 16)),
        (Case(1, 4, 64, layout="nt"), ([64, 1, 1], 128), ([64, 4, 1], 128), ([4, 1, 1], 16)),
        (Case(3, 8, 1, layout="tn"), ([3, 1, 1], 16), ([8, 1, 1], 16), ([8, 3, 1], 32)),
    ],
    ids=str,
)
def test_dimensions_of_one(fake: FakeDriver, case: Case, a: Any, b: Any, d: Any) -> None:
    for tensor_map, (dims, stride) in zip(launched(fake, case), (a, b, d), strict=False):
        assert tensor_map["dims"] == dims
        assert tensor_map["strides"] == [stride, stride * dims[1]]


def test_every_kernel_of_the_table_is_launched_under_its_name(fake: FakeDriver) -> None:
    for kernel in direct.kernels():
        case = Case(
            *(136, 136, 72),
            layout="nn" if kernel.layout == "any" else kernel.layout,
            dtype="bf16" if kernel.input == "16bit" else kernel.input,
            block_n=kernel.block_n or 128,
            cluster=(kernel.cta_group, 1),
            cta_group=kernel.cta_group,
            family=kernel.family,
        )
        direct.check(case)
        launch = fake.calls("cuLaunchKernelEx")[-1]
        assert launch["kernel"] == kernel.name
        assert launch["block"] == [kernel.threads, 1, 1]
        assert launch["stream"] == 0


def test_swizzle_is_bounded_by_the_tiles(fake: FakeDriver) -> None:
    launch = launched(fake, Case(264, 264, 72, swizzle=2**31 - 1))[-1]
    assert launch["config"][-1] == 3


@pytest.mark.parametrize("bias", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_epilogue(fake: FakeDriver, bias: str, activation: str) -> None:
    for output in ("bf16", "f16", "f32"):
        case = Case(40, 40, 72, bias=bias, activation=activation, output=output, integers=False)
        direct.check(case)
        assert fake.calls("cuLaunchKernelEx")[-1]["has_bias"] == 1
