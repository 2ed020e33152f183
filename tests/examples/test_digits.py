"""examples/digits.py as a user runs it, and what it says of its matmuls held to what it traces."""

import doctest
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

import jaxbw

from .loading import EXAMPLES, load

SCRIPT = EXAMPLES / "digits.py"


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    return load("digits")


def test_run_as_a_user_would(tmp_path: Path) -> None:
    """As `make demo` does; README shows what it prints, up to losses and times."""
    (tmp_path / "build").mkdir()
    run = subprocess.run(
        [sys.executable, SCRIPT, "--picture", "build/digits.png"],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    accuracy = re.search(r"accuracy (\S+)% on 360 held-out digits", run.stdout)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 95
    served = run.stdout.partition("served on cpu:\n")[2].partition("\n\n")[0].splitlines()
    assert len(served) == 11
    assert (tmp_path / "build" / "digits.png").read_bytes().startswith(b"\x89PNG")
    readme = (EXAMPLES.parent / "README.md").read_text()
    shown = readme.partition("make demo\n```\n```text\n")[2].partition("```")[0]
    shown, printed = (re.sub(r"\d+\.\d+", "#", text) for text in (shown, run.stdout))
    same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
    assert same, f"README.md shows other than is printed:\n{run.stdout}"
    assert all("xla   there is no CUDA GPU" in line for line in served)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Those of a program and of all programs within it."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else [parameter]:
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
                elif hasattr(inner, "jaxpr"):
                    yield from equations(inner.jaxpr)


def test_the_matmuls_that_it_lists_are_those_of_a_training_step(digits: ModuleType) -> None:
    training, _ = digits.load_splits(0)
    batch = digits.Split(training.images[: digits.BATCH], training.digits[: digits.BATCH])
    parameters = digits.Classifier().init(jax.random.key(0), batch.images)
    program = jax.make_jaxpr(jax.grad(digits.loss))(parameters, batch)

    traced: Counter[Any] = Counter()
    for equation in equations(program.jaxpr):
        assert equation.primitive.name != "dot_general", "every matmul goes through jaxbw"
        if equation.primitive.name == "jaxbw_dot_general":
            lhs, rhs = (operand.aval for operand in equation.invars)
            (contracting, _) = equation.params["dimension_numbers"]
            assert lhs.dtype == rhs.dtype == digits.COMPUTE_DTYPE
            traced[(lhs.shape, rhs.shape, contracting)] += 1
    listed = Counter(
        (p.lhs, p.rhs, (p.contracting[:1], p.contracting[1:])) for p in digits.matmuls()
    )
    assert traced == listed


def test_a_hopper_gpu_serves_all_matmuls(digits: ModuleType) -> None:
    """Also those with the logits, whose rows of 20 bytes are repacked."""
    with jaxbw.target("H200"), jaxbw.implementation("kernel"):
        served = {matmul.name: matmul.explain() for matmul in digits.matmuls()}
    assert all(by.startswith("sm90") for by in served.values()), served
