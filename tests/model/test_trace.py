"""The structure that the model replays is that of the running PTX."""

import pytest

from jaxbw._src.lab.model.costs import TENSOR, Costs
from jaxbw._src.lab.model.machine import replayed
from jaxbw._src.lab.model.memory import Traffic
from jaxbw._src.lab.model.ours import kernel_of
from jaxbw._src.lab.model.pipeline import agents
from jaxbw._src.lab.model.replay import replay
from jaxbw._src.lab.model.schedule import Shape, schedule
from jaxbw._src.selection.config import GemmConfig
from jaxbw.emulator import Report
from tests.emulator import gemm_launch
from tests.emulator.gemm_cases import Case
from tests.emulator.installed import load
from tests.model import emulator_trace as trace

ITEMS, BLOCKS = 3, 10
GHZ = 1.5
CONFIGS = [
    GemmConfig(256, 128, cta_group=2, cluster=(2, 1), stages=3, accumulators=2),
    GemmConfig(256, 256, cta_group=2, cluster=(2, 1), stages=5, accumulators=2),
    GemmConfig(256, 256, cta_group=2, cluster=(4, 2), stages=3, accumulators=2),
    GemmConfig(128, 128, stages=4, accumulators=2),
    GemmConfig(128, 128, cta_group=2, cluster=(2, 1), stages=4, accumulators=2),
    GemmConfig(128, 256, cluster=(2, 2), stages=3, accumulators=2),
    GemmConfig(512, 256, cta_group=2, cluster=(2, 1), stages=4),
    GemmConfig(256, 224, cta_group=2, cluster=(2, 1), stages=4, accumulators=2),
]


def traced(config: GemmConfig, items: int = ITEMS, blocks: int = BLOCKS) -> Report:
    """A cluster that computes some tiles one after the other."""
    kernel = kernel_of(config)
    launch = gemm_launch.from_gemm_config(config, 0, 0, gemm_launch.BF16)
    case = Case(
        kernel.cluster_rows,
        kernel.cluster_columns * items,
        64 * blocks,
        layout="nt",
        output="bf16",
    )
    return gemm_launch.launch(
        load(f"jaxbw_sm100_16bit_{config.cta_group}cta"),
        launch,
        case.matmul(),
        sm_count=kernel.ctas,
        schedule="latest",
        checks="off",
        trace=True,
    ).report


def modelled(
    config: GemmConfig, items: int = ITEMS, blocks: int = BLOCKS, machine: str = "B200"
) -> Costs:
    """The same tiles on every cluster of a machine whose L2 has all of the operands."""
    on = replayed(machine)
    kernel = kernel_of(config, family=on.shared.family)
    resident = on.shared.resident_clusters(kernel.ctas)
    shape = Shape(kernel.cluster_rows * resident, kernel.cluster_columns * items, 64 * blocks)
    plan = schedule(on, kernel, shape)
    assert plan.waves == items
    return Costs(on, kernel, shape, plan, (Traffic(0.0, 0.0),) * items, GHZ)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_totals_and_time_are_those_of_the_trace(config: GemmConfig) -> None:
    report = traced(config)
    found = trace.read(report.events)
    costs = modelled(config)
    kernel = costs.kernel
    ours = replay(*agents(costs))
    theirs = replay(*trace.agents(found, costs))

    # Instructions and bytes: the model's, the trace's and the emulator's own counts.
    groups = kernel.ctas // kernel.group
    mmas = ITEMS * BLOCKS * kernel.mmas
    assert found.total("mma")[0] == report.operations["mma"] == groups * mmas
    assert ours.services[TENSOR] == ITEMS * BLOCKS * kernel.mma_tiles
    asked = ITEMS * BLOCKS * kernel.ctas * kernel.asked
    assert found.total("load")[1] == report.bytes["global load"] == asked
    assert report.bytes["tma load"] == ITEMS * BLOCKS * kernel.ctas * sum(kernel.loaded)
    results = ITEMS * kernel.cluster_rows * kernel.cluster_columns
    assert found.total("tmem")[1] == report.bytes["tmem load"] == 4 * results
    assert found.total("store")[1] == report.bytes["tma store"] == 2 * results
    chunks = len(costs.chunks) * kernel.mma_tiles
    assert found.total("store")[0] == ITEMS * kernel.ctas * 4 * chunks

    # One CTA by hand is as fast as all of the cluster by its trace.
    assert ours.time == pytest.approx(theirs.time, rel=0.04)
    tensor = max(time for name, time in theirs.busy.items() if name.startswith(TENSOR))
    assert ours.busy[TENSOR] == pytest.approx(tensor)


