"""The private names of other libraries that mimokit uses are still there."""

import inspect
from importlib.metadata import version
from pathlib import Path

import ipyparallel
import pydantic
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
import traitlets

from tests.rows import rows

ROOT = Path(__file__).parents[1]
WORLD = dist.distributed_c10d._world
STREAMS = "mimokit/cluster/link.py"
MEMBERSHIP = "mimokit/cluster/worker/membership.py"


def _has(owner: object, name: str) -> bool:
    """Whether an object has an attribute, or its class assigns it to an instance."""
    return hasattr(owner, name) or (
        inspect.isclass(owner) and f"self.{name} = " in inspect.getsource(owner)
    )


@rows(
    "library, owner, name, used_in",
    ("torch", dist.ProcessGroup, "_get_backend", "mimokit/engine/device.py"),
    ("torch", c10d.Backend.Options, "_timeout", "mimokit/engine/device.py"),
    ("torch", WORLD, "pg_map", "mimokit/engine/device.py"),
    ("torch", WORLD, "group_count", MEMBERSHIP),
    ("torch", c10d, "TCPStore", MEMBERSHIP),
    ("torch", dist.distributed_c10d, "_abort_process_group",
     "mimokit/cluster/worker/connections.py"),
    ("torch", torch.Tensor, "_version", "mimokit/engine/stepper/tensor_copies.py"),
    ("ipyparallel", ipyparallel.Client, "_mux_stream", STREAMS),
    ("ipyparallel", ipyparallel.Client, "_control_stream", STREAMS),
    ("ipyparallel", ipyparallel.Client, "_query_stream", STREAMS),
    ("ipyparallel", ipyparallel.Client, "_send", STREAMS),
    ("ipyparallel", ipyparallel.Client, "_engines", STREAMS),
    ("traitlets", traitlets.HasTraits(), "_trait_values",
     "widgets/mimokit_widgets/_widget.py"),
    ("traitlets", traitlets.HasTraits, "_notify_trait",
     "widgets/mimokit_widgets/_widget.py"),
    ("pydantic", pydantic.BaseModel.__init__, "__pydantic_base_init__",
     "mimokit/config/base.py"),
)  # fmt: skip
def test_a_private_name_is_still_there(library: str, owner: object, name: str, used_in: str):
    assert name in (ROOT / used_in).read_text(), f"{used_in} no longer uses {name}; drop this row."
    assert _has(owner, name), f"{library} {version(library)} has no {name} any more; see {used_in}."


def test_a_name_that_moved_is_seen():
    assert not _has(ipyparallel.Client, "_no_such_stream")
    assert not _has(WORLD, "no_such_map")
