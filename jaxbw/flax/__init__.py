"""Flax's layers on jaxbw's matmuls: `jaxbw.flax.linen` and `jaxbw.flax.nnx`, see docs/flax.md."""

try:
    import flax as _flax  # noqa: F401
except ImportError as error:
    raise ImportError('jaxbw.flax needs Flax: pip install "flax>=0.12.8"') from error
