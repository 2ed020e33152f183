"""A persistent kernel in the CuTe DSL that queries refused responses of launch control, too."""

import tempfile
from typing import Any

import cutlass
from cutlass import cute, memory
from cutlass.cute.runtime import make_fake_compact_tensor

from .launching import Layer

THREADS = 128
RESPONSE_BYTES = 16


class AddRowNumbers:
    """Adds to each row its number. A CTA does a row, and then those of CTAs that it cancels."""

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor):
        self.kernel(x, out).launch(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()

        @cute.struct
        class Storage:
            response: cute.struct.Align[cute.struct.MemRange[cutlass.Int32, 4], 16]
            answered: cutlass.Int64

        storage = memory.SmemAllocator().allocate(Storage)
        answered, response = storage.answered.ptr, storage.response.data_ptr()
        if thread == 0:
            cute.arch.mbarrier_init(answered, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        phase = cutlass.Int32(0)
        there = cutlass.Int32(1)
        while there != 0:
            if thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(answered, RESPONSE_BYTES)
                cute.arch.issue_clc_query(answered, response, multicast=False)
            out[row, thread] = x[row, thread] + row
            cute.arch.mbarrier_wait(answered, phase)
            phase = phase ^ 1
            # The row of a refused response is read, and not used.
            row, _, _, there = cute.arch.clc_response(response)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_threads()


def add_row_numbers(rows: int) -> Layer:
    tensors: list[Any] = [
        make_fake_compact_tensor(cutlass.Int32, (rows, THREADS), stride_order=(1, 0))
        for _ in range(2)
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-ptx --gpu-arch=sm_100a --dump-dir={folder}"
        ptx = cute.compile(AddRowNumbers(), *tensors, options=options).__ptx__
    return Layer(ptx=ptx, grid=(rows, 1), dynamic_smem=1024, scratch=[])
