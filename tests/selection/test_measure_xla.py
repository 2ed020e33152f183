"""benchmarks/measure_xla.py without a GPU: what it computes, draws, keeps and refuses."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import measure_xla
import numpy as np
import pytest
from measure_xla import Compiled, call, jnp_call, run, shapes

import jaxbw
from jaxbw._src.lab.bench.case import CONTRACTING, suite
from jaxbw._src.lab.bench.inputs import MOST_SETS
from jaxbw._src.lab.bench.timer import Burst, Rotation
from jaxbw._src.lab.bench.timer import Matmul as Calls
from jaxbw._src.selection.devices import TARGETS
from measuring import matmuls, model_matmuls
from measuring.matmuls import Matmul
from measuring.xla_times import read

H200 = TARGETS["H200"]
DRAWN = list(itertools.islice(model_matmuls.draw(5), 300))
ALL = [
    Matmul(48, 80, 64, layout, epilogue=epilogue)
    for layout in CONTRACTING
    for epilogue in matmuls.EPILOGUES
]


class MadeUpCompiler:
    """Arms that compute nothing: XLA takes 2 us for each row, the kernel one."""

    def __init__(self) -> None:
        self.compiled: list[Matmul] = []
        self.fails: Matmul | None = None
        self.wrong: Matmul | None = None

    def compile(self, matmul: Matmul) -> Compiled:
        if matmul == self.fails:
            raise MemoryError("no memory is left\nfor this matmul")
        self.compiled.append(matmul)
        off = matmul == self.wrong
        arms = {
            "xla": Calls(lambda x: x, details={"us": 2.0 * matmul.m}),
            "kernel": Calls(lambda x: x + off, details={"us": 1.0 * matmul.m}),
        }
        operands = [(np.float32(1),), (np.float32(2),)]
        return Compiled(arms, lambda: operands, lambda x, y: abs(x - y), {"modelled": 3.5})


class MadeUpTimer:
    def burst(self, calls: Rotation, count: int) -> Burst:
        us = calls.matmul.details["us"]
        return Burst((math.inf, *[us] * (count - 1)), ("kernel",))


def run_all(
    compiler: MadeUpCompiler, out: Path, wanted: list[Matmul], seconds: float = 100
) -> list[tuple[Matmul, Any]]:
    return list(
        run(compiler, MadeUpTimer(), wanted, H200, out, seconds=seconds, workers=2, batch=2)
    )


def test_rows_from_before_a_field_are_read(tmp_path: Path) -> None:
    """`--of` an H200's record ended with a KeyError once matmuls had the field `precise`."""
    row = {"m": 8, "n": 16, "k": 32, "layout": "nt", "dtype": "float16", "epilogue": "bias"}
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert list(read(path)) == [Matmul(8, 16, 32, "nt", "float16", "bias")]


