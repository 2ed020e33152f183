"""Compile kernels that stamp what their warps do when: a cubin for each name, and its source's PTX.

  profiled.py --output DIR jaxbw_sm90_bf16_nn_128x128 ...

They take one argument more than the shipped ones (cuda/gemm/profile.h), and are no part of the
package: jaxbw/_src/lab/profiling runs this when a matmul is profiled.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import toolchain
from assemble import Report
from generate import ROOT, by_source, load_table_module, source

FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr")  # as in cmake/kernels.cmake


def write_ptx(sharing: tuple[Any, ...], tools: toolchain.Toolchain, output: Path) -> Path:
    """Writes the PTX of a source that instances share, and returns its path.

    Raises:
      ToolchainError: nvcc refuses it; the message holds what it printed.
    """
    kernel = sharing[0]
    text, ptx = (output / f"{kernel.source_name}.{kind}" for kind in ("cu", "ptx"))
    text.write_text(source(*sharing, profiled=True))
    virtual = kernel.arch.replace("sm_", "compute_")
    include = ("-I", ROOT / "cuda", "-o", ptx)
    toolchain.output(tools.nvcc, "-ptx", f"-arch={virtual}", *FLAGS, *include, text)
    return ptx


def compile_kernel(
    kernel: Any, sharing: tuple[Any, ...], tools: toolchain.Toolchain, output: Path
) -> None:
    """Writes PTX and cubin of an instance, each when it is whole, the cubin last.

    Raises:
      ToolchainError: a compiler refuses it; the message holds what it printed.
    """
    with TemporaryDirectory(dir=output) as work:  # others may compile the same one
        ptx = write_ptx(sharing, tools, Path(work))
        instance, cubin = Path(work) / "instance.ptx", Path(work) / f"{kernel.name}.cubin"
        instance.write_text(kernel.ptx(ptx.read_text()))
        command = (tools.ptxas, "-v", f"-arch={kernel.arch}", "-O3", instance, "-o", cubin)
        said = toolchain.output(*command)
        # Stamps may spill some registers, as part of what they cost: a profile says that. With a
        # diagnostic, say serialized wgmmas, it would show another kernel than the one that ships.
        faults = Report.parse(said).diagnostics
        if faults:
            raise toolchain.ToolchainError("\n  ".join([f"{kernel.name}, profiled:", *faults]))
        for path in (ptx, cubin):
            path.replace(output / path.name)


def _main() -> str | None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    module = load_table_module()
    table = module.load(ROOT / "cuda" / "kernels.toml")
    known = {kernel.name: kernel for kernel in table if kernel.role in module.MATMULS}
    unknown = [name for name in args.names if name not in known]
    if unknown:
        return f"no kernel of cuda/kernels.toml multiplies by stages: {', '.join(unknown)}"
    sources = by_source(table)
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        tools = toolchain.find()
        for name in args.names:
            kernel = known[name]
            compile_kernel(kernel, sources[kernel.source_name], tools, args.output)
    except (toolchain.ToolchainError, subprocess.SubprocessError, OSError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(_main())
