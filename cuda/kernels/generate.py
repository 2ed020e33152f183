"""Turn the instance table into kernel sources, and what ptxas reports of them into the manifest.

  generate.py sources   --table kernels.toml --output DIR    writes DIR/<unit>.cu
  generate.py instances --table kernels.toml --output FILE   the table as the host knows it
  generate.py manifest  --table kernels.toml --reports DIR --output FILE    reads DIR/<name>.ptxas

What a row of the table means is said in jaxbw/_src/selection/kernel_table.py, which is loaded by
its path because the package cannot be imported before it is built.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from assemble import Report

ROOT = Path(__file__).resolve().parents[2]
VERSION = 3  # of the manifest's format
# Sources that are compiled at once: headers take 0.67 s of each compilation.
UNIT_SOURCES = 4

_QUANTIZED = {"bf16": "kBF16", "f16": "kF16", "f32": "kF32"}
# What stands for it in Config of sm90.
_CLASSES = {
    **dict.fromkeys(("bf16", "f16"), "of_16bit"),
    **dict.fromkeys(("8bit", "8bit_promoted"), "of_8bit"),
    "tf32": "of_tf32",
}
# Of a role that is no gemm; others are named as their role is.
_HEADERS = {
    **dict.fromkeys(("grouped", "gathered"), "{family}_grouped"),
    **{role: f"{{family}}_{role}" for role in ("skinny", "reduce")},
}
# At a time on an SM, that registers must be left for: one fills it with shared memory, or
# registers; of a copy, what hides latency.
_BLOCKS_PER_SM = {
    **dict.fromkeys(("grouped", "gathered", "skinny", "reduce", "group_table"), 1),
    **dict.fromkeys(("repack", "quantize"), 4),
    "quantize_blocks": 2,
}
_PARAMS = {
    "grouped": "GroupedParams",
    "gathered": "GatheredParams",
    "skinny": "SkinnyParams",
    "group_table": "GroupTableParams",
    "repack": "RepackParams",
    "quantize": "QuantizeParams",
    "quantize_blocks": "QuantizeBlocksParams",
}

_PARAMS_OF_INPUT = {
    **{"8bit_promoted": "PromotedParams", "8bit_mx": "MxParams"},
    "4bit_mx": "Mx4BitParams",
}

# Of grouped matmuls on sm100.
_KINDS = {"16bit": "k16Bit", "8bit": "k8Bit", "8bit_mx": "kMx8Bit", "4bit_mx": "kMx4Bit"}
_ELEMENTS = {"8bit": "uint8_t", "16bit": "uint16_t", "32bit": "uint32_t"}

_SOURCE = """\
// Generated from cuda/kernels.toml: {why}.
{define}#include "gemm/{header}.cuh"

extern "C" __global__ void __launch_bounds__({threads}, {blocks_per_sm})
    {name}(const __grid_constant__ jaxbw::{params} params{parameter}) {{
  jaxbw::{function}(params{argument});
}}
"""


def load_table_module() -> ModuleType:
    """jaxbw/_src/selection/kernel_table.py, without importing jaxbw."""
    name = "kernel_table"
    path = ROOT / "jaxbw" / "_src" / "selection" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def by_source(kernels: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """The instances that share each source, by its name."""
    names = dict.fromkeys(kernel.source_name for kernel in kernels)
    return {name: tuple(k for k in kernels if k.source_name == name) for name in names}


def source(*sharing: Any, profiled: bool = False) -> str:
    """The CUDA C++ that instances share; `profiled`: it stamps what warps do."""
    kernel = sharing[0]
    blocks_per_sm = 1 if kernel.is_gemm else _BLOCKS_PER_SM[kernel.role]
    return _SOURCE.format(
        define="#define JAXBW_PROFILE\n" if profiled else "",
        parameter=", const __grid_constant__ jaxbw::ProfileMemory profile" if profiled else "",
        argument=", profile" if profiled else "",
        why=kernel.why,
        header=_header(kernel),
        threads=kernel.threads,
        blocks_per_sm=blocks_per_sm,
        name=kernel.source_name,
        params=_params(kernel),
        function=_function(sharing),
    )


def _header(kernel: Any) -> str:
    """The header that has its code."""
    header = "{family}" if kernel.is_gemm else _HEADERS.get(kernel.role, kernel.role)
    return header.format(family=kernel.family)


def units(kernels: tuple[Any, ...]) -> dict[str, tuple[str, ...]]:
    """The names of the sources that are compiled at once: of one target, and one header."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, (kernel, *_) in by_source(kernels).items():
        alike.setdefault((kernel.arch, _header(kernel)), []).append(name)
    return {
        f"{arch}_{header}_{first // UNIT_SOURCES}": tuple(names[first : first + UNIT_SOURCES])
        for (arch, header), names in alike.items()
        for first in range(0, len(names), UNIT_SOURCES)
    }


