"""cuda/kernels/assemble.py: what of a kernel's machine code stops the build."""

import subprocess
import sys
from pathlib import Path

import pytest
import toolchain
from assemble import Report

# As ptxas 13.0 prints it.
CLEAN = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem
"""
SERIALISED = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
    "serialized due to insufficient register resources for the wgmma pipeline in function 'gemm'\n"
)


def test_a_clean_report_has_no_fault() -> None:
    report = Report.parse(CLEAN)
    assert (report.registers, report.spill_bytes, report.faults()) == (168, 0, [])


def test_spills_are_summed_over_the_functions() -> None:
    called = "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    report = Report.parse(CLEAN + called)
    assert report.spill_bytes == 16
    assert report.faults() == ["it spills 16 bytes of registers"]


@pytest.mark.parametrize("line", [SERIALISED, "ptxas warning : something new\n"])
def test_a_diagnostic_is_a_fault(line: str) -> None:
    assert Report.parse(line + CLEAN).faults() == [line.strip()]


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(ValueError, match="not a report"):
        Report.parse("ptxas fatal   : Unresolved extern function\n")


def ptx(registers: int) -> str:
    """A kernel that holds 64 values at once, in at most so many registers."""
    values = range(64)
    body = [f"ld.volatile.global.f32 f{i}, [p + {4 * i}];" for i in values]
    body += [f"st.volatile.global.f32 [p + {4 * i}], f{i};" for i in values]
    return f"""\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry gemm(.param .u64 pointer) .maxnreg {registers}
{{
.reg .u64 p;
.reg .f32 f<{len(values)}>;
ld.param.u64 p, [pointer];
{" ".join(body)}
ret;
}}
"""


@pytest.mark.parametrize(
    ("registers", "stem", "instance", "fault"),
    [
        (128, "gemm", "gemm", None),
        (32, "gemm", "gemm", "spills"),
        (128, "gemm", "renamed:64=64", None),
        (128, "gemm", "renamed:0x4a584257=2", "does not have 0x4a584257"),
        (128, "another", "renamed:64=64", "does not have another"),
    ],
)
def test_a_kernel_that_is_not_what_was_written_gives_no_cubin(
    root: Path, tmp_path: Path, registers: int, stem: str, instance: str, fault: str | None
) -> None:
    source, name = tmp_path / f"{stem}.ptx", instance.split(":")[0]
    source.write_text(ptx(registers))
    script = root / "cuda" / "kernels" / "assemble.py"
    options = ["--ptxas", str(toolchain.find().ptxas), "--arch", "sm_90a"]
    options += ["--cubins", str(tmp_path), "--reports", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, script, *options, "--instances", instance, "--", source],
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (fault is None), done.stderr
    assert (fault or "") in done.stderr
    for kind in ("cubin", "ptxas"):
        assert (tmp_path / f"{name}.{kind}").exists() == (fault is None)
