"""cuda/kernels.toml: which instances it says there are, and what it must not say."""

from pathlib import Path

import pytest

from jaxbw import _native
from jaxbw._src.selection import kernel_table

ROW = """
[[kernel]]
arch = "sm_90a"
role = "gemm"
input = ["bf16", "f16"]
layout = ["nn", "tt"]
tile = [[64, 256, 64], [64, 64, 64]]
cta_group = 1
why = "a test"
"""
GROUPED_OF_ANY_LAYOUT = '"grouped"\ninput = "f16"\nlayout = "any"'


def load(tmp_path: Path, text: str) -> tuple[kernel_table.Kernel, ...]:
    path = tmp_path / "kernels.toml"
    path.write_text(text)
    return kernel_table.load(path)


def test_a_row_stands_for_the_matmul_of_its_alternatives(tmp_path: Path) -> None:
    assert [kernel.name for kernel in load(tmp_path, ROW)] == [
        "jaxbw_sm90_bf16_nn_64x256",
        "jaxbw_sm90_bf16_nn_64x64",
        "jaxbw_sm90_bf16_tt_64x256",
        "jaxbw_sm90_bf16_tt_64x64",
        "jaxbw_sm90_f16_nn_64x256",
        "jaxbw_sm90_f16_nn_64x64",
        "jaxbw_sm90_f16_tt_64x256",
        "jaxbw_sm90_f16_tt_64x64",
    ]


def test_the_table_has_every_instance_once(root: Path) -> None:
    names = [kernel.name for kernel in kernel_table.load(root / "cuda" / "kernels.toml")]
    assert len(names) == len(set(names))
    for kind in ("16bit", "tf32"):
        assert {f"jaxbw_sm100_{kind}_1cta", f"jaxbw_sm100_{kind}_2cta"} <= set(names)
    for other in (
        *("sm90_repack_16bit", "sm100_repack_16bit", "sm100_repack_32bit"),
        "sm90_reduce_f32",
    ):
        assert f"jaxbw_{other}" in names
    for operands in ("bf16_nn", "bf16_nt", "bf16_tn", "bf16_tt", "f16_any"):
        assert f"jaxbw_sm90_{operands}_64x256" in names


def test_the_runtime_knows_the_instances_by_the_names_of_the_table(root: Path) -> None:
    names = [kernel.name for kernel in kernel_table.load(root / "cuda" / "kernels.toml")]
    assert _native.kernel_names() == names


def test_the_json_of_an_instance_gives_it_back(root: Path) -> None:
    for kernel in kernel_table.load(root / "cuda" / "kernels.toml"):
        assert kernel_table.Kernel.from_json(kernel.to_json()) == kernel


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("cta_group", "cta_groups"), "cta_groups"),
        (("why =", 'note = ""\nwhy ='), "note"),
        (('"gemm"', '"repack"'), r"unknown keys \['cta_group', 'layout', 'tile'\]"),
        (('role = "gemm"\n', ""), r"missing keys \['role'\]"),
        (
            ('"gemm"', '"other"'),
            "role is not one of gemm, plain, elementwise, fused, cast, skinny, grouped",
        ),
        (('"gemm"', '"grouped"'), 'layout is not "nn" or "nt"'),
        (('"sm_90a"', '"sm_80"'), "sm_80"),
        (('"f16"]', '"bf16"]'), "jaxbw_sm90_bf16_nn_64x256"),
        (('"tt"]', '"xx"]'), "layout"),
        (
            ('"gemm"\ninput = ["bf16", "f16"]\nlayout = ["nn", "tt"]', GROUPED_OF_ANY_LAYOUT),
            "layout",
        ),
        (("[64, 64, 64]", "[64, 80, 64]"), "block_n"),
        (("[64, 64, 64]", "[256, 64, 64]"), "block_m"),
        (("cta_group = 1", "cta_group = 2"), "cta_group"),
        (("[[64, 256, 64], [64, 64, 64]]", '"any"'), "block_m"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_bad_row_stops_the_build(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    assert change[0] in ROW
    with pytest.raises(ValueError, match=complaint):
        load(tmp_path, ROW.replace(*change))


def test_a_row_without_tiles(tmp_path: Path) -> None:
    row = """
[[kernel]]
arch = ["sm_90a", "sm_100f"]
role = "repack"
input = "16bit"
why = "a test"
"""
    names = [kernel.name for kernel in load(tmp_path, row)]
    assert names == ["jaxbw_sm90_repack_16bit", "jaxbw_sm100_repack_16bit"]
    with pytest.raises(ValueError, match='input is not "8bit", "16bit" or "32bit"'):
        load(tmp_path, row.replace('"16bit"', '"bf16"'))
    with pytest.raises(ValueError, match='there is one, for arch "sm_90a" and input "f32"'):
        load(tmp_path, row.replace('"repack"', '"reduce"'))
    with pytest.raises(ValueError, match='input is not "s32", the sizes'):
        load(tmp_path, row.replace('"repack"', '"group_table"'))
    with pytest.raises(ValueError, match='input is not "f32", "bf16" or "f16"'):
        load(tmp_path, row.replace('"repack"', '"quantize"'))


def test_a_blackwell_tile_is_chosen_at_launch(tmp_path: Path) -> None:
    row = ROW.replace('"sm_90a"', '"sm_100f"').replace('["bf16", "f16"]', '"tf32"')
    with pytest.raises(ValueError, match='tile "any" are chosen at launch'):
        load(tmp_path, row)
    [kernel] = load(
        tmp_path,
        row.replace('["nn", "tt"]', '"any"').replace("[[64, 256, 64], [64, 64, 64]]", '"any"'),
    )
    assert kernel.name == "jaxbw_sm100_tf32_1cta"
