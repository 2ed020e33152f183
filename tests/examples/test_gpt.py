"""examples/gpt.py as a user runs it, on two devices; and what of its step runs on kernels."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxbw

from .loading import load, trained


@pytest.fixture(scope="module")
def gpt() -> ModuleType:
    return load("gpt")


@contextmanager
def one_core() -> Iterator[None]:
    """What is started inside has one core of this machine to run on."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def test_run_as_a_user_would(tmp_path: Path) -> None:
    """It learns more than how frequent each character is, in a fraction of the default's steps.

    On one core, as the script once gave all its steps to the devices at once: both had the 32
    programs that XLA's CPU client takes, one waited in the gradient's sum for the other, which
    waited for room, and XLA ended the process after 40 s. With cores to spare that was one run in
    dozens; on one core it is nearly every one.
    """
    sizes = {"steps": 100, "width": 64, "layers": 1, "length": 32, "write": 20}
    with one_core():
        printed, loss, without_context = trained(
            *("gpt", tmp_path, sizes), MPLBACKEND="agg", JAX_DISABLE_MOST_OPTIMIZATIONS="0"
        )
    assert loss < without_context - 0.3
    written = re.search(r"without any context \S+\n\n(.*)", printed, re.DOTALL)
    assert written is not None
    assert written.group(1).startswith("The ")
    assert len(written.group(1)) == len("The ") + 20 + len("\n")
    assert (tmp_path / "gpt.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_of_the_held_out_text_is_trained_on(gpt: ModuleType) -> None:
    text = gpt.Text.of_the_manual()
    trained, held_out = (
        {" ".join(paragraph.split()) for paragraph in decoded.split("\n\n")}
        for decoded in (
            "".join(text.characters[i] for i in part) for part in (text.train, text.held_out)
        )
    )
    assert not trained & held_out
    assert len(text.train) > 5 * len(text.held_out) > 100_000


def test_a_step_on_a_hopper_gpu(gpt: ModuleType) -> None:
    """Every matmul is a kernel, attention's own too: nine, and two for the gradient of each.

    But two: of scores that `jax.nn` has in float32, the gradient is float32, and one operand not.
    """
    length, characters = 64, 103
    model = nnx.eval_shape(lambda: gpt.GPT(characters, length, 128, 4, 1, 0))
    definition, parameters = nnx.split(model)
    optimizer = optax.sgd(1e-3)
    step = gpt.training_step(definition, optimizer)
    tokens = jax.ShapeDtypeStruct((16, length + 1), np.int32)
    with jaxbw.target("H200"), jaxbw.implementation("kernel"):
        state = jax.eval_shape(optimizer.init, parameters)
        lowered = step.trace(parameters, state, tokens).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("@jaxbw_gemm_v10(") == 9 * 3 - 2
    assert lowered.as_text().count("stablehlo.dot_general") == 2
