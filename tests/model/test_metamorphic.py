"""What must hold of any machine: more of something is never slower, and no roofline is beaten."""

from dataclasses import replace
from itertools import pairwise

import hypothesis
import hypothesis.strategies as st
import pytest

from jaxbw._src.lab.model import modelled
from jaxbw._src.lab.model.clock import fixed, throttled
from jaxbw._src.lab.model.costs import ENGINES, MEMORY, TENSOR
from jaxbw._src.lab.model.kernel import Kernel
from jaxbw._src.lab.model.machine import Replayed, replayed
from jaxbw._src.lab.model.modelled import Replay, run
from jaxbw._src.lab.model.ours import kernel_of
from jaxbw._src.lab.model.schedule import Raster, Shape, order, schedule
from jaxbw._src.selection import planner
from jaxbw._src.selection.config import GemmConfig

B200 = replayed("B200")
TILES = [
    ((256, 128), 2, (2, 1)),
    ((256, 256), 2, (2, 1)),
    ((256, 224), 2, (4, 1)),
    ((512, 256), 2, (2, 1)),
    ((128, 128), 1, (1, 1)),
    ((128, 256), 1, (2, 2)),
    ((64, 64), 1, (1, 2)),
]
HOPPER = [
    GemmConfig(128, 256, cluster=(2, 1)),
    GemmConfig(256, 128, cluster=(1, 2)),
    GemmConfig(128, 192),
    GemmConfig(128, 64, cluster=(2, 2)),
    GemmConfig(128, 32),
    GemmConfig(128, 128, cluster=(2, 1), pingpong=True),
]
RATES = (
    *("l2_bytes_per_ns", "dram_bytes_per_ns", "ingest_bytes_per_cycle", "smem_bytes_per_cycle"),
    *("tmem_bytes_per_cycle", "stage_bytes_per_cycle", "store_bytes_per_cycle"),
)
# A share of L2 goes to who asks first; who asks first may change with a rate, and a tile with it.
JITTER = 1.005


def kernel(tile: tuple[int, int], group: int, cluster: tuple[int, int]) -> Kernel:
    return filled(GemmConfig(*tile, cta_group=group, cluster=cluster), "sm100")


def filled(config: GemmConfig, family: str, stages: int | None = None) -> Kernel:
    stages = stages or planner.filled(config, family, planner.any_problem()).stages
    return kernel_of(replace(config, stages=stages, accumulators=2), family=family)


On = tuple[Replayed, GemmConfig]
configs = st.one_of(
    st.tuples(
        st.just(B200),
        st.sampled_from([GemmConfig(*t, cta_group=g, cluster=c) for t, g, c in TILES]),
    ),
    st.tuples(st.just(replayed("H200")), st.sampled_from(HOPPER)),
)
shapes = st.builds(
    Shape,
    m=st.sampled_from([128, 512, 1024, 2000, 4096]),
    n=st.sampled_from([256, 1024, 3000, 4096]),
    k=st.sampled_from([64, 512, 1100, 4096]),
)
few = hypothesis.settings(max_examples=40, deadline=None, derandomize=True)


def us(machine: Replayed, config: GemmConfig, shape: Shape, ghz: float = 1.5) -> float:
    return run(machine, filled(config, machine.shared.family), shape, clock=fixed(ghz)).us


@few
@hypothesis.given(configs, shapes, st.sampled_from(RATES), st.floats(1.1, 4.0))
def test_more_of_a_rate_is_never_slower(on: On, shape: Shape, rate: str, more: float) -> None:
    machine, config = on
    faster = us(machine.scaled(rate, more), config, shape)
    assert faster <= us(machine, config, shape) * JITTER


@few
@hypothesis.given(configs, shapes, st.floats(1.05, 1.3))
def test_a_higher_clock_is_never_slower(on: On, shape: Shape, more: float) -> None:
    assert us(*on, shape, 1.5 * more) <= us(*on, shape, 1.5) * JITTER


@few
@hypothesis.given(configs, shapes)
def test_a_deeper_ring_is_never_slower(on: On, shape: Shape) -> None:
    machine, config = on
    family = machine.shared.family
    deepest = planner.filled(config, family, planner.any_problem()).stages or 0
    times = [
        run(machine, filled(config, family, stages), shape, clock=fixed(1.5)).us
        for stages in range(2, deepest + 1)
    ]
    for shallow, deep in pairwise(times):
        assert deep <= shallow * JITTER


