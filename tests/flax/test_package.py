"""jaxbw does not need Flax; jaxbw.flax says so."""

import subprocess
import sys


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_jaxbw_imports_no_flax() -> None:
    run = python("import sys, jaxbw; assert 'flax' not in sys.modules, 'imported'")
    assert run.returncode == 0, run.stderr


def test_without_flax_the_error_says_what_to_install() -> None:
    run = python("import sys; sys.modules['flax'] = None; import jaxbw.flax.nnx")
    assert run.stderr.endswith('ImportError: jaxbw.flax needs Flax: pip install "flax>=0.12.8"\n')
