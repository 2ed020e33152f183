"""benchmarks/measure_configs.py on a made-up GPU: what it measures, keeps and refuses."""

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from jaxbw._src.lab.bench import case
from jaxbw._src.lab.tuning.launching import by_launch
from jaxbw._src.lab.tuning.measure import BURST_US, Effort, Measured, measure
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS
from measuring import matmuls
from measuring.configurations import from_json, read, run, to_json
from measuring.matmuls import Matmul

from .made_up_gpu import MadeUpGpu

H200 = TARGETS["H200"]
SMALL = Matmul(1024, 1024, 1024)
EFFORT = Effort(count=40, finalists=4)


def by_width(config: GemmConfig) -> float:
    return 10.0 + abs(config.tile[1] - 192)


def test_the_fastest_comes_first_and_is_measured_most() -> None:
    gpu = MadeUpGpu(by_width)
    measured = measure(gpu, SMALL.problem, H200, EFFORT)
    assert len(measured) == EFFORT.count == len({each.config for each in measured})
    assert measured[0].config.tile[1] == 192
    times = [each.microseconds for each in measured]
    assert times == sorted(times)
    launched = [config for burst in gpu.bursts for config in burst]
    assert launched.count(measured[0].config) == EFFORT.rounds + EFFORT.final_rounds
    assert launched.count(measured[-1].config) in (
        EFFORT.rounds,
        EFFORT.rounds + EFFORT.final_rounds,  # the model's first
    )


def test_every_kind_is_measured() -> None:
    measured = measure(
        MadeUpGpu(by_width), Matmul(2048, 2048, 2048).problem, H200, Effort(count=60)
    )
    assert {each.config.tile[1] for each in measured} >= {64, 128, 192, 256}
    assert {each.config.swap_ab for each in measured} == {False, True}
    assert {each.config.cluster for each in measured} >= {(1, 1), (2, 1), (1, 2)}


def test_long_launches_are_cut_into_bursts() -> None:
    gpu = MadeUpGpu(by_width)
    measure(gpu, Matmul(8192, 8192, 4096).problem, H200, Effort(count=20))
    assert max(map(len, gpu.bursts)) <= 1 + BURST_US / 600 / EFFORT.repeats
    assert sum(map(len, gpu.bursts)) < 20 * EFFORT.rounds + 17 * EFFORT.final_rounds


def test_results_that_differ_are_refused() -> None:
    gpu = MadeUpGpu(by_width)
    gpu.wrong = measure(gpu, SMALL.problem, H200, EFFORT)[7].config
    with pytest.raises(RuntimeError, match=r"-> bf16.1,1024,1024.: block .* is inf off"):
        measure(gpu, SMALL.problem, H200, EFFORT)


def test_a_run_resumes_behind_a_torn_line(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    wanted = matmuls.draw(3, seed=5)
    list(run(MadeUpGpu(by_width), wanted[:1], H200, EFFORT, out, budget_s=100))
    with out.open("a") as file:
        file.write('{"m": 1, "n"')
    assert list(read(out)) == wanted[:1]
    again = list(run(MadeUpGpu(by_width), wanted, H200, EFFORT, out, budget_s=100))
    assert [matmul for matmul, _ in again] == wanted[1:]
    assert list(read(out)) == wanted
    assert list(run(MadeUpGpu(by_width), matmuls.draw(4, 5), H200, EFFORT, out, budget_s=-1)) == []


def test_what_is_written_can_be_read() -> None:
    config = GemmConfig(128, 192, cluster=(2, 1), split_k=3, swap_ab=True, stages=5)
    measured = Measured(config, 12.5, 13.25)
    assert from_json(to_json(measured)) == measured


@pytest.mark.parametrize("epilogue", matmuls.EPILOGUES)
def test_matmuls_with_an_epilogue(epilogue: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    wanted = [matmuls.parse(f"512,1024,640,nn,{epilogue}"), *matmuls.draw(2, 5, epilogue)]
    list(run(MadeUpGpu(by_width), wanted, H200, EFFORT, out, budget_s=100))
    assert list(read(out)) == wanted
    for matmul in wanted:
        problem = matmul.problem
        assert problem.epilogue.is_identity == (epilogue == "none")
        assert problem.epilogue.gated == (epilogue == "swiglu")
        plain = replace(matmul, epilogue="none").problem
        assert (problem.lhs_shape, problem.rhs_shape) == (plain.lhs_shape, plain.rhs_shape)


def test_the_epilogues_of_the_benchmark_are_among_them() -> None:
    assert set(matmuls.EPILOGUES) > set(case.EPILOGUES)


def test_rows_from_before_there_were_epilogues(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"m": 1, "n": 2, "k": 3, "layout": "nt", "dtype": "float16", "measured": []}\n')
    assert list(read(out)) == [Matmul(1, 2, 3, "nt", "float16")]


def test_a_record_may_be_compressed(tmp_path: Path) -> None:
    """Tables were made from copies that somebody had unpacked: the command did not repeat."""
    out = tmp_path / "out.jsonl"
    list(run(MadeUpGpu(by_width), matmuls.draw(2, seed=5), H200, EFFORT, out, budget_s=100))
    packed = tmp_path / "out.jsonl.xz"
    packed.write_bytes(lzma.compress(out.read_bytes()))
    assert read(packed) == read(out)


def test_kernels_of_a_call_are_added_up() -> None:
    events = [("repack", 0.5), ("gemm", 1.0), ("gemm", 2.0), ("repack", 0.25), ("gemm", 1.0)]
    assert by_launch(events, 3) == [1500.0, 2000.0, 1250.0]
    reduced = [("gemm", 1.0), ("reduce", 0.5), ("repack", 0.25), ("gemm", 1.0), ("reduce", 0.5)]
    assert by_launch(reduced, 2) == [1500.0, 1750.0]
    grouped = [("jaxbw_sm90_group_table_s32", 0.5), ("jaxbw_sm90_grouped_bf16_nn_64x128", 1.0)] * 2
    assert by_launch(grouped, 2) == [1500.0, 1500.0]
    with pytest.raises(RuntimeError, match="2 kernels in 1 launches"):
        by_launch([("reduce", 0.5), ("gemm", 1.0)], 1)
    with pytest.raises(RuntimeError, match="5 kernels in 4 launches"):
        by_launch(events, 4)
    with pytest.raises(RuntimeError, match="4 kernels in 2 launches"):
        by_launch(events[:4], 2)


def test_draws_repeat_and_differ_by_seed() -> None:
    drawn = matmuls.draw(40, seed=1)
    assert drawn == matmuls.draw(40, seed=1)
    assert not set(drawn) & set(matmuls.draw(40, seed=2))
    assert any(p.m <= 128 for p in drawn)
    assert any(p.n % 8 for p in drawn)
    assert {p.layout for p in drawn} == set(case.CONTRACTING)
