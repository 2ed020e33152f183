"""python cached_program.py IMPLEMENTATION BLOCK_N: runs one matmul, with JAX's persistent cache.

Prints the sum of the result, then how often the cache had the program, and how often not.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw

EVENTS = ("/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses")


def main(implementation: str, block_n: int) -> None:
    counts = dict.fromkeys(EVENTS, 0)

    def count(event: str, **_: str | int) -> None:
        if event in counts:
            counts[event] += 1

    @jax.jit
    def matmul(x: jax.Array, w: jax.Array) -> Any:
        config = jaxbw.GemmConfig(block_m=128, block_n=block_n)
        out = jaxbw.matmul(x, w, activation="relu", implementation=implementation, config=config)
        return out.astype("float32").sum()

    jax.monitoring.register_event_listener(count)
    total = matmul(np.ones((24, 64), jnp.bfloat16), np.ones((64, 40), jnp.bfloat16))
    print(float(total), *counts.values())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
