"""float8 arrays and their scales, with the same bits on every platform.

XLA divides float32 on GPUs with an error of up to 2 ulp (openxla/xla#37181), flushes subnormals on
CPUs, and may convert to float8 by way of float16. So what is rounded here is rounded in integers;
of floating-point operations there are comparisons and one multiplication, which every platform
rounds alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_SIGN, _MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_FRACTION = 23  # bits, of float32
_IMPLICIT = np.uint32(1 << _FRACTION)
_BIAS = 127


@dataclass(frozen=True)
class Format:
    """A float8 format.

    Attributes:
      name: "e4m3" or "e5m2".
      dtype: JAX's.
      max: the largest finite number.
      fraction: bits of it.
      least_exponent: of the normal numbers.
    """

    name: str
    dtype: Any
    max: float
    fraction: int
    least_exponent: int


FORMATS = {
    "e4m3": Format("e4m3", np.dtype(jnp.float8_e4m3fn), 448.0, 3, -6),
    "e5m2": Format("e5m2", np.dtype(jnp.float8_e5m2), 57344.0, 2, -14),
}
_NAN = np.uint32(0x7F)  # PTX's, in both formats


def format_of(dtype: Any) -> Format | None:
    """The format of a dtype; None where it is of none."""
    return next((format for format in FORMATS.values() if format.dtype == dtype), None)


def finite_amax(x: Any, axis: Sequence[int]) -> Any:
    """The largest magnitude of the finite numbers in float32 x; subnormal ones count as 0.

    Over these dimensions, which stay with size 1.
    """
    bits = _bits(x) & _MAGNITUDE
    counted = jnp.where((bits >= _IMPLICIT) & (bits < _INFINITY), bits, np.uint32(0))
    return _float(jnp.max(counted, axis=tuple(axis), keepdims=True, initial=np.uint32(0)))


def scale_of(amax: Any, format: Format) -> Any:
    """amax / format.max, correctly rounded; 1 for an amax of 0, and never below 2^-126."""
    scale = divide(amax, jnp.full_like(amax, format.max))
    return jnp.where(amax == 0, np.float32(1), scale)


def divide(x: Any, y: Any) -> Any:
    """x / y of positive normal float32 numbers, rounded to nearest even.

    A quotient below the normal numbers is the least of them, 2^-126; none may be above them. Long
    division, in base 256: a remainder is less than 2^24, and 256 of it fit.
    """
    x, y = _bits(x), _bits(y)
    divisor = (y & (_IMPLICIT - 1)) | _IMPLICIT
    rest = (x & (_IMPLICIT - 1)) | _IMPLICIT
    exponent = (x >> _FRACTION).astype(jnp.int32) - (y >> _FRACTION).astype(jnp.int32)
    smaller = rest < divisor
    rest = jnp.where(smaller, rest << 1, rest)  # the quotient is in [1, 2)
    exponent = exponent - smaller
    quotient, rest = rest // divisor, rest % divisor
    for bits in (8, 8, 7):
        rest = rest << bits
        quotient, rest = (quotient << bits) | rest // divisor, rest % divisor
    twice = rest << 1
    up = (twice > divisor) | ((twice == divisor) & (quotient & 1 == 1))
    quotient = quotient + up.astype(jnp.uint32)  # a carry lands in the exponent, as it should
    field = jnp.maximum(exponent + _BIAS, 1).astype(jnp.uint32)
    normal = (field << _FRACTION) + (quotient - _IMPLICIT)
    return _float(jnp.where(exponent + _BIAS < 1, _IMPLICIT, normal))


def rounded(x: Any, format: Format) -> Any:
    """float32 x in this format: rounded to nearest even, as PTX's cvt.rn.satfinite.

    What is beyond the largest finite number becomes that, infinity too; NaN stays NaN. Subnormal
    results are exact, and the sign of zero is kept.
    """
    bits = _bits(x)
    magnitude = bits & _MAGNITUDE
    largest = np.float32(format.max).view(np.uint32)
    finite = jnp.minimum(magnitude, largest)
    exponent = (finite >> _FRACTION).astype(jnp.int32)
    above = exponent - (format.least_exponent + _BIAS)  # the least normal number's
    significand = (finite & (_IMPLICIT - 1)) | _IMPLICIT
    # Below the least normal number more bits go. With 25 of them, nothing is left of any.
    dropped = _FRACTION - format.fraction + jnp.clip(-above, 0, 4 + format.fraction)
    dropped = jnp.minimum(dropped, 25).astype(jnp.uint32)
    last = (significand >> dropped) & 1
    kept = (significand + (np.uint32(1) << (dropped - 1)) - 1 + last) >> dropped
    # Of a normal number `kept` has the implicit bit, which counts as one exponent.
    code = (jnp.maximum(above, 0).astype(jnp.uint32) << format.fraction) + kept
    code = jnp.where(magnitude > _INFINITY, _NAN, code | ((bits & _SIGN) >> 24))
    return lax.bitcast_convert_type(code.astype(jnp.uint8), format.dtype)


def scaled_down(x: Any, scale: Any, format: Format) -> Any:
    """float32 x / scale in this format: x times the rounded reciprocal of the scale.

    Subnormal x count as 0. By a scale that is no positive normal number all become NaN.
    """
    flushed = jnp.where(_bits(x) & _MAGNITUDE < _IMPLICIT, _float(_bits(x) & _SIGN), x)
    is_scale = (_bits(scale) >= _IMPLICIT) & (_bits(scale) < _INFINITY)
    divisor = jnp.where(is_scale, scale, np.float32(1))
    inverse = jnp.where(is_scale, divide(jnp.ones_like(divisor), divisor), np.float32(np.nan))
    return rounded(flushed * inverse, format)


def _bits(x: Any) -> Any:
    return lax.bitcast_convert_type(x, jnp.uint32)


def _float(bits: Any) -> Any:
    return lax.bitcast_convert_type(bits, jnp.float32)


def as_float32(x: Any) -> jax.Array:
    """A real floating array as float32."""
    wide: jax.Array = lax.convert_element_type(x, jnp.float32)
    return wide
