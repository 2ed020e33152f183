"""A matmul with its epilogue: how it is called, and what must come out.

The operands are small integers and the oracle is NumPy in float32, so that results are exact but
for the smooth activations.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import _native

Values = npt.NDArray[Any]
DTYPES: dict[str, tuple[Any, Any]] = {
    "bf16": (ml_dtypes.bfloat16, _native.DataType.BF16),
    "f16": (np.float16, _native.DataType.F16),
    "f32": (np.float32, _native.DataType.F32),
    "e4m3": (ml_dtypes.float8_e4m3fn, _native.DataType.E4M3),
    "e2m1": (np.uint8, _native.DataType.E2M1),  # two in a byte
    "e8m0": (np.uint8, None),  # in tiles
}


def _gelu(x: Values) -> Values:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS: dict[str, Callable[[Values], Values]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
# A launch of 128 x 128 tiles by a kernel of each family.
SM90 = {"block_m": 128, "block_n": 128, "stages": 4}
SM100 = {"block_m": 128, "block_n": 128, "stages": 4, "scheduler": 1}
PAIR = {"block_m": 256, "block_n": 128, "stages": 4, "scheduler": 1, "cta_group": 2, "cluster_m": 2}


@dataclass(frozen=True)
class Matmul:
    """One call. `layout`: "n" is row-major, "t" its transpose; `config`: launch attributes."""

    m: int = 136
    n: int = 264
    k: int = 72
    batch: int = 1
    shared: tuple[str, ...] = ()  # operands with one matrix for all batch indices
    layout: str = "nn"
    dtype: str = "bf16"
    promoted: bool = False
    mx: int = 0  # so many of k share a scale, of tiles
    out_mx: bool = False  # the result is in MXFP8
    rhs_dtype: str | None = None  # where it differs from the lhs's
    output: str = "f32"
    alpha: float = 1.0
    beta: float = 0.0
    in_memory: bool = False  # alpha and beta: the attributes do not say them
    c: str | None = None
    bias: str | None = None
    bias_along_m: bool = False
    residual: str | None = None
    lhs_scale: bool = False
    rhs_scale: bool = False
    blocks: bool = False  # scales of 1x128 of lhs and of 128x128 of rhs
    activation: str = "none"
    gated: bool = False
    save: bool = False
    family: str = "sm90"
    config: Mapping[str, Any] = field(default_factory=lambda: SM90)

    @property
    def kernel(self) -> str:
        """The kernel that serves it."""
        if self.family == "sm100":
            kinds = {"f32": "tf32", "e4m3": "8bit", "e2m1": "4bit"}
            kind = kinds.get(self.dtype, "16bit") + "_mx" * (self.mx != 0)
            return f"jaxbw_sm100_{kind}_{self.config.get('cta_group', 1)}cta"
        tile = f"{self.config['block_m'] // 2}x{self.config['block_n']}"
        kinds = {"f32": "tf32", "e4m3": f"8bit{'_promoted' * self.promoted}"}
        kind = kinds.get(self.dtype, self.dtype)
        return f"jaxbw_sm90_{kind}_{'any' if kind == 'f16' else self.layout}_{tile}"

    @property
    def device(self) -> int:
        """The fake device that runs it."""
        return 0 if self.family == "sm90" else 1

    @property
    def attributes(self) -> dict[str, str | int | float]:
        """All attributes of the custom call."""
        return self._attributes | {"counters": self.counters}

    @property
    def counters(self) -> int:
        """How many the call has."""
        if self.config.get("split_k", 1) == 1:
            return 0
        return self._scratch()[1]

    def _scratch(self) -> tuple[int, int]:
        lhs, rhs = self.operands()[:2]
        dtype = DTYPES[self.dtype][1]
        return _native.scratch(lhs.shape, rhs.shape, dtype, self._attributes)

    @property
    def _attributes(self) -> dict[str, str | int | float]:
        return {
            "kernel": self.kernel,
            "alpha": math.nan if self.in_memory else self.alpha,
            "beta": math.nan if self.in_memory else self.beta,
            "has_c": int(self.c is not None),
            "has_bias": int(self.bias is not None),
            "bias_along_m": int(self.bias_along_m),
            "has_residual": int(self.residual is not None),
            "has_lhs_scale": int(self.lhs_scale),
            "has_rhs_scale": int(self.rhs_scale),
            "lhs_blocks": int(self.blocks),
            "rhs_blocks": 128 * self.blocks,
            "mx": self.mx,
            "has_out_scale": 0,
            "out_mx": int(self.out_mx),
            "gated": int(self.gated),
            "save": int(self.save),
            "activation": _native.Activation[self.activation.upper()].value,
            "lhs_major": int(self.layout[0] == "t"),
            "rhs_major": int(self.layout[1] == "n"),
            "promoted": int(self.promoted),
            "counters": 0,
            "block_m": 0,
            "block_n": 0,
            "pingpong": 0,
            "k_spans": 1,
            "cluster_m": 1,
            "cluster_n": 1,
            "cluster_k": 1,
            "cta_group": 1,
            "stages": 0,
            "swizzle": 1,
            "raster": 0,
            "split_k": 1,
            "split_tail": 0,
            "wave": 0,
            "swap_ab": 0,
            "accumulators": 1 if self.family == "sm90" else 2,
            "scheduler": 0,
            **self.config,
        }

    @property
    def dtypes(self) -> list[str]:
        """Of the operands, in their order."""
        named = (self.c, self.bias, self.residual)
        scales = self.lhs_scale + self.rhs_scale * (1 + self.gated) + 2 * self.blocks
        factors = ["f32"] * (len(self.factors) + scales)
        rights = [self.rhs_dtype or self.dtype] * (2 if self.gated else 1)
        arrays = [self.dtype, *rights] + [name for name in named if name]
        return arrays + factors + [self.mx_scale] * ((2 + self.gated) if self.mx else 0)

    @property
    def mx_scale(self) -> str:
        """The dtype of tiles of scales."""
        return "e8m0" if self.mx == 32 else "e4m3"

    @property
    def factors(self) -> list[Values]:
        """The operands that are no arrays of elements: alpha, and beta where there is a c."""
        numbers = (self.alpha, self.beta) if self.c else (self.alpha,)
        return [np.array(number, np.float32) for number in numbers] if self.in_memory else []

    def operands(self) -> list[Values]:
        """lhs, rhs, and what there is of the others, factors, scales; as they lie in memory."""
        random = np.random.default_rng(zlib.crc32(repr(self).encode()))

        def draw(dtype: str, *shape: int) -> Values:
            values: Values = random.integers(-2, 3, shape).astype(DTYPES[dtype][0])
            return values

        def matrix(name: str, letter: str, rows: int, columns: int) -> Values:
            batch = 1 if name in self.shared else self.batch
            dtype = self.dtype if name == "lhs" else self.rhs_dtype or self.dtype
            if dtype == "e2m1":
                return draw(dtype, batch, rows if name == "lhs" else columns, self.k // 2)
            return draw(dtype, batch, *((rows, columns) if letter == "n" else (columns, rows)))

        drawn = [matrix("lhs", self.layout[0], self.m, self.k)]
        drawn += [
            matrix("rhs", self.layout[1], self.k, self.n) for _ in range(2 if self.gated else 1)
        ]
        shape = (self.batch, self.m, self.n)
        if self.c:
            drawn.append(draw(self.c, *shape))
        if self.bias:
            drawn.append(draw(self.bias, self.m if self.bias_along_m else self.n))
        if self.residual:
            drawn.append(draw(self.residual, *shape))
        scales: list[tuple[str, tuple[int, ...]]] = [("lhs", (self.m,))] * self.lhs_scale
        scales += [("rhs", (self.n,))] * (self.rhs_scale * (1 + self.gated))
        if self.blocks:
            k_blocks = -(-self.k // 128)
            scales = [("lhs", (self.m, k_blocks)), ("rhs", (-(-self.n // 128), k_blocks))]
        of = "f32"
        if self.mx:
            of = self.mx_scale
            scales = [
                (name, (-(-rows // 128), -(-self.k // (4 * self.mx)), 512))
                for name, rows in (("lhs", self.m), *[("rhs", self.n)] * (1 + self.gated))
            ]
        return (
            drawn
            + self.factors
            + [draw(of, 1 if name in self.shared else self.batch, *size) for name, size in scales]
        )

    def expected(self, operands: list[Values]) -> list[Values]:
        """d and the saved results."""
        given = [values.astype(np.float32) for values in operands]

        def take(present: object) -> Values | None:
            return given.pop(0) if present else None

        lhs, rhs, up = given.pop(0), given.pop(0), take(self.gated)
        c, bias, residual = take(self.c), take(self.bias), take(self.residual)
        alpha: Any = self.alpha
        beta: Any = self.beta
        if self.in_memory:
            alpha, beta = given.pop(0), take(self.c)
        rows = take(self.lhs_scale)
        lhs = lhs if self.layout[0] == "n" else lhs.swapaxes(1, 2)
        if self.blocks:
            of_rows, of_columns = (scales.repeat(128, 2)[..., : self.k] for scales in given[-2:])
            lhs, of_columns = lhs * of_rows, of_columns.repeat(128, 1)[:, : self.n]
            rhs = rhs * (of_columns if self.layout[1] == "t" else of_columns.swapaxes(1, 2))

        def times(right: Values) -> Values:
            right = right if self.layout[1] == "n" else right.swapaxes(1, 2)
            columns = take(self.rhs_scale)
            z = np.float32(alpha) * (lhs @ right)
            z = z if rows is None else z * rows[:, :, None]
            return np.asarray(z if columns is None else z * columns[:, None, :])

        z = times(rhs)
        if c is not None:
            z = z + np.float32(beta) * c
        if bias is not None:
            z = z + (bias[:, None] if self.bias_along_m else bias)
        results = [ACTIVATIONS[self.activation](z)]
        if self.save:
            results.append(z)
        if up is not None:
            u = times(up)
            results[0] = results[0] * u
            if self.save:
                results.append(u)
        if residual is not None:
            results[0] = results[0] + residual
        return [values.astype(DTYPES[self.output][0]) for values in results]

    def results(self) -> list[Values]:
        """Arrays for what comes out, not yet written; the workspace last, where there is one."""
        count = 1 + self.save * (1 + self.gated)
        shape = (self.batch, self.m, self.n)
        results = [np.full(shape, np.nan, DTYPES[self.output][0]) for _ in range(count)]
        size = self._scratch()[0]
        return [*results, np.full(size, 0x5A, np.uint8)] if size else results

    def launch(self, operands: list[Values] | None = None, **options: Any) -> list[Values]:
        """The results of the direct launcher."""
        given = self.operands() if operands is None else operands
        data = _native.launch_gemm(
            [np.asarray(values, order="C").view(f"u{values.itemsize}") for values in given],
            [DTYPES[name][1] for name in self.dtypes],
            DTYPES[self.output][1],
            self.attributes,
            **{"device": self.device} | options,
        )
        shape = (self.batch, self.m, self.n)
        return [values.view(DTYPES[self.output][0]).reshape(shape) for values in data]

    def check(self, **options: Any) -> None:
        """Launches it and compares all results.

        Raises:
          AssertionError: an element is wrong.
        """
        given = self.operands()
        results = self.launch(given, **options)
        expected = self.expected(given)
        assert len(results) == len(expected)
        tolerance = 0.0 if self.activation in ("none", "relu") else 0.02
        for result, right in zip(results, expected, strict=True):
            np.testing.assert_allclose(
                result.astype(np.float32), right.astype(np.float32), rtol=tolerance, atol=tolerance
            )
