"""A persistent GEMM in the CuTe DSL, with its layouts, pipelines, masks and both ways to store."""

import tempfile

import cutlass
from cutlass import cute, memory, pipeline, tensor_utils
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor
from cutlass.utils import blackwell_helpers

from .launching import BF16, Kernel, Problem, tensor_map

MMA_K = 16
BLOCK_K = 64  # a span of the 128-byte swizzle
LOAD_WARP, MMA_WARP, EPILOGUE_WARPS = 0, 1, (4, 5, 6, 7)
THREADS = 256
TMEM_COLUMNS = 512
ACCUMULATORS = 2
LOAD_COLUMNS = 32  # of the accumulator, by one tcgen05.ld, where it is stored from registers
STORE_COLUMNS = 64  # by one TMA store; as many are loaded
STORE_BUFFERS = 2
ONE_THREAD = pipeline.CooperativeGroup(pipeline.Agent.Thread)
EPILOGUE_BARRIER = pipeline.NamedBarrier(barrier_id=2, num_threads=32 * len(EPILOGUE_WARPS))


class Matmul:
    """lhs `[m, k]` by rhs `[n, k]`, of any major; tiles divide the problem.

    A CTA computes every `columns`-th tile of its rows.
    """

    def __init__(
        self,
        tile: tuple[int, int],
        cluster: tuple[int, int],
        pair: bool,
        stages: int,
        columns: int,
        tma_store: bool,
    ):
        self.tile = (*tile, BLOCK_K)
        self.columns = columns
        self.tma_store = tma_store
        self.cluster = (*cluster, 1)
        self.group = 2 if pair else 1
        self.stages = stages

    @cute.jit
    def __call__(self, lhs: cute.Tensor, rhs: cute.Tensor, result: cute.Tensor):
        self.dtype = lhs.element_type
        group = tcgen05.CtaGroup.TWO if self.group == 2 else tcgen05.CtaGroup.ONE
        mma = cute.make_tiled_mma(
            tcgen05.MmaF16BF16Op(
                self.dtype,
                cutlass.Float32,
                (*self.tile[:2], MMA_K),
                group,
                tcgen05.OperandSource.SMEM,
                tensor_utils.LayoutEnum.from_tensor(lhs).mma_major_mode(),
                tensor_utils.LayoutEnum.from_tensor(rhs).mma_major_mode(),
            )
        )
        ctas = cute.tiled_divide(cute.make_layout(self.cluster), (mma.thr_id,))
        lhs_layout = blackwell_helpers.make_smem_layout_a(mma, self.tile, self.dtype, self.stages)
        rhs_layout = blackwell_helpers.make_smem_layout_b(mma, self.tile, self.dtype, self.stages)
        load = cpasync.CopyBulkTensorTileG2SMulticastOp(group)
        lhs_copy, lhs_view = cute.nvgpu.make_tiled_tma_atom_A(
            load, lhs, cute.slice_(lhs_layout, (None, None, None, 0)), self.tile, mma, ctas.shape
        )
        rhs_copy, rhs_view = cute.nvgpu.make_tiled_tma_atom_B(
            load, rhs, cute.slice_(rhs_layout, (None, None, None, 0)), self.tile, mma, ctas.shape
        )
        rows = self.tile[0] // self.group
        box = (rows, STORE_COLUMNS)
        staging_layout = blackwell_helpers.make_smem_layout_epi(
            self.dtype, tensor_utils.LayoutEnum.from_tensor(result), box, STORE_BUFFERS
        )
        result_copy, result_view = None, result
        if cutlass.const_expr(self.tma_store):
            result_copy, result_view = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(),
                result,
                cute.slice_(staging_layout, (None, None, 0)),
                box,
            )
        self.kernel(
            mma,
            (lhs_copy, rhs_copy, result_copy),
            (lhs_view, rhs_view, result_view),
            (lhs_layout, rhs_layout, staging_layout),
            ctas,
        ).launch(
            grid=(result.shape[0] // rows, self.columns, 1),
            block=(THREADS, 1, 1),
            cluster=self.cluster,
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        copies: tuple,
        views: tuple,
        layouts: tuple,
        ctas: cute.Layout,
    ):
        lhs_copy, rhs_copy, result_copy = copies
        lhs_view, rhs_view, result_view = views
        lhs_layout, rhs_layout, staging_layout = layouts
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        x, y, _ = cute.arch.block_idx()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        place = ctas.get_flat_coord(rank)  # (CTA of the pair, m, n, 0)
        half, tile = x % self.group, (x // self.group, None, None)
        tiles = (y, result_view.shape[1] // self.tile[1])
        peers_m, peers_n = cute.size(ctas, mode=[1]), cute.size(ctas, mode=[2])

        @cute.struct
        class Storage:
            ring: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            accumulator: cute.struct.MemRange[cutlass.Int64, 2 * ACCUMULATORS]
            freed: cutlass.Int64
            tmem: cutlass.Int32

        shared = memory.SmemAllocator()
        storage = shared.allocate(Storage)
        lhs_ring = shared.allocate_tensor(
            self.dtype, lhs_layout.outer, byte_alignment=1024, swizzle=lhs_layout.inner
        )
        rhs_ring = shared.allocate_tensor(
            self.dtype, rhs_layout.outer, byte_alignment=1024, swizzle=rhs_layout.inner
        )
        staging = None
        if cutlass.const_expr(self.tma_store):
            staging = shared.allocate_tensor(
                self.dtype, staging_layout.outer, byte_alignment=1024, swizzle=staging_layout.inner
            )
        stage_bytes = sum(
            cute.size_in_bytes(self.dtype, cute.slice_(layout, (None, None, None, 0)))
            for layout in (lhs_layout, rhs_layout)
        )
        ring_producer, ring_consumer = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=ONE_THREAD,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, peers_m + peers_n - 1),
            tx_count=stage_bytes * self.group,
            barrier_storage=storage.ring.data_ptr(),
            cta_layout_vmnk=ctas,
        ).make_participants()
        sums_producer, sums_consumer = pipeline.PipelineUmmaAsync.create(
            num_stages=ACCUMULATORS,
            producer_group=ONE_THREAD,
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, self.group * len(EPILOGUE_WARPS)
            ),
            barrier_storage=storage.accumulator.data_ptr(),
            cta_layout_vmnk=ctas,
        ).make_participants()
        tmem = memory.TmemAllocator(
            storage.tmem.ptr,
            barrier_for_retrieve=pipeline.NamedBarrier(
                barrier_id=1, num_threads=32 * (1 + len(EPILOGUE_WARPS))
            ),
            allocator_warp_id=EPILOGUE_WARPS[0],
            is_two_cta=self.group == 2,
            two_cta_tmem_dealloc_mbar_ptr=storage.freed.ptr,
        )

        share = mma.get_slice(half)
        lhs_tiles = share.partition_A(cute.local_tile(lhs_view, self.tile, tile, (1, None, 1)))
        rhs_tiles = share.partition_B(cute.local_tile(rhs_view, self.tile, tile, (None, 1, 1)))
        lhs_to, lhs_from = cpasync.tma_partition(
            lhs_copy,
            place[2],
            cute.make_layout(peers_n),
            cute.group_modes(lhs_ring, 0, 3),
            cute.group_modes(lhs_tiles, 0, 3),
        )
        rhs_to, rhs_from = cpasync.tma_partition(
            rhs_copy,
            place[1],
            cute.make_layout(peers_m),
            cute.group_modes(rhs_ring, 0, 3),
            cute.group_modes(rhs_tiles, 0, 3),
        )
        sums_shape = cute.append(mma.partition_shape_C(self.tile[:2]), ACCUMULATORS)
        sums_like = mma.make_fragment_C(sums_shape)

        if warp == LOAD_WARP:
            lhs_mask = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=2)
            rhs_mask = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=1)
            self.load(
                ring_producer,
                tiles,
                (lhs_copy, lhs_from, lhs_to, lhs_mask),
                (rhs_copy, rhs_from, rhs_to, rhs_mask),
            )
        if warp == MMA_WARP:
            tmem.wait_for_alloc()
            sums = cute.make_tensor(tmem.retrieve_ptr(cutlass.Float32), sums_like.layout)
            if half == 0:
                blocks = cute.size(lhs_from, mode=[1])
                rings = lhs_ring, rhs_ring
                self.multiply(mma, ring_consumer, sums_producer, tiles, rings, sums, blocks)
        if warp >= EPILOGUE_WARPS[0]:
            tmem.allocate(TMEM_COLUMNS)
            tmem.wait_for_alloc()
            pointer = tmem.retrieve_ptr(cutlass.Float32)
            sums_to_store = cute.make_tensor(pointer, sums_like.layout)
            if cutlass.const_expr(self.tma_store):
                boxes = cute.local_tile(
                    result_view, (self.tile[0] // self.group, STORE_COLUMNS), (x, None)
                )
                self.store(sums_consumer, tiles, sums_to_store, staging, result_copy, boxes, thread)
            else:
                result = share.partition_C(
                    cute.local_tile(result_view, self.tile, tile, (1, 1, None))
                )
                self.store_rows(sums_consumer, tiles, sums_to_store, result, thread)
            tmem.relinquish_alloc_permit()
            EPILOGUE_BARRIER.arrive_and_wait()
            tmem.free(pointer)

    @cute.jit
    def load(self, ring, tiles, lhs, rhs):
        lhs_copy, lhs_from, lhs_to, lhs_mask = lhs
        rhs_copy, rhs_from, rhs_to, rhs_mask = rhs
        for column in cutlass.range(tiles[0], tiles[1], self.columns):
            for k in cutlass.range(cute.size(lhs_from, mode=[1])):
                slot = ring.acquire_and_advance()
                full = slot.barrier
                to = lhs_to[None, slot.index]
                cute.copy(lhs_copy, lhs_from[None, k], to, tma_bar_ptr=full, mcast_mask=lhs_mask)
                block, to = rhs_from[None, column, k], rhs_to[None, slot.index]
                cute.copy(rhs_copy, block, to, tma_bar_ptr=full, mcast_mask=rhs_mask)
        ring.tail()

    @cute.jit
    def multiply(self, mma, ring, accumulators, tiles, rings, sums, blocks):
        lhs, rhs = mma.make_fragment_A(rings[0]), mma.make_fragment_B(rings[1])
        for _ in cutlass.range(tiles[0], tiles[1], self.columns):
            accumulator = accumulators.acquire_and_advance()
            mine = sums[None, None, None, accumulator.index]
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(blocks):
                slot = ring.wait_and_advance()
                for i in cutlass.range_constexpr(BLOCK_K // MMA_K):
                    step = (None, None, i, slot.index)
                    cute.gemm(mma, mine, lhs[step], rhs[step], mine)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                slot.release()
            accumulator.commit()
        accumulators.tail()

    @cute.jit
    def store_rows(self, accumulators, tiles, sums, result, thread):
        """From registers to global memory: a lane stores its row, 32 columns at a time."""
        part = ((cute.size(sums, mode=[0, 0]), LOAD_COLUMNS),)
        load = tcgen05.Ld32x32bOp(tcgen05.Repetition(LOAD_COLUMNS))
        atom = cute.make_copy_atom(load, cutlass.Float32)
        first = cute.zipped_divide(sums[None, None, None, 0], part)
        copy = tcgen05.make_tmem_copy(atom, first[None, 0])
        share = copy.get_slice(thread % 128)
        for column in cutlass.range(tiles[0], tiles[1], self.columns):
            slot = accumulators.wait_and_advance()
            source = cute.zipped_divide(sums[None, None, None, slot.index], part)
            target = cute.zipped_divide(result[None, None, None, column], part)
            source, target = share.partition_S(source), share.partition_D(target)
            shape = target[None, None, 0].shape
            exact = cute.make_rmem_tensor(shape, cutlass.Float32)
            rounded = cute.make_rmem_tensor(shape, self.dtype)
            for i in cutlass.range(cute.size(source, mode=[2])):
                cute.copy(copy, source[None, None, i], exact)
                rounded.store(exact.load().to(self.dtype))
                cute.autovec_copy(rounded, target[None, None, i])
            with cute.arch.elect_one():
                slot.release()

    @cute.jit
    def store(self, accumulators, tiles, sums, staging, result_copy, boxes, thread):
        """By TMA from two buffers in shared memory, 64 columns at a time."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        part = ((cute.size(sums, mode=[0, 0]), STORE_COLUMNS),)
        load = tcgen05.Ld32x32bOp(tcgen05.Repetition(STORE_COLUMNS))
        atom = cute.make_copy_atom(load, cutlass.Float32)
        first = cute.zipped_divide(sums[None, None, None, 0], part)
        copy = tcgen05.make_tmem_copy(atom, first[None, 0])
        share = copy.get_slice(thread % 128)
        to_buffer = share.partition_D(cute.group_modes(staging, 0, 2))
        shape = to_buffer[None, None, 0].shape
        exact = cute.make_rmem_tensor(shape, cutlass.Float32)
        rounded = cute.make_rmem_tensor(shape, self.dtype)
        buffer, box = cpasync.tma_partition(
            result_copy,
            0,
            cute.make_layout(1),
            cute.group_modes(staging, 0, 2),
            cute.group_modes(boxes, 0, 2),
        )
        stores = pipeline.PipelineTmaStore.create(
            num_stages=STORE_BUFFERS,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128),
        )
        for column in cutlass.range(tiles[0], tiles[1], self.columns):
            slot = accumulators.wait_and_advance()
            source = cute.zipped_divide(sums[None, None, None, slot.index], part)
            source = share.partition_S(source)
            chunks = cute.size(source, mode=[2])
            for i in cutlass.range_constexpr(chunks):
                which = i % STORE_BUFFERS
                cute.copy(copy, source[None, None, i], exact)
                rounded.store(exact.load().to(self.dtype))
                cute.autovec_copy(rounded, to_buffer[None, None, which])
                cute.arch.fence_proxy("async.shared", space="cta")
                EPILOGUE_BARRIER.arrive_and_wait()
                if warp == EPILOGUE_WARPS[0]:
                    cute.copy(result_copy, buffer[None, which], box[None, column * chunks + i])
                    stores.producer_commit()
                    stores.producer_acquire()
                EPILOGUE_BARRIER.arrive_and_wait()
            with cute.arch.elect_one():
                slot.release()
        stores.producer_tail()


def compiled(
    problem: Problem,
    tile: tuple[int, int],
    cluster: tuple[int, int] = (1, 1),
    pair: bool = False,
    stages: int = 3,
    columns: int | None = None,
    tma_store: bool = False,
) -> Kernel:
    """`columns`: how many CTAs share the tiles of a row; None: as many as there are tiles."""
    columns = columns or problem.n // tile[1]
    dtype = cutlass.BFloat16 if problem.dtype == BF16 else cutlass.Float16
    lhs_k_major, rhs_k_major = not problem.lhs_transposed, problem.rhs_transposed
    shapes = [
        (problem.m, problem.k, lhs_k_major),
        (problem.n, problem.k, rhs_k_major),
        (problem.m, problem.n, True),
    ]
    tensors = [
        make_fake_compact_tensor(
            dtype, (rows, columns), stride_order=(1, 0) if row_major else (0, 1), assumed_align=16
        )
        for rows, columns, row_major in shapes
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-ptx --keep-cubin --gpu-arch=sm_100a --dump-dir={folder}"
        kernel = Matmul(tile, cluster, pair, stages, columns, tma_store)
        made = cute.compile(kernel, *tensors, options=options)
        ptx, cubin = made.__ptx__, made.__cubin__
    group = 2 if pair else 1
    rows, rhs_columns = tile[0] // group, tile[1] // group
    # Each of the peers that share an operand's tile loads a part of it, of rows or (MN-major) of k.
    lhs_peers, rhs_peers = cluster[1], cluster[0] // group
    lhs_box = (BLOCK_K, (rows if lhs_k_major else BLOCK_K) // lhs_peers)
    rhs_box = (BLOCK_K, (rhs_columns if rhs_k_major else BLOCK_K) // rhs_peers)
    staging = STORE_BUFFERS * rows * STORE_COLUMNS * 2 if tma_store else 0
    # The tiled MMA: accumulate, negate lhs, negate rhs: all false; lanes not to write: none.
    mma = bytes(32 * group)
    return Kernel(
        ptx=ptx,
        cubin=cubin,
        grid=(problem.m // rows, columns),
        cluster=cluster,
        dynamic_smem=(rows + rhs_columns) * BLOCK_K * 2 * stages + staging + 2048,
        arguments=lambda lhs, rhs, result: [
            mma,
            tensor_map(lhs, lhs_box),
            tensor_map(rhs, rhs_box),
            tensor_map(result, (STORE_COLUMNS, rows)) if tma_store else result,
        ],
    )
