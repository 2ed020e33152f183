"""`python -m jaxbw bench model`: whole training and decoding steps, beside plain XLA.

Downwards: session.py (what is measured, resumed and stored), report.py (what is shown), program.py
(one compiled step, its matmuls, its launches and its time), transformer.py (the models) and form.py
(who multiplies).
"""
