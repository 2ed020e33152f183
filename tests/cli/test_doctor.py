"""`python -m jaxbw doctor` as a user runs it, on a whole installation and on damaged ones."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import jaxbw
from jaxbw._src.lab.cli import self_test
from jaxbw._src.selection.devices import TARGETS, Device

# As `python -m jaxbw`, of the package in a folder: an editable install would find itself.
OF_FOLDER = """
import runpy, sys
sys.meta_path = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("jaxbw", run_name="__main__", alter_sys=True)
"""


def doctor(
    *arguments: str, folder: Path | None = None, **settings: str
) -> "subprocess.CompletedProcess[str]":
    """Runs it; `folder` holds the package, else the installed one is taken."""
    start = ["-m", "jaxbw"] if folder is None else ["-c", OF_FOLDER, str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX")}
    return subprocess.run(
        [sys.executable, "-P", *start, "doctor", *arguments],
        env=environment | {"JAX_PLATFORMS": "cpu"} | settings,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the package in it, of links: files may be removed and replaced."""
    package = Path(jaxbw.__file__).parent
    for source in (package, package / "kernels"):
        target = tmp_path / source.relative_to(package.parent)
        target.mkdir()
        for path in source.iterdir():
            if path.name != "kernels":
                (target / path.name).symlink_to(path)
    return tmp_path


def kernel_file(copy: Path, name: str) -> Path:
    """A file of a kernel, replaced by its content, which may be changed."""
    path = copy / "jaxbw" / "kernels" / name
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    return path


def test_on_a_whole_installation() -> None:
    done = doctor(JAXBW_LIBCUDA="/nowhere/libcuda.so.1")
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        f"jaxbw        {jaxbw.__version__}, kernels built by CUDA 13.",
        "JAX          computes on cpu; FFI 0.",
        "driver       no CUDA driver: /nowhere/libcuda.so.1",
        "GPU          none",
        "of sm90, ",
        "environment  JAX_PLATFORMS=cpu",
        "self-test    emulator: matmul ok, transposed operands ok, unaligned rows ok, bias,",
        "self-test    emulator-sm90: matmul ok",
    ):
        assert part in done.stdout
    *_, verdict, first, second = done.stdout.splitlines()
    assert verdict.startswith("No problem.")
    for command in (first, second):
        run = subprocess.run(
            [sys.executable, *command.split()[1:]], capture_output=True, text=True, check=True
        )
        assert "sm100" in run.stdout


def test_json_has_everything() -> None:
    done = doctor("--json", JAXBW_LIBCUDA="/nowhere/libcuda.so.1")
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["problems"] == told["gpus"] == []
    assert told["platforms"] == ["cpu"]
    assert set(told["kernels"]) == {"sm90", "sm100"}
    assert told["versions"].keys() >= {"jaxbw", "python", "jax", "jaxlib"}
    verdicts = [(each["implementation"], each["case"]) for each in told["self_test"]]
    cases = [case.name for case in self_test.CASES]
    assert verdicts == [(name, c) for name in ("emulator", "emulator-sm90") for c in cases]
    assert all(each["fault"] is None for each in told["self_test"])


def damaged(copy: Path) -> dict[str, Any]:
    done = doctor("--json", folder=copy)
    assert done.returncode == 1, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["ok"] is False
    return told


def test_damaged_cubins_are_named(copy: Path) -> None:
    kernels = copy / "jaxbw" / "kernels"
    (kernels / "jaxbw_sm90_bf16_nn_64x256.cubin").unlink()
    short = kernel_file(copy, "jaxbw_sm90_bf16_nn_64x128.cubin")
    short.write_bytes(short.read_bytes()[:-1000])
    kernel_file(copy, "jaxbw_sm100_16bit_2cta.cubin").write_text("version https://git-lfs")
    other = kernel_file(copy, "jaxbw_sm90_bf16_nt_64x256.cubin")
    other.write_bytes((kernels / "jaxbw_sm90_bf16_nt_64x192.cubin").read_bytes())
    told = damaged(copy)
    whats = [problem["what"].rsplit("/")[-1] for problem in told["problems"]]
    assert sorted(whats) == [
        "jaxbw_sm100_16bit_2cta.cubin is no cubin",
        "jaxbw_sm90_bf16_nn_64x128.cubin is cut short",
        "jaxbw_sm90_bf16_nn_64x256.cubin cannot be read (No such file or directory)",
        "jaxbw_sm90_bf16_nt_64x256.cubin does not hold the kernel jaxbw_sm90_bf16_nt_64x256",
    ]
    assert all("--force-reinstall" in problem["remedy"] for problem in told["problems"])
    assert all(each["fault"] is None for each in told["self_test"])  # the emulator reads PTX


