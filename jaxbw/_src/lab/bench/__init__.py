"""`python -m jaxbw bench`: jaxbw against everything that a JAX user could pick instead.

Downwards: cli/bench.py, then share.py (several GPUs), session.py (what is measured, resumed and
stored), report.py and plots.py (what is shown), arms/ (who competes), measure.py and timer.py (how
time is taken), results.py, statistics.py, inputs.py and case.py. docs/performance.md tells the
method.
"""
