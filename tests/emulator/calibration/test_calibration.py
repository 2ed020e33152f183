"""The emulator leaves the memory that a GPU left: the same micro-kernels, held to recorded results.

vectors.npz is written by record.py on a GPU of compute capability 9.0; `facts` in it says which.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import toolchain

from jaxbw import emulator

from . import emulated, suite
from .case import Bytes, Case
from .encodings import Encoding, encodings

SCHEDULED = ("tma", "bulk", "barriers", "cluster")  # modules with asynchronous operations
SHOWN = 20  # differences in a message


@dataclass(frozen=True)
class Vectors:
    """The recorded results."""

    facts: dict[str, Any]
    results: dict[str, Bytes]
    inputs: dict[str, Bytes]
    encodings: dict[str, tuple[int, bytes]]


@functools.cache
def vectors() -> Vectors:
    with np.load(suite.VECTORS) as file:
        facts = json.loads(file["facts"].tobytes())
        ends = np.cumsum(file["sizes"])
        results = np.split(file["results"], ends[:-1])
        return Vectors(
            facts,
            dict(zip(facts["cases"], results, strict=True)),
            dict(zip(facts["cases"], file["inputs"], strict=True)),
            {
                name: (int(status), raw.tobytes())
                for name, status, raw in zip(
                    facts["encodings"], file["encoding_status"], file["encodings"], strict=True
                )
            },
        )


@functools.cache
def cases() -> dict[str, list[Case]]:
    listed = suite.cases()
    return {module: [c for c in listed if c.module == module] for module in suite.modules()}


@functools.cache
def load(module: str) -> emulator.Module:
    return emulator.Module(suite.ptx(module, toolchain.find().nvcc), f"{module}.ptx")


def fault(case: Case, **options: Any) -> str | None:
    """None, or what is wrong with a case in the emulator."""
    recorded = vectors()
    if not np.array_equal(recorded.inputs[case.name], suite.inputs_digest(case)):
        return "its vectors were recorded with other inputs: run record.py again"
    try:
        result, findings = emulated.run(load(case.module), case, **options)
    except RuntimeError as error:
        return None if case.refused and case.refused in str(error) else f"fails: {error}"
    if case.refused:
        return "is no longer refused: hold it to its vectors"
    if case.name in recorded.facts["failures"]:
        return f"runs, but not on the GPU: {recorded.facts['failures'][case.name]}"
    if findings:
        return f"gives a finding: {findings[0]}"
    return suite.difference(case, recorded.results[case.name], result)


def check(faults: dict[str, str]) -> None:
    listed = [f"{name}: {text}" for name, text in faults.items()]
    assert not faults, f"{len(faults)} cases differ:\n" + "\n".join(listed[:SHOWN])


def test_the_vectors_are_of_a_gpu_and_of_these_cases() -> None:
    facts = vectors().facts
    assert "H200" in facts["gpu"] or "H100" in facts["gpu"]
    assert facts["cases"] == [case.name for case in suite.cases()]
    assert facts["encodings"] == [encoding.name for encoding in encodings()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", suite.modules())
def test_same_memory(module: str) -> None:
    found = {case.name: fault(case) for case in cases()[module]}
    check({name: text for name, text in found.items() if text})


@pytest.mark.parametrize(
    ("schedule", "seed"), [("latest", 0), ("random", 1), ("random", 2), ("pct", 3)]
)
@pytest.mark.parametrize("module", SCHEDULED)
def test_same_memory_in_every_schedule(module: str, schedule: str, seed: int) -> None:
    found = {case.name: fault(case, schedule=schedule, seed=seed) for case in cases()[module]}
    check({name: text for name, text in found.items() if text})


def encoding_fault(encoding: Encoding) -> str | None:
    status, recorded = vectors().encodings[encoding.name]
    try:
        ours = emulated.encode(encoding.fields, encoding.address)
    except RuntimeError as error:
        return None if status else f"refused ({error}), but the driver takes it"
    if status:  # the emulator encodes for any GPU
        return None if encoding.newer else f"taken, but the driver returns {status}"
    return None if ours == recorded else f"{words(recorded)} of the driver, {words(ours)} here"


def words(encoded: bytes) -> str:
    """The 32-bit words that are not zero."""
    values: npt.NDArray[np.uint32] = np.frombuffer(encoded, np.uint32)
    return " ".join(f"{i}:{value:08x}" for i, value in enumerate(values) if value)


def test_same_tensor_maps() -> None:
    found = {encoding.name: encoding_fault(encoding) for encoding in encodings()}
    check({name: text for name, text in found.items() if text})


def test_recorded_maps_decode_and_encode_again() -> None:
    fields = emulated.datapath.TensorMapFields
    for name, (status, recorded) in vectors().encodings.items():
        if status == 0:
            assert fields.decode(recorded).encode() == recorded, name


@pytest.mark.parametrize("place", [0, -1])
def test_a_changed_byte_is_found(place: int) -> None:
    for case in (cases()["tma"][0], cases()["wgmma"][0], cases()["scalar"][0]):
        recorded = vectors().results[case.name]
        result, _ = emulated.run(load(case.module), case)
        assert suite.difference(case, recorded, result) is None
        result[place] ^= 0x80
        assert suite.difference(case, recorded, result) is not None


def test_distance_in_units_in_the_last_place() -> None:
    a = np.array([1, np.nan, np.nan, 0, np.inf], np.float32)
    b = np.array([1 + 2**-23, np.nan, 1, -0.0, 3.4028235e38], np.float32)
    assert suite.ulps(a, b).tolist() == [1, 0, 1 << 40, 0, 1]
