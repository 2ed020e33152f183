"""python cached_program.py IMPLEMENTATION BLOCK_N...: a matmul of each, with a persistent cache.

Prints the sum of each result, how often the cache has had a program so far, and how often not.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw

EVENTS = ("/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses")


def main(implementation: str, blocks: list[int]) -> None:
    counts = dict.fromkeys(EVENTS, 0)

    def count(event: str, **_: str | int) -> None:
        if event in counts:
            counts[event] += 1

    def matmul(x: jax.Array, w: jax.Array, block_n: int) -> Any:
        config = jaxbw.GemmConfig(block_m=128, block_n=block_n)
        out = jaxbw.matmul(x, w, activation="relu", implementation=implementation, config=config)
        return out.astype("float32").sum()

    jax.monitoring.register_event_listener(count)
    operands = np.ones((24, 64), jnp.bfloat16), np.ones((64, 40), jnp.bfloat16)
    for block_n in blocks:
        total = jax.jit(matmul, static_argnames="block_n")(*operands, block_n=block_n)
        print(float(total), *counts.values())


if __name__ == "__main__":
    main(sys.argv[1], [int(argument) for argument in sys.argv[2:]])
