"""Mutants of our kernels that no schedule tells from the kernel, and what gives the order instead.

Kept by family or kernel, role, opcode, its occurrence in the role, and change. Who changes a kernel
moves occurrences: `moved_mutants.py` says where they are then, and `mutation.py` which entries were
found, and which mutants survive.
"""

from .mutation_launches import (
    FLOAT8_NAMES,
    GROUPED_MX_NAMES,
    GROUPED_NAMES,
    MX_NAMES,
    NAMES,
    SKINNY_NAMES,
    SM90_NAMES,
)

Site = tuple[str, str, str, int, str]

REDUNDANT: dict[Site, str] = {}
_ALONE, _PAIRS = zip(NAMES[:2], FLOAT8_NAMES[:2], strict=True)  # of 16 bits and of 8
_MX_ALONE, _MX_PAIRS = MX_NAMES[::2], MX_NAMES[1::2]  # of 8 bits and of 4
_NN, _NT, _TN, _TT = SM90_NAMES
_NT_8, _PROMOTED = FLOAT8_NAMES[2:]
_BAR = "bar.warp.sync"
_READ = "cp.async.bulk.wait_group.read"
_COMMIT = "cp.async.bulk.commit_group"
_MEET = "barrier.cluster.arrive.relaxed.aligned"
_CHANGES = {
    _READ: ("deleted", "one group more in flight"),
    _MEET: ("deleted, with its wait",),
    "xor.b32": ("parity never flips", "parity flips every time"),
}


def _add(
    reason: str, where: str, role: str, opcode: str, *occurrences: int, change: str | None = None
) -> None:
    for occurrence in occurrences:
        for each in (change,) if change else _CHANGES.get(opcode, ("deleted",)):
            REDUNDANT[where, role, opcode, occurrence, each] = reason


# --- sm100
_ELECT = "elect.sync behind it, for which all lanes wait; it orders no accesses to memory"
_ALIGNED = "barrier.cluster.arrive.aligned behind it, which all lanes of a warp execute together"
_WAIT_EMPTY = "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64"
_add(_ELECT, "sm100", "setup", _BAR, 1)
_add(_ALIGNED, "sm100", "setup", _BAR, 2)
for _kernel in (*_ALONE, *_MX_ALONE):
    _add(_ELECT, _kernel, "load", _BAR, 1)
for _kernel in (*_PAIRS, *_MX_PAIRS):
    _add(_ELECT, _kernel, "load", _BAR, 2)
_add(_ALIGNED, "sm100", "exit", _BAR, 2)
_WAIT_LOAD = "tcgen05.wait::ld.sync.aligned"
_HALVES = "the wait for the other half of a span, for both: until then floats are only passed on"
for _kernel in _ALONE:
    _add(_HALVES, _kernel, "epilogue", _WAIT_LOAD, 11)
for _kernel in (*_PAIRS, *MX_NAMES):
    _add(_HALVES, _kernel, "epilogue", _WAIT_LOAD, 1)
_BOTH = "the wait before it, which is for all loads: of the gate, and of up"
_add(_BOTH, "sm100_grouped", "epilogue", _WAIT_LOAD, 2, 4, 6)
_LATER = "the epilogue's wait for a later commit: a CTA without peers gets no arrival from others"
for _kernel, _occurrence in zip((*_ALONE, *_MX_ALONE), (9, 9, 9, 5), strict=True):
    _add(_LATER, _kernel, "load", _WAIT_EMPTY, _occurrence, change="always done")
_MEETS = "barrier.cta.sync.aligned behind it, for which all lanes wait"
_add(_MEETS, "sm100_grouped", "setup", _BAR, 1)
_add(_MEETS, "sm100_grouped", "multiply", _BAR, 1)
_LEADERS = "the epilogue's wait for a later commit of the leader, which alone sends arrivals"
for _kernel in (name for name in GROUPED_NAMES if "sm100" in name):
    _reason, _is_mx = _LEADERS if "2cta" in _kernel else _LATER, "mx" in _kernel
    _role, _occurrence = ("load", 2) if _is_mx else ("setup", 1)
    _add(_reason, _kernel, _role, _WAIT_EMPTY, _occurrence, change="always done")
    _occurrence = 2 if _is_mx and "2cta" in _kernel else 1
    _add(_reason, _kernel, "setup", "xor.b32", _occurrence, change="parity never flips")
for _kernel in (name for name in GROUPED_NAMES if "2cta" in name):
    _add(_ALIGNED, _kernel, "setup", _BAR, 1)
    _add(_ALIGNED, _kernel, "exit", _BAR, 1)
