"""`mimokit.watch`: records what the modules of any training script compute, on every rank.

A rank writes its tensors as safetensors, and next to them JSON that says of what they are. Nothing
of it is unpickled when two recordings are compared.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mimokit.engine.parallel import chunks_of_rank, cut_by_marks, is_cut, is_expert
from mimokit.engine.rounding import nudge_weights
from mimokit.extras.foreign_loops.recording import (
    BACKWARD,
    BEFORE,
    FORWARD,
    GRADIENT,
    WEIGHT,
    WatchFile,
)
from mimokit.planning.digests import digest_of_file, sealed
from mimokit.result_files import whole_file

Groups = Mapping[str, dist.ProcessGroup]


@contextmanager
def watch(
    model: torch.nn.Module,
    folder: str | Path,
    *,
    optimizer: Any = None,
    steps: int = 1,
    groups: Groups | None = None,
    nudge: int | None = None,
) -> Iterator[None]:
    """Record the first steps of a training loop on this rank. Collective.

    Of every module inside the model it records the output and the gradient of its first input; of
    its parameters the weight before the first step, the gradient that the optimizer takes and the
    weight that it leaves. A step ends with a step of the optimizer, or without one with the block.

    Args:
        model: wrapped by DistributedDataParallel or not.
        folder: for the files of all ranks; made if it is not there.
        optimizer: steps the parameters of the model: one of torch's, or of Megatron's, which hold
            some of torch's.
        steps: to record.
        groups: "tp": the ranks that share a matrix, where Megatron's layers are in the model; "pp":
            the stages of a pipeline, of which this rank runs one; "cp": the ranks that share each
            sequence, in two chunks per rank as Megatron cuts it.
        nudge: a seed: every weight is first changed by a rounding, up, down or not at all, for a
            recording that says what a rounding changes; see `mimokit.compare`.

    Raises:
        ValueError: the model was not run inside the block, or is built for context-parallel ranks
            and their group is not given.
    """
    _check_contexts(model, groups or {})
    if nudge is not None:
        nudge_weights(model.parameters(), nudge)
    recording = _new_recording()
    recorder = _Recorder(model, steps, dict(groups or {}))
    handles = [*recorder.hook(), *recorder.hook_optimizers(_of_torch(optimizer))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if not recorder.calls:
        raise ValueError(
            f"watch recorded nothing: {type(model).__name__} was not called inside the block; pass "
            "the module whose forward the loop calls, before the loop begins."
        )
    recorder.write(Path(folder), recording)


def _new_recording() -> str:
    """Return a random name of a recording, which the first rank gives to all. Collective."""
    name = torch.frombuffer(bytearray(secrets.token_bytes(8)), dtype=torch.uint8)
    if dist.is_available() and dist.is_initialized():
        # A world with NCCL alone takes no tensors of the CPU.
        name = name if "cpu:" in dist.get_backend_config() else name.cuda()
        dist.broadcast(name, 0)
    return bytes(name.tolist()).hex()


class _Recorder:
    def __init__(self, model: torch.nn.Module, steps: int, groups: dict[str, Any]) -> None:
        self.calls, self.step, self._call = 0, 0, 0
        self._model, self._steps, self._groups = model, steps, groups
        self._tensors: dict[str, torch.Tensor] = {}
        self._index: list[dict[str, Any]] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._calls_of_step: dict[int, int] = {}
        self._numbers = numbers_in_whole(model)
        self._names = {p: self._name(name) for name, p in model.named_parameters()}
        self._of_calls = {**_of_groups(groups), **_of_sequence(groups)}
        self._of_experts = {self._name(name): about for name, about in _of_experts(model).items()}
        self._of_parameters = dict(_of_parameters(model, groups))
        self._drops: set[str] = set()
        self._steps_parameters = False

    def hook(self) -> Iterator[Any]:
        yield self._model.register_forward_pre_hook(self._count)
        for name, module in self._model.named_modules():
            operation = self._name(name)
            if not operation:
                continue
            yield module.register_forward_pre_hook(partial(self._before, operation))
            yield module.register_forward_hook(partial(self._after, operation))

    def _name(self, path: str) -> str:
        parts = path.split(".")
        paths = (".".join(parts[: count + 1]) for count in range(len(parts)))
        numbered = [self._numbers.get(of, part) for of, part in zip(paths, parts, strict=True)]
        return _plain(".".join(numbered))

    def hook_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Any]:
        self._steps_parameters = bool(optimizers)
        if optimizers:
            yield optimizers[0].register_step_pre_hook(self._gradients)
            yield optimizers[-1].register_step_post_hook(self._weights)

    def _count(self, module: torch.nn.Module, given: Any) -> None:
        if not self.calls and self._steps_parameters:
            self._keep_weights(BEFORE)
        self.calls += 1
        self._call = self._calls_of_step[self.step] = self._calls_of_step.get(self.step, -1) + 1

    def _before(self, operation: str, module: torch.nn.Module, given: Any) -> Any:
        if not torch.is_grad_enabled() or not given or not isinstance(given[0], torch.Tensor):
            return None
        first, *others = given
        if not first.requires_grad or self.step >= self._steps:
            return None
        own = first.view_as(first)
        cut = _cut_of_input(module, self._groups)
        own.register_hook(partial(self._keep, self._call, operation, BACKWARD, cut))
        return (own, *others)

    def _after(self, operation: str, module: torch.nn.Module, given: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if module.training and isinstance(module, torch.nn.Dropout) and module.p > 0:
            self._drops.add(operation)
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            cut = _cut_of_output(module, self._groups)
            self._keep(self._call, operation, FORWARD, cut, _as_given(tensor, given))

    def _gradients(self, optimizer: Any, *_: Any) -> None:
        for parameter, name in self._names.items():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None:
                self._keep(0, name, GRADIENT, self._of_parameters[parameter], gradient)

    def _weights(self, optimizer: Any, *_: Any) -> None:
        self._keep_weights(WEIGHT)
        self.step += 1

    def _keep_weights(self, phase: str) -> None:
        for parameter, name in self._names.items():
            self._keep(0, name, phase, self._of_parameters[parameter], parameter)

    @torch.no_grad()
    def _keep(
        self, call: int, operation: str, phase: str, cut: dict[str, Any], tensor: torch.Tensor
    ) -> None:
        if self.step >= self._steps:
            return
        known: dict[str, Any] = {
            "step": self.step, "call": call, "operation": operation, "phase": phase,
            **(self._of_call(operation, cut) if phase in (FORWARD, BACKWARD) else cut),
        }  # fmt: skip
        key = tuple(known[name] for name in _KEYS)
        if key in self._seen:
            return  # recomputed
        self._seen.add(key)
        if isinstance(tensor, DTensor):
            known |= _of_placements(tensor)
            tensor = tensor.to_local()
        name = str(len(self._index))
        known |= {"tensor": name, "dtype": str(tensor.dtype).removeprefix("torch.")}
        self._index.append(known)
        self._tensors[name] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()

    def _of_call(self, operation: str, cut: dict[str, Any]) -> dict[str, Any]:
        """Return what is known of a tensor of a module; experts have tokens of several ranks."""
        for outer, about in self._of_experts.items():
            if operation == outer or operation.startswith(f"{outer}."):
                return about
        return {**self._of_calls, **cut}

    def write(self, folder: Path, recording: str) -> None:
        """Write the files of this rank; the JSON last, so that a cut off recording has none.

        Args:
            recording: the same on all ranks, and another one in every recording.
        """
        joined = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        folder.mkdir(parents=True, exist_ok=True)
        index = folder / WatchFile.INDEX.of_rank(rank)
        index.unlink(missing_ok=True)
        tensors = folder / WatchFile.TENSORS.of_rank(rank)
        part = tensors.with_name(f".{tensors.name}.part")
        save_file(self._tensors, part, {"recording": recording})
        os.replace(part, tensors)
        about = {
            "recording": recording, "rank": rank, "world_size": world, "steps": self.step,
            "seed": torch.initial_seed(), "drops": sorted(self._drops), "seams": self._index,
            "tensors": digest_of_file(tensors),
        }  # fmt: skip
        with whole_file(index) as file:
            json.dump(sealed(about), file)


def _of_torch(optimizer: Any) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    inside = getattr(optimizer, "chained_optimizers", None) or [
        getattr(optimizer, "optimizer", None)
    ]
    optimizers = [inner for each in inside for inner in _of_torch(each)]
    if not optimizers:
        raise TypeError(
            f"watch got a {type(optimizer).__name__} as optimizer; give one of torch's, or of "
            "Megatron's."
        )
    return optimizers


_KEYS = ("step", "call", "operation", "phase")


def _plain(name: str) -> str:
    parts = name.split(".")
    parts = parts[1:] if parts[0] == "module" else parts
    return ".".join(part for part in parts if part not in ("_orig_mod", "_fsdp_wrapped_module"))


def _of_placements(tensor: DTensor) -> dict[str, Any]:
    placements = [
        Replicate() if placement.is_partial() else placement for placement in tensor.placements
    ]
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
    summand = [
        index
        for placement, index in zip(
            tensor.placements, tensor.device_mesh.get_coordinate() or (), strict=False
        )
        if placement.is_partial()
    ]
    return {"whole": list(tensor.shape), "offset": list(offset), "summand": summand}


def _of_parameters(
    model: torch.nn.Module, groups: Groups
) -> Iterator[tuple[torch.nn.Parameter, dict[str, Any]]]:
    """Yield how Megatron's marks say that each parameter is cut.

    An expert is cut over the expert tensor parallel group, and belongs to one expert parallel rank.
    """
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            own = groups
            if is_expert(parameter) and getattr(module, "tp_group", None) is not None:
                own = {**groups, "tp": module.tp_group}  # type: ignore[dict-item]
            cut = {}
            if is_cut(parameter) and "tp" in own:
                marked = cut_by_marks(parameter, own["tp"].size())
                assert marked.dimension is not None  # it is cut
                cut = _share(marked.dimension, own["tp"], marked.parts)
            yield parameter, {**_of_groups(own), **cut}


def _of_experts(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    return {
        f"{path}.experts": {"experts": dist.get_process_group_ranks(module.ep_group)}
        for path, module in model.named_modules()
        if getattr(module, "local_expert_indices", None) and hasattr(module, "ep_group")
    }


def _as_given(tensor: torch.Tensor, given: Any) -> torch.Tensor:
    """Return an output with both dimensions of [positions, samples, …] that it has as one."""
    first = given[0] if given else None
    if not isinstance(first, torch.Tensor) or first.dim() != 3 or tensor.dim() != 2:
        return tensor
    positions, samples, _ = first.shape
    is_flat = len(tensor) == positions * samples
    return tensor.reshape(positions, samples, tensor.shape[1]) if is_flat else tensor


def _cut_of_output(module: torch.nn.Module, groups: Groups) -> dict[str, Any]:
    cut = type(module).__name__ == "ColumnParallelLinear" and not module.gather_output
    if not cut or "tp" not in groups:
        return {}
    weight = getattr(module, "weight", None)
    parts = 1 if weight is None else cut_by_marks(weight, groups["tp"].size()).parts
    return _share(-1, groups["tp"], parts)


def _cut_of_input(module: torch.nn.Module, groups: Groups) -> dict[str, Any]:
    cut = type(module).__name__ == "RowParallelLinear" and module.input_is_parallel
    return _share(-1, groups["tp"]) if cut and "tp" in groups else {}


def _share(dimension: int, group: dist.ProcessGroup, parts: int = 1) -> dict[str, Any]:
    return {"dimension": dimension, "parts": parts, "share": [group.rank(), group.size()]}


def _of_groups(groups: Groups) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if "tp" in groups:
        about["group"] = dist.get_process_group_ranks(groups["tp"])
    if "pp" in groups:
        about["stage"] = groups["pp"].rank()
    return about


def _of_sequence(groups: Groups) -> dict[str, Any]:
    if "cp" not in groups or groups["cp"].size() == 1:
        return {}
    chunks = chunks_of_rank(groups["cp"].size(), groups["cp"].rank(), causal=True)
    return {"context": dist.get_process_group_ranks(groups["cp"]), "chunks": list(chunks)}


def _check_contexts(model: torch.nn.Module, groups: Groups) -> None:
    for name, module in model.named_modules():
        ranks = getattr(getattr(module, "config", None), "context_parallel_size", 1)
        if "cp" not in groups and ranks > 1:
            raise ValueError(
                f"watch got no group of context-parallel ranks, but {name or 'the model'} is built "
                f"for {ranks} (context_parallel_size of its config); pass "
                'groups={"cp": their group}, so that the order of their positions is known.'
            )


def numbers_in_whole(model: torch.nn.Module) -> dict[str, str]:
    """Return path -> number in the whole model, of layers and experts that a rank has some of.

    Megatron notes these numbers in the modules; their names have those on the rank.
    """
    numbers: dict[str, str] = {}
    for path, module in model.named_modules():
        number = getattr(module, "layer_number", None)
        if path.rpartition(".")[2].isdigit() and isinstance(number, int):
            numbers[path] = str(number - 1)  # Megatron counts from 1
        for place, expert in enumerate(getattr(module, "local_expert_indices", None) or ()):
            numbers[f"{path}.experts.local_experts.{place}"] = str(expert)
    return numbers
