"""`python -m jaxbw bench model`: the models, and the command, with kernels that are made up."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.lab import cupti
from jaxbw._src.lab.bench.models import session
from jaxbw._src.lab.bench.models.form import FORMS
from jaxbw._src.lab.bench.models.program import PROFILED_STEPS, count_matmuls, kind
from jaxbw._src.lab.bench.models.transformer import MODELS, Transformer
from jaxbw._src.lab.cli import bench_model
from jaxbw._src.lab.cli.main import main

SMALL: dict[str, Any] = {"width": 32, "heads": 2, "ff": 48, "layers": 2, "batch": 2, "length": 8}
# Of one step: a matmul's kernel, a repack ahead of it, and a fusion of XLA's.
KERNELS = [("jaxbw_sm90_bf16_nn_64x256", 2.0), ("jaxbw_sm90_repack_16bit", 0.5), ("fusion_3", 1.0)]


def small(model: Transformer) -> Transformer:
    sizes = SMALL | {"inputs": 24, "outputs": 5 if model.outputs else 0, "attention": "xla"}
    return model.smaller(**sizes | ({"cache": 16, "length": 1} if model.cache else {}))


MODELS_SMALL = [small(model) for model in MODELS]
CASES = [(model, stacking) for model in MODELS_SMALL for stacking in model.stackings]


# Compiling takes seconds: each different model with its layers written in one of the ways.
WAYS = {
    "gpt2-124m": "unrolled",
    "swiglu-2048": "scanned+remat",
    "vit-1152": "scanned",
    "decode-4096": "scanned",
}
EACH_ONCE = [(model, WAYS[model.name]) for model in MODELS_SMALL if model.name in WAYS]


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = contextlib.nullcontext(KERNELS * PROFILED_STEPS)
    monkeypatch.setattr(cupti, "recorded", lambda: recorded)
    for name, value in {"WARM_UP": 1, "CALLS": 1, "ROUNDS": 2}.items():
        monkeypatch.setattr(session, name, value)


def _id(case: tuple[Transformer, str]) -> str:
    return f"{case[0].name}, {case[1]}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("model", "stacking"), CASES, ids=map(_id, CASES))
def test_the_forms_have_the_same_matmuls(model: Transformer, stacking: str) -> None:
    plain, layers, fused = (count_matmuls(model, form, stacking) for form in FORMS)
    assert plain == {"jaxbw": 0, "kernels": 0, "xla": layers["jaxbw"] + layers["xla"]}
    assert layers["xla"] == fused["xla"]  # attention's
    gates = 0
    if model.gated:  # gate and up are one launch, in the forward pass and where it is repeated
        gates = model.layers * (2 if "remat" in stacking else 1)
    assert fused["jaxbw"] == layers["jaxbw"] - gates
    if "remat" not in stacking:
        assert layers == count_matmuls(model, FORMS[1], "unrolled")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("model", "stacking"), EACH_ONCE, ids=map(_id, EACH_ONCE))
def test_the_forms_compute_the_same(model: Transformer, stacking: str) -> None:
    """Within bf16's rounding."""
    arguments, results = model.arguments(stacking, seed=0), []
    expected = jax.tree.map(jnp.shape, model.argument_shapes(stacking))
    assert jax.tree.map(jnp.shape, arguments) == expected
    for form in FORMS:
        step = jax.jit(model.step(form, stacking))
        results.append(np.asarray(step(*arguments)[0], np.float64))
    for result in results[1:]:
        assert np.abs(result - results[0]).max() <= 0.02 * np.abs(results[0]).max()


def test_the_matmuls_that_kernels_serve() -> None:
    model, form = MODELS_SMALL[2], FORMS[1]
    assert count_matmuls(model, form, "scanned")["kernels"] == 0  # no GPU here
    with jaxbw.target("B200"):
        found = count_matmuls(model, form, "scanned")
    # Seven of a layer and the head, each with its two gradients.
    assert found["kernels"] == found["jaxbw"] == 3 * (7 * model.layers + 1)


def test_the_kind_of_a_kernel() -> None:
    found = {name: kind(name) for name in _NAMES}
    assert found == _NAMES


_NAMES = {
    "jaxbw_sm90_bf16_nt_64x32": "jaxbw",
    "jaxbw_sm90_reduce_f32": "repack, reduce",
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNN": "xla matmul",
    "gemm_fusion_dot_general_1": "xla matmul",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16": "attention",
    "loop_dynamic_update_slice_fusion_2": "copy",
    "input_transpose_fusion": "transpose",
    "loop_multiply_fusion": "other",
}


def test_a_session_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, png = tmp_path / "models.json", tmp_path / "models.png"
    monkeypatch.setattr(bench_model, "MODELS", MODELS_SMALL)
    monkeypatch.setattr(bench_model, "require_gpu", lambda: None)
    command = ["bench", "model", "--out", str(out), "--models", "decode-4096"]

    assert main([*command, "--layers", "scanned"]) == 0
    first = session.Results.load(out)
    assert [(row.model, row.stacking) for row in first.rows] == [("decode-4096", "scanned")]
    form = first.rows[0].forms["layers"]
    assert form.launches.counts == {"jaxbw": 1, "repack, reduce": 1, "other": 1}
    assert form.launches.milliseconds == {"jaxbw": 2.0, "repack, reduce": 0.5, "other": 1.0}

    assert main(command) == 0
    both = session.Results.load(out)
    assert [row.stacking for row in both.rows] == ["scanned", "unrolled"]
    assert both.rows[0] == first.rows[0]

    capsys.readouterr()
    assert main([*command, "--report", "--png", str(png)]) == 0
    told = capsys.readouterr().out
    assert "| decode-4096 | scanned | fused |" in told
    assert "scanned, layers: " in told
    assert png.read_bytes().startswith(b"\x89PNG")


def test_it_stops_in_time(tmp_path: Path) -> None:
    plan = session.Plan(CASES, seed=0, budget_s=-1.0, out=tmp_path / "none.json")
    results = session.Results()
    session.run(plan, results, lambda row: None)
    assert results.rows == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--report"], "measure first, without --report"), ([], "there is no GPU that JAX can use")],
)
def test_what_cannot_be_done(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "model", "--out", str(tmp_path / "none.json"), *arguments])
    assert told in capsys.readouterr().err


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match="bench model"):
        session.Results.load(tmp_path / "other.json")