_add(_MEETS, GROUPED_MX_NAMES[0], "epilogue", _BAR, 10)
_ONLY_ONE = (
    "none: NVFP4's narrow gated tiles have one accumulator, whose place goes round every time"
)
_add(_ONLY_ONE, GROUPED_MX_NAMES[2], "multiply", "xor.b32", 1, change="parity flips every time")
_UNUSED = "none: such kernels ask for no work item, or sum up nothing in a cluster"
_INIT = "mbarrier.init.shared::cta.b64"
_add(_UNUSED, "sm100_grouped", "setup", _INIT, *range(29, 37), change="one arrival more")
_add(_UNUSED, "sm100_grouped", "setup", _INIT, 30, 32, change="one arrival less")
_add(_UNUSED, "sm90_grouped", "setup", _INIT, *range(25, 33), change="one arrival more")
for _kernel in _MX_ALONE:
    _add(_UNUSED, _kernel, "setup", _INIT, *range(33, 37), change="one arrival more")
# Where it lets go of an accumulator, of which none of its rows is D's.
_NOTHING_READ = "none: this warp has read nothing since it last let go of an accumulator"
_BEFORE = "tcgen05.fence::before_thread_sync"
for _kernels, _fences, _bars in (
    (_ALONE, (3, 6, 9, 11), (12, 27, 42, 48)),
    (_PAIRS, (1, 4, 7, 9), (1, 16, 31, 37)),
):
    for _kernel in _kernels:
        _add(_NOTHING_READ, _kernel, "epilogue", _BEFORE, *_fences)
        _add(_NOTHING_READ, _kernel, "epilogue", _BAR, *_bars)
_STORED = "the one behind the tile before's last read, for its store"
for _kernel in MX_NAMES:  # nothing is drained there
    _add(_NOTHING_READ, _kernel, "epilogue", _BEFORE, 1, 5, 9, 13)
    _add(_NOTHING_READ, _kernel, "epilogue", _BAR, 1, 13, 25, 41)
    _add(_STORED, _kernel, "epilogue", _BAR, 7, 19, 31)  # tiles of one accumulator
_LATER = "the wait for the ring's next slot: what a warp tells comes in order in the emulator"
for _alone, _pairs in zip((*_ALONE, *_MX_ALONE), (*_PAIRS, *_MX_PAIRS), strict=True):
    _add(_LATER, _alone, "schedule", _WAIT_EMPTY, 2, change="always done")
    _add(_LATER, _pairs, "schedule", _WAIT_EMPTY, 3, change="always done")
_BOTH = "two MMA tiles of a tile take both accumulators: their places go round every time"
_LAST = "none: it is behind the last wait, as two MMA tiles begin with the first accumulator"
# The multiply role has a copy for each kind, 16 bits first, then 8 bits; it has one for stages of
# one span, and one for others.
_EVERY, _NEVER = "parity flips every time", "parity never flips"
for _copy in range(2):
    _of_alone = [10 * _copy + i for i in (4, 5, 9, 10)]
    _of_pairs = [14 * _copy + i for i in (4, 6, 11, 13)]
    _add(_BOTH, _ALONE[_copy], "multiply", "xor.b32", *_of_alone, change=_EVERY)
    _add(_BOTH, _PAIRS[_copy], "multiply", "xor.b32", *_of_pairs, change=_EVERY)
    _behind = [14 * _copy + i for i in (7, 14)]
    _add(_LAST, _PAIRS[_copy], "multiply", "xor.b32", *_behind, change=_NEVER)
_TOGETHER = "none: it brings lanes together, which wait for bytes that copies bring"
# Where sums of a cluster's CTAs are sent: such a launch has one work item for each cluster.
_ARRIVE = "mbarrier.arrive.relaxed.cluster.shared::cluster.b64"
_ONE_ITEM = "none: no later tile waits for the accumulator"
_TWICE = "the other one of two bar.warp.sync; the fence is of the lane that copies"
for _kernel in _ALONE:
    _add(_ONE_ITEM, _kernel, "epilogue", _ARRIVE, 2)
    _add(_TWICE, _kernel, "epilogue", _BAR, 3, 4)
    _add(_TOGETHER, _kernel, "epilogue", _BAR, 5)

# --- sm90. Of its load role's bar.warp.sync, and those where other warps get ready and leave.
_REGISTERS = "setmaxnreg.sync.aligned behind it, which all lanes of a warp execute together"
_add(_REGISTERS, "sm90", "setup", _BAR, 1)
for _kernel in (*SM90_NAMES, _NT_8, _PROMOTED):
    _add(_ELECT, _kernel, "load", _BAR, *range(1, 8))
