"""What the CTAs of a cluster say to each other, read in a running kernel by probes."""

from typing import Any

from jaxbw import emulator

from . import gemm_cases, gemm_launch, probe
from .gemm_cases import Case
from .gemm_launch import SPAN, ceil_div
from .installed import text

K = 128
# Bytes of shared memory: barriers and the like, then two staging buffers of 32 rows for each of
# four warps, then stages, whose B begins at an atom of 8 spans.
CONTROL, STAGING, ATOM = 1024, 4 * 2 * 32 * SPAN, 8 * SPAN


def one_tile_each(
    cluster: tuple[int, int], group: int, block_m: int, block_n: int, **more: Any
) -> Case:
    """The matmul that two clusters compute, side by side along M."""
    rows, columns = 2 * cluster[0] * block_m // group, cluster[1] * block_n
    return Case(
        rows,
        columns,
        K,
        layout="nt",
        output="bf16",
        block_m=block_m,
        block_n=block_n,
        cta_group=group,
        cluster=cluster,
        **more,
    )


def run(case: Case, kernel: emulator.Module, **options: Any) -> emulator.Report:
    """The report of a launch whose result is right."""
    matmul = case.matmul()
    outcome = gemm_launch.launch(kernel, case.config(), matmul, sm_count=case.sm_count, **options)
    gemm_cases.verify(case, matmul, outcome)
    return outcome.report


class Protocol:
    """Masks and arrival counts of one cluster: its shape, cta_group, block_m and block_n."""

    def __init__(self, shape: Any) -> None:
        self.case = case = one_tile_each(*shape, stages=3)
        self.size = case.cluster[0] * case.cluster[1]
        sites = dict(init=probe.INIT, load=probe.MULTICAST, commit=probe.COMMIT)
        sites["expect"] = probe.EXPECT
        self.probe = probe.Probe(text(case.kernel), sites, ctas=2 * self.size)
        run(case, self.probe.module, more_buffers=self.probe.buffers)
        self.seen: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for name in sites:
            for seen in self.probe.seen(name):
                self.seen.setdefault((name, seen.cta), []).append(seen.values)

    def of(self, name: str, cta: int) -> list[tuple[int, ...]]:
        """What a CTA did of one kind: init, load, commit or expect."""
        return self.seen.get((name, cta), [])

    def load_masks(self, cta: int) -> tuple[set[int], set[int]]:
        """Of A and of B; nothing where no other CTA needs what is loaded."""
        rows, columns = (
            size // self.case.cta_group for size in (self.case.block_m, self.case.block_n)
        )
        a_bytes, b_bytes = rows * SPAN, ceil_div(columns * SPAN, ATOM) * ATOM
        barriers = min(where for where, _ in self.of("init", cta))
        first = barriers + CONTROL + STAGING
        masks: tuple[set[int], set[int]] = set(), set()
        for where, _, mask in self.of("load", cta):
            masks[(where - first) % (a_bytes + b_bytes) >= a_bytes].add(mask)
        return masks

    def commits(self, cta: int) -> dict[int, set[int]]:
        """Masks of the commits, by how many arrivals their barriers want in that CTA."""
        wanted = {barrier: count for barrier, count in self.of("init", cta)}
        masks: dict[int, set[int]] = {}
        for barrier, mask in self.of("commit", cta):
            masks.setdefault(wanted[barrier], set()).add(mask)
        return masks
