"""`python -m jaxbw explain --png`: the picture, and that it shows what the choice says."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxbw
from jaxbw._src.lab.cli.main import main
from jaxbw._src.lab.cli.wave_map import WaveMap
from jaxbw._src.lab.explain import examined
from jaxbw._src.selection.devices import TARGETS

MATMULS = [
    ("B200", 1, 4096, 4096, 4096),
    ("B200", 3, 1000, 777, 512),
    ("B200", 1, 8, 7168, 4096),
    ("H200", 1, 4096, 4096, 4096),
    ("H200", 2, 640, 3000, 8192),
    ("H200", 1, 16, 4096, 4096),
    ("H100", 1, 2048, 2048, 16384),
]


def wave_map(device: str, batch: int, m: int, n: int, k: int, **config: object) -> WaveMap:
    lhs = jax.ShapeDtypeStruct((batch, m, k), "bfloat16")
    rhs = jax.ShapeDtypeStruct((batch, k, n), "bfloat16")
    given = jaxbw.GemmConfig(**config) if config else None  # type: ignore[arg-type]
    options: dict[str, Any] = dict(device=device, config=given, implementation="kernel")
    choice, problem, _ = examined("a test", lhs, rhs, **options)
    found = WaveMap.of(choice, TARGETS[device].machine, problem)
    assert choice.waves == found.waves
    return found


@pytest.mark.parametrize("matmul", MATMULS, ids=str)
def test_the_map_agrees_with_the_choice(matmul: tuple[str, int, int, int, int]) -> None:
    found = wave_map(*matmul)
    _, batch, m, n, _ = matmul
    rows, columns = found.tile
    if found.config.swap_ab:
        m, n = n, m
    area = found.plan.tiles_m * rows * found.plan.tiles_n * columns
    assert area >= m * n > area - (rows * columns) * (found.plan.tiles_m + found.plan.tiles_n)
    assert len({item.batch for item in found.items}) == batch
    assert 0 <= found.idle_sms < found.sm_count
    if found.config.split_k == 1:
        # Of the SMs' time, what goes to elements of the result: idle SMs and edges are the rest.
        used = batch * m * n * found.cluster_size / (rows * columns)
        assert found.filled == pytest.approx(used / (found.waves * found.sm_count))


def test_the_caption_of_known_ones() -> None:
    """256 tiles on 74 pairs leave most of the fourth wave idle; bands share operands in L2."""
    config = {"block_m": 256, "block_n": 256, "cta_group": 2, "cluster": (2, 1)}
    plain = wave_map("B200", 1, 4096, 4096, 4096, **config)
    assert plain.caption() == (
        "256 cluster tiles, 74 at a time: 4 waves, 86.5 % filled, 80 of 148 SMs idle in the last "
        "one\nno bands: the first wave reads the A of 5 and the B of 16 tiles"
    )
    bands = wave_map("B200", 1, 4096, 4096, 4096, **config, swizzle=8, raster="n")
    assert bands.footprint(0) == (10, 8)
    assert "bands of 8 tile columns" in bands.caption()


def test_the_command_draws(tmp_path: Path) -> None:
    out = tmp_path / "waves.png"
    command = [sys.executable, "-P", "-m", "jaxbw", "explain", "300", "900", "4096", "--batch", "2"]
    options = ["--device", "h200", "--config", "block_m=128", "block_n=128", "cluster=2,1"]
    options += ["split_k=2", "swizzle=2", "--png", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "block 128x128x64, cluster 2x1" in done.stdout
    assert "cluster tiles in 64 parts, 66 at a time: 1 wave" in done.stdout
    assert f"drawn: {out}" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--implementation", "emulator"),
        ("--config", "block_m=128", "block_n=64", "swap_ab=True", "raster=n"),
        ("--gated", "--activation", "silu"),
    ],
)
def test_whatever_is_chosen_can_be_drawn(arguments: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "waves.png"
    size = ("explain", "24", "3000", "512", "--device", "B200")
    assert main([*size, *arguments, "--png", str(out)]) == 0
    assert out.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--implementation", "xla", "--png", "x.png"), "XLA serves this matmul: asked for; ask"),
        (("--png", "/nowhere/x.png"), "No such file or directory: '/nowhere/x.png'"),
        (("--config", "tile=128"), "'tile' is no field; type one of block_m, block_n"),
        (("--config", "block_m=100", "block_n=128"), "block_m is 100; cta_group 1 computes 64"),
        (("--config", "block_m=wide"), "block_m is 'wide'; it is"),
    ],
)
def test_errors_say_what_to_type(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["explain", "128", "128", "128", "--device", "B200", *arguments])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert "python -m jaxbw explain 4096 4096 4096 --device B200" in told


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "-h"])
    assert "--png waves.png" in capsys.readouterr().out


@pytest.mark.parametrize(("swizzle", "read"), [(8, (8, 10)), (1, (5, 16)), (4, (8, 16))])
def test_the_page_says_what_bands_read(swizzle: int, read: tuple[int, int]) -> None:
    """docs/selection.md, below its picture."""
    config = {"block_m": 256, "block_n": 256, "cta_group": 2, "cluster": (2, 1)}
    found = wave_map("B200", 1, 4096, 4096, 4096, **config, swizzle=swizzle)
    assert found.footprint(0) == read
    assert len(found.items) - 3 * found.resident == 34
