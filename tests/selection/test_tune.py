"""`python -m jaxbw tune` and `jaxbw.autotune`, on a GPU that makes its times up."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw._src.lab.cli import tune
from jaxbw._src.lab.cli.main import main
from jaxbw._src.lab.tuning import autotune, session
from jaxbw._src.lab.tuning.measure import measure
from jaxbw._src.selection import devices
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS, Device
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls

from .made_up_gpu import MadeUpGpu

MODULE = """
import jax, jax.numpy as jnp, jaxbw
x, w = jnp.ones((256, 128), jnp.bfloat16), jnp.ones((128, 512), jnp.bfloat16)
def forward(x, w):
    return jaxbw.matmul(x, w, activation="gelu")
def step(x, w):
    return jax.grad(lambda w: forward(x, w).astype(jnp.float32).sum())(w)
def alone():
    return jaxbw.matmul(x, w)
def plain(x, w):
    return x @ w
example = (x, w)
def example_args():
    return jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype)
"""
# What a GPU is to the command in a process of its own: slow, so that it can be stopped. A shell
# starts what it runs in the background with SIGINT ignored, and all its children have it so.
STOPPABLE = """
import signal, sys, time
from jaxbw._src.lab.cli import tune
from jaxbw._src.lab.cli.main import main
from jaxbw._src.selection import devices

class Slow:
    def launch(self, problem, choice):
        return choice.config
    def time(self, bursts, repeats):
        time.sleep(0.2)
        return [[10.0 + config.swizzle] * repeats for burst in bursts for config in burst]
    def deviations(self, problem, launches):
        return [0.0] * len(launches)
    def xla(self, problem):
        return 20.0

