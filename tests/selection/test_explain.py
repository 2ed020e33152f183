"""`python -m jaxbw explain` as a user runs it."""

import json
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw._src.lab.cli.main import main
from jaxbw._src.selection.tuned_matmuls import config_from_json


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "jaxbw", *arguments], capture_output=True, text=True, check=False
    )


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(shown(capsys, *arguments, "--json"))


def test_the_command_prints_choice_and_candidates() -> None:
    done = run("explain", "512", "8192", "5376", "--device", "b200", "--layout", "nt", "--top", "3")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "bf16[1,512,5376] @ bf16[1,8192,5376]^T -> bf16[1,512,8192]",
        "device          B200",
        "kernel          jaxbw_sm100_16bit_2cta",
        "block 256x224x64, cluster 2x1",
        "us in 1 wave, 98.8 % filled",
        "modelled, in microseconds, not measured",
    ):
        assert part in done.stdout
    table = done.stdout.split("\n\n")[1].splitlines()
    assert table[0].split()[:3] == ["tile", "cluster", "group"]
    assert len(table) == 1 + 3
    assert table[1].split()[0] == "256x224x64"


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained(
        capsys, "8", "8192", "8192", "--device", "H200", "--implementation", "kernel"
    )
    assert answer["implementation"] == "sm90"
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 8192), (8192, 8192)))
    choice = jaxbw.explain(x, w, implementation="kernel", device="H200")
    assert config_from_json(answer["config"]) == choice.config
    assert answer["candidates"][0]["config"] == answer["config"]
    cost = answer["cost"]
    parts = ("main_loop", "epilogue", "fixed", "split", "repack", "tuned")
    assert cost["total"] == pytest.approx(sum(cost[part] for part in parts))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--layout", "tn"), "bf16[1,256,128]^T @ bf16[1,256,64] -> bf16[1,128,64]"),
        (("--dtype", "f16", "--out", "f32"), "f16[1,128,256] @ f16[1,256,64] -> f32[1,128,64]"),
        (("--batch", "3"), "bf16[3,128,256] @ bf16[3,256,64] -> bf16[3,128,64]"),
    ],
)
def test_options_describe_the_matmul(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], problem: str
) -> None:
    answer = explained(capsys, "128", "64", "256", "--device", "B200", *options)
    assert answer["problem"] == problem


def test_more_options(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("128", "64", "256", "--device", "B200")
    gated = explained(capsys, *size, "--gated", "--activation", "silu")
    assert "silu" in gated["problem"]
    assert gated["config"]["swap_ab"] is False
    assert explained(capsys, *size, "--batch-invariant")["config"]["batch_invariant"] is True
    assert explained(capsys, *size, "--implementation", "xla")["kernel"] is None
    assert "emulated on the CPU" in shown(capsys, *size, "--implementation", "emulator")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "128", "x", "64"), "argument N: 'x' is no size; type a whole number from 1"),
        (("explain", "0", "1", "1"), "'0' is no size"),
        (("explain", "128", "64"), "required: K"),
        (("explain", "1", "1", "1", "--device", "A100"), "type one of B200, GB200, B300, H200"),
        (("explain", "1", "1", "1", "--layout", "mk"), "choose from"),
        (
            ("explain", "1", "1", "1", "--device", "H200", "--implementation", "sm100"),
            "the kernels need compute capability 10.0 or 10.3",
        ),
        (
            ("explain", "1", "1", "1", "--device", "H200", "--activation", "tanh"),
            "activation is 'tanh'; it is one of",
        ),
        (("explian",), "choose from"),
        ((), "required: COMMAND"),
    ],
)
def test_errors_say_what_to_type(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert "python -m jaxbw explain 4096 4096 4096 --device B200" in told


def test_without_a_gpu_it_asks_for_a_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxbw._src.lab.cli.explain.running_device", lambda: None)
    with pytest.raises(SystemExit):
        main(["explain", "1", "1", "1"])
    assert "name one with --device B200" in capsys.readouterr().err
