"""Redundant instructions are found again in another text of their kernel."""

from .moved_mutants import WIDTHS, moved


def _block(instruction: str) -> list[str]:
    """One of the multiply role, with a bar.warp.sync in the middle."""
    around = [instruction] * WIDTHS[-1]
    return [*around, "bar.warp.sync -1;", *around]


SUM = _block("add.u32 %r7, %r7, 1;")
STORE = _block("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {}, 0, 0, 1, 1, 1, 0, 0;")
BEFORE = "\n".join((*SUM, *STORE))


def _moved(after: list[str]) -> list[str]:
    """Where the first bar.warp.sync is redundant."""
    text = "\n".join(after).replace("%r", "%r1")
    return [
        *moved(BEFORE, text, lambda each: each.opcode == "bar.warp.sync" and each.occurrence == 1)
    ]


def test_registers_and_lines_far_away_move_nothing() -> None:
    assert _moved([*SUM, "", *STORE]) == []


def test_blocks_that_change_places() -> None:
    assert _moved([*STORE, *SUM]) == [
        "multiply bar.warp.sync 1, deleted, is multiply 2",
        "multiply bar.warp.sync 1, deleted, is another instruction now",
    ]


def test_a_block_that_is_no_more() -> None:
    assert _moved(STORE) == [
        "multiply bar.warp.sync 1, deleted, is gone",
        "multiply bar.warp.sync 1, deleted, is another instruction now",
    ]