signal.signal(signal.SIGINT, signal.default_int_handler)
devices.running_device = lambda: devices.TARGETS["H200"]
tune.gpu = lambda sizes: Slow()
sys.exit(main(["tune", *sys.argv[1:]]))
"""


def by_width(config: GemmConfig) -> float:
    return 10.0 + abs(config.tile[1] - 192) + config.swizzle


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MadeUpGpu]:
    """The GPU of this machine."""
    made_up = MadeUpGpu(by_width)
    monkeypatch.setattr(devices, "running_device", lambda: TARGETS["H200"])
    monkeypatch.setattr(tune, "gpu", lambda sizes: made_up)
    monkeypatch.setattr(autotune, "gpu", lambda sizes: made_up)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_model.py").write_text(MODULE)
    sys.modules.pop("users_model", None)
    yield made_up
    sys.modules.pop("users_model", None)


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["tune", *map(str, arguments), "--configurations", "30"]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as end:
        main(["tune", *map(str, arguments)])
    assert end.value.code == 2
    return capsys.readouterr().err


# --- the command


def test_what_is_fastest_is_stored_and_used(
    gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run(capsys, "1024x1024x1024", "2048x1024x512", "--layouts", "nn", "tn")
    assert "[1/4] bf16[1,1024,1024] @ bf16[1,1024,1024] -> bf16[1,1024,1024]: " in told
    assert "; about " in told.splitlines()[0]
    assert "[4/4] " in told
    assert "To use it: JAXBW_TUNED=tuned.json, or jaxbw.use_tuned('tuned.json')." in told
    table = TunedMatmuls.load("tuned.json")
    assert len(table.entries) == 4
    for entry in table.entries.values():
        assert entry.device == "H200, 132 SMs"
        assert entry.config.tile[1] == 192
        assert entry.us <= entry.untuned_us
        assert entry.us == by_width(entry.config)
        assert entry.configurations == 30
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    with jaxbw.use_tuned("tuned.json"):
        choice = jaxbw.explain(x, x, device="H200")
    assert choice.config is not None
    assert choice.config.tile[1] == 192
    assert "measured the fastest of 30" in choice.reason


def test_xla_is_measured_and_kept_where_it_wins(
    gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.xla_us = 7.5
    told = run(capsys, "1024x1024x1024")
    assert "-> bf16[1,1024,1024]: XLA, 7.50 us, " in told
    gpu.xla_us = 21.0
    told += run(capsys, "2048x1024x1024")
    assert "; XLA 21.00 us; " in told
    first, second = TunedMatmuls.load("tuned.json").entries.values()
    assert (first.xla_us, first.is_for_xla) == (7.5, True)
    assert first.us < first.untuned_us
    assert (second.xla_us, second.is_for_xla) == (21.0, False)
    shapes = [jax.ShapeDtypeStruct((m, 1024), jnp.bfloat16) for m in (1024, 2048)]
    with jaxbw.use_tuned("tuned.json"):
        chosen = [jaxbw.explain(x, shapes[0], device="H200").implementation for x in shapes]
    assert chosen == ["xla", "sm90"]


def test_matmuls_of_a_users_function(gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "--from-jaxpr", "users_model:step", "--args", "users_model:example_args")
    assert told.count("tried: ") == len(TunedMatmuls.load("tuned.json").entries) == 2
    assert "gelu(bf16[1,256,128] @ bf16[1,128,512]) -> bf16[1,256,512], saving z" in told
    alone = run(capsys, "--from-jaxpr", "users_model:alone", "--table", "alone.json")
    assert "[1/1] bf16[1,256,128] @ bf16[1,128,512] -> bf16[1,256,512]: " in alone
    tuple_given = ("--args", "users_model:example", "--table", "lax.json")
    assert "[1/1]" in run(capsys, "--from-jaxpr", "users_model:plain", *tuple_given, "--lax")


def test_a_list_needs_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "users_model.py").write_text(MODULE)
    command = [sys.executable, "-m", "jaxbw", "tune", "--from-jaxpr", "users_model:step"]
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [*command, "--args", "users_model:example", "--list"],
        env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep), "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "     1 times gelu(bf16[1,256,128] @ bf16[1,128,512])" in done.stdout
    measuring = subprocess.run(
        [sys.executable, "-P", "-m", "jaxbw", "tune", "64x64x64"],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAXBW_LIBCUDA": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert measuring.returncode == 2
    assert "there is no CUDA GPU on this machine; measure on a machine with one" in measuring.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "type sizes, as 4096x4096x4096, or --from-jaxpr module:function"),
        (("1x2x3", "--from-jaxpr", "users_model:step"), "type sizes, as 4096x4096x4096, or"),
        (("64x64",), "type three sizes, as in 4096x4096x4096"),
        (("64x64x64", "--configurations", "0"), "type a whole number from 1 on"),
        (("64x64x64", "--layouts", "mk"), "choose from"),
        (("--from-jaxpr", "step"), "'step' is no function; type module:name, as in train:step"),
        (("--from-jaxpr", "no_such:step"), "'no_such' cannot be imported (No module named"),
        (("--from-jaxpr", "users_model:stop"), "has no 'stop'; type one of jax, jnp, jaxbw, x, w"),
        (("--from-jaxpr", "users_model:step"), "called with 0 arguments: name a tuple of them"),
        (("--from-jaxpr", "users_model:alone", "--args", "users_model:w"), "names a tuple of"),
        (
            ("--from-jaxpr", "users_model:plain", "--args", "users_model:example"),
            "the function has no matmul of jaxbw's; --lax also takes",
        ),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_errors_say_what_to_type(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, *arguments)
    assert message in told
    assert "python -m jaxbw tune 4096x4096x4096 16x4096x7168" in told


@pytest.mark.usefixtures("gpu")
def test_a_file_that_is_no_table_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tuned.json").write_text("{}")
    assert "tuned.json is no tuned table of this jaxbw" in refused(capsys, "64x64x64")
    assert (tmp_path / "tuned.json").read_text() == "{}"


@pytest.mark.usefixtures("gpu")
def test_where_nothing_can_be_written_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, "64x64x64", "--table", tmp_path / "none" / "tuned.json")
    assert f"{tmp_path}/none is no folder that can be written to; name another file by" in told


def test_what_measures_wrongly_is_refused(
    gpu: MadeUpGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "1024x1024x1024", "--table", "other.json")
    (entry,) = TunedMatmuls.load("other.json").entries.values()
    gpu.wrong = entry.config
    told = refused(capsys, "1024x1024x1024", "--configurations", 30)
    assert "is inf off" in told
    assert not (tmp_path / "tuned.json").exists()


@pytest.mark.usefixtures("gpu")
def test_what_no_kernel_takes_is_left_to_xla(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "64x64x4294967296")
    assert "not measured: XLA serves it: " in told


# --- stopping and going on


def test_a_run_goes_on_where_it_was_stopped(
    gpu: MadeUpGpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [f"{128 * i}x256x256" for i in range(1, 5)]
    assert "Stopped: 4 matmuls are left. The same command" in run(capsys, *sizes, "--budget", 0)
    run(capsys, *sizes[:1])
    first = TunedMatmuls.load("tuned.json").entries
    calls: list[Any] = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(session, "measure", interrupted)
    assert main(["tune", *sizes, "--configurations", "30"]) == tune.INTERRUPTED
    told = capsys.readouterr().out
    assert "1 of 4 matmuls were there already." in told
    assert "Stopped: 2 matmuls are left." in told
    gpu.bursts.clear()
    assert "2 of 4 matmuls were there already." in run(capsys, *sizes)
    entries = TunedMatmuls.load("tuned.json").entries
    assert len(entries) == 4
    assert entries.items() >= first.items()
    gpu.bursts.clear()
    assert "4 of 4 matmuls were there already." in run(capsys, *sizes)
    assert gpu.bursts == []


def command(tmp_path: Path, *sizes: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-c", STOPPABLE, *sizes, "--configurations", "20"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_entries(table: Path, count: int) -> None:
    end = time.monotonic() + 60
    while not (table.exists() and len(TunedMatmuls.load(table).entries) >= count):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_killed_processes_lose_nothing_and_others_share_the_work(tmp_path: Path) -> None:
    # Far more matmuls than are measured before the signal comes, however busy the machine: with
    # eight of them CI once found all measured.
    table, sizes = tmp_path / "tuned.json", [f"{128 * i}x256x256" for i in range(1, 201)]
    for number, stop in enumerate((signal.SIGKILL, signal.SIGINT)):
        process = command(tmp_path, *sizes)
        wait_for_entries(table, number + 1)
        process.send_signal(stop)
        told, _ = process.communicate()
        assert process.returncode == (-signal.SIGKILL if stop == signal.SIGKILL else 130), told
    assert "matmuls are left. The same command goes on with them." in told
    before = TunedMatmuls.load(table).entries
    assert 2 <= len(before) < len(sizes)
    shared = sizes[: len(before) + 6]
    both = [command(tmp_path, *shared), command(tmp_path, *reversed(shared))]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    after = TunedMatmuls.load(table).entries
    assert len(after) == len(shared)
    assert after.items() >= before.items()


# --- from Python


def step(x: Any, w: Any) -> Any:
    return jaxbw.matmul(jaxbw.matmul(x, w, activation="relu"), w.T)


X, W = jnp.ones((512, 256), jnp.bfloat16), jnp.ones((256, 128), jnp.bfloat16)


def test_autotune(gpu: MadeUpGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.json"
    with caplog.at_level(logging.INFO, "jaxbw"):
        outcomes = jaxbw.autotune(step, X, W, path=path, configurations=100)
    assert [str(each) for each in outcomes] == caplog.messages
    assert [each.entry for each in outcomes] == list(TunedMatmuls.load(path).entries.values())
    assert len(outcomes) == 2
    assert jaxbw.autotune(step, X, W, path=path) == []
    with jaxbw.target("H200"), jaxbw.use_tuned(path):
        text = jax.jit(step).trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("block_n = 192") == 2


def test_autotune_takes_another_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "running_device", lambda: TARGETS["B200"])
    mine = MadeUpGpu(lambda config: 10.0 + config.cta_group)
    found = jaxbw.autotune(step, X, W, path=tmp_path / "t.json", configurations=30, bench=mine)
    assert all(each.entry is not None and each.entry.config.cta_group == 1 for each in found)
    late = tmp_path / "late.json"
    assert jaxbw.autotune(step, X, W, path=late, budget_s=0, bench=mine) == []
    assert not late.exists()


@pytest.mark.usefixtures("gpu")
def test_nothing_is_measured_while_a_function_is_traced(tmp_path: Path) -> None:
    @jax.jit
    def inside(x: Any) -> Any:
        types = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (X, W)]
        jaxbw.autotune(step, *types, path=tmp_path / "t.json")
        return x

    with pytest.raises(RuntimeError, match="a function is being traced; call it outside of jit"):
        inside(X)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (None, "there is no CUDA GPU on this machine"),
        (Device("A100", (8, 0), 108, 0), "there are no kernels for A100"),
        (replace(TARGETS["H200"], problem="its driver is old"), "H200: its driver is old"),
    ],
)
def test_where_nothing_can_be_measured_it_says_so(
    device: Device | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "running_device", lambda: device)
    with pytest.raises(ValueError, match=f"{message}.*python -m jaxbw doctor"):
        jaxbw.autotune(step, X, W, path=tmp_path / "t.json")


def test_a_gpu_that_jax_does_not_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("JAX has a GPU here")
    monkeypatch.setattr(devices, "running_device", lambda: TARGETS["H200"])
    with pytest.raises(ValueError, match="there is a GPU and JAX does not use it"):
        jaxbw.autotune(step, X, W, path=tmp_path / "t.json")
