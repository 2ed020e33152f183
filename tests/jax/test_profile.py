"""jaxbw.profile: by the emulator, by stamps (of a build that the emulator runs), and its errors."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import profiled
import pytest
import toolchain

import jaxbw
from jaxbw import GemmConfig
from jaxbw._src.lab import explain_grouped
from jaxbw._src.lab.explain import examined
from jaxbw._src.lab.profiling import build, emulated, profile, stamped
from jaxbw._src.lab.profiling.profile import MOMENTS, Profile
from jaxbw._src.lab.profiling.record import ACTIVITIES, Layout, Recorded, read
from jaxbw._src.perfetto import Group, Span, Track
from jaxbw._src.selection import manifest
from jaxbw._src.selection.ragged import RaggedChoice

ROOT = Path(__file__).resolve().parents[2]
M, N, K = 256, 256, 512
SMS = 2


def types(m: int, n: int, k: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.bfloat16)


def stamps(
    implementation: str,
    m: int,
    n: int,
    k: int,
    *,
    slice_words: int | None = None,
    directory: Path | None = None,
    **config: Any,
) -> tuple[Recorded, Layout]:
    """What the profiling build of the chosen kernel leaves in the emulator."""
    choice, problem, _ = examined(
        "a test",
        *types(m, n, k),
        implementation=implementation,
        config=GemmConfig(**config) if config else None,
    )
    assert choice.kernel is not None
    layout = Layout.of(problem, choice, SMS)
    if slice_words is not None:
        layout = Layout(layout.ctas, layout.warps, slice_words)
    directory = directory or build.compiled(choice.kernel)
    memory = np.zeros(layout.words, np.uint64)
    place = (str(directory), memory.ctypes.data, layout.words, layout.slice_words)
    report = emulated.launch(problem, choice, SMS, place)
    assert report.findings == []
    return read(memory, layout), layout


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds are made once here, and never taken from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(build.CACHE, str(tmp_path_factory.mktemp("profile")))
        patch.setenv(build.SOURCES, str(ROOT))  # an installed package has none
        yield


HOPPER: dict[str, Any] = dict(block_m=128, block_n=64, cluster=(1, 1), stages=4)


@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90"])
def test_the_emulator_says_in_which_order(implementation: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    found = jaxbw.profile(*types(M, N, K), implementation=implementation, path=path)
    assert (found.unit, found.overhead, found.shares) == ("steps", None, {})
    assert list(found.moments) == list(MOMENTS)
    first_load, full, multiply, done, _, stored, end = found.moments.values()
    assert len(end) == len(found.groups) >= 1
    for times in zip(first_load, full, multiply, done, stored, end, strict=True):
        assert list(times) == sorted(times)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    tracks = {e["args"]["name"].split("  ")[-1] for e in events if e["name"] == "thread_name"}
    assert {"load", "engine TMA load", "engine tensor core"} <= tracks
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    for text in (*MOMENTS, "order, not time", str(found.choice.kernel)):
        assert text in str(found)


def test_the_emulated_gpu_has_as_many_sms_as_asked_for() -> None:
    for sm_count in (1, 3):
        options: dict[str, Any] = {"sm_count": sm_count, "config": GemmConfig(**HOPPER)}
        found = jaxbw.profile(*types(M, N, K), implementation="emulator-sm90", **options)
        assert len(found.groups) == sm_count


def test_every_role_of_a_hopper_kernel_leaves_its_stamps() -> None:
    recorded, _ = stamps("emulator-sm90", M, N, K, **HOPPER)
    tiles, stages = (M // 128) * (N // 64), K // 64
    assert [cta.index for cta in recorded.ctas] == list(range(SMS))
    for cta in recorded.ctas:
        load, *others = cta.warps
        roles = [warp.role for warp in others]
        assert (load.role, roles) == ("load", ["other"] * 3 + ["multiply + epilogue"] * 8)
        assert len(load.stays("load")) == stages * tiles // SMS
        for warp in cta.warps:
            assert np.all(np.diff(warp.times) >= 0)
            assert ACTIVITIES[warp.activities[-1]] == "exit"
            assert warp.lost == 0
        for warp in others[3:]:
            assert len(warp.stays("await full stage")) == stages * tiles // SMS
            assert len(warp.stays("await tensor core")) == stages * tiles // SMS
            assert len(warp.stays("next item")) == tiles // SMS
            assert warp.stays("store")
            full = [end for _, end in warp.stays("await full stage")]
            issued = [begin for begin, _ in load.stays("load")]
            assert all(a < b for a, b in zip(issued, full, strict=True))


def test_stamps_become_moments_shares_and_tracks() -> None:
    recorded, _ = stamps("emulator-sm90", M, N, K, **HOPPER)
    moments = stamped.moments(recorded, 1.0)
    assert list(moments) == list(MOMENTS)
    load, full, multiply, done, _, stored, end = moments.values()
    for times in zip(load, full, multiply, done, stored, end, strict=True):
        assert list(times) == sorted(times)
    shares = stamped.shares(recorded)
    assert list(shares) == ["load", "multiply + epilogue"]
    for parts in shares.values():
        assert sum(parts.values()) == pytest.approx(1)
        assert list(parts.values()) == sorted(parts.values(), reverse=True)
    for group, cta in zip(stamped.groups(recorded, 2.0), recorded.ctas, strict=True):
        spans = [span for track in group.tracks for span in track.spans]
        assert len(spans) == sum(len(warp.times) - 1 for warp in cta.warps)
        assert max(span.end for span in spans) == 2 * max(warp.times[-1] for warp in cta.warps)


@pytest.mark.parametrize(
    ("config", "activity"),
    [
        (dict(block_m=64, block_n=64, pingpong=True), "await turn"),
        (dict(block_m=128, block_n=64, cluster_k=2), "await sums"),
        (dict(block_m=128, block_n=64, split_k=2), "epilogue"),
    ],
)
def test_ways_to_divide_the_work(
    config: dict[str, Any], activity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all checks: stamps race with nothing, and read nothing that nobody wrote."""
    monkeypatch.setenv("JAXBW_EMULATOR_CHECKS", "strict")
    recorded, _ = stamps("emulator-sm90", M, N, K, **config)
    assert stamped.lost(recorded) == 0
    assert activity in stamped.shares(recorded)["multiply + epilogue"]


