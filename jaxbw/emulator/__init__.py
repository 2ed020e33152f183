"""Runs the PTX of a GPU kernel on the CPU, in adversarial orders, and says what it does wrong.

>>> import numpy as np
>>> from jaxbw import emulator
>>> module = emulator.Module('''
... .version 9.0
... .target sm_100f
... .address_size 64
... .visible .entry triple(.param .u64 data) {
...   .reg .b32 %r<3>;  .reg .b64 %rd<4>;
...   ld.param.u64 %rd1, [data];
...   mov.u32 %r1, %tid.x;
...   mul.wide.u32 %rd2, %r1, 4;
...   add.u64 %rd3, %rd1, %rd2;
...   ld.global.u32 %r2, [%rd3];
...   mul.lo.u32 %r2, %r2, 3;
...   st.global.u32 [%rd3], %r2;
...   ret;
... }''')
>>> data = np.arange(4, dtype=np.uint32)
>>> report = module.launch("triple", grid=1, block=4, args=[data])
>>> data.tolist(), report.findings
([0, 3, 6, 9], [])
"""

from jaxbw._src.emulator.module import EmulatorError, Module
from jaxbw._src.emulator.report import Finding, Report, Role
from jaxbw._src.emulator.tensor_map import TensorMap, empty

__all__ = ["EmulatorError", "Finding", "Module", "Report", "Role", "TensorMap", "empty"]
