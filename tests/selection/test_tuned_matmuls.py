"""A user's table of tuned matmuls: what it changes, when it counts, and what is refused."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw import GemmConfig
from jaxbw._src.problem import GemmProblem, reduce_dot_general
from jaxbw._src.selection import select, tuned_matmuls
from jaxbw._src.selection.devices import TARGETS, Device
from jaxbw._src.selection.tuned_matmuls import SWITCH, Entry, TunedMatmuls, add, new_entry

H200, B200 = TARGETS["H200"], TARGETS["B200"]
CONFIG = GemmConfig(128, 64, cluster=(2, 1), split_k=2, swizzle=4)
FASTEST = "measured the fastest of 80 configurations, 12.50 us, XLA 13.00 us, by {}"
X, W = jnp.ones((256, 512), jnp.bfloat16), jnp.ones((512, 128), jnp.bfloat16)


@pytest.fixture(autouse=True)
def _no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a model that takes XLA in the place of kernels."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(select, "xla_time", lambda problem, device: None)


def problem(m: int = 256, n: int = 128, k: int = 512) -> GemmProblem:
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (k, n)))
    return reduce_dot_general(lhs, rhs, (((1,), (0,)), ((), ())), lhs.dtype).problem


def entry(device: Device = H200, config: GemmConfig = CONFIG, **sizes: int) -> Entry:
    times = {"us": 12.5, "untuned_us": 15.0, "xla_us": 13.0}
    kept = {"configurations": 80, "date": "2026-11-22"}
    return new_entry(problem(**sizes), device, config, **times, **kept)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    add(tmp_path / "tuned.json", entry())
    return tmp_path / "tuned.json"


def config_on(device: str) -> GemmConfig:
    choice = jaxbw.explain(X, W, device=device)
    assert choice.config is not None
    return replace(choice.config, stages=None, block_k=None, accumulators=None, scheduler=None)


def test_a_table_is_followed_for_its_matmul_and_device_only(path: Path) -> None:
    plain = {name: jaxbw.explain(X, W, device=name) for name in TARGETS}
    other = jaxbw.explain(X[:128], W, device="H200")
    with jaxbw.use_tuned(path):
        tuned = jaxbw.explain(X, W, device="H200")
        assert config_on("H200") == CONFIG
        assert tuned.reason == FASTEST.format(path)
        for name in set(TARGETS) - {"H200"}:
            assert jaxbw.explain(X, W, device=name) == plain[name]
        assert jaxbw.explain(X[:128], W, device="H200") == other
        for options in ({"activation": "relu"}, {"preferred_element_type": jnp.float32}):
            choice = jaxbw.explain(X, W, device="H200", **options)
            assert "least modelled" in choice.reason
        given = GemmConfig(128, 128)
        assert jaxbw.explain(X, W, device="H200", config=given).reason == "the given configuration"
        for name, follows in (("dynamic", False), ("static", True)):
            asked = jaxbw.explain(X, W, device="H200", config=GemmConfig(scheduler=name))
            assert (asked.reason == tuned.reason) == follows  # its time is that of a static launch
        with jaxbw.batch_invariant():
            assert "for every m" in jaxbw.explain(X, W, device="H200").reason
    assert jaxbw.explain(X, W, device="H200") == plain["H200"]


def test_other_sms_or_another_jaxbw_are_other_entries(tmp_path: Path) -> None:
    mine = entry()
    assert mine.device == "H200, 132 SMs"
    real = Device("NVIDIA H200", (9, 0), 132, 2**37)
    half = Device("NVIDIA H200 MIG 3g", (9, 0), 60, 2**36)
    table = add(tmp_path / "t.json", mine)
    assert table.find(problem(), real) == table.find(problem(), H200) == mine
    assert table.find(problem(), half) is None
    old = add(tmp_path / "old.json", replace(mine, jaxbw="0.0.1"))
    assert old.find(problem(), H200) is None
    saving = replace(problem(), epilogue=problem().epilogue.saving())
    assert table.find(saving, H200) is None


def test_a_change_of_the_table_retraces(path: Path, tmp_path: Path) -> None:
    traces = []

    @jax.jit
    def matmul(x: Any, w: Any) -> Any:
        traces.append(1)
        return jaxbw.matmul(x, w)

    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_text(path.read_text())
    add(other, replace(entry(), us=1.0))
    for table, expected in ((None, 1), (path, 2), (same, 2), (other, 3), (path, 3), (None, 3)):
        with jaxbw.use_tuned(table):
            matmul(X, W)
            matmul(X, W)
        assert len(traces) == expected


def test_the_table_is_that_of_the_trace(path: Path) -> None:
    """A program is traced with a table, and lowered when another one is in use, or none."""
    with jaxbw.target("H200"):
        with jaxbw.use_tuned(path):
            traced = jax.jit(jax.grad(lambda x, w: jaxbw.matmul(x, w).sum())).trace(X, W)
            forward = jax.jit(jaxbw.matmul).trace(X, W)
        text = forward.lower(lowering_platforms=("cuda",)).as_text()
        assert "swizzle = 4" in text
        assert "split_k = 2" in text
        assert "jaxbw_gemm" in traced.lower(lowering_platforms=("cuda",)).as_text()
        plain = jax.jit(jaxbw.matmul).trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
        assert "swizzle = 4" not in plain


def test_it_counts_from_the_call_on_in_this_thread(path: Path) -> None:
    plain = config_on("H200")
    seen = []
    with jaxbw.use_tuned(None):
        used = jaxbw.use_tuned(path)
        assert config_on("H200") == CONFIG
        thread = threading.Thread(target=lambda: seen.append(config_on("H200")))
        thread.start()
        thread.join()
        with jaxbw.use_tuned(None):
            assert config_on("H200") == plain
        assert config_on("H200") == CONFIG
        used.__exit__(None, None, None)
        assert config_on("H200") == plain
    assert seen == [plain]


def test_results_are_those_of_the_kernel(path: Path) -> None:
    """A tuned configuration runs, emulated, forward and backward, and gives what XLA gives."""
    add(path, entry(B200, GemmConfig(128, 64, split_k=2, swizzle=2)))
    draw = np.random.default_rng(0)
    x, w = (jnp.asarray(draw.integers(-2, 3, s.shape), s.dtype) for s in (X, W))

    def loss(x: Any, w: Any, name: str) -> Any:
        return jaxbw.matmul(x, w, implementation=name).astype(jnp.float32).sum()

    expected = jax.value_and_grad(loss, (0, 1))(x, w, "xla")
    with jaxbw.use_tuned(path):
        assert "block 128x64" in str(jaxbw.explain(x, w, implementation="emulator").config)
        found = jax.value_and_grad(loss, (0, 1))(x, w, "emulator")
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), found, expected)))


def test_an_entry_that_cannot_be_launched_is_passed_over(tmp_path: Path) -> None:
    plain = jaxbw.explain(X, W, device="H200")
    add(tmp_path / "t.json", entry(config=GemmConfig(128, 80)))
    with jaxbw.use_tuned(tmp_path / "t.json"):
        found = jaxbw.explain(X, W, device="H200")
    (refusal,) = found.refused
    assert str(refusal).startswith(f"sm90 as {tmp_path}/t.json has it: ")
    assert replace(found, refused=()) == plain


def test_xla_serves_what_it_was_measured_faster_at(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    add(path, replace(entry(), xla_us=11.0))
    with jaxbw.use_tuned(path), jaxbw.target("H200"):
        choice = jaxbw.explain(X, W)
        assert (choice.implementation, choice.kernel, choice.xla_us) == ("xla", None, 11.0)
        assert choice.reason == (
            f"measured 11.00 us, the fastest of 80 configurations 12.50 us, by {path}"
        )
        text = jax.jit(jaxbw.matmul).trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
        assert "jaxbw_gemm" not in text
        assert "dot_general" in text
        assert jaxbw.explain(X[:128], W).reason.startswith("the least modelled time")


def test_who_asks_for_a_kernel_has_the_fastest_one(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    add(path, replace(entry(), xla_us=11.0))
    with jaxbw.use_tuned(path):
        for options in ({"implementation": "kernel"}, {"implementation": ("sm90", "xla")}):
            choice = jaxbw.explain(X, W, device="H200", **options)
            assert (choice.implementation, choice.xla_us) == ("sm90", 11.0)
            assert "measured the fastest of 80 configurations, 12.50 us" in choice.reason
        asked = jaxbw.explain(X, W, device="H200", config=GemmConfig(scheduler="static"))
        assert asked.implementation == "sm90"


# --- the environment variable


def test_the_environment_names_a_table(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = config_on("H200")
    monkeypatch.setenv(SWITCH, str(path))
    assert config_on("H200") == CONFIG
    with jaxbw.use_tuned(path):
        monkeypatch.setenv(SWITCH, "off")
        assert config_on("H200") != CONFIG
    monkeypatch.delenv(SWITCH)
    assert config_on("H200") == plain


def explain_with(table: object) -> "subprocess.CompletedProcess[str]":
    command = ["explain", "256", "128", "512", "--device", "H200"]
    return subprocess.run(
        [sys.executable, "-P", "-m", "jaxbw", *command],
        env=os.environ | {SWITCH: str(table)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_as_a_user_sets_it(path: Path) -> None:
    done = explain_with(path)
    assert done.returncode == 0, done.stderr
    assert f"reason          {FASTEST.format(path)}" in done.stdout
    refused = explain_with("/nowhere/tuned.json")
    assert refused.returncode == 2
    assert "JAXBW_TUNED: /nowhere/tuned.json is no tuned table of this jaxbw: it is not there" in (
        refused.stderr
    )
    assert "unset JAXBW_TUNED, or name another file" in refused.stderr


# --- what is no table


GOOD: Any = {"format": tuned_matmuls.FORMAT, "version": 2, "products": [entry().to_json()]}
ROW = GOOD["products"][0]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "Expecting value"),
        (json.dumps(GOOD)[:-9], "Unterminated"),
        ("\x00\xff", "decode|Expecting"),
        ([], "does not say that its format is 'jaxbw tuned products'"),
        ({"version": 1, "ranges": []}, "does not say that its format is"),
        (GOOD | {"version": 1}, "it has version 1, not 2"),
        (GOOD | {"products": {}}, "it has no list of matmuls"),
        (GOOD | {"products": [{}]}, "an entry has not the keys config, configurations, date"),
        (GOOD | {"products": [ROW | {"us": "1"}]}, "an entry's us is '1'"),
        (GOOD | {"products": [ROW | {"config": [1]}]}, "an entry's config is"),
        (GOOD | {"products": [ROW | {"config": {"tile": 1}}]}, "an entry's config is none: .*tile"),
        (GOOD | {"products": [ROW | {"config": {"split_k": "2"}}]}, "split_k is '2'"),
        (GOOD | {"products": [ROW, ROW]}, r"it has bf16\[1,256,512\] @ .* on H200, 132 SMs twice"),
    ],
)
def test_what_is_no_table_is_refused_and_left_alone(
    content: Any, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "tuned.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode("latin-1"))
    plain = jaxbw.explain(X, W, device="H200")
    message = rf"tuned.json is no tuned table of this jaxbw: .*({fault}).*python -m jaxbw tune"
    with pytest.raises(ValueError, match=message):
        jaxbw.use_tuned(path)
    assert jaxbw.explain(X, W, device="H200") == plain
    with pytest.raises(ValueError, match=message):
        add(path, entry())
    assert path.read_bytes() == text.encode("latin-1")


# --- files


def test_a_table_is_read_as_it_was_written(path: Path) -> None:
    more = entry(B200, GemmConfig(256, 128, cta_group=2, cluster=(2, 1), stages=5, raster="n"))
    written = add(path, more)
    read = TunedMatmuls.load(path)
    assert read == written
    assert read.entries == written.entries == {each.key: each for each in (entry(), more)}
    better = replace(more, us=1.0)
    assert add(path, better).entries[more.key] == better
    assert repr(read) == f"TunedMatmuls(digest={read.digest!r}, source={str(path)!r})"


_ADD_ONE_BY_ONE = """
import sys
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls, add
source, path = sys.argv[1:]
entries = TunedMatmuls.load(source).entries.values()
print("ready", flush=True)
sys.stdin.readline()
for entry in entries:
    add(path, entry)
"""


def test_several_processes_add_at_once(tmp_path: Path) -> None:
    path = tmp_path / "shared" / "tuned.json"
    path.parent.mkdir()
    sources = [tmp_path / "first.json", tmp_path / "second.json"]
    for i, source in enumerate(sources):
        for m in range(1 + 20 * i, 21 + 20 * i):
            add(source, entry(m=m))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _ADD_ONE_BY_ONE, str(source), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for source in sources
    ]
    pipes = [(worker.stdin, worker.stdout) for worker in workers]
    assert [ready.readline() for _, ready in pipes if ready is not None] == ["ready\n"] * 2
    for start, _ in pipes:
        assert start is not None
        start.write("go\n")
        start.flush()
    assert [worker.wait() for worker in workers] == [0, 0]
    for worker in workers:
        worker.communicate()  # closes its pipes
    assert len(TunedMatmuls.load(path).entries) == 40
    assert {each.name for each in path.parent.iterdir()} == {"tuned.json", "tuned.json.lock"}
