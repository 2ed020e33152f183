"""Device functions, and what the machine provides of CUDA's run-time: printf and assert."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import toolchain

from jaxbw import emulator

from .calibration import suite

HEADER = """
.version 9.0
.target sm_100f
.address_size 64
"""
VPRINTF = ".extern .func (.param .b32 r) vprintf (.param .b64 format, .param .b64 arguments);"
ENTRY = """
.visible .entry kernel(.param .u64 out)
{{
  .reg .pred %p<8>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<16>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd1, %r0, 4;
  add.u64 %rd0, %rd0, %rd1;
{body}
  st.global.b32 [%rd0], %r1;
  ret;
}}
"""
SQUARE = """
.func (.reg .b32 result) square(.reg .b32 x)
{
  mul.lo.s32 result, x, x;
  ret;
}
"""


def text(functions: str, body: str) -> str:
    return HEADER + functions + ENTRY.format(body=body)


def launch(
    ptx: str, threads: int = 32, **options: Any
) -> tuple[npt.NDArray[np.int32], emulator.Report]:
    out = emulator.empty(threads, np.int32)
    report = emulator.Module(ptx, "calls.ptx").launch(
        "kernel", grid=1, block=threads, args=[out], **options
    )
    assert not report.findings
    return out, report


def compiled(tmp_path: Path, source: str) -> emulator.Module:
    path = tmp_path / "kernel.cu"
    path.write_text(source)
    nvcc = toolchain.find().nvcc
    return emulator.Module(suite.compiled(path, nvcc, "sm_100a"), "kernel.ptx")


# --- functions of the module

SCHEDULES = [("eager", 0), *(("random", seed) for seed in range(8)), ("pct", 1), ("latest", 0)]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_registers_are_passed_and_returned(schedule: str, seed: int) -> None:
    body = "call (%r2), square, (%r0);  call.uni (%r3), square, (3);  add.s32 %r1, %r2, %r3;"
    out, _ = launch(text(SQUARE, body), schedule=schedule, seed=seed)
    assert out.tolist() == [x * x + 9 for x in range(32)]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_lanes_return_to_where_they_came_from(schedule: str, seed: int) -> None:
    body = """
      setp.lt.u32 %p0, %r0, 10;
      setp.lt.u32 %p1, %r0, 20;
      mov.b32 %r1, -1;
      @%p0 call (%r1), square, (%r0);
      @%p0 bra DONE;
      @!%p1 bra DONE;
      call (%r1), cube, (%r0);
    DONE:
      bar.warp.sync -1;
      call.uni (%r2), cube, (2);
      add.s32 %r1, %r1, %r2;
    """
    cube = """
    .func (.reg .b32 result) cube(.reg .b32 x)
    {
      .reg .pred %p;
      setp.eq.u32 %p, x, 11;
      mov.b32 result, 0;
      @%p ret;
      call (result), square, (x);
      mul.lo.s32 result, result, x;
    }
    """
    out, _ = launch(text(SQUARE + cube, body), schedule=schedule, seed=seed)
    expected = [x * x if x < 10 else (x**3, 0)[x == 11] if x < 20 else -1 for x in range(32)]
    assert out.tolist() == [x + 8 for x in expected]


def test_a_structure_passes_through_parameter_memory() -> None:
    function = """
    .func (.param .align 8 .b8 result[16]) swap(.param .align 8 .b8 pair[16])
    {
      .reg .b64 %rd<4>;
      mov.b64 %rd2, pair;
      ld.param.b64 %rd0, [%rd2];
      ld.param::func.b64 %rd1, [pair+8];
      st.param.b64 [result], %rd1;
      st.param.b64 [result+8], %rd0;
      ret;
    }
    """
    body = """
      { .param .align 8 .b8 p[16];  .param .align 8 .b8 q[16];
        cvt.u64.u32 %rd3, %r0;
        st.param.b64 [p], %rd3;
        st.param.b64 [p+8], 1000;
        call.uni (q), swap, (p);
        ld.param.b32 %r2, [q];
        ld.param.b32 %r3, [q+8]; }
      shl.b32 %r3, %r3, 16;
      add.s32 %r1, %r2, %r3;
    """
    out, _ = launch(text(function, body))
    assert out.tolist() == [1000 + (x << 16) for x in range(32)]


def test_a_function_has_labels_branch_tables_and_shared_memory_of_its_own() -> None:
    function = """
    .func (.reg .b32 result) choose(.reg .b32 x)
    {
      .shared .align 4 .b8 memory[128];
      .reg .b32 %a;
      mov.u32 %a, memory;
      mad.lo.u32 %a, x, 4, %a;
      st.shared.b32 [%a], x;
      ld.shared.b32 result, [%a];
      and.b32 %a, x, 1;
      TABLE: .branchtargets EVEN, ODD;
      brx.idx %a, TABLE;
    EVEN:
      ret;
    ODD:
      neg.s32 result, result;
    }
    """
    body = """
      .shared .align 4 .b8 memory[128];
      mov.u32 %r4, memory;
      mad.lo.u32 %r4, %r0, 4, %r4;
      st.shared.b32 [%r4], 100;
      TABLE: .branchtargets ODD, EVEN;
      call (%r1), choose, (%r0);
      and.b32 %r2, %r0, 1;
      brx.idx %r2, TABLE;
    EVEN:
      add.s32 %r1, %r1, 1;
    ODD:
      ld.shared.b32 %r3, [%r4];
      add.s32 %r1, %r1, %r3;
    """
    out, _ = launch(text(function, body))
    assert out.tolist() == [100 + (1 - x if x & 1 else x) for x in range(32)]


def test_poison_goes_through_a_call() -> None:
    out = emulator.empty(32, np.int32)
    module = emulator.Module(text(SQUARE, "call (%r1), square, (%r9);"))
    report = module.launch("kernel", grid=1, block=32, args=[out])
    assert [finding.kind for finding in report.findings] == ["poison"]


@pytest.mark.parametrize(
    ("functions", "body", "message"),
    [
        (".extern .func away();", "call away;", r"calls.ptx:15: calls 'away', which .*not define"),
        (".func f() { call f; }", "call f;", "calls 'f' recursively"),
        (
            ".func f(); .func g() { call f; } .func f() { call g; }",
            "call f;",
            "calls 'f' recursively",
        ),
        (SQUARE, "call square, (%r0);", "has 0 results, but 'square' has 1"),
        (SQUARE, "call (%r1), square, (%r0, 1);", "has 2 arguments, but 'square' has 1"),
        (SQUARE, "call (%r1), square, (%p0);", "operand '%p0' is .pred"),
        (SQUARE, "call (%r1), square, (out);", "passes 'out', which is no .param variable of this"),
        (
            SQUARE,
            "{ .param .b64 p;  call (%r1), square, (p); }",
            "passes 'p' of 8 bytes where 4 are",
        ),
        (
            SQUARE,
            "P: .callprototype (.reg .b32 _) _ (.reg .b32 _);  call (%r1), %rd2, (%r0), P;",
            "goes through a pointer: only direct calls are supported",
        ),
        (SQUARE, "mov.b64 %rd2, square;", "takes the address of 'square'"),
        (".extern .func away() { ret; }", "call away;", "an .extern function has a body"),
        (".func empty(.param .b8 x[0]);", "call empty;", "'empty', which the module does not def"),
        (
            ".extern .func vprintf(.param .b64 format);",
            "{ .param .b64 p;  call vprintf, (p); }",
            "'vprintf' is declared with other parameters than CUDA's",
        ),
        (
            "".join(
                f".func f{i}() {{ {f'call f{i - 1};' if i else ''} }}\n" for i in range(100)
            ),
            "call f99;",
            "calls are nested deeper than 64",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(functions: str, body: str, message: str) -> None:
    with pytest.raises(emulator.EmulatorError, match=message):
        launch(text(functions, body))


def test_a_kernel_that_is_only_declared() -> None:
    module = emulator.Module(HEADER + ".extern .entry vprintf(.param .u64 out);")
    assert module.entries() == []
    with pytest.raises(emulator.EmulatorError, match="the module has no entry 'vprintf'"):
        module.launch("vprintf", grid=1, block=1, args=[0])


def test_nothing_is_passed_in_no_bytes() -> None:
    empty = ".func empty(.param .b8 x[0]) { ret; }"
    body = "{ .param .b8 y[0];  call empty, (y); }  mov.b32 %r1, 5;"
    out, _ = launch(text(empty, body))
    assert (out == 5).all()


def test_a_function_that_is_not_called_is_not_looked_at() -> None:
    out, _ = launch(text(".func unused() { nonsense; }", "mov.b32 %r1, 5;"))
    assert (out == 5).all()


@pytest.mark.parametrize("optimised", [True, False])
def test_a_function_that_nvcc_compiled(tmp_path: Path, optimised: bool) -> None:
    keep = 'asm volatile("");' if optimised else "volatile int kept = k; k = kept;"
    module = compiled(
        tmp_path,
        f"""
        struct Pair {{ int a; double b; }};
        __device__ __noinline__ Pair mix(Pair p, int k, unsigned char c) {{
          {keep}
          return {{p.a + k * c, p.b * k}};
        }}
        __device__ __noinline__ int twice(int k) {{ {keep} return 2 * k; }}
        extern "C" __global__ void kernel(int* a, double* b) {{
          const int i = threadIdx.x;
          Pair p = mix({{i, b[i]}}, i + 3, i + 250);
          if (i & 1) p.a = twice(p.a) + twice(7);
          a[i] = p.a;
          b[i] = p.b;
        }}
        """,
    )
    i = np.arange(64)
    a, b = emulator.empty(64, np.int32), emulator.empty(64, np.float64)
    b[...] = i / 4
    report = module.launch("kernel", grid=1, block=64, args=[a, b], schedule="random", seed=3)
    assert not report.findings
    mixed = i + (i + 3) * ((i + 250) & 255)
    np.testing.assert_array_equal(a, np.where(i & 1, 2 * mixed + 14, mixed))
    np.testing.assert_array_equal(b, i / 4 * (i + 3))


# --- printf and assert


def test_printf_of_nvcc(tmp_path: Path) -> None:
    module = compiled(
        tmp_path,
        r"""
        #include <cstdio>
        extern "C" __global__ void kernel(int* out) {
          const int i = threadIdx.x;
          if (i >= 3) return;
          out[i] = printf("%d|%5u|%-4d|%+.2f|%s|%c|%lld|%zu|%#x|%%|%*d|%.3s|%.*f|%e\n",
                          -i, 7u, i, 0.5f * i, i == 1 ? "one" : "other", 'a' + i, -(1ll << 40),
                          sizeof(int), 255, 6, i, "abcdef", -1, 0.25, 1.5e10);
          printf("plain\n");
        }
        """,
    )
    out = emulator.empty(3, np.int32)
    report = module.launch("kernel", grid=1, block=32, args=[out])
    assert not report.findings
    assert out.tolist() == [15] * 3
    formats = "%d|%5u|%-4d|%+.2f|%s|%c|%d|%d|%#x|%%|%*d|%.3s|%f|%e\n"
    values = [
        (-i, 7, i, 0.5 * i, "one" if i == 1 else "other", chr(97 + i), -(1 << 40), 4, 255, 6, i)
        for i in range(3)
    ]
    lines = [formats % (*line, "abcdef", 0.25, 1.5e10) for line in values]
    assert report.output == "".join(lines) + "plain\n" * 3


def test_assert_of_nvcc(tmp_path: Path) -> None:
    module = compiled(
        tmp_path,
        """
        #include <cassert>
        extern "C" __global__ void kernel(int* out) { assert(out[threadIdx.x] < 2); }
        """,
    )
    data = emulator.empty(32, np.int32)
    data[...] = 1
    module.launch("kernel", grid=1, block=32, args=[data])
    data[9] = 2
    message = r"kernel.ptx:\d+: assertion failed: out\[threadIdx.x\] < 2 \(\S*kernel.cu:3, "
    with pytest.raises(emulator.EmulatorError, match=message):
        module.launch("kernel", grid=1, block=32, args=[data])


PRINT = """
  {{ .local .align 8 .b8 values[8];  .param .b64 p0;  .param .b64 p1;  .param .b32 result;
    mov.b64 %rd2, values;
    st.local.b64 [%rd2], {value};
    cvta.local.u64 %rd2, %rd2;
    mov.b64 %rd3, format;
    cvta.global.u64 %rd3, %rd3;
    st.param.b64 [p0], %rd3;
    st.param.b64 [p1], %rd2;
    call.uni (result), vprintf, (p0, p1);
    ld.param.b32 %r1, [result]; }}