def test_missing_and_damaged_ptx_fails_the_self_test(copy: Path) -> None:
    for path in (copy / "jaxbw" / "kernels").glob("jaxbw_sm100_?cta.ptx"):
        path.unlink()
    for path in list((copy / "jaxbw" / "kernels").glob("jaxbw_sm90_*x*.ptx")):
        whole = kernel_file(copy, path.name)
        whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    told = damaged(copy)
    assert [problem["what"] for problem in told["problems"] if "self-test" in problem["what"]]
    assert {each["implementation"] for each in told["self_test"] if each["fault"]} == {
        "emulator",
        "emulator-sm90",
    }
    assert any(problem["what"].endswith(".ptx is cut short") for problem in told["problems"])


def test_a_kernel_that_computes_wrongly_is_found(copy: Path) -> None:
    """Of well-formed PTX: what is to be added is subtracted, accumulators of narrow tiles too."""
    for path in list((copy / "jaxbw" / "kernels").glob("jaxbw_sm90_*x*.ptx")):
        changed = kernel_file(copy, path.name)
        changed.write_text(changed.read_text().replace("add.f32", "sub.f32"))
    told = damaged(copy)
    (problem,) = told["problems"]
    assert problem["what"].startswith(
        "the self-test of emulator-sm90 fails for matmul, transposed operands, unaligned rows, "
        "bias, relu, residual ("
    )
    assert "elements are wrong" in problem["what"]
    assert "--json prints, and open an issue" in problem["remedy"]


def test_an_installation_without_kernels(copy: Path) -> None:
    (copy / "jaxbw" / "kernels" / "manifest.json").unlink()
    what = damaged(copy)["problems"][0]["what"]
    assert what == "this installation has no kernels: it was built without them"


def test_the_tuned_table_in_use_is_told(tmp_path: Path) -> None:
    table = tmp_path / "tuned.json"
    table.write_text('{"format": "jaxbw tuned products", "version": 2, "products": []}')
    assert f"tuned        {table}: 0 matmuls" in doctor(JAXBW_TUNED=str(table)).stdout
    table.write_text("{}")
    done = doctor(JAXBW_TUNED=str(table))
    assert done.returncode == 1
    (problem,) = [line for line in done.stdout.splitlines() if line.startswith("Problem: ")]
    assert f"every matmul is refused (JAXBW_TUNED: {table} is no tuned table" in problem
    assert "self-test" not in done.stdout


def test_jax_that_does_not_start_is_told() -> None:
    done = doctor(JAX_PLATFORMS="cuda")
    if done.returncode == 0:
        pytest.skip("JAX has a GPU here")
    assert done.returncode == 1
    assert "Problem: JAX does not start (" in done.stdout
    assert "JAX_PLATFORMS is 'cuda': unset it" in done.stdout


@pytest.mark.parametrize(
    ("device", "platforms", "names"),
    [
        (None, ("cpu",), ("emulator", "emulator-sm90")),
        (TARGETS["H200"], ("gpu", "cpu"), ("sm90",)),
        (TARGETS["B200"], ("gpu",), ("sm100",)),
        (TARGETS["H200"], ("cpu",), ("emulator", "emulator-sm90")),
        (Device("A100", (8, 0), 108, 0), ("gpu", "cpu"), ("emulator", "emulator-sm90")),
        (Device("H200", (9, 0), 132, 0, "old"), ("gpu", "cpu"), ("emulator", "emulator-sm90")),
        (Device("A100", (8, 0), 108, 0), ("gpu",), ()),
    ],
)
def test_what_can_run_is_tested(
    device: Device | None, platforms: Sequence[str], names: tuple[str, ...]
) -> None:
    assert self_test.implementations(device, platforms) == names