@few
@hypothesis.given(configs, shapes)
def test_no_roofline_is_beaten_and_no_engine_over_its_rate(on: On, shape: Shape) -> None:
    machine, config = on
    found = run(machine, filled(config, machine.shared.family), shape, clock=fixed(1.5))
    ns = found.us * 1000
    peak = 4096 / machine["mma_cycles_per_column"] * machine["sm_count"] * 1.5  # FLOP per ns
    assert ns >= shape.flops / peak
    operands = 2 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
    assert ns >= operands / machine["dram_bytes_per_ns"]
    assert found.utilisation <= 1
    for engine in ENGINES:
        assert found.outcome.busy[engine] <= found.outcome.time * (1 + 1e-9)


def test_bytes_from_memory_are_at_least_the_operands() -> None:
    found = run(B200, kernel(*TILES[0]), Shape(4096, 4096, 4096), clock=fixed(1.5))
    moved = found.outcome.busy[MEMORY] * B200["dram_bytes_per_ns"]
    assert moved >= 3 * 2 * 4096**2 * (1 - 1e-9)


@few
@hypothesis.given(
    st.integers(1, 900),
    st.integers(1, 900),
    st.builds(Raster, st.sampled_from("mn"), st.integers(1, 7), st.booleans()),
)
def test_every_tile_is_computed_once(m: int, n: int, raster: Raster) -> None:
    plan = schedule(B200, kernel((64, 64), 1, (1, 1)), Shape(m, n, 64, batch=2))
    tiles = list(order(plan, raster))
    assert len(tiles) == len(set(tiles)) == plan.tiles


# --- what was published, and why


def replayed_at(tile: tuple[int, int], shape: Shape) -> Replay:
    return run(B200, kernel(tile, 2, (2, 1)), shape, clock="normal")


def test_4096_prefers_narrow_pair_tiles_because_of_waves() -> None:
    shape = Shape(4096, 4096, 4096)
    narrow, wide = (replayed_at((256, n), shape) for n in (128, 256))
    assert narrow.us < wide.us
    assert (narrow.plan.waves, wide.plan.waves) == (7, 4)
    # 512 tiles on 74 pairs leave 1 % of seven waves idle, 256 tiles 14 % of four.
    assert narrow.plan.tiles / (narrow.plan.waves * 74) == pytest.approx(0.988, abs=1e-3)
    assert wide.plan.tiles / (wide.plan.waves * 74) == pytest.approx(0.865, abs=1e-3)


def test_one_wave_of_224_columns() -> None:
    shape = Shape(512, 8192, 5376)
    one, other = (replayed_at((256, n), shape) for n in (224, 256))
    assert one.us < other.us
    assert one.plan.waves == other.plan.waves == 1
    assert (one.plan.tiles, other.plan.tiles) == (74, 64)


def test_the_clock_falls_with_utilisation() -> None:
    clocks = [throttled(B200, part).ghz for part in (0.1, 0.5, 0.8, 0.966)]
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[0] == B200["max_clock_ghz"]
    assert clocks[-1] == pytest.approx(B200["throttle_clock_ghz"])
    assert throttled(B200, 0.966, "light").ghz == B200["max_clock_ghz"]
    with pytest.raises(ValueError, match="data is 'zeros'; it is one of normal, light"):
        throttled(B200, 0.5, "zeros")


def test_tensor_cores_are_the_bound_of_large_matmuls() -> None:
    found = replayed_at((256, 256), Shape(8192, 8192, 8192))
    assert found.outcome.busy[TENSOR] > 0.95 * found.outcome.time


def test_many_waves_take_as_long_as_if_all_were_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Replay:
        return run(B200, kernel((128, 128), 1, (1, 1)), Shape(8192, 8192, 1024), clock=fixed(1.5))

    short = found()
    assert short.plan.waves == 28
    monkeypatch.setattr(modelled, "_MOST_WAVES", 28)
    assert short.us == pytest.approx(found().us, rel=1e-3)