def _params(kernel: Any) -> str:
    """The type of the argument."""
    if kernel.role == "grouped" and kernel.input.endswith("mx"):
        return f"GroupedMx<jaxbw::{_PARAMS_OF_INPUT[kernel.input]}>"
    return _PARAMS.get(kernel.role) or _PARAMS_OF_INPUT.get(kernel.input, "GemmParams")


def _function(sharing: tuple[Any, ...]) -> str:
    """The body, with the template arguments that make the instances."""
    kernel = sharing[0]
    if kernel.role == "repack":
        return f"repack<{_ELEMENTS[kernel.input]}>"
    if kernel.role in ("quantize", "quantize_blocks"):
        return f"{kernel.role}<jaxbw::DataType::{_QUANTIZED[kernel.input]}>"
    if kernel.role == "group_table":
        return "group_table"
    if kernel.role == "skinny":
        return f"{kernel.family}::skinny_gemm<{kernel.block_m}, {kernel.block_n}, {kernel.block_k}>"
    if kernel.role == "reduce":
        return f"{kernel.family}::reduce"
    if kernel.family == "sm100":
        if kernel.is_gemm:
            return f"sm100::gemm<{kernel.cta_group}>"
        kind = f"jaxbw::sm100::Kind::{_KINDS[kernel.input]}"
        return f"sm100::grouped_gemm<{kernel.cta_group}, {kind}>"
    classes = {_CLASSES[each.input] for each in sharing}
    config = {
        **{name: str(name in classes).lower() for name in dict.fromkeys(_CLASSES.values())},
        "warpgroup_rows": kernel.block_m,
        "block_n": kernel.block_n,
        "promoted": str(kernel.input == "8bit_promoted").lower(),
    }
    if kernel.role == "gathered":
        config["gathered"] = "true"
    if kernel.serves_some:
        config["scope"] = f"jaxbw::sm90::Scope::k{kernel.role.title()}"
    fields = ", ".join(f".{name} = {value}" for name, value in config.items())
    function = "gemm" if kernel.is_gemm else "grouped_gemm"
    return f"sm90::{function}<jaxbw::sm90::Config{{{fields}}}>"


def instances(kernels: tuple[Any, ...]) -> str:
    """The table as the host knows it: the rows of kKernelInstances (host/kernel_instances.h)."""
    lines = []
    for k in kernels:
        texts = (k.name, k.family, k.role, k.input, k.layout, k.source_name, *k.placeholder)
        numbers = (k.block_m or 0, k.block_n or 0, k.cta_group, k.threads)
        lines.append(
            "{" + ", ".join([*(f'"{text}"' for text in texts), *map(str, numbers)]) + "},\n"
        )
    return "".join(lines)


def manifest(kernels: tuple[Any, ...], reports: Path) -> dict[str, Any]:
    """The manifest of the compiled instances: the table's rows and what ptxas says of them."""
    entries = []
    for kernel in kernels:
        report = Report.parse((reports / f"{kernel.name}.ptxas").read_text())
        entries.append(
            {
                **kernel.to_json(),
                "registers": report.registers,
                "spill_bytes": report.spill_bytes,
                "cubin": f"{kernel.name}.cubin",
                "ptx": f"{kernel.source_name}.ptx",
            }
        )
    return {"version": VERSION, "kernels": entries}


def _write_manifest(kernels: tuple[Any, ...], reports: Path, output: Path) -> None:
    content = manifest(kernels, reports)
    current = {entry[kind] for entry in content["kernels"] for kind in ("cubin", "ptx")}
    for path in [*output.parent.glob("*.cubin"), *output.parent.glob("*.ptx")]:
        if path.name not in current:  # left over from a row that is gone
            path.unlink()
    output.write_text(json.dumps(content, indent=1) + "\n")


def _write_sources(kernels: tuple[Any, ...], output: Path) -> None:
    """Prints a line for each unit, its target and sources, and for each source its target and
    instances, as assemble.py takes them.
    """
    sources = by_source(kernels)
    for unit, names in units(kernels).items():
        _write_if_changed(
            output / f"{unit}.cu", "\n".join(source(*sources[name]) for name in names)
        )
        print("unit", unit, sources[names[0]][0].arch, *names)
    for name, sharing in sources.items():
        print("source", name, sharing[0].arch, *map(_for_assemble, sharing))


def _for_assemble(kernel: Any) -> str:
    word, number = kernel.placeholder
    return f"{kernel.name}:{word}={number}" if word else kernel.name


def _write_if_changed(path: Path, text: str) -> None:
    """An unchanged file builds nothing."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["sources", "instances", "manifest"])
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--reports", type=Path)
    args = parser.parse_args()

    kernels = load_table_module().load(args.table)
    if args.command == "sources":
        _write_sources(kernels, args.output)
    elif args.command == "instances":
        _write_if_changed(args.output, instances(kernels))
    else:
        _write_manifest(kernels, args.reports, args.output)


if __name__ == "__main__":
    _main()
