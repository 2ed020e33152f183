"""What benchmarks/gpu_campaign.py can do on a GPU, the most worth first.

To add a step, add a row. Its command must write what it has as it goes and go on from there, or be
short: a step ends at its time limit, and is begun again with the same files.
"""

from __future__ import annotations

from dataclasses import dataclass

START = 20  # seconds of a step before it measures: imports, compiling
KERNELS = ("cuda", ":!cuda/emulator")
CHOICES = (*KERNELS, "jaxbw/_src/selection")
CALLS = (*KERNELS, "jaxbw", ":!jaxbw/emulator", "tests/gpu")
TUNING = "python benchmarks/measure_configs.py --draw 60"
BENCH = "python -m jaxbw bench {tuned} --budget {budget}"
LAYERS = "--group cube llm --arms jaxbw xla xla-triton-off"


@dataclass(frozen=True)
class Step:
    """One command, and when it is due.

    Attributes:
      command: with {out}, what the names of its files begin with; {budget}, the seconds that it may
        measure; {seed}, one that no record has; {changed}, the watched files that differ from the
        record's; {tuned}, --tuned with the newest record of the suite; {builds}, from --builds.
      seconds: expected on one H200, by records of 2026-11-23; those of two GPUs count twice.
      record: its file, by a pattern, without the date and the GPU that names of records begin with.
      watches: paths as git takes them. The step is due where they differ from what its newest
        record was made of.
      due_by: the records that decide that, where they are another step's.
      first_seed: where seeds begin. Those of tuning, judging and XLA must stay apart.
    """

    name: str
    why: str
    command: str
    seconds: int
    record: str
    watches: tuple[str, ...]
    due_by: str = ""
    first_seed: int = 1


STEPS = (
    Step(
        "changed_tests",
        "the files of GPU tests that changed, before all tests",
        "python -P -m pytest -q -p no:benchmark --tb=short -m 'not gpus'"
        " --junitxml={out}_changed_tests.xml {changed}",
        *(90, "changed_tests.xml", ("tests/gpu/test_*.py",)),
        due_by="gpu_tests*.txt",
    ),
    Step(
        "tests",
        "all GPU tests",
        "python -m tests.gpu.run_all --processes 8 --out {out}_gpu_tests.txt",
        *(270, "gpu_tests*.txt", CALLS),
    ),
    Step(
        "compare_kernels",
        "the builds of --builds by turns",
        "python benchmarks/compare_kernels.py --kernels {builds} --out {out}_compare_kernels.json",
        *(100, "compare_kernels.json", KERNELS),
    ),
    Step(
        "calibration",
        "times that the tuned table is made from",
        TUNING + " --seed {seed} --budget {budget} --out {out}_calibration_{seed}.jsonl",
        *(150, "calibration*.jsonl*", KERNELS),
        first_seed=900,
    ),
    Step(
        "calibration_xla",
        "times that the model of XLA's is made from",
        "python benchmarks/measure_xla.py --seed {seed} --seconds {budget}"
        " --out {out}_xla_{seed}.jsonl",
        *(200, "xla_*.jsonl*", KERNELS),
        first_seed=11,
    ),
    Step(
        "judging",
        "what choices lose on matmuls that no table has seen",
        "python benchmarks/judge_selection.py --draw 22 --seed {seed} --budget {budget}"
        " --out {out}_judged_{seed}.json",
        *(80, "judged_*.json", CHOICES),
        first_seed=2026,
    ),
    Step(
        "models",
        "whole steps of models beside plain XLA",
        "python -m jaxbw bench model --budget {budget} --out {out}_models.json",
        *(300, "models.json", (*CHOICES, "jaxbw/_src/lab/bench/models")),
    ),
    Step(
        "bench",
        "the suite beside all peers",
        BENCH + " --out {out}_bench.json",
        *(230, "bench.json", CHOICES),
    ),
    Step(
        "bench_fused",
        "epilogues beside XLA",
        f"{BENCH} {LAYERS} --epilogue bias_gelu bias_silu swiglu --out {{out}}_bench_fused.json",
        *(290, "bench_fused.json", CHOICES),
    ),
    Step(
        "bench_backward",
        "gradients beside XLA",
        f"{BENCH} {LAYERS} --layouts dlhs drhs --out {{out}}_bench_backward.json",
        *(200, "bench_backward.json", CHOICES),
    ),
    Step(
        "bench_sustained",
        "the suite at the power limit",
        f"{BENCH} {LAYERS} torch --sustained --out {{out}}_bench_sustained.json",
        *(190, "bench_sustained.json", CHOICES),
    ),
    Step(
        "cycles",
        "start, end, and a block beside cuBLAS's, by Nsight Compute",
        "python benchmarks/cycles.py --out {out}_cycles.json",
        *(50, "cycles.json", KERNELS),
    ),
    Step(
        "fuzz_direct",
        "random launches against float64",
        "python -m tests.gpu.fuzz_direct --seed {seed} --budget {budget}"
        " --out {out}_fuzz_direct_{seed}.json",
        *(80, "fuzz_direct*.json", KERNELS),
        first_seed=11,
    ),
    Step(
        "fuzz_jit",
        "random matmuls through jax.jit against float64",
        "python -m tests.gpu.fuzz_jit --jobs 8 --seed {seed} --budget {budget}"
        " --out {out}_fuzz_jit_{seed}.json",
        *(60, "fuzz_jit*.json", CALLS),
        first_seed=2,
    ),
    Step(
        "sanitizers",
        "memcheck, synccheck and initcheck over every instance",
        "python -m tests.gpu.run_sanitizers --tools memcheck synccheck initcheck --timeout 230"
        " --output {out}_sanitizers.json",
        *(200, "sanitizers.json", KERNELS),
    ),
    Step(
        "racecheck",
        "racecheck over every instance",
        "python -m tests.gpu.run_sanitizers --tools racecheck --timeout 230"
        " --output {out}_sanitizers_racecheck.json",
        *(200, "sanitizers_racecheck.json", KERNELS),
    ),
)
