"""Arrays of 8 and 4 bits and their scales, with the same bits on every platform.

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
INFINITY = np.uint32(0x7F800000)
_FRACTION = 23  # bits, of float32
LEAST_NORMAL = np.uint32(1 << _FRACTION)  # and a significand's implicit bit
_BIAS = 127


@dataclass(frozen=True)
class Format:
    """A floating format of 8 bits, or of 4.

    Attributes:
      name: "e4m3", "e5m2" or "e2m1".
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
    bits: int = 8

    @property
    def nan(self) -> np.uint32:
        """What PTX's cvt.satfinite makes of NaN: of 8 bits NaN, of e2m1, which has none, 6."""
        return np.uint32((1 << (self.bits - 1)) - 1)


FORMATS = {
    "e4m3": Format("e4m3", np.dtype(jnp.float8_e4m3fn), 448.0, 3, -6),
    "e5m2": Format("e5m2", np.dtype(jnp.float8_e5m2), 57344.0, 2, -14),
}
E8M0 = np.dtype(jnp.float8_e8m0fnu)  # of scales
E2M1 = Format("e2m1", np.dtype(jnp.float4_e2m1fn), 6.0, 1, 0, bits=4)


def format_of(dtype: Any) -> Format | None:
    """The format of a dtype; None where it is of none."""
    return next((format for format in FORMATS.values() if format.dtype == dtype), None)


def finite_amax(x: Any, axis: Sequence[int]) -> Any:
    """The largest magnitude of the finite numbers in float32 x; subnormal ones count as 0.

    Over these dimensions, which stay with size 1.
    """
    most = jnp.max(finite_magnitude(x), axis=tuple(axis), keepdims=True, initial=np.uint32(0))
    return of_bits(most)


def finite_magnitude(x: Any) -> Any:
    """`magnitude` of float32 x; 0 of what is infinite, NaN or subnormal."""
    bits = magnitude(x)
    return jnp.where((bits >= LEAST_NORMAL) & (bits < INFINITY), bits, np.uint32(0))


def scale_of(amax: Any, format: Format) -> Any:
    """amax / format.max, correctly rounded; 1 for an amax of 0, and never below 2^-126."""
    scale = divide(amax, format.max)
    return jnp.where(amax == 0, np.float32(1), scale)


def power_of_two_of(amax: Any, format: Format) -> Any:
    """amax / format.max, rounded up to a power of two; 1 for an amax of 0, never below 2^-126."""
    field = jnp.maximum(exponent_up(_bits(amax), format), 1).astype(jnp.uint32)
    return jnp.where(amax == 0, np.float32(1), of_bits(field << _FRACTION))


def exponent_up(amax: Any, format: Format) -> Any:
    """The biased exponent, int32, of the least power of two from amax / format.max on.

    Of amax as bits; one more than of the quotient of exponents where it has the larger fraction.
    """
    largest, fraction = np.float32(format.max).view(np.uint32), LEAST_NORMAL - 1
    up = (amax & fraction) > (largest & fraction)
    return _exponent(amax) - (_exponent(largest) - _BIAS) + up


def as_e8m0(x: Any) -> Any:
    """Powers of two from 2^-126 on, float32, as float8_e8m0fnu."""
    return lax.bitcast_convert_type((_bits(x) >> _FRACTION).astype(jnp.uint8), E8M0)


def divide(x: Any, y: Any) -> Any:
    """x / y of positive normal float32 numbers, rounded to nearest even; y may be a number, too.

    A quotient below the normal numbers is the least of them, 2^-126; one above them is some number
    from 2^127 on. Long division, in base 256: a remainder is less than 2^24, and 256 of it fit.
    The largest number of a format has few bits, and one step is enough.

    In operations of lax: those of jax.numpy are several each, and this is in many programs.
    """
    x = _bits(x)
    known = isinstance(y, float)
    y = np.float32(y).view(np.uint32) if known else _bits(y)
    divisor = (y & (LEAST_NORMAL - 1)) | LEAST_NORMAL
    rest = (x & (LEAST_NORMAL - 1)) | LEAST_NORMAL
    exponent = _exponent(x) - _exponent(y)
    smaller = rest < divisor
    rest = rest << lax.convert_element_type(smaller, np.uint32)  # the quotient is in [1, 2)
    exponent = exponent - lax.convert_element_type(smaller, np.int32)
    if known:
        zeros = _trailing_zeros(int(divisor))
        divisor = divisor >> zeros
        quotient, rest = _step(rest, divisor, _FRACTION - zeros)
    else:
        quotient, rest = 1, rest - divisor
        for bits in (8, 8, 7):
            digits, rest = _step(rest, divisor, bits)
            quotient = (quotient << bits) | digits
    up = (rest << 1) + (quotient & 1) > divisor  # a tie, if the quotient is odd
    quotient = quotient + lax.convert_element_type(up, np.uint32)  # a carry goes to the exponent
    field = lax.clamp(np.int32(1), exponent + _BIAS, np.int32(2 * _BIAS))
    normal = (lax.convert_element_type(field - 1, np.uint32) << _FRACTION) + quotient
    return of_bits(jnp.where(exponent < 1 - _BIAS, LEAST_NORMAL, normal))


