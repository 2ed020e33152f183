"""The comparison that all launches are held to, where results end."""

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from . import gemm_cases
from .gemm_cases import Case

ERROR = 1.0


@pytest.mark.parametrize(
    ("output", "dtype", "limit"),  # from here on, numbers round to beyond the largest
    [
        ("f16", np.float16, 65520.0),
        ("e5m2", ml_dtypes.float8_e5m2, 61440.0),
        ("e4m3", ml_dtypes.float8_e4m3fn, 464.0),
    ],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_overflow_is_right_where_the_allowed_error_reaches(
    output: str, dtype: npt.DTypeLike, limit: float, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H200 made NaN of a sum just beyond 464 that is -463.9987 in float64 (fuzz_direct, 182)."""
    case = Case(1, 1, 64, layout="nt", dtype="e4m3", output=output, integers=False)
    overflow = np.full((1, 1, 1), sign * np.inf, np.float32).astype(dtype)

    def verify(reference: float, result: npt.NDArray[np.generic]) -> None:
        of = np.full((1, 1, 1), sign * reference), np.full((1, 1, 1), ERROR)
        monkeypatch.setattr(gemm_cases, "expected", lambda *_: [of])
        gemm_cases.verify_results(case, case.matmul(), [result])

    verify(limit - ERROR / 2, overflow)
    verify(limit + ERROR / 2, overflow)
    with pytest.raises(AssertionError, match="1 of 1 elements of d are wrong"):
        verify(limit - 2 * ERROR, overflow)
    if output != "e4m3":  # which has one NaN, of no sign that counts
        with pytest.raises(AssertionError, match="1 of 1 elements of d are wrong"):
            verify(limit - ERROR / 2, -overflow)
