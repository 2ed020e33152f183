"""What `jax.export` has to be told of the custom calls of this package."""

from jax.export import DisabledSafetyCheck

from jaxbw._src.primitives import gemm, partitioning, quantize, quantize_blocks

export_disabled_checks = tuple(
    DisabledSafetyCheck.custom_call(target)
    for target in (
        *(gemm.TARGET, partitioning.TARGET),
        *(quantize.TARGET, quantize_blocks.TARGET, quantize_blocks.PARTITIONED),
    )
)
"""For `jax.export.export(..., disabled_checks=)`, which else refuses custom calls not of JAX's own.

>>> from jax import export
>>> x = jnp.ones((4, 8), jnp.bfloat16)
>>> with jaxbw.target("H200"):
...     exported = export.export(
...         jax.jit(lambda x: jaxbw.matmul(x, x.T)),
...         platforms=["cuda"],
...         disabled_checks=jaxbw.export_disabled_checks,
...     )(x)
"""
