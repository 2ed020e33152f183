"""The kernels that ship, run as PTX: bit-exact on integers in every schedule, without a finding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxbw
from jaxbw import emulator

from . import gemm_launch
from .gemm_launch import BF16, SM90, SM100, Config

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
KERNELS = Path(jaxbw.__file__).parent / "kernels"
ONE: dict[str, Any] = dict(family=SM100, block_m=128)
PAIR: dict[str, Any] = dict(family=SM100, block_m=256, cta_group=2)


@pytest.fixture(scope="module")
def load() -> Any:
    modules: dict[str, emulator.Module] = {}

    def load_kernel(name: str) -> emulator.Module:
        path = KERNELS / f"{name}.ptx"
        if not path.exists():
            pytest.skip(f"{path.name} has not been built")
        if name not in modules:
            modules[name] = emulator.Module(path.read_text(), path.name)
        return modules[name]

    return load_kernel


def check(
    module: emulator.Module, config: Config, shape: tuple[int, ...], dtype: Any, **options: Any
) -> Any:
    m, n, k, *rest = shape
    batch = rest[0] if rest else 1
    rng = np.random.default_rng(m * 7 + n * 5 + k)
    lhs, rhs = gemm_launch.integers(rng, batch, m, k), gemm_launch.integers(rng, batch, k, n)
    result, report = gemm_launch.run(module, config, lhs, rhs, dtype, **options)
    assert report.findings == []
    np.testing.assert_array_equal(
        result.astype(np.float32), (lhs @ rhs).astype(config.output).astype(np.float32)
    )
    return report


CASES = [
    # one CTA for each MMA
    pytest.param(Config(**ONE, block_n=128), (128, 128, 64), BF16, id="one tile"),
    pytest.param(Config(**ONE, block_n=256, lhs_major=1), (256, 512, 200), F16, id="tn"),
    pytest.param(Config(**ONE, block_n=64, rhs_major=0, output=F32), (200, 132, 72), BF16, id="nt"),
    pytest.param(
        Config(**ONE, block_n=96, lhs_major=1, rhs_major=0, output=F16),
        (136, 200, 136),
        F16,
        id="tt",
    ),
    pytest.param(Config(**ONE, block_n=128, cluster=(2, 2)), (500, 520, 192), BF16, id="2x2"),
    pytest.param(
        Config(**ONE, block_n=64, cluster=(4, 1), swizzle=2), (1024, 128, 64), BF16, id="4x1"
    ),
    pytest.param(Config(**ONE, block_n=64, cluster=(1, 4)), (128, 512, 128, 2), BF16, id="1x4"),
    # pairs
    pytest.param(Config(**PAIR, block_n=256, cluster=(2, 1)), (256, 256, 128), BF16, id="pair"),
    pytest.param(
        Config(**PAIR, block_n=128, cluster=(2, 1), lhs_major=1, output=F32),
        (520, 264, 72),
        F16,
        id="pair tn",
    ),
    pytest.param(
        Config(**PAIR, block_n=128, cluster=(4, 1)), (1024, 256, 192), BF16, id="pair 4x1"
    ),
    pytest.param(
        Config(**PAIR, block_n=64, cluster=(2, 2), rhs_major=0),
        (512, 256, 320, 2),
        BF16,
        id="pair 2x2 nt",
    ),
    pytest.param(Config(**PAIR, block_n=128, cluster=(4, 2)), (600, 520, 64), BF16, id="pair 4x2"),
]
SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("random", 2), ("pct", 3)]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(("config", "shape", "dtype"), CASES)
def test_sm100(load: Any, config: Config, shape: Any, dtype: Any, schedule: str, seed: int) -> None:
    kernel = load(f"jaxbw_sm100_16bit_{config.cta_group}cta")
    clusters = config.cluster[0] * config.cluster[1]
    check(kernel, config, shape, dtype, schedule=schedule, seed=seed, sm_count=2 * clusters)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (Config(SM90, 128, 128), (256, 392, 136)),
        (Config(SM90, 128, 128, cluster=(2, 1), output=F32), (520, 264, 320)),
        (Config(SM90, 128, 128, cluster=(1, 2), stages=4), (200, 520, 64, 2)),
    ],
)
def test_sm90(load: Any, config: Config, shape: Any, schedule: str, seed: int) -> None:
    check(
        load("jaxbw_sm90_bf16_nn_128x128x64"),
        config,
        shape,
        BF16,
        schedule=schedule,
        seed=seed,
        sm_count=2,
    )


def test_tiles_are_taken_over_from_clusters_that_have_not_started(load: Any) -> None:
    config = Config(**ONE, block_n=64)
    report = check(load("jaxbw_sm100_16bit_1cta"), config, (512, 256, 64), BF16, sm_count=2)
    assert (report.clusters_started, report.clusters_cancelled) == (2, 14)


def test_a_refused_request_leaves_its_cluster_to_start(load: Any) -> None:
    config = Config(**ONE, block_n=64)
    started = set()
    kernel = load("jaxbw_sm100_16bit_1cta")
    for seed in range(12):
        report = check(
            kernel,
            config,
            (512, 256, 64),
            BF16,
            sm_count=2,
            schedule="random",
            seed=seed,
        )
        assert report.clusters_started + report.clusters_cancelled == 16
        started.add(report.clusters_started)
    assert max(started) > 2, "no schedule refused a request"


@pytest.mark.parametrize("cta_group", [1, 2])
def test_bias_and_activation(load: Any, cta_group: int) -> None:
    rng = np.random.default_rng(0)
    shapes = (1, 130, 64), (1, 64, 72)
    lhs, rhs = (rng.standard_normal(s).astype(BF16).astype(np.float32) for s in shapes)
    bias = rng.standard_normal(72).astype(np.float32)
    sums = lhs[0].astype(np.float64) @ rhs[0] + bias
    expected = [
        sums,
        np.maximum(sums, 0),
        0.5 * sums * (1 + np.tanh(np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3))),
        sums / (1 + np.exp(-sums)),
    ]
    for activation, want in enumerate(expected):
        config = Config(
            SM100,
            128 * cta_group,
            64 * cta_group,
            cta_group,
            (cta_group, 1),
            output=F32,
            activation=activation,
        )
        kernel = load(f"jaxbw_sm100_16bit_{cta_group}cta")
        result, report = gemm_launch.run(kernel, config, lhs, rhs, BF16, bias=bias)
        assert report.findings == []
        np.testing.assert_allclose(result[0], want, rtol=1e-5, atol=1e-5)
