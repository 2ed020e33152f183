"""cuda/kernels/profiled.py: kernels that stamp what their warps do, and that others do not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from generate import ROOT, source

from jaxbw._src.selection import kernel_table

TABLE = kernel_table.load(ROOT / "cuda" / "kernels.toml")
SCRIPT = ROOT / "cuda" / "kernels" / "profiled.py"
# Its stamps spill. It was refused, and the selection's choice for 1024^3 had no profile on a GPU.
NAME, SOURCE = "jaxbw_sm90_bf16_nn_64x128", "jaxbw_sm90_64x128"
STAMP = re.compile(r"mov\.u64 \S+, %(clock64|globaltimer);")


def compiled(output: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """The script's run, in a process of its own as always."""
    command = [sys.executable, str(SCRIPT), "--output", str(output), *names]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}  # as for a build
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_shipped_kernels_have_no_stamps(kernel_dir: Path) -> None:
    for kernel in TABLE:
        ptx = kernel.ptx((kernel_dir / f"{kernel.source_name}.ptx").read_text())
        assert not STAMP.search(ptx), kernel.name
        assert ptx.count(".param .align") == 1, kernel.name  # the launch parameters, nothing else


def test_a_source_without_stamps_does_not_name_them() -> None:
    for kernel in TABLE:
        assert "rofile" not in source(kernel)


def test_a_profiled_kernel_has_stamps_and_one_parameter_more(tmp_path: Path) -> None:
    done = compiled(tmp_path, NAME)
    assert done.returncode == 0, done.stderr
    ptx = (tmp_path / f"{SOURCE}.ptx").read_text()
    assert set(STAMP.findall(ptx)) == {"clock64", "globaltimer"}
    assert ptx.count(".param .align") == 2
    assert (tmp_path / f"{NAME}.cubin").stat().st_size > 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["jaxbw_sm90_repack_16bit", "jaxbw_sm90_none"])
def test_what_has_no_roles_is_refused(tmp_path: Path, name: str) -> None:
    done = compiled(tmp_path, name)
    assert done.returncode == 1
    assert f"no kernel of cuda/kernels.toml multiplies by stages: {name}" in done.stderr
