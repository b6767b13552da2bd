"""Which rank counts, owns and writes what, whatever sizes a module is cut by.

Several ranks have the same tokens, or the same piece of a parameter. A sum over the world, a norm
and a file need each of them once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mimokit.engine.parallel.marks import is_cut, is_expert, is_tied_copy


@dataclass(frozen=True)
class Ownership:
    """The questions of a rank about a module that it takes part in.

    Attributes:
        groups: Megatron's `ProcessGroupCollection` of the module on this rank.
    """

    groups: Any

    def counts_tokens(self) -> bool:
        """Return whether a sum over the world takes tokens and losses of this rank.

        Tensor parallel ranks have the same tokens, so the first one counts them. Context parallel
        ranks have different ones of the same samples, and each counts.
        """
        return bool(self.groups.tp.rank() == 0)

    def reduce_group(self, parameter: torch.Tensor) -> dist.ProcessGroup:
        """Return the ranks with the same piece of a parameter, over which gradients are summed.

        Context parallel ranks are among them: each has the gradient of its part of a sequence.
        """
        group = self.groups.expt_dp if is_expert(parameter) else self.groups.dp_cp
        return group  # type: ignore[no-any-return]

    def writes(self, parameter: torch.Tensor) -> bool:
        """Return whether this rank writes what it holds of a parameter to the file of its place.

        A place is a tensor parallel rank of a stage, and of experts, of those. One of its replicas
        writes. What several places hold whole is in the file of each, so that a reader can compare.
        """
        return self.reduce_group(parameter).rank() == 0

    def owns(self, parameter: torch.Tensor) -> bool:
        """Return whether a norm takes this rank's piece of a parameter: each entry once."""
        tensor_group = self.groups.expt_tp if is_expert(parameter) else self.groups.tp
        first = is_cut(parameter) or tensor_group.rank() == 0
        return first and not is_tied_copy(parameter) and self.writes(parameter)
