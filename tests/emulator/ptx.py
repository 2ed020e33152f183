"""Small PTX kernels, written around a body."""

from jaxbw import emulator


def module(body: str, parameters: str = ".param .u64 out", shared: int = 4096) -> emulator.Module:
    return emulator.Module(text(body, parameters, shared))


def text(body: str, parameters: str = ".param .u64 out", shared: int = 4096) -> str:
    """Returns a module with the entry `kernel`, and these registers and symbols for its body.

    `%out` is the first parameter; `memory` is shared memory and `%shared` its address.
    """
    return f"""
.version 9.0
.target sm_100f
.address_size 64
.visible .entry kernel({parameters})
{{
  .reg .pred %p<16>;
  .reg .b16 %h<16>;
  .reg .b32 %r<64>, %shared, %tid;
  .reg .f32 %f<16>;
  .reg .b64 %rd<32>, %out;
  .reg .b128 %q<4>;
  .shared .align 1024 .b8 memory[{shared}];
  ld.param.u64 %out, [out];
  mov.u32 %shared, memory;
  mov.u32 %tid, %tid.x;
{body}
  ret;
}}
"""


STORE_R0 = """
  mul.wide.u32 %rd31, %tid, 4;
  add.u64 %rd31, %out, %rd31;
  st.global.b32 [%rd31], %r0;
"""
