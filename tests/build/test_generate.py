"""cuda/kernels/generate.py: the source of an instance, and its entry in the manifest."""

import re
from pathlib import Path

import pytest
from generate import by_source, manifest, source, units

from jaxbw._src.selection import kernel_table
from jaxbw._src.selection.kernel_table import Kernel

LAYOUTS = ("nn", "nt", "tn", "tt")


def sm90(dtype: str, layout: str) -> Kernel:
    depth = {"8bit": 128, "tf32": 32}.get(dtype, 64)
    return Kernel("sm_90a", "gemm", dtype, layout, 64, 192, depth, 1, "a test")


def test_the_source_of_hopper_instances() -> None:
    text = source(sm90("f16", "nn"))
    assert '#include "gemm/sm90.cuh"' in text
    assert "__launch_bounds__(384, 1)\n    jaxbw_sm90_64x192(" in text
    assert ".of_16bit = true, .of_8bit = false, .of_tf32 = false" in text
    assert ".block_n = 192, .promoted = false}" in text
    assert text == source(sm90("bf16", "tt"))
    text = source(sm90("bf16", "nn"), sm90("tf32", "nt"))
    assert ".of_16bit = true, .of_8bit = false, .of_tf32 = true" in text


def test_instances_of_one_source_differ_in_a_number() -> None:
    shared = ".entry jaxbw_sm90_64x192(\nmov.u32 %r1, 0x4a584257;\n"
    kernels = [sm90(dtype, layout) for dtype in ("bf16", "f16") for layout in LAYOUTS]
    kernels += [sm90(dtype, "nt") for dtype in ("8bit", "tf32")]
    texts = [kernel.ptx(shared) for kernel in kernels]
    assert texts[0] == ".entry jaxbw_sm90_bf16_nn_64x192(\nmov.u32 %r1, 2;\n"
    assert len({text.split()[-1] for text in texts}) == 10
    with pytest.raises(AssertionError):  # the number is not in it
        kernels[0].ptx(".entry jaxbw_sm90_64x192")


def untiled(arch: str, role: str, dtype: str, cta_group: int = 1) -> Kernel:
    return Kernel(arch, role, dtype, "any", None, None, None, cta_group, "a test")


def test_the_source_of_a_blackwell_instance() -> None:
    text = source(untiled("sm_100f", "gemm", "tf32", 2))
    assert '#include "gemm/sm100.cuh"' in text
    assert "__launch_bounds__(256, 1)\n    jaxbw_sm100_2cta(" in text  # of tf32, 8 and 16 bits
    assert "jaxbw::sm100::gemm<2>(params);" in text


def test_the_source_of_a_repack_instance() -> None:
    text = source(untiled("sm_90a", "repack", "32bit"))
    assert '#include "gemm/repack.cuh"' in text
    assert "__launch_bounds__(256, 4)\n    jaxbw_sm90_repack_32bit(" in text
    assert "const __grid_constant__ jaxbw::RepackParams params" in text
    assert "jaxbw::repack<uint32_t>(params);" in text


def test_the_source_of_the_instance_that_adds_up_parts() -> None:
    text = source(untiled("sm_90a", "reduce", "f32"))
    assert '#include "gemm/sm90_reduce.cuh"' in text
    assert "__launch_bounds__(512, 1)\n    jaxbw_sm90_reduce_f32(" in text
    assert "const __grid_constant__ jaxbw::GemmParams params" in text
    assert "jaxbw::sm90::reduce(params);" in text


def test_the_source_of_a_quantize_instance() -> None:
    text = source(untiled("sm_100f", "quantize", "f16"))
    assert '#include "gemm/quantize.cuh"' in text
    assert "__launch_bounds__(256, 4)\n    jaxbw_sm100_quantize_f16(" in text
    assert "const __grid_constant__ jaxbw::QuantizeParams params" in text
    assert "jaxbw::quantize<jaxbw::DataType::kF16>(params);" in text
    text = source(untiled("sm_90a", "quantize_blocks", "bf16"))
    assert '#include "gemm/quantize_blocks.cuh"' in text
    assert "__launch_bounds__(512, 2)\n    jaxbw_sm90_quantize_blocks_bf16(" in text
    assert "const __grid_constant__ jaxbw::QuantizeBlocksParams params" in text
    assert "jaxbw::quantize_blocks<jaxbw::DataType::kBF16>(params);" in text


def test_the_manifest_joins_table_and_report(tmp_path: Path) -> None:
    kernel = sm90("f16", "tt")
    report = "0 bytes spill stores, 0 bytes spill loads\nUsed 168 registers, used 8 barriers"
    (tmp_path / f"{kernel.name}.ptxas").write_text(report)
    [entry] = manifest((kernel,), tmp_path)["kernels"]
    assert Kernel.from_json(entry) == kernel
    assert (entry["registers"], entry["spill_bytes"]) == (168, 0)
    assert (entry["cubin"], entry["ptx"]) == (f"{kernel.name}.cubin", f"{kernel.source_name}.ptx")


def test_units_have_every_source_once_and_one_header_each(root: Path) -> None:
    kernels = kernel_table.load(root / "cuda" / "kernels.toml")
    sources = by_source(kernels)
    assert sorted(sum(units(kernels).values(), ())) == sorted(sources)
    for names in units(kernels).values():
        assert len({sources[name][0].arch for name in names}) == 1
        includes = {re.findall("#include .*", source(*sources[name]))[0] for name in names}
        assert len(includes) == 1