def _step(rest: Any, divisor: Any, bits: int) -> tuple[Any, Any]:
    """So many digits of a quotient, and what is left."""
    rest = rest << bits
    divisors = lax.full_like(rest, divisor) if jnp.ndim(divisor) == 0 else divisor
    digits = lax.div(rest, divisors)
    return digits, rest - digits * divisors


def _exponent(bits: Any) -> Any:
    """Biased."""
    return lax.convert_element_type(bits >> _FRACTION, np.int32)


def _trailing_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1


def rounded(x: Any, format: Format) -> Any:
    """float32 x in this format: rounded to nearest even, as PTX's cvt.rn.satfinite.

    What is beyond the largest finite number becomes that, infinity too; NaN stays NaN. Subnormal
    results are exact, and the sign of zero is kept.
    """
    largest = np.float32(format.max).view(np.uint32)
    finite = jnp.minimum(magnitude(x), largest)
    exponent = (finite >> _FRACTION).astype(jnp.int32)
    above = exponent - (format.least_exponent + _BIAS)  # the least normal number's
    significand = (finite & (LEAST_NORMAL - 1)) | LEAST_NORMAL
    # Below the least normal number more bits go. With 25 of them, nothing is left of any.
    dropped = _FRACTION - format.fraction + jnp.clip(-above, 0, 4 + format.fraction)
    dropped = jnp.minimum(dropped, 25).astype(jnp.uint32)
    last = (significand >> dropped) & 1
    kept = (significand + (np.uint32(1) << (dropped - 1)) - 1 + last) >> dropped
    # Of a normal number `kept` has the implicit bit, which counts as one exponent.
    code = (jnp.maximum(above, 0).astype(jnp.uint32) << format.fraction) + kept
    code = jnp.where(magnitude(x) > INFINITY, format.nan, code | sign_of(x, format))
    return of_code(code, format)


def sign_of(x: Any, format: Format) -> Any:
    """The sign bit of float32 x, where the format has it."""
    return (_bits(x) & _SIGN) >> (32 - format.bits)


def of_code(code: Any, format: Format) -> Any:
    """The numbers with these bits, uint32."""
    bits = code.astype(jnp.uint8 if format.bits == 8 else jnp.uint4)
    return lax.bitcast_convert_type(bits, format.dtype)


def scaled_down(x: Any, scale: Any, format: Format) -> Any:
    """float32 x / scale in this format: x times the rounded reciprocal of the scale.

    Subnormal x count as 0. By a scale that is no positive normal number all become NaN.
    """
    is_scale = (_bits(scale) >= LEAST_NORMAL) & (_bits(scale) < INFINITY)
    divisor = jnp.where(is_scale, scale, np.float32(1))
    inverse = jnp.where(is_scale, divide(jnp.ones_like(divisor), divisor), np.float32(np.nan))
    return rounded(flushed(x) * inverse, format)


def flushed(x: Any) -> Any:
    """x with a zero of the same sign for each subnormal number."""
    return jnp.where(magnitude(x) < LEAST_NORMAL, of_bits(_bits(x) & _SIGN), x)


def _bits(x: Any) -> Any:
    return lax.bitcast_convert_type(x, jnp.uint32)


def of_bits(bits: Any) -> Any:
    """The float32 numbers with these bits."""
    return lax.bitcast_convert_type(bits, jnp.float32)


def magnitude(x: Any) -> Any:
    """The bits of |x|, uint32, ordered as the numbers; then come infinity and NaN."""
    return _bits(x) & _MAGNITUDE


def as_float32(x: Any) -> jax.Array:
    """A real floating array as float32."""
    wide: jax.Array = lax.convert_element_type(x, jnp.float32)
    return wide