HOPPER = [
    GemmConfig(128, 256, cluster=(2, 1), stages=4),
    GemmConfig(128, 128, stages=4),
    GemmConfig(256, 128, cluster=(1, 2), stages=4),
    GemmConfig(128, 64, cluster=(2, 2), stages=3),
    GemmConfig(128, 192, stages=3),
    GemmConfig(128, 128, cluster=(2, 1), stages=5, pingpong=True),
]


@pytest.mark.parametrize("config", HOPPER, ids=str)
def test_the_warpgroups_of_hopper_are_those_of_the_trace(config: GemmConfig) -> None:
    (cluster_m, cluster_n), (block_m, block_n) = config.cluster, config.tile
    case = Case(
        cluster_m * block_m,
        cluster_n * block_n * ITEMS,
        64 * BLOCKS,
        layout="nt",
        output="bf16",
        family="sm90",
        block_m=block_m,
        block_n=block_n,
        cluster=config.cluster,
        stages=config.stages,
        pingpong=config.pingpong,
    )
    report = gemm_launch.launch(
        load(case.kernel),
        case.config(),
        case.matmul(),
        sm_count=cluster_m * cluster_n,
        schedule="latest",
        checks="off",
        trace=True,
    ).report
    found = trace.read(report.events)
    costs = modelled(config, machine="H200")
    kernel = costs.kernel
    ours = replay(*agents(costs))
    theirs = replay(*trace.agents(found, costs))

    mmas = ITEMS * BLOCKS * kernel.mmas
    assert report.operations["wgmma"] == kernel.ctas * mmas
    assert found.total("wgmma")[0] == 4 * kernel.ctas * mmas  # of each of four warps
    asked = ITEMS * BLOCKS * kernel.ctas * kernel.asked
    assert found.total("load")[1] == report.bytes["global load"] == asked
    assert report.bytes["tma load"] == ITEMS * BLOCKS * kernel.ctas * sum(kernel.loaded)
    results = ITEMS * kernel.cluster_rows * kernel.cluster_columns
    assert found.total("store")[1] == report.bytes["tma store"] == 2 * results
    chunks = len(costs.chunks) * kernel.mma_tiles
    assert found.total("store")[0] == ITEMS * kernel.ctas * 4 * chunks

    assert ours.time == pytest.approx(theirs.time, rel=0.04)
    tensor = max(time for name, time in theirs.busy.items() if name.startswith(TENSOR))
    assert ours.busy[TENSOR] == pytest.approx(tensor)


def test_an_untraced_launch_is_refused() -> None:
    with pytest.raises(ValueError, match="launch with trace=True"):
        trace.read([])


def test_what_releases_a_wait_is_in_the_trace() -> None:
    found = trace.read(traced(CONFIGS[0]).events)
    steps = found.warps[0, 0]
    waits = [step.signals[0] for step in steps if step.kind == "wait"]
    stages = [signal for signal in waits if signal[1] == waits[0][1]]
    # The first wait on a slot is for the phase before the first, the others one by one.
    assert [phase for _, _, phase in stages] == list(range(-1, len(stages) - 1))
    committed = {
        signal
        for steps in found.warps.values()
        for s in steps
        for signal in s.signals
        if s.kind == "commit"
    }
    assert {signal for signal in stages if signal[2] >= 0} <= committed


# A ring of three stages is bound by its round trip: there single instructions count, which the
# pipeline issues together.
@pytest.mark.parametrize(
    ("config", "error"), [(CONFIGS[0], 0.07), (CONFIGS[1], 0.03), (CONFIGS[3], 0.03)], ids=str
)
def test_few_tiles_tell_the_time_of_many(config: GemmConfig, error: float) -> None:
    times = {
        (items, blocks): replay(
            *trace.agents(trace.read(traced(config, items, blocks).events), modelled(config))
        ).time
        for items, blocks in ((4, 24), (3, 24), (4, 16))
    }
    found = trace.extrapolated(times, 7, 64)
    assert found == pytest.approx(replay(*agents(modelled(config, 7, 64))).time, rel=error)


def test_what_an_extrapolation_needs() -> None:
    for times in ({}, {(3, 8): 1.0}, {(3, 8): 1.0, (3, 9): 2.0, (2, 8): 0.5}):
        with pytest.raises(ValueError, match="three traces are wanted"):
            trace.extrapolated(times, 7, 64)
