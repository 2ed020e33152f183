"""jax.checkpoint: what each policy keeps of a matmul, and how many matmuls run then."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

import jaxbw
from jaxbw import checkpoint_policies as ours

M, K, H, N = 32, 64, 48, 16
BIAS = jnp.full(H, 0.5)
THEIRS = jax.checkpoint_policies
PREACTIVATION = THEIRS.save_only_these_names(ours.PREACTIVATION)
HIDDEN = THEIRS.save_only_these_names("hidden")


def arrays(operand: Callable[..., Any], dtype: str = "bfloat16") -> tuple[Any, Any, Any]:
    return operand((M, K), dtype), operand((K, H), dtype, 1) / 8, operand((H, N), dtype, 2) / 8


def plain(x: Any, w: Any, v: Any) -> Any:
    """A network without an epilogue: two matmuls around a sine."""
    return jaxbw.matmul(jnp.sin(jaxbw.matmul(x, w)), v)


def fused(x: Any, w: Any, v: Any) -> Any:
    hidden = jaxbw.matmul(x, w, bias=BIAS, activation="gelu")
    return jaxbw.matmul(checkpoint_name(hidden, "hidden"), v)


def relu(x: Any, w: Any, v: Any) -> Any:
    return jaxbw.matmul(jaxbw.matmul(x, w, bias=BIAS, activation="relu"), v)


def gated(x: Any, w: Any, v: Any) -> Any:
    return jaxbw.matmul(checkpoint_name(jaxbw.gated_matmul(x, w, 2 * w), "hidden"), v)


def last(x: Any, w: Any, v: Any) -> Any:
    """What follows is no part of the block: its gradient needs z, and nothing needs d again."""
    del v
    return jaxbw.matmul(x, w, activation="silu", residual=x[:, :H])


def batched(x: Any, w: Any, v: Any) -> Any:
    """Weights of their own for each of two."""
    x, w, v = (jnp.stack([a, a]) for a in (x, w, v))
    return jaxbw.matmul(jaxbw.matmul(x, w, bias=BIAS, activation="gelu"), v)


def kept(block: Any, operands: Any, capsys: pytest.CaptureFixture[str]) -> int:
    """How many arrays [..., M, H] the backward pass gets that are not operands."""
    capsys.readouterr()
    print_saved_residuals(block, *operands)
    lines = capsys.readouterr().out.splitlines()
    return sum(f"{M},{H}]" in line and "argument" not in line for line in lines)


def launches(block: Any, operands: Any, custom_calls: Callable[[str], list[str]]) -> list[int]:
    """For each launch of value and gradient on an H200, how many results it saves beside d."""

    def loss(*operands: Any) -> Any:
        return jnp.sin(block(*operands).astype(jnp.float32)).sum()

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    with jaxbw.target("H200"):
        text = str(step.trace(*operands).lower(lowering_platforms=("cuda",)).as_text())
    found = []
    for call in custom_calls(text):
        ((save, is_gated),) = zip(
            re.findall(r"save = (\d)", call), re.findall(r"gated = (\d)", call), strict=True
        )
        found.append(int(save) * (1 + int(is_gated)))
    return found


# Policy, then for each block the arrays [M, H] that are kept, and the matmuls that are run again.
NONE = "no jax.checkpoint"
POLICIES: dict[str, Any] = {
    "everything": THEIRS.everything_saveable,
    "nothing": THEIRS.nothing_saveable,
    "jax dots": THEIRS.dots_saveable,
    "dots": ours.dots_saveable,
    "dots without batch": ours.dots_with_no_batch_dims_saveable,
    "preactivation": PREACTIVATION,
    "hidden": HIDDEN,
    "preactivation or hidden": THEIRS.save_from_both_policies(PREACTIVATION, HIDDEN),
    "dots or hidden": THEIRS.save_from_both_policies(ours.dots_saveable, HIDDEN),
}
TABLE: dict[Any, dict[str, tuple[int, int]]] = {
    plain: {
        "everything": (2, 0),  # the sine, which the matmul reads, and the cosine
        "nothing": (0, 1),
        "jax dots": (0, 1),  # which knows no matmul but lax's: jax#30717
        "dots": (1, 0),
        "dots without batch": (1, 0),
        "preactivation": (0, 1),
    },
    fused: {
        "everything": (2, 0),
        "nothing": (0, 1),
        "jax dots": (0, 1),
        "dots": (2, 0),
        "dots without batch": (2, 0),
        "preactivation": (1, 1),  # for the result
        "hidden": (1, 1),  # for z
        "preactivation or hidden": (2, 0),
        "dots or hidden": (2, 0),
    },
    relu: {
        "everything": (1, 0),
        "nothing": (0, 1),
        "jax dots": (0, 1),
        "dots": (1, 0),
        "dots without batch": (1, 0),
        "preactivation": (1, 0),
    },
    gated: {
        "everything": (3, 0),
        "nothing": (0, 1),
        "dots": (3, 0),
        "dots without batch": (3, 0),
        "preactivation": (2, 1),
        "preactivation or hidden": (3, 0),
    },
    last: {
        "everything": (1, 0),
        "nothing": (0, 1),
        "dots": (1, 0),
        "preactivation": (1, 0),
    },
    batched: {
        "nothing": (0, 1),
        "dots": (2, 0),
        "dots without batch": (0, 1),
        "preactivation": (1, 1),
    },
}
CASES = [(block, name) for block, rows in TABLE.items() for name in rows]


@pytest.mark.parametrize(("block", "name"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_what_is_kept_and_what_runs_again(
    block: Any,
    name: str,
    operand: Callable[..., Any],
    custom_calls: Callable[[str], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    operands = arrays(operand)
    checkpointed = jax.checkpoint(block, policy=POLICIES[name])
    arrays_kept, matmuls_again = TABLE[block][name]
    assert kept(checkpointed, operands, capsys) == arrays_kept
    without = launches(block, operands, custom_calls)
    found = launches(checkpointed, operands, custom_calls)
    assert len(found) - len(without) == matmuls_again


def test_a_kernel_writes_nothing_that_is_not_kept(
    operand: Callable[..., Any], custom_calls: Callable[[str], list[str]]
) -> None:
    """Forward without what the gradient needs; again, in the backward pass, with it or alone."""
    operands = arrays(operand)

    def saved(block: Any, policy: Any) -> list[int]:
        return launches(jax.checkpoint(block, policy=policy), operands, custom_calls)

    nothing = THEIRS.nothing_saveable
    assert launches(fused, operands, custom_calls) == [1, 0, 0, 0, 0, 0]
    assert saved(fused, nothing) == [0, 0, 1, 0, 0, 0, 0]
    assert saved(fused, PREACTIVATION) == [1, 0, 0, 0, 0, 0, 0]
    assert launches(last, operands, custom_calls) == [1, 0, 0]
    assert saved(last, nothing) == [0, 0, 0, 0]
    assert launches(gated, operands, custom_calls)[0] == 2
    assert saved(gated, nothing)[:3] == [0, 0, 2]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("block", TABLE, ids=lambda x: x.__name__)
def test_no_policy_changes_a_value(block: Any, name: str, operand: Callable[..., Any]) -> None:
    operands = arrays(operand, "float32")

    def step(block: Any) -> Any:
        return jax.value_and_grad(lambda *x: jnp.sin(block(*x)).sum(), (0, 1, 2))(*operands)

    got, wanted = step(jax.checkpoint(block, policy=POLICIES[name])), step(block)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, wanted)


@pytest.mark.parametrize("block", [plain, fused], ids=lambda x: x.__name__)
def test_offloading(block: Any, operand: Callable[..., Any]) -> None:
    """What the dot policy keeps lies in the other memory; the values are the same."""
    operands = arrays(operand, "float32")
    policy = ours.offload_dot_with_no_batch_dims("device", "pinned_host")

    def step(block: Any) -> Any:
        return jax.grad(lambda *x: jnp.sin(block(*x)).sum(), (0, 1, 2))

    moved = jax.checkpoint(block, policy=policy)
    text = str(jax.make_jaxpr(step(moved))(*operands))
    assert len(re.findall(rf"f32<host>\[{M},{H}\]", text)) == 2 * (1 if block is plain else 2)
    theirs = THEIRS.offload_dot_with_no_batch_dims("device", "pinned_host")
    assert "<host>" not in str(
        jax.make_jaxpr(step(jax.checkpoint(block, policy=theirs)))(*operands)
    )
    stacked = jax.checkpoint(batched, policy=policy)
    assert "<host>" not in str(jax.make_jaxpr(step(stacked))(*operands))
    got, wanted = jax.jit(step(moved))(*operands), step(block)(*operands)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, wanted)


@pytest.mark.parametrize(
    ("policy", "arrays_kept"), [(THEIRS.nothing_saveable, 0), (ours.dots_saveable, 3)]
)
def test_recompute_is_a_checkpoint_that_an_outer_policy_overrules(
    policy: Any, arrays_kept: int, operand: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    operands = arrays(operand)

    def block(x: Any, w: Any, v: Any) -> Any:
        return jaxbw.matmul(jaxbw.gated_matmul(x, w, w, recompute=True), v)

    assert kept(block, operands, capsys) == 1  # the result, which the next matmul reads
    assert kept(jax.checkpoint(block, policy=policy), operands, capsys) == arrays_kept


def test_jaxs_own_matmuls_and_policies_are_as_ever() -> None:
    """A namesake says of every other operation what JAX's policy says."""
    x = jnp.ones((4, 4))

    def theirs(x: Any) -> Any:
        return jax.lax.batch_matmul(jnp.sin(jnp.dot(x, x))[None], x[None])

    def decisions(policy: Any) -> list[Any]:
        asked = []

        def listening(*operation: Any, **params: Any) -> Any:
            asked.append(policy(*operation, **params))
            return asked[-1]

        jax.grad(lambda x: jax.checkpoint(theirs, policy=listening)(x).sum())(x)
        assert asked
        return asked

    for name in ours.__all__:
        mine = getattr(ours, name)
        if name == "PREACTIVATION":
            continue
        other = getattr(THEIRS, name)
        if name.startswith("offload"):
            mine, other = (policy("device", "pinned_host") for policy in (mine, other))
        assert decisions(mine) == decisions(other)


def test_under_scan(operand: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A network of equal layers: what is kept is kept of each of them."""
    x, w = operand((M, K), "float32"), operand((3, K, K), "float32", 1) / 8

    def network(policy: Any) -> Any:
        layer = jax.checkpoint(
            lambda x, w: (jaxbw.matmul(x, w, activation="gelu", residual=x), None), policy=policy
        )
        return lambda x, w: jax.lax.scan(layer, x, w)[0]

    def saved(policy: Any) -> list[str]:
        capsys.readouterr()
        print_saved_residuals(network(policy), x, w)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith(f"f32[3,{M},{K}]")]

    assert len(saved(THEIRS.nothing_saveable)) == 1  # the operand of each layer
    assert len(saved(PREACTIVATION)) == 2
    got, wanted = (
        jax.grad(lambda w, f=f: f(x, w).sum())(w)
        for f in (network(PREACTIVATION), network(THEIRS.nothing_saveable))
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
