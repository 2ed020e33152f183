"""What XLA's partitioner is told of a matmul: text, since it travels in the program.

A program may be exported, and compiled by another process; its text is also a part of the
compilation cache's key.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from jaxbw._src.epilogue import Epilogue
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.policy import Policy
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls, config_from_json, config_to_json

_tables: dict[str, TunedMatmuls] = {}  # by digest: those that matmuls of this process have


@dataclass(frozen=True)
class PartitionedCall:
    """A matmul that waits to be partitioned.

    Attributes:
      primitive: its name.
      platform: which is lowered for, "cuda" or "cpu".
      mesh: inside of a `shard_map` over some axes of a mesh, the size of each axis, and whether it
        is one of those; else None.
      params: of the primitive, but for `out_sharding`.
    """

    primitive: str
    platform: str
    mesh: tuple[tuple[int, bool], ...] | None
    params: dict[str, Any]

    def encoded(self) -> str:
        """As text; of a tuned table, its digest."""
        if (tuned := self.params["policy"].tuned) is not None:
            _tables[tuned.digest] = tuned
        params = {name: x for name, x in self.params.items() if name != "out_sharding"}
        return json.dumps([self.primitive, self.platform, self.mesh, params], default=_plain)

    @classmethod
    def decoded(cls, text: str | bytes) -> "PartitionedCall":
        """The inverse of `encoded`, without an `out_sharding`.

        In another process a tuned table is not known, and left out.
        """
        primitive, platform, mesh, params = json.loads(text)
        params["dimension_numbers"] = _tuples(params["dimension_numbers"])
        params["out_sharding"] = None
        if (dtype := params["preferred_element_type"]) is not None:
            params["preferred_element_type"] = np.dtype(dtype)
        if isinstance(precision := params["precision"], str):
            params["precision"] = lax.DotAlgorithmPreset[precision]
        elif precision is not None:
            params["precision"] = tuple(lax.Precision[name] for name in precision)
        params["policy"] = _policy(**params["policy"])
        if (epilogue := params.get("epilogue")) is not None:
            for name in ("c", "bias", "residual"):
                if epilogue[name] is not None:
                    epilogue[name] = np.dtype(epilogue[name])
            params["epilogue"] = Epilogue(**epilogue)
        return cls(primitive, platform, _tuples(mesh), params)


def _policy(implementation: Any, config: Any, target: str | None, tuned: str | None) -> Policy:
    return Policy(
        _tuples(implementation),
        None if config is None else config_from_json(config),
        target,
        None if tuned is None else _tables.get(tuned),
    )


def _plain(x: Any) -> Any:
    if isinstance(x, (lax.Precision, lax.DotAlgorithmPreset)):
        return x.name
    if isinstance(x, GemmConfig):
        return config_to_json(x)
    if isinstance(x, (Epilogue, Policy)):
        return vars(x)
    if isinstance(x, TunedMatmuls):
        return x.digest
    return np.dtype(x).name


def _tuples(x: Any) -> Any:
    return tuple(_tuples(item) for item in x) if isinstance(x, list) else x
