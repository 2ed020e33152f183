"""`jaxbw.accelerate`: all matrix products of a function, whoever wrote it, on jaxbw's kernels."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from jaxbw._src.primitives import accelerate as products
from jaxbw._src.selection.contexts import Block

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def accelerate(function: None = None) -> Block: ...


@overload
def accelerate(function: _Function) -> _Function: ...


def accelerate(function: _Function | None = None) -> _Function | Block:
    """f"""
    block = products.block()
    return block if function is None else block(function)