# Slots that never hold a residual, which threads read: TMA brings none there (residual_stages).
_ACQUIRE = "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster"
_add("none: both dimensions of the cluster share operands", "sm90", "load", _ACQUIRE, 3)
_add("none: CTAs share a tile along K", "sm90", "load", _ACQUIRE, 6)
# Where sums are sent: warps that multiply nothing, and wait for all stages if they load.
_NEXT = "the next cluster barrier, to which these warps come instead; who has exited has arrived"
for _kernel, _role, _of_others in (
    (_NN, "multiply", 1),
    (_NT, "setup", 2),
    (_TN, "epilogue", 1),
    (_TT, "multiply", 1),
    (_NT_8, "setup", 2),
    (_PROMOTED, "epilogue", 1),
):
    _add(_NEXT, _kernel, "load", _MEET, 5)
    _add(_NEXT, _kernel, _role, _MEET, _of_others)
# Those that prepare the others' start.
for _kernel, _role, _start, _meets, _bar in (
    (_NN, "epilogue", 1, 2, 26),
    (_NT, "epilogue", 2, 3, 52),
    (_TN, "epilogue", 3, 4, 85),
    (_TT, "epilogue", 1, 2, 23),
    (_NT_8, "epilogue", 2, 3, 52),
    (_PROMOTED, "exit", 1, 2, 1),
):
    _add(_NEXT, _kernel, _role, _MEET, _start, _meets)
    _add(_MEETS, _kernel, _role, _BAR, _bar)
# Where a tile's epilogue begins.
_SENT = "barrier.cta.sync behind it, by which every lane waits for all who lay down sums"
_ACQUIRED = "bar.warp.sync behind the wait for the staging buffers: sums of others are read later"
_ALL_BUFFERS = "bar.warp.sync before each chunk that is only cast, and one behind each other chunk"
for _kernel, _role, _sent, _acquired, _buffers in (
    (_NN, "setup", 5, (7, 9), 10),
    (_NT, "epilogue", 8, (10, 12), 13),
    (_NT_8, "epilogue", 8, (10, 12), 13),
    (_TN, "epilogue", 49, (51, 53), 54),
    (_TT, "setup", 5, (7, 9), 10),
    (_PROMOTED, "setup", 5, (7, 9), 10),
):
    _add(_SENT, _kernel, _role, _BAR, _sent)
    _add(_ACQUIRED, _kernel, _role, _BAR, *_acquired)
    _add(_ALL_BUFFERS, _kernel, _role, _BAR, _buffers)
# Tiles of which nothing is kept for later: beside the last MMAs all stores of the tile before are
# awaited, and a tile has as many boxes as staging buffers, or fewer, or begins with so many.
_DRAINED = "the wait beside the last MMAs, for all stores of the tile before"
_FIRST_BOX = "bar.warp.sync before the tile's first box, behind the wait for all stores before"
_BETWEEN = "that of the tile between: tiles of one box take the staging buffers in turn"
_NEXT_GROUP = "commit_group of the tile's next box: only all stores of a tile are awaited"
_SECOND_BOX = f"{_DRAINED}: the second box of a tile takes the other one of two staging buffers"
for _kernel, _second, _only in ((_NN, 12, (20, 22)), (_PROMOTED, 11, (19, 21, 23))):
    _add(_DRAINED, _kernel, "setup", _READ, 1, change="deleted")
    _add(_DRAINED, _kernel, "epilogue", _READ, *range(1, 7))
    _add(_NEXT_GROUP, _kernel, "epilogue", _COMMIT, 1, 2, 3)
    _add(_FIRST_BOX, _kernel, "epilogue", _BAR, _second)
    _add(_BETWEEN, _kernel, "epilogue", _BAR, *_only)
for _kernel in (_NT, _NT_8):
    _add(_DRAINED, _kernel, "epilogue", _READ, 2, change="deleted")
    _add(_DRAINED, _kernel, "epilogue", _READ, 1, *range(3, 9))
    _add(_NEXT_GROUP, _kernel, "epilogue", _COMMIT, 1)
    _add(_FIRST_BOX, _kernel, "epilogue", _BAR, 3, 32)
    _add(_SECOND_BOX, _kernel, "epilogue", _BAR, 22, 26)