def test_each_matmul_has_the_times_of_all_arms(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run_all(MadeUpCompiler(), out, DRAWN[:3])
    assert list(read(out)) == DRAWN[:3]
    for matmul, row in read(out).items():
        rounds = measure_xla.ROUNDS
        assert row["us"] == {"xla": [2.0 * matmul.m] * rounds, "kernel": [1.0 * matmul.m] * rounds}
        assert (row["kernels"]["xla"], row["modelled"], row["device"]) == (["kernel"], 3.5, "H200")


def test_a_run_resumes_behind_a_torn_line(tmp_path: Path) -> None:
    out, compiler = tmp_path / "out.jsonl", MadeUpCompiler()
    run_all(compiler, out, DRAWN[:1])
    with out.open("a") as file:
        file.write('{"m": 1, "n"')
    again = run_all(compiler, out, DRAWN[:4])
    assert [matmul for matmul, _ in again] == DRAWN[1:4]
    assert list(read(out)) == DRAWN[:4]
    assert sorted(compiler.compiled) == sorted(DRAWN[:4])


def test_it_stops_when_the_time_is_over(tmp_path: Path) -> None:
    compiler = MadeUpCompiler()
    assert run_all(compiler, tmp_path / "out.jsonl", DRAWN[:4], seconds=-1) == []
    assert compiler.compiled == []


def test_what_fails_or_is_wrong_is_told_and_not_kept(tmp_path: Path) -> None:
    out, compiler = tmp_path / "out.jsonl", MadeUpCompiler()
    compiler.fails, compiler.wrong = DRAWN[0], DRAWN[1]
    found = dict(run_all(compiler, out, DRAWN[:3]))
    assert found[DRAWN[0]] == "MemoryError: no memory is left"
    assert found[DRAWN[1]] == "RuntimeError: kernel is 1 off"
    assert list(read(out)) == [DRAWN[2]]


@pytest.mark.parametrize("matmul", ALL, ids=str)
def test_all_arms_compute_the_same(matmul: Matmul) -> None:
    source = np.random.default_rng(0)
    given = [jax.device_put(source.normal(size=x.shape).astype(x.dtype)) for x in shapes(matmul)]
    lhs, rhs, *others = (np.asarray(x, np.float64) for x in given)
    lhs = lhs if matmul.layout[0] == "n" else lhs.T

    def times(rhs: Any) -> Any:
        return lhs @ (rhs if matmul.layout[1] == "n" else rhs.T)

    rest = iter(others)
    z = times(rhs)
    formulas: dict[str, Callable[[], Any]] = {
        "none": lambda: z,
        "bias": lambda: z + next(rest),
        "gelu": lambda: jax.nn.gelu(z),
        "silu": lambda: jax.nn.silu(z),
        "residual": lambda: z + next(rest),
        "bias_residual": lambda: z + next(rest) + next(rest),
        "bias_gelu": lambda: jax.nn.gelu(z + next(rest)),
        "bias_silu": lambda: jax.nn.silu(z + next(rest)),
        "swiglu": lambda: jax.nn.silu(z) * times(next(rest)),
    }
    expected = formulas[matmul.epilogue]()
    for found in (call(matmul, "xla"), jnp_call(matmul)):
        assert measure_xla._difference(found(*given), expected) < 6e-3


@pytest.mark.parametrize("matmul", ALL, ids=str)
def test_the_kernel_is_one_launch_of_the_same_operands(matmul: Matmul) -> None:
    with jaxbw.target("H200"):
        traced = jax.jit(call(matmul, "sm90")).trace(*shapes(matmul))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jaxbw_gemm") == 1
    assert "dot_general" not in text
    assert "stablehlo.transpose" not in text


def test_draws_repeat_and_differ_by_seed() -> None:
    assert list(itertools.islice(model_matmuls.draw(5), 300)) == DRAWN
    others = set(itertools.islice(model_matmuls.draw(6), 300))
    assert len(others & set(DRAWN)) < 15


def test_draws_have_all_kinds_and_nothing_that_is_benchmarked() -> None:
    sizes = [(p.m, p.n, p.k) for p in DRAWN]
    assert not set(sizes) & set(suite())
    assert len(set(sizes)) == len(sizes)
    assert {p.epilogue for p in DRAWN} == set(matmuls.EPILOGUES)
    layouts = Counter(p.layout for p in DRAWN)
    assert min(layouts[layout] for layout in ("nn", "nt", "tn")) > 40
    assert 50 < sum(p.m <= 128 for p in DRAWN) < 200
    assert sum(p.n % 8 or p.k % 8 for p in DRAWN) > 10
    assert 10 < sum(p.dtype == "float16" for p in DRAWN) < 60
    assert sum(p.k > 8192 for p in DRAWN) > 20
    assert {p.epilogue for p in DRAWN if p.dtype == "float16"} == {"none"}


def test_all_of_a_matmul_is_compiled_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure_xla, "_DRAWN", 2**16)
    on_cpu = call
    monkeypatch.setattr(measure_xla, "call", lambda matmul, name: on_cpu(matmul, "xla"))
    matmul = Matmul(16, 64, 128, "nt", epilogue="bias_gelu")
    compiled = measure_xla.Gpu(H200).compile(matmul)
    assert list(compiled.arms) == ["xla", "kernel", "jnp"]
    assert set(compiled.details) == {"config", "modelled", "compile_s"}
    sets = compiled.operands()
    assert len(sets) == MOST_SETS
    results = [calls.run(*sets[0]) for calls in compiled.arms.values()]
    assert compiled.difference(results[0], results[2]) < 6e-3
    lhs, other = np.asarray(sets[0][0], np.float32), np.asarray(sets[1][0], np.float32)
    assert abs(lhs.std() - 1) < 0.1
    assert not np.array_equal(lhs, other)
