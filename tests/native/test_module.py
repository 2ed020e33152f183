"""What the extension offers where there is no GPU, and that its stub tells the truth."""

import ast
import inspect
import re
from pathlib import Path

import jax
import pytest

from jaxbw import _native

from .conftest import ROOT

STUB = ast.parse((ROOT / "jaxbw" / "_native.pyi").read_text())


def test_stub_names_what_there_is() -> None:
    declared = {node.name for node in STUB.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    declared |= {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)
                 and isinstance(node.target, ast.Name)}  # fmt: skip
    declared = {name for name in declared if not name.startswith("_")}  # for types only
    offered = {name for name in dir(_native) if not name.startswith("_")}
    # Submodules of the emulator have a face of their own.
    submodules = {name for name in offered if inspect.ismodule(getattr(_native, name))}
    assert declared - {"emulator"} == offered - submodules


@pytest.mark.parametrize(
    "function", [n for n in STUB.body if isinstance(n, ast.FunctionDef)], ids=lambda node: node.name
)
def test_stub_has_the_parameters_of_the_functions(function: ast.FunctionDef) -> None:
    signature = getattr(_native, function.name).__nb_signature__[0][0]
    arguments = function.args.args + function.args.kwonlyargs
    actual = re.findall(r"[(,] ?(\w+):", signature)
    assert actual == [argument.arg for argument in arguments]


def test_stub_has_the_values_of_the_enumerations() -> None:
    classes = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
    for name in ("DataType", "Untyped", "Major", "Activation"):
        declared = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in classes[name].body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        assert declared == {member.name: member.value for member in getattr(_native, name)}


def test_public_functions_are_documented_in_the_stub() -> None:
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node), node.name


def test_custom_calls_register_where_there_is_no_gpu() -> None:
    for platform, targets in (
        ("CUDA", _native.ffi_targets),
        ("cpu", _native.emulator_ffi_targets),
    ):
        names = ["jaxbw_gemm_v10", "jaxbw_quantize_blocks_v1", "jaxbw_quantize_v1"]
        assert sorted(targets()) == names
        for _ in range(2):  # the same again
            for name, stages in targets().items():
                jax.ffi.register_ffi_target(name, stages, platform=platform)


def test_shared_memory_fits_up_to_the_most_stages_and_no_further() -> None:
    limit = 232448
    tiles = [("sm90", 128, 1), ("sm100", 64, 1), ("sm100", 128, 1), ("sm100", 256, 2)]
    for family, block_m, cta_group in [*tiles, ("sm100", 512, 2)]:
        for block_n in (16, 64, 128, 192):
            for k_spans in (1, 2):
                tile = (family, block_m, block_n, cta_group)
                stages = _native.max_stages(*tile, k_spans)
                assert 1 <= stages <= 12
                assert _native.shared_memory_bytes(*tile, stages, k_spans) <= limit
                if stages < 12:
                    assert _native.shared_memory_bytes(*tile, stages + 1, k_spans) > limit


def test_unknown_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="no kernel family 'sm80'"):
        _native.max_stages("sm80", 128, 128, 1)
    with pytest.raises(ValueError, match="a tile has no dimension of 0"):
        _native.shared_memory_bytes("sm90", 128, 128, 0, 4)
    assert inspect.isclass(_native.DriverError)
    assert issubclass(_native.DriverError, RuntimeError)


def test_the_extension_links_nothing_of_cuda() -> None:
    library = Path(_native.__file__).read_bytes()
    assert b"libcudart" not in library
    assert library.count(b"libcuda.so.1") == 1  # the name that dlopen is given
