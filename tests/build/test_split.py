"""cuda/kernels/split.py: the PTX of several kernels, cut into one file for each."""

import pytest
from split import split

HEAD = """\
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
"""


def kernel(name: str) -> str:
    return f""".visible .entry {name}(
	.param .u64 pointer
)
.maxntid 384, 1, 1
{{
	{{
	ret;
	}}

}}
"""


def test_each_kernel_has_what_stands_before_and_behind_all() -> None:
    lines = '\t.file\t1 "gemm/sm90.cuh"\n'  # with -lineinfo
    text = HEAD + kernel("first") + "\n\t// .globl\tsecond\n" + kernel("second") + lines
    assert split(text) == {name: HEAD + kernel(name) + lines for name in ("first", "second")}


def test_ptx_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel"):
        split(HEAD)
