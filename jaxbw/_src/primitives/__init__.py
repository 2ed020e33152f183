"""The JAX primitives: gemm_p is one launch, the others choose what serves them when lowered."""
