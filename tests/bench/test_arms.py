"""The arms compute what the oracle does, where they can be run or compiled without a GPU."""

import jax
import jax.numpy as jnp
import pytest

from jaxbw._src.lab.bench import inputs
from jaxbw._src.lab.bench.arms import ARMS, pallas
from jaxbw._src.lab.bench.arms.arm import Arm, specs
from jaxbw._src.lab.bench.case import EPILOGUES, LAYOUTS, Case, groups, select, suite
from jaxbw._src.lab.bench.inputs import LARGEST_ERROR, Oracle, draw, set_count

ON_CPU = [arm for arm in ARMS if arm.name in ("jaxbw", "xla")]
CASES = [
    *(Case("other", 48, 40, 56, layout) for layout in LAYOUTS),
    *(Case("other", 48, 40, 56, "nn", "float16", epilogue) for epilogue in EPILOGUES),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("arm", ON_CPU, ids=lambda arm: arm.name)
def test_an_arm_computes_the_case(arm: Arm, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MOST_SETS", 2)
    operands = draw(case, seed=0)[0]
    assert arm.refusal(case) is None
    matmul = arm.prepare(case, dict(arm.candidates(case)[0]))
    result = matmul.run(*operands)
    assert Oracle(case, operands).relative_error(result) < LARGEST_ERROR
    assert Oracle(case, operands).relative_error(result * 1.01) > LARGEST_ERROR
    assert Oracle(case, operands).relative_error(result.at[-1, -1].set(jnp.nan)) == float("inf")


@pytest.mark.parametrize("layout", ["dlhs", "drhs"])
def test_a_gradient_is_the_one_of_jax(layout: str) -> None:
    """`plain` says of it what the matmuls of `jax.vjp` are."""
    case = Case("other", 6, 10, 4, layout)
    forward = Case("other", 6, 10, 4)
    lhs, rhs = draw(forward, seed=1)[0]
    cotangent = jnp.ones((6, 10), jnp.bfloat16)
    gradients = jax.vjp(jnp.dot, lhs, rhs)[1](cotangent)
    operands = (cotangent, rhs) if layout == "dlhs" else (lhs, cotangent)
    expected = gradients[layout == "drhs"]
    for arm in ON_CPU:
        found = arm.prepare(case, {}).run(*operands)
        assert found.shape == expected.shape == (case.plain.m, case.plain.n)
        assert jnp.array_equal(found, expected)


def test_operands_are_rotated_normal_and_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "ROTATED_BYTES", 10e6)
    case = Case("other", 512, 512, 512)
    sets = draw(case, seed=0)
    assert len(sets) == set_count(case) == -(-10e6 // case.bytes)
    lhs, rhs = sets[0]
    assert abs(float(lhs.astype("float32").std()) - 1) < 0.01
    assert len(jnp.unique(lhs)) > 2000  # jax.random.normal(..., bfloat16) has a few hundred
    others = [rhs, sets[1][0], draw(case, seed=1)[0][0]]
    assert not any(jnp.array_equal(lhs, other) for other in others)
    assert jnp.array_equal(lhs, draw(case, seed=0)[0][0])


@pytest.mark.parametrize("shape", [(4096, 5376, 512), (16, 256, 128), (100, 300, 130)], ids=str)
def test_pallas_lowers_at_every_tile(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aligned or padded: every configuration that is tried passes the kernel's own checks."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu

    monkeypatch.setattr(hopper_matmul_mgpu, "get_num_sms", lambda: 132)
    case = Case("other", *shape)
    arm = next(arm for arm in ARMS if arm.name == "pallas")
    candidates = arm.candidates(case)
    configs = [*candidates[::3], *arm.variations(case, candidates[-1])[:1]]
    assert all(config in candidates or config["width"] != 8 for config in configs)
    for config in configs:
        lowered = (
            jax.jit(pallas.matmul(case, pallas.Tiles(**config)))
            .trace(*specs(case))
            .lower(lowering_platforms=("cuda",))
        )
        assert lowered.out_info.shape == shape[:2]
        assert "mosaic_gpu" in lowered.as_text()


def test_an_arm_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    case = Case("cube", 1024, 1024, 1024)
    refusals = {arm.name: arm.refusal(case) for arm in ARMS}
    assert refusals["torch"] == refusals["triton"] == "torch is not installed"


def test_peers_of_plain_matmuls_refuse_the_rest() -> None:
    by_name = {arm.name: arm for arm in ARMS}
    assert by_name["pallas"].refusal(Case("cube", 8, 8, 8, "nt")) is not None
    assert by_name["pallas"].refusal(Case("cube", 8, 8, 8, epilogue="swiglu")) is not None
    assert by_name["xla"].refusal(Case("cube", 8, 8, 8, epilogue="swiglu")) is None


def test_the_suite() -> None:
    cases = select()
    assert len(cases) == len(suite()) == 35
    assert groups() == ["cube", "llm", "decode", "long_k", "unaligned"]
    backward = select(groups=["cube", "llm"], layouts=["dlhs", "drhs"])
    assert len(backward) == 34
    (both,) = select(groups=["cube"], shapes=[(1024, 1024, 1024)])[:1]
    assert both.group == "cube"
    assert len(select(groups=["cube"], shapes=[(1024, 1024, 1024), (2, 3, 4)])) == 5
