"""Programs that outlive a call: compiled ahead, cached, serialised; donated buffers; versions."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

import jaxbw
from jaxbw import _native
from jaxbw._src.primitives.gemm import TARGET

Operand = Callable[..., Any]
M, K, N = 24, 64, 40
EMULATED = ["emulator", "emulator-sm90"]


def fused(x: Any, w: Any) -> Any:
    return jaxbw.matmul(x, w, bias=jnp.full(N, 0.5), activation="gelu")


@pytest.mark.parametrize("implementation", [None, *EMULATED])
def test_compiled_ahead_of_time(implementation: str | None, operand: Operand) -> None:
    x, w = operand((M, K)), operand((K, N), number=1)

    def matmul(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w, activation="silu", implementation=implementation)

    compiled = jax.jit(matmul).lower(x, w).compile()
    assert (TARGET in (compiled.as_text() or "")) == (implementation is not None)
    np.testing.assert_array_equal(compiled(x, w), jax.jit(matmul)(x, w))
    with pytest.raises(TypeError, match=r"bfloat16\[1,64\]"):
        compiled(x[:1], w)


@pytest.mark.usefixtures("compiled_anew")
def test_a_compiled_program_is_serialised(operand: Operand) -> None:
    """One that comes from JAX's cache is not: on a CPU XLA then misses one of its own functions."""
    x, w = operand((M, K)), operand((K, N), number=1)
    with jaxbw.implementation("emulator"):
        compiled = jax.jit(fused).lower(x, w).compile()
    serialised = pickle.dumps(serialize_executable.serialize(compiled))
    payload, in_tree, out_tree = pickle.loads(serialised)
    read = serialize_executable.deserialize_and_load(
        payload, in_tree, out_tree, execution_devices=jax.devices("cpu")[:1]
    )
    np.testing.assert_array_equal(read(x, w), compiled(x, w))


def test_a_second_process_finds_the_program_in_the_cache(tmp_path: Path) -> None:
    """The persistent cache is keyed by the whole program, the custom call's attributes included."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(*blocks: int) -> list[str]:
        program = Path(__file__).with_name("cached_program.py")
        command = [sys.executable, str(program), "emulator", *map(str, blocks)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    total = str(float(64 * 24 * 40))
    assert run(64) == [total, "0", "1"]
    assert run(64, 128) == [total, "1", "0", total, "1", "1"]


@pytest.mark.parametrize("implementation", EMULATED)
def test_donated_operands(implementation: str, operand: Operand) -> None:
    """A result may take a donated operand's memory only when that has been read."""
    size = 64
    square = [operand((size, size), number=i) for i in range(4)]

    def step(x: Any, w: Any, c: Any, residual: Any) -> Any:
        hidden = jaxbw.matmul(
            x, w, c=c, residual=residual, activation="relu", implementation=implementation
        )
        return hidden, jaxbw.matmul(hidden, x, implementation=implementation)

    wanted = jax.jit(step)(*square)
    for donated in ((0,), (1,), (2,), (3,), (0, 1), (0, 1, 2, 3)):
        given = [jnp.copy(x) for x in square]
        if len(donated) > len(wanted):
            with pytest.warns(UserWarning, match="donated buffers were not usable"):
                got = jax.jit(step, donate_argnums=donated)(*given)
        else:
            got = jax.jit(step, donate_argnums=donated)(*given)
            assert [i for i, x in enumerate(given) if x.is_deleted()] == list(donated)
        jax.tree.map(np.testing.assert_array_equal, got, wanted)


# What a program that calls a target of this name was compiled with. Another set of attributes,
# operands or values is another version: raise the number in TARGET and kGemmTarget, and begin anew.
INTEGERS = """
    accumulators activation bias_along_m block_m block_n cluster_k cluster_m cluster_n counters
    cta_group gated has_bias has_c has_lhs_scale has_out_scale has_residual has_rhs_scale
    k_spans lhs_blocks lhs_major mx out_mx pingpong promoted raster rhs_blocks rhs_major save
    scheduler split_k split_tail stages swap_ab swizzle wave
"""
SIGNATURES: dict[str, Any] = {
    "jaxbw_gemm_v10": {
        "attributes": {
            "kernel": "string",
            **dict.fromkeys(("alpha", "beta"), "f32"),
            **dict.fromkeys(INTEGERS.split(), "i32"),
        },
        "activations": {"NONE": 0, "RELU": 1, "GELU": 2, "SILU": 3, "GELU_EXACT": 4},
        "majors": {"K": 0, "MN": 1},
        # of a matmul that is not gated: lhs, rhs, c, bias, residual, scales; d, z
        "operands": [(1, M, K), (1, K, N), (1, M, N), (N,), (1, M, N), (1, M), (1, N)],
        "results": [(1, M, N), (1, M, N)],
    }
}


def test_the_version_of_the_custom_call(
    operand: Operand, cuda_hlo: Callable[..., str], custom_calls: Callable[[str], list[str]]
) -> None:
    x, w, c = operand((M, K)), operand((K, N), number=1), operand((M, N), number=2)

    def matmul(x: Any, w: Any, c: Any, bias: Any) -> Any:
        d, pull_back = jax.vjp(
            lambda x: jaxbw.matmul(
                x,
                w,
                c=c,
                bias=bias,
                residual=c,
                activation="gelu",
                lhs_scale=c[:, 0],
                rhs_scale=bias,
            ),
            x,
        )
        return d, pull_back(d)

    with jaxbw.target("H200"):
        call, _ = custom_calls(cuda_hlo(matmul, x, w, c, w[0]))
    (block,) = re.findall(r"mhlo\.backend_config = \{([^}]*)\}", call)
    attributes = dict(entry.split(" = ", 1) for entry in block.split(", "))
    types = call.rsplit(" : ", 1)[1].split(" -> ")
    operands, results = (
        [tuple(map(int, found.split("x"))) for found in re.findall(r"tensor<([\dx]+)xb?f\d", side)]
        for side in types
    )
    assert SIGNATURES[TARGET] == {
        "attributes": {
            name: "string" if value.startswith('"') else value.rsplit(" : ", 1)[1]
            for name, value in attributes.items()
        },
        "activations": {member.name: member.value for member in _native.Activation},
        "majors": {member.name: member.value for member in _native.Major},
        "operands": operands,
        "results": results,
    }
    for targets in (_native.ffi_targets(), _native.emulator_ffi_targets()):
        assert TARGET in targets


def test_a_program_for_another_version_is_refused() -> None:
    other = re.sub(r"\d+$", "1", TARGET)
    call = jax.ffi.ffi_call(other, jax.ShapeDtypeStruct((1,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match=other):
        jax.jit(call)(jnp.ones(1))
