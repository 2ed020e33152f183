"""What the error of a deadlock says, and the report that it carries."""

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import module

# Warp 0 waits for its own phases. Warp 1 waits for the same ones, and may miss two of them: then it
# waits for a parity that nobody will turn again.
MISSED = """
  setp.ne.u32 %p0, %tid, 0;
  setp.ge.u32 %p2, %tid, 32;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [memory], 1;
READY:
  bar.sync 0;
  mov.u32 %r2, 0;
LOOP:
  @%p0 bra WAIT;
  mbarrier.arrive.shared::cta.b64 _, [memory];
WAIT:
  and.b32 %r3, %r2, 1;
TRY:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [memory], %r3;
  @!%p1 bra TRY;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p1, %r2, 5;
  @%p1 bra LOOP;
"""


@pytest.mark.parametrize("checks", ["hardware", "strict", "off"])
def test_a_missed_phase_is_named(checks: str) -> None:
    with pytest.raises(emulator.EmulatorError, match="deadlock") as caught:
        module(MISSED).launch(
            "kernel", grid=1, block=64, args=[emulator.empty(4, np.uint32)], checks=checks
        )
    text = str(caught.value)
    assert "it has missed phase 1, which is over: phase 5 has the same parity" in text
    assert "Exited:\n  CTA (0,0,0) warp 0 at line " in text
    report = caught.value.report
    assert sum(report.instructions.values()) > 0
    assert [finding.kind for finding in report.findings] == (
        [] if checks == "off" else ["mbarrier"]
    )
    if report.findings:
        assert "missed phase 1" in report.findings[0].message


def test_a_phase_that_never_comes_is_not_called_missed() -> None:
    body = """
  mbarrier.init.shared::cta.b64 [memory], 2;
  mbarrier.arrive.shared::cta.b64 _, [memory];
TRY:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [memory], 0;
  @!%p1 bra TRY;
"""
    with pytest.raises(emulator.EmulatorError, match="pending arrivals 1 of 2") as caught:
        module(body).launch("kernel", grid=1, block=1, args=[emulator.empty(4, np.uint32)])
    assert "missed" not in str(caught.value)
    assert caught.value.report.findings == []


def test_findings_before_an_error_are_kept() -> None:
    body = "st.global.b32 [%out], %r5; trap;"
    with pytest.raises(emulator.EmulatorError) as caught:
        module(body).launch("kernel", grid=1, block=1, args=[emulator.empty(4, np.uint32)])
    assert [finding.kind for finding in caught.value.report.findings] == ["poison"]