def test_a_blackwell_kernel_leaves_stamps(tmp_path: Path) -> None:
    """Of its PTX: ptxas would take 8 seconds, and the emulator has no use for a cubin."""
    [kernel] = [each for each in manifest.kernels() if each.name == "jaxbw_sm100_16bit_2cta"]
    profiled.write_ptx((kernel,), toolchain.find(), tmp_path)
    tile: dict[str, Any] = dict(block_m=256, block_n=64, cta_group=2, cluster=(2, 1))
    recorded, _ = stamps("emulator", M, N, K, directory=tmp_path, **tile)
    assert stamped.lost(recorded) == 0
    shares = stamped.shares(recorded)
    assert list(shares) == ["epilogue", "load", "multiply", "schedule"]
    assert "await accumulator" in shares["epilogue"]
    assert list(stamped.moments(recorded, 1.0)) == list(MOMENTS)


CONTRACTION = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
GROUPED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rows": ("emulator-sm90", "jaxbw_sm90_grouped_bf16_nn_64x128", {}),
    "gathered": (
        "emulator-sm90",
        "jaxbw_sm90_gathered_bf16_nn_64x128",
        {"lhs_rows": jax.ShapeDtypeStruct((M,), jnp.int32)},
    ),
    "contraction": (
        "emulator",
        "jaxbw_sm100_grouped_16bit_1cta",
        {"dimension_numbers": CONTRACTION},
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_kernel_leaves_its_stamps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXBW_EMULATOR_CHECKS", "strict")
    implementation, kernel, options = GROUPED[name]
    x, _ = types(M, N, K)
    experts = jax.ShapeDtypeStruct((M, N) if name == "contraction" else (3, K, N), jnp.bfloat16)
    config = GemmConfig(128, 128)
    choice, problem, _ = explain_grouped.examined(
        "a test", x, experts, groups=3, implementation=implementation, config=config, **options
    )
    assert isinstance(choice, RaggedChoice)
    assert choice.kernel == kernel
    [row] = [each for each in manifest.kernels() if each.name == kernel]
    profiled.write_ptx((row,), toolchain.find(), tmp_path)
    layout = Layout.of(problem, choice, SMS)
    memory = np.zeros(layout.words, np.uint64)
    place = (str(tmp_path), memory.ctypes.data, layout.words, layout.slice_words)
    sizes = np.array([70, 0, 150], np.int32)
    report = emulated.launch(problem, choice, SMS, place, sizes)
    assert report.findings == []
    recorded = read(memory, layout)
    assert stamped.lost(recorded) == 0
    loads = [stay for cta in recorded.ctas for warp in cta.warps for stay in warp.stays("load")]
    # Blocks along K of the tiles of 1 + 2 rows, by 4 warps where these gather; or of 70 and 150.
    of_rows, of_groups = 3 * (N // 128) * (K // 64), (2 + 3) * (K // 128) * (N // 128)
    expected = {"rows": of_rows, "gathered": 4 * of_rows, "contraction": of_groups}
    assert len(loads) == expected[name]
    assert "epilogue" in {part for parts in stamped.shares(recorded).values() for part in parts}


def test_sizes_of_groups_say_what_is_launched() -> None:
    x, _ = types(M, 128, 64)
    experts = jax.ShapeDtypeStruct((3, 64, 128), jnp.bfloat16)
    options: dict[str, Any] = dict(implementation="emulator-sm90", config=GemmConfig(128, 128))
    loaded = []
    for sizes in ([M, 0, 0], [M // 2 + 1, 1, M // 2 - 2]):  # two tiles; four
        found = jaxbw.profile(x, experts, group_sizes=sizes, **options)
        assert found.choice.kernel == "jaxbw_sm90_grouped_bf16_nn_64x128"
        assert list(found.moments) == list(MOMENTS)
        assert found.report is not None
        loaded.append(found.report.bytes["tma load"])
    assert loaded[1] == 2 * loaded[0]
    with pytest.raises(ValueError, match="XLA serves this matmul"):
        jaxbw.profile(x, experts, group_sizes=[1, 2, 3], implementation="xla")
    with pytest.raises(TypeError, match="group_sizes"):
        jaxbw.profile(x, experts, group_sizes=[1, 2], implementation="emulator-sm90")


def test_stamps_without_a_place_are_counted() -> None:
    whole, layout = stamps("emulator-sm90", M, N, K, **HOPPER)
    made = sum(len(warp.times) - 1 for cta in whole.ctas for warp in cta.warps)
    some, _ = stamps("emulator-sm90", M, N, K, slice_words=2 + 10, **HOPPER)
    kept = sum(len(warp.times) - 1 for cta in some.ctas for warp in cta.warps)
    assert kept < made
    assert stamped.lost(some) == made - kept
    with pytest.raises(ValueError, match="a profile of 2 CTAs with 2 words a warp takes 64 words"):
        stamps("emulator-sm90", M, N, K, slice_words=2, **HOPPER)
    assert layout.slice_words < 2**12  # of what is set aside, half is used at least once


def test_clocks_of_sms_are_brought_together() -> None:
    """Two SMs at 1.5 GHz, whose clocks are far apart; one goes round its low 32 bits meanwhile."""
    layout = Layout(2, 1, 2 + 3)
    memory = np.zeros((2, layout.cta_words), np.uint64)
    starts = (2**40 + 77, 7 * 2**32 - 1000)
    for cta, (start, begun_ns) in enumerate(zip(starts, (100, 400), strict=True)):
        # Its warp begins at `begun_ns`; both clocks are read 200 ns later, and 1000 ns after that.
        memory[cta, :5] = begun_ns + 200, start + 300, begun_ns + 1200, start + 1800, 10 + cta
        stamps = [
            (cycles + start) % 2**32 | what << 56 | 5 << 32
            for cycles, what in ((600, 5), (1200, 6), (3000, 18))
        ]
        memory[cta, 8:] = [3, start, *stamps]
    recorded = read(memory.ravel(), layout)
    assert recorded.tick_ns == 100
    assert recorded.ghz == pytest.approx(1500 / 1050)  # half a tick is added
    scale = 1500 / 1050 / 1.5
    first, second = (cta.warps[0] for cta in recorded.ctas)
    assert [cta.sm for cta in recorded.ctas] == [10, 11]
    np.testing.assert_allclose(first.times, np.array([0, 400, 800, 2000]) / scale, atol=1e-3)
    # From the moment when the clocks were read: 300 ns apart, by the clock that both share.
    np.testing.assert_allclose(second.times - first.times, 300, atol=1e-3)
    assert [ACTIVITIES[what] for what in first.activities] == [
        "set-up",
        "load",
        "await full stage",
        "exit",
    ]
    assert first.numbers.tolist() == [0, 5, 5, 5]


def test_memory_without_stamps_is_refused() -> None:
    layout = Layout(1, 1, 4)
    with pytest.raises(ValueError, match="no CTA has left stamps"):
        read(np.zeros(layout.words, np.uint64), layout)
    memory = np.zeros((1, layout.cta_words), np.uint64)
    memory[0, :5], memory[0, 8:10] = (64, 10, 64, 20, 0), (1, 5)
    with pytest.raises(ValueError, match="no CTA ran until the clock that SMs share ticked again"):
        read(memory.ravel(), layout)


def made_up(groups: int, spans: int) -> Profile:
    """A profile of a GPU."""
    choice = jaxbw.explain(*types(M, N, K), device="H200")
    track = Track("warp 0  load", [Span("load", i, i + 1) for i in range(spans)])
    return Profile(
        choice=choice,
        machine="a GPU",
        unit="us",
        moments={"exit": [1.0, 2.0, 6.0]},
        shares={"load": {"await empty stage": 0.75, "load": 0.25}},
        lost=3,
        normal_us=10.0,
        profiled_us=10.5,
        ghz=1.5,
        tick_ns=32,
        groups=[Group(cta, f"CTA {cta}", [track]) for cta in range(groups)],
    )


def test_a_profile_of_a_gpu_says_what_the_stamps_cost() -> None:
    found = made_up(2, 1)
    assert found.overhead == pytest.approx(0.05)
    text = str(found)
    for part in (
        "10.50 us with stamps, 10.00 us without: +5.0%; 1.50 GHz, SMs within 32 ns",
        "exit                            1.00        2.00        6.00",
        "load: await empty stage 75.0%, load 25.0%",
        "3 stamps did not fit",
    ):
        assert part in text
    assert found.to_json()["moments"] == {"exit": {"least": 1.0, "median": 2.0, "most": 6.0}}


def test_a_trace_shows_as_many_ctas_as_perfetto_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "SHOWN", 100)
    found = made_up(3, 50)
    found.write(tmp_path / "some.json")
    assert shown(tmp_path / "some.json") == ({0, 1}, "2 of 3")
    found.write(tmp_path / "named.json", ctas=[2])
    assert shown(tmp_path / "named.json") == ({2}, "1 of 3")
    made_up(2, 200).write(tmp_path / "one.json")
    assert shown(tmp_path / "one.json") == ({0}, "1 of 2")
    with pytest.raises(ValueError, match=r"jaxbw\.profile: no CTA 3; 3 ran"):
        found.write(tmp_path / "none.json", ctas=[2, 3])


def shown(path: Path) -> tuple[set[int], str]:
    """The CTAs of a trace, and what it says of them."""
    trace = json.loads(path.read_text())
    return {event["pid"] for event in trace["traceEvents"]}, trace["otherData"]["CTAs"]


def test_what_cannot_be_profiled_is_refused() -> None:
    x, w = types(M, N, K)
    with pytest.raises(ValueError, match=r"jaxbw\.profile: XLA serves this matmul"):
        jaxbw.profile(x, w, implementation="xla")
    pair = GemmConfig(block_m=128, block_n=64, cluster=(2, 1))
    with pytest.raises(ValueError, match="sm_count is 1; a cluster has 2 CTAs"):
        jaxbw.profile(x, w, implementation="emulator-sm90", sm_count=1, config=pair)
    with pytest.raises(ValueError, match=r"takes 8\.6 G multiply-adds.*profile a smaller matmul"):
        jaxbw.profile(*types(2048, 2048, 2048), implementation="emulator")


@pytest.mark.skipif("jax.default_backend() != 'cpu'", reason="there is a GPU")
def test_a_kernel_needs_its_gpu() -> None:
    with pytest.raises(ValueError, match="there is no CUDA GPU on this machine"):
        jaxbw.profile(*types(M, N, K), implementation="sm90")


def test_builds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = build.compiled("jaxbw_sm90_bf16_nn_64x64")
    monkeypatch.setattr(subprocess, "run", None)
    assert build.compiled("jaxbw_sm90_bf16_nn_64x64") == directory
    with pytest.raises(TypeError):  # one that is not there would be compiled
        build.compiled("jaxbw_sm90_bf16_nn_64x128")


def test_what_a_build_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"multiplies by stages: none\nThe emulator's profile"):
        build.compiled("none")
    monkeypatch.setenv("JAXBW_SYSTEM_NVCC", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="there is no nvcc on PATH"):
        build.compiled("jaxbw_sm90_bf16_nn_64x128")
    monkeypatch.setenv(build.SOURCES, str(tmp_path))
    with pytest.raises(RuntimeError, match="set JAXBW_SOURCES to a checkout of jaxbw"):
        build.compiled("jaxbw_sm90_bf16_nn_64x64")


def test_other_sources_are_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = build.sources()
    shutil.copytree(here / "cuda", tmp_path / "cuda", ignore=shutil.ignore_patterns("emulator"))
    assert build._digest(tmp_path) == build._digest(here)
    with (tmp_path / "cuda" / "gemm" / "storage.h").open("a") as file:
        file.write("\n")
    assert build._digest(tmp_path) != build._digest(here)


def test_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(build.CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache() == tmp_path / "jaxbw" / "profile"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert build.cache() == Path.home() / ".cache" / "jaxbw" / "profile"
