"""ldmatrix and stmatrix against the figures, and CLC responses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .datapath_reference import datapath


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_fragments(count: int, transposed: bool) -> None:
    """PTX figure 104: four threads hold a row of 8 elements (with .trans: a column), two each."""
    matrices = np.random.default_rng(0).integers(0, 2**16, (count, 8, 8), np.uint16)
    rows = matrices.reshape(-1).view(np.uint8)
    seen = matrices.transpose(0, 2, 1) if transposed else matrices
    expected = np.ascontiguousarray(seen).reshape(-1).view(np.uint32)
    registers = datapath.load_matrices(transposed, rows)
    np.testing.assert_array_equal(registers, expected)
    np.testing.assert_array_equal(datapath.store_matrices(transposed, registers), rows)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_refuses_other_numbers_of_matrices(count: int) -> None:
    with pytest.raises(RuntimeError, match="needs 1, 2 or 4 whole matrices"):
        datapath.load_matrices(False, np.zeros(128 * count, np.uint8))
    with pytest.raises(RuntimeError, match="needs 1, 2 or 4 whole matrices"):
        datapath.store_matrices(False, np.zeros(32 * count + 1, np.uint32))


@given(st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3))
def test_a_clc_response_comes_back(cta: list[int] | None) -> None:
    assert datapath.decode_clc_response(datapath.encode_clc_response(cta)) == cta


@given(st.binary(min_size=16, max_size=16))
def test_other_bytes_are_no_clc_response(data: bytes) -> None:
    with pytest.raises(RuntimeError, match="no response of try_cancel"):
        datapath.decode_clc_response(data)
