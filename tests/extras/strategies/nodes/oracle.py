"""What nodes under a strategy compute, in one process: a list of models and plain arithmetic.

Written after the descriptions of the strategies, with means as `sum(...) / N`. It takes from the
plan what a plan alone decides, groups and masks, and from `brute_force` when exchanges are due.
Cosine transforms are scipy's.

DeMo and SparseLoCo keep the largest entries: where two are within rounding of each other another
order of operations keeps the other one. DeMo is compared in fp64, where no two of these entries are
that close. SparseLoCo's residual is computed in the same order in both, so that its bits agree.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mimokit.engine.strategies import OptimSpec
from mimokit.extras.strategies.exchanges import StrategyPlan, plan_strategy
from mimokit.extras.strategies.nodes.buckets import trainable
from mimokit.extras.strategies.nodes.diloco import OUTER
from tests.extras.strategies.exchanges.brute_force import due
from tests.extras.strategies.nodes.nodes import SEED, Case, batch, flat, net


def mean(values: Sequence[Any]) -> Any:
    return sum(values) / len(values)


class Oracle:
    """Some nodes, one after the other."""

    def __init__(self, case: Case, nodes: int) -> None:
        strategy = case.strategy()
        assert strategy.config is not None
        self.case, self.nodes, self.config = case, nodes, strategy.config
        self.models = [net(case.dtype) for _ in range(nodes)]
        self.named = [trainable(model) for model in self.models]
        self.shapes = {name: tuple(one.shape) for name, one in self.named[0].items()}
        size = case.dtype.itemsize
        self.plan: StrategyPlan = plan_strategy(
            self.config, self.shapes, nodes, SEED, element_bytes=size
        )
        spec = case.arguments.get("optim_spec", OptimSpec())
        self.optims = [spec.build(model) for model in self.models]
        self.max_norm = case.arguments.get("max_norm")
        self.numbers: dict[str, int] = {}
        self.state: list[dict[str, Any]] = [{} for _ in range(nodes)]
        self.late: list[tuple[int, Any]] = []
        start = flat(self.models[0])
        for state in self.state:
            state["outer"] = start.clone()

    def run(self) -> list[list[Tensor]]:
        """Return [node][step] weights."""
        found: list[list[Tensor]] = [[] for _ in range(self.nodes)]
        for completed in range(1, self.case.steps + 1):
            for node, model in enumerate(self.models):
                self.optims[node].zero_grad()
                samples = batch(node, completed - 1, self.case.dtype)
                model(samples).backward()
            self.optimize()
            for when, write in self.late:
                if when == completed:
                    write()
            for purpose in due(self.config, completed):
                number = self.numbers.get(purpose, 0)
                self.numbers[purpose] = number + 1
                self.exchange(purpose, number, completed)
            for node, model in enumerate(self.models):
                found[node].append(flat(model))
        return found

    def optimize(self) -> None:
        if self.config.name == "demo":
            return
        if self.config.name == "simple_reduce":
            for name in self.shapes:
                gradients = [named[name].grad for named in self.named]
                if gradients[0] is not None:
                    total = mean(gradients)
                    for named in self.named:
                        named[name].grad = total.clone()
        for node, model in enumerate(self.models):
            if self.max_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)
            self.optims[node].step()

    def exchange(self, purpose: str, number: int, completed: int) -> None:
        fragment = int(purpose.split()[1]) if purpose.startswith("fragment") else 0
        groups = self.plan.rules[-1 if purpose == "outer step" else fragment].grouping.groups(
            number
        )
        {
            "gradients": lambda: None,
            "weights": lambda: self.average(groups),
            "sparse weights": lambda: self.sparse(number, completed),
            "outer step": lambda: self.outer(groups, 0, completed),
            "momentum": self.demo,
            "gossip": lambda: self.gossip(groups),
            "sparse outer step": self.sparse_outer,
        }.get(purpose, lambda: self.outer(groups, fragment, completed))()

    def get(self, node: int) -> Tensor:
        return flat(self.models[node])

    @torch.no_grad()
    def put(self, node: int, vector: Tensor) -> None:
        start = 0
        for one in self.named[node].values():
            one.copy_(vector[start : start + one.numel()].view(one.shape))
            start += one.numel()

    def average(self, groups: Any) -> None:
        for group in groups:
            middle = mean([self.get(node) for node in group])
            for node in group:
                self.put(node, middle)

    def places(self, names: Sequence[str]) -> Tensor:
        """Return where tensors lie in the flat vector."""
        found, start = [], 0
        for name, shape in self.shapes.items():
            if name in names:
                found.append(torch.arange(start, start + math.prod(shape)))
            start += math.prod(shape)
        return torch.cat(found)

    def sparse(self, number: int, completed: int) -> None:
        masks = self.plan.rules[0].masks
        assert masks is not None
        chosen, start = [], 0
        for name, shape in self.shapes.items():
            indices = masks.indices(name, math.prod(shape), number)
            chosen.append(torch.from_numpy(indices) + start)
            start += math.prod(shape)
        where = torch.cat(chosen)
        middle = mean([self.get(node)[where] for node in range(self.nodes)])

        def write() -> None:
            for node in range(self.nodes):
                vector = self.get(node)
                vector[where] = middle
                self.put(node, vector)

        if self.config.name == "sparta" and self.config.delay:
            self.late.append((completed + self.config.delay, write))
        else:
            write()

    def outer(self, groups: Any, fragment: int, completed: int) -> None:
        rule = self.plan.rules[fragment if self.config.name == "streaming_diloco" else -1]
        where = self.places(rule.tensors)
        streams = self.config.name == "streaming_diloco"
        gradients: dict[int, Tensor] = {}
        for group in groups:
            outer = {node: self.state[node]["outer"][where] for node in group}
            middle = mean([self.get(node)[where] for node in group])
            for node in group:
                gradients[node] = outer[node] - middle
            if self.config.codec:
                changes = [outer[node] - self.get(node)[where] for node in group]
                gradients = dict.fromkeys(group, self.low_bits(changes, group, fragment))

        def write() -> None:
            for node, gradient in gradients.items():
                self.outer_step(node, where, gradient, fragment)
                mix = self.config.mix if streams else 0.0
                vector = self.get(node)
                vector[where] = mix * vector[where] + (1 - mix) * self.state[node]["outer"][where]
                self.put(node, vector)

        if streams and self.config.overlap_steps:
            self.late.append((completed + self.config.overlap_steps, write))
        else:
            write()

    def outer_step(self, node: int, where: Tensor, gradient: Tensor, fragment: int) -> None:
        """SGD by hand: b = mu b + g; phi -= lr (g + mu b) with Nesterov, lr b without."""
        given = self.case.arguments.get("outer_optim_spec", OUTER).kwargs
        state, key = self.state[node], f"b{fragment}"
        momentum = given.get("momentum", 0.0)
        state[key] = gradient if key not in state else momentum * state[key] + gradient
        step = gradient + momentum * state[key] if given.get("nesterov") else state[key]
        state["outer"] = state["outer"].clone()
        state["outer"][where] -= given["lr"] * step

    def low_bits(self, changes: Sequence[Tensor], group: Any, fragment: int) -> Tensor:
        """Round each change to b bits, add, round the sum; what is lost comes back next time."""
        most = {"int8": 127, "int4": 7}[str(self.config.codec)]
        entries = len(changes[0])
        blocks = math.ceil(math.ceil(entries / 256) / len(group)) * len(group)
        total = np.zeros((blocks, 256), np.float32)
        for node, change in zip(group, changes, strict=True):
            wanted = np.zeros((blocks, 256), np.float32)
            wanted.ravel()[:entries] = change.numpy()
            wanted += self.state[node].get(f"e{fragment}", np.float32(0))
            rounded = rounded_to(wanted, most)
            self.state[node][f"e{fragment}"] = wanted - rounded
            total += rounded
        total = total / np.float32(len(group))
        for place, node in enumerate(group):
            rows = slice(place * blocks // len(group), (place + 1) * blocks // len(group))
            lost = self.state[node].setdefault(f"s{fragment}", np.zeros((64, 256), np.float32))
            total[rows] += lost[rows]
            rounded = rounded_to(total[rows], most)
            lost[rows] = total[rows] - rounded
            total[rows] = rounded
        return torch.from_numpy(total.ravel()[:entries].copy())

    def gossip(self, groups: Any) -> None:
        config = self.config
        pull = config.outer_lr if config.gossip is None else config.gossip
        for group in groups:
            change = mean([self.get(node) - self.state[node]["outer"] for node in group])
            middle = mean([self.state[node]["outer"] for node in group])
            for node in group:
                state = self.state[node]
                before = state.get("m", torch.zeros_like(middle))
                state["m"] = (
                    config.momentum * before
                    + config.outer_lr * change
                    + pull * (middle - state["outer"])
                )
                state["outer"] = state["outer"] + state["m"]
                self.put(node, state["outer"])

    def sparse_outer(self) -> None:
        config, sent = self.config, []
        for node in range(self.nodes):
            state = self.state[node]
            residual = state.get("e", torch.zeros_like(state["outer"]))
            residual = config.decay * residual + (state["outer"] - self.get(node))
            out, start = torch.zeros_like(residual), 0
            for shape in self.shapes.values():
                for first in range(start, start + math.prod(shape), config.chunk):
                    last = min(first + config.chunk, start + math.prod(shape))
                    out[first:last] = self.largest(residual[first:last])
                start += math.prod(shape)
            state["e"] = residual - out
            sent.append(out)
        for node in range(self.nodes):
            state = self.state[node]
            state["outer"] = state["outer"] - config.outer_lr * mean(sent)
            self.put(node, state["outer"])

    def largest(self, chunk: Tensor) -> Tensor:
        kept = max(1, round(self.config.density * len(chunk)))
        order = chunk.abs().argsort(descending=True)[:kept]
        out = torch.zeros_like(chunk)
        most = 2 ** (self.config.bits - 1) - 1
        out[order] = torch.from_numpy(rounded_to(chunk[order].numpy()[None], most)[0])
        return out

    @torch.no_grad()
    def demo(self) -> None:
        config = self.config
        for name in self.shapes:
            sent: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
            for node in range(self.nodes):
                gradient = self.named[node][name].grad
                if gradient is None:
                    continue
                residual = self.state[node].get(name, torch.zeros_like(gradient))
                residual = config.compression_decay * residual + config.lr * gradient
                kept, values = self.coefficients(residual.numpy())
                back = self.from_coefficients(values, residual.shape)
                self.state[node][name] = residual - torch.from_numpy(back)
                sent.append((kept, values))
            if not sent:
                continue
            count = sum(kept.astype(float) for kept, _ in sent)
            total = sum(values for _, values in sent) / np.maximum(count, 1)
            step = np.sign(self.from_coefficients(total, self.named[0][name].shape))
            for named in self.named:
                named[name].mul_(1 - config.lr * config.weight_decay)
                named[name].sub_(config.lr * torch.from_numpy(np.asarray(step)))

    def coefficients(self, array: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        """Return (which are kept, their values), [blocks of rows, of columns, rows, columns]."""
        from scipy.fft import dctn

        tiles = dctn(self.tiles(array), axes=(2, 3), norm="ortho")
        kept = np.zeros(tiles.shape, bool)
        for row in range(tiles.shape[0]):
            for column in range(tiles.shape[1]):
                block = np.abs(tiles[row, column]).ravel()
                top = np.argsort(-block)[: self.config.compression_topk]
                kept[row, column].ravel()[top] = True
        return kept, np.where(kept, tiles, 0)

    def tiles(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rows = array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(1, -1)
        a, b = (self.side(length) for length in rows.shape)
        return rows.reshape(rows.shape[0] // a, a, rows.shape[1] // b, b).swapaxes(1, 2)

    def side(self, length: int) -> int:
        most = self.config.compression_chunk
        return max(side for side in range(1, min(length, most) + 1) if length % side == 0)

    def from_coefficients(self, tiles: Any, shape: Sequence[int]) -> Any:
        from scipy.fft import idctn

        back = idctn(tiles, axes=(2, 3), norm="ortho")
        return back.swapaxes(1, 2).reshape(tuple(shape))


def rounded_to(rows: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """Round each row to multiples of its largest magnitude / most."""
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(most)
    safe = np.where(scale > 0, scale, np.float32(1))
    return np.round(rows / safe) * scale