_add(_DRAINED, _TT, "setup", _READ, 1, change="deleted")
_add(_DRAINED, _TT, "epilogue", _READ, *range(1, 6))
_add(_NEXT_GROUP, _TT, "epilogue", _COMMIT, 1, 2)
_add(_BETWEEN, _TT, "epilogue", _BAR, 9, 16, 18)
_CONVERGED = "wgmma.wait_group.sync.aligned behind the wait, which all lanes execute together"
_add(_CONVERGED, _NN, "epilogue", _BAR, 24)
_add(_CONVERGED, _TT, "epilogue", _BAR, 21)
(_GROUPED_NT,) = (name for name in GROUPED_NAMES if "_nt_" in name)
_add(_DRAINED, _GROUPED_NT, "epilogue", _READ, 1, 6, 7, 8, 9)
_add(_NEXT_GROUP, _GROUPED_NT, "epilogue", _COMMIT, 9)
_add(_FIRST_BOX, _GROUPED_NT, "epilogue", _BAR, 15, 17)
_add(_SECOND_BOX, _GROUPED_NT, "epilogue", _BAR, 1, 19)
# Rows that are gathered, which all lanes of the load warps bring.
_GATHERED_100, _GATHERED = (name for name in GROUPED_NAMES if "_gathered_" in name)
_GROUPED_NN = _GATHERED.replace("gathered", "grouped")
_FULL = "none: it brings lanes together; a stage is not full before its bytes are announced"
for _kernel in (_GATHERED_100, _GATHERED):
    _add(_FULL, _kernel, "load", _BAR, 1)
(_GROUPED_TN,) = (name for name in GROUPED_NAMES if "_tn_" in name)
for _kernel in (_GROUPED_NN, _GROUPED_NT, _GROUPED_TN):
    _add(_MEETS, _kernel, "setup", _BAR, 1)
_add(_MEETS, _GATHERED_100, "epilogue", _BAR, 10)
_add(_MEETS, _GATHERED, "epilogue", _BAR, 41)
_COPIED = "the multiplying warps, which wait for all copies, and without which no CTA ends"
_add(_COPIED, _GATHERED, "load", _WAIT_EMPTY, 2, change="always done")
# Main loops.
_STAGGER = "none: it is for speed that warpgroups of one tile begin their epilogues in turn"
for _kernel, _turn in ((_GATHERED, 1), (_GROUPED_NN, 1), (_GROUPED_TN, 1)):
    _add(_STAGGER, _kernel, "epilogue", "barrier.cta.sync.aligned", _turn)
_add(_STAGGER, _GROUPED_NT, "multiply", "barrier.cta.sync.aligned", 2)
_ACQUIRES = "the wait before the residual is read, which acquires"
_ONE_STAGE = "none: it is behind the last wait, as a residual's tile takes one stage"
_PROMOTED_WAITS = (5, 9, 12, 13, 17, *range(21, 26))
for _kernel, _role, _turns, _waits, _parities in (
    (_NN, "multiply", (10,), (18,), (9,)),
    (_NT, "multiply", (2,), (2,), (1,)),
    (_TN, "epilogue", (2,), (1,), (1,)),
    (_TT, "multiply", (12,), (22,), (11,)),
    (_NT_8, "multiply", (2,), (2,), (1,)),
    # Of its loops, two blocks long, each place may be that of the turn: who waits for it at some of
    # them only waits for ever, where parts differ in length. They end at either block, with scales
    # of blocks, and without, where each mix of types has a loop.
    (_PROMOTED, "multiply", (), _PROMOTED_WAITS, _PROMOTED_WAITS),
):
    _add(_STAGGER, _kernel, _role, "barrier.cta.sync.aligned", *_turns)
    _try = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
    _add(_ACQUIRES, _kernel, _role, _try, *_waits, change="relaxed")
    _add(_ONE_STAGE, _kernel, _role, "xor.b32", *_parities)
_add(
    "none: of tiles of 128 rows that CTAs share, the second warpgroup has none, nor sums to await",
    _TN,
    "setup",
    "mbarrier.init.shared::cta.b64",
    *range(29, 33),
    change="one arrival more",
)

# --- few rows: of the copies of the code, those of an instance, for each kind of epilogue.
_SKINNY_NN, _SKINNY_NT = SKINNY_NAMES
_add(_ALIGNED, _SKINNY_NN, "setup", _BAR, 3)
_add(_ALIGNED, _SKINNY_NN, "exit", _BAR, 1)
_add(_ALIGNED, _SKINNY_NT, "setup", _BAR, 1, 2, 3)
_LAST_GROUP = "none: behind the last block's group there is no wait for groups"
_add(_LAST_GROUP, _SKINNY_NN, "load", "cp.async.commit_group", 12, 16)
