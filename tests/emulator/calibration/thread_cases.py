"""mbarriers, clusters, matrix fragments, and the lanes of a warp."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .case import Buffer, Case, blank, integers, noise, words

OPERATIONS = (
    "init",
    "arrive",
    "arrive.noComplete",
    "arrive_drop",
    "arrive_drop.noComplete",
    "expect_tx",
    "complete_tx",
    "arrive.expect_tx",
    "inval",
)
Script = list[tuple[str, int]]

SCRIPTS: dict[str, Script] = {
    "arrivals one by one": [("init", 3)] + [("arrive", 1)] * 9,
    "several arrivals at once": [("init", 5), ("arrive", 3), ("arrive", 2), ("arrive", 5)],
    "no complete": [("init", 4), ("arrive.noComplete", 2), ("arrive.noComplete", 1), ("arrive", 1)],
    "drop": [("init", 3), ("arrive_drop", 1)] + [("arrive", 1)] * 6,
    "drop several": [("init", 6), ("arrive_drop", 2), ("arrive", 4), ("arrive", 4), ("arrive", 4)],
    "drop without completing": [
        ("init", 5),
        ("arrive_drop.noComplete", 2),
        ("arrive", 3),
        ("arrive", 3),
    ],
    "bytes after the arrival": [
        ("init", 1),
        ("expect_tx", 96),
        ("arrive", 1),
        ("complete_tx", 32),
        ("complete_tx", 64),
    ],
    "bytes before they are expected": [
        ("init", 1),
        ("complete_tx", 128),
        ("arrive.expect_tx", 128),
        ("arrive.expect_tx", 16),
        ("complete_tx", 16),
    ],
    "no bytes": [("init", 1), ("arrive.expect_tx", 0), ("expect_tx", 0), ("arrive", 1)],
    "the largest counts": [
        ("init", 2**20 - 1),
        ("arrive", 2**20 - 2),
        ("arrive.expect_tx", 2**20 - 1),
        ("complete_tx", 2**20 - 1),
        ("arrive", 2**20 - 1),
    ],
    "used again": [
        ("init", 1),
        ("arrive", 1),
        ("inval", 0),
        ("init", 2),
        ("arrive", 1),
        ("arrive", 1),
    ],
}


@dataclass
class Model:
    """A barrier, as far as making legal scripts takes."""

    count: int
    pending: int
    transactions: int = 0

    def settle(self) -> None:
        if self.pending == 0 and self.transactions == 0:
            self.pending = self.count


def random_script(seed: int) -> Script:
    """64 legal operations."""
    draw = iter(noise(400, seed).tolist())
    count = 2 + next(draw) % 6
    model = Model(count, count)
    script: Script = [("init", count)]
    while len(script) < 64:
        name, number = OPERATIONS[1 + next(draw) % 7], next(draw)
        argument = 16 * (1 + number % 8)
        if name == "expect_tx":
            model.transactions += argument
        elif name == "complete_tx":
            model.transactions -= argument
        elif name == "arrive.expect_tx":
            if model.pending == 0:
                continue
            model.transactions += argument
            model.pending -= 1
        else:
            # What waits for bytes only takes no arrival; a drop leaves one arrival in each phase.
            most = model.pending - name.endswith("noComplete")
            if name.startswith("arrive_drop"):
                most = min(most, model.count - 1)
            if most < 1:
                continue
            argument = 1 + number % most
            model.pending -= argument
            if name.startswith("arrive_drop"):
                model.count -= argument
        script.append((name, argument))
        model.settle()
        if len(script) % 5 == 0 and model.transactions:  # else few phases would end
            missing = model.transactions
            model.transactions = 0
            script.append(("complete_tx" if missing > 0 else "expect_tx", abs(missing)))
            model.settle()
    return script


def barriers() -> Iterator[Case]:
    scripts = SCRIPTS | {f"random {seed}": random_script(seed) for seed in range(40, 52)}
    for name, script in scripts.items():
        codes = [(OPERATIONS.index(operation), argument) for operation, argument in script]
        yield Case(
            f"mbarrier {name}",
            "barriers",
            "mbarrier_script",
            (words(codes), len(script), blank(16 * len(script))),
            block=1,
            smem=16,
        )
    for block in (32, 96, 256):
        yield Case(
            f"mbarrier contention of {block}",
            "barriers",
            "mbarrier_contention",
            (9, blank(36)),
            block=block,
            smem=16 + 36,
        )


def clusters() -> Iterator[Case]:
    for grid, cluster in (
        ((2,), (1,)),
        ((4,), (2,)),
        ((8,), (4,)),
        ((4, 4), (2, 2)),
        ((4, 2, 3), (1, 2, 1)),
        ((2, 6), (2, 3)),
    ):
        yield Case(
            f"cluster registers {grid} {cluster}",
            "cluster",
            "cluster_registers",
            (blank(124 * int(np.prod(grid))),),
            grid=grid,
            block=1,
            cluster=cluster,
            smem=256,
        )
    for size in (2, 4, 8):
        yield Case(
            f"cluster addresses {size}",
            "cluster",
            "cluster_addresses",
            (blank(4 * size * (1 + 3 * size)),),
            grid=(size,),
            block=32,
            cluster=(size,),
            smem=128,
        )
        yield Case(
            f"cluster memory {size}",
            "cluster",
            "cluster_memory",
            (blank(1280 * size),),
            grid=(size,),
            block=64,
            cluster=(size,),
            smem=1024,
        )
        for bytes_ in (16, 512):
            yield Case(
                f"cluster arrivals {size}, {bytes_} bytes",
                "cluster",
                "cluster_arrivals",
                (bytes_, blank(bytes_ * (1 + size) + 4)),
                grid=(size,),
                block=64,
                cluster=(size,),
                smem=bytes_ * (1 + size) + 16,
            )


def matrices() -> Iterator[Case]:
    size = 4096
    permuted = np.argsort(noise(size // 16, 6), kind="stable")[:32] * 16
    layouts = {"rows": np.arange(32) * 16, "pitch 144": np.arange(32) * 112, "anywhere": permuted}
    for form in ("x1", "x2", "x4"):
        for transposed in ("", "_trans"):
            for layout, rows in layouts.items():
                rest = (size, words(rows))
                yield Case(
                    f"ldmatrix {form}{transposed} {layout}",
                    "matrix",
                    f"ldmatrix_{form}{transposed}",
                    (words(noise(size // 4, 7)), *rest, blank(512)),
                    block=32,
                    smem=size,
                )
                yield Case(
                    f"stmatrix {form}{transposed} {layout}",
                    "matrix",
                    f"stmatrix_{form}{transposed}",
                    (words(noise(128, 8)), *rest, blank(size)),
                    block=32,
                    smem=size,
                )


MEMBERS = (0xFFFFFFFF, 0x0000FFFF, 0xFFFF0000, 0x00000001, 0x80000000, 0xA5A50F0E, 0x7FFFFFFE)


def warps() -> Iterator[Case]:
    values = {
        "random": noise(32, 11),
        "same": np.full(32, 7, np.uint32),
        "few": noise(32, 12) % 3,
        "zero": np.zeros(32, np.uint32),
        "one": np.arange(32) == 17,
    }
    for members in MEMBERS:
        yield warp_case("elect", members, (), 8)
        for name, value in values.items():
            yield warp_case("vote", members, (words(value),), 32, name)
            yield warp_case("redux", members, (words(value),), 32, name)
    lanes = integers(32, 0, 32, 13)
    for mode in ("up", "down", "bfly", "idx"):
        edge = 0 if mode == "up" else 31
        for c in (edge, 0x1000 | edge, 0x1800 | edge, 0x1C00 | edge, 0x1E00 | edge, 0x0F0F, 0x0815):
            for b in (0, 1, 5, 31):
                yield shuffle(mode, 0xFFFFFFFF, np.full(32, b), np.full(32, c), f"{b} {c:#x}")
        yield shuffle(mode, 0xFFFFFFFF, lanes, np.full(32, edge), "random lanes")
        yield shuffle(mode, 0xFFFFFFFF, noise(32, 14), noise(32, 15), "random bits")
    for name in values:
        for block in (32, 128):
            given = words(np.resize(values[name], block))
            yield Case(
                f"barrier reductions {name} {block}",
                "warp",
                "barrier_reductions",
                (given, blank(12 * block)),
                block=block,
            )


def shuffle(mode: str, members: int, b: object, c: object, name: str) -> Case:
    arguments = (members, words(noise(32, 16)), words(b), words(c), blank(256))
    return Case(f"shfl {mode} {name}", "warp", f"shfl_{mode}", arguments, block=32)


def warp_case(
    entry: str, members: int, given: tuple[Buffer, ...], bytes_: int, name: str = ""
) -> Case:
    return Case(
        f"{entry} {members:#x} {name}".strip(),
        "warp",
        entry,
        (members, *given, blank(32 * bytes_)),
        block=32,
    )


def cases() -> Iterator[Case]:
    yield from barriers()
    yield from clusters()
    yield from matrices()
    yield from warps()
