"""Random matmuls as models have them, forward and backward, with epilogues; and any others.

The weights are those of model_weights.json, each with random rows: of decoding, of a batch of
sequences or images. What `python -m jaxbw bench` measures is not drawn: no choice is made from it.
"""

from __future__ import annotations

import functools
import json
import pathlib
import random
from collections.abc import Iterator
from dataclasses import replace

from jaxbw._src.lab.bench.case import suite
from measuring import matmuls
from measuring.matmuls import Matmul

WEIGHTS = pathlib.Path(__file__).with_name("model_weights.json")
OF_MODELS, FEW_ROWS, HALF, FUSED = 0.65, 0.45, 0.1, 0.3  # shares; of what can be fused, FUSED is
DECODING = (1, 2, 4, 8, 8, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 128)
# Sequences and batches of them; 197, 257, 577 and 729 are the patches of images.
TOKENS = (
    *(160, 192, 256, 256, 300, 384, 512, 512, 768, 1000, 1024, 1024, 1536, 2048, 2048, 4096),
    *(197, 257, 577, 729, 1576, 2056, 4616, 5832, 8192, 16384),
)
# A matmul [tokens, in] @ [in, out] forward, with weights as written or transposed; then the
# gradients of the tokens and of the weights.
ROLES = ("nn", "nn", "nn", "nt", "nt", "dlhs", "drhs")
EPILOGUES = tuple(name for name in matmuls.EPILOGUES if name != "none")


def draw(seed: int) -> Iterator[Matmul]:
    """Random matmuls without end, no sizes twice; the same ones for a seed."""
    source, left_out = random.Random(seed), set(suite())
    while True:
        of_model = source.random() < OF_MODELS
        one = _of_model(source) if of_model else matmuls.draw(1, source.randrange(2**31))[0]
        if source.random() < HALF:
            one = replace(one, dtype="float16")  # its range is too small for some epilogues
        elif one.layout[0] == "n" and source.random() < FUSED:
            one = replace(one, epilogue=source.choice(EPILOGUES))
        sizes = (one.m, one.n, one.k)
        if matmuls.is_moderate(one) and sizes not in left_out:
            left_out.add(sizes)
            yield one


def _of_model(source: random.Random) -> Matmul:
    inner, outer = source.choice(_weights())
    role = source.choice(ROLES)
    if role == "drhs":
        return Matmul(inner, outer, source.choice(TOKENS), "tn")
    tokens = source.choice(DECODING if source.random() < FEW_ROWS else TOKENS)
    if role == "dlhs":
        return Matmul(tokens, inner, outer, "nt")
    return Matmul(tokens, outer, inner, role)


@functools.cache
def _weights() -> list[tuple[int, int]]:
    table = json.loads(WEIGHTS.read_text())["weights"]
    return [(inner, outer) for row in table for inner, outer in row["shapes"]]