"""


def printing(format_: str, value: str = "5", body: str = "") -> str:
    codes = [*format_.encode(), 0]
    data = f".global .b8 format[{len(codes)}] = {{{', '.join(map(str, codes))}}};"
    return text(VPRINTF + data, body or PRINT.format(value=value))


@pytest.mark.parametrize(
    ("format_", "message"),
    [
        ("%n", "printf: '%n' is not supported"),
        ("%", "printf: '%' is not supported"),
        ("%50000d", "a width or precision of 50000"),
        ("%s", "0x5 is in no buffer"),
        ("%lld" * 12, "out-of-bounds access: local address"),
        ("%c" * 40, "out-of-bounds|more than 32 arguments"),
    ],
)
def test_a_format_that_cannot_be_printed(format_: str, message: str) -> None:
    ptx = printing(format_)
    line = 1 + ptx[: ptx.index("call.uni")].count("\n")
    with pytest.raises(emulator.EmulatorError, match=message) as error:
        launch(ptx, threads=1)
    assert re.match(rf"calls.ptx:{line}: ", str(error.value))


def test_output_is_bounded() -> None:
    loop = "mov.b32 %r5, 0;\nMORE:" + PRINT.format(value="5") + """
      add.u32 %r5, %r5, 1;
      setp.lt.u32 %p0, %r5, 3000;
      @%p0 bra MORE;
    """  # fmt: skip
    _, report = launch(printing("%900d", body=loop), threads=1)
    assert 1 << 20 < len(report.output) < (1 << 20) + 1000
    assert report.output.endswith("no more of what the kernel prints]\n")


def test_the_modules_own_vprintf_is_its_own() -> None:
    own = ".func (.reg .b32 r) vprintf(.reg .b32 x) { add.s32 r, x, 1; }"
    out, report = launch(text(own, "call (%r1), vprintf, (%r0);"))
    assert out.tolist() == list(range(1, 33))
    assert report.output == ""
