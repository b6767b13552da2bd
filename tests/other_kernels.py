"""Runs tests with the kernels that other processors have: `python -m tests.other_kernels [ARGS]`.

The arguments are those of pytest. What depends on the order in which kernels sum passes on one
processor and fails on another; the lowest and the highest that this one has lie far apart. The
variables are also given one by one where `--each` is the first argument. A digest says which of
them change a product, an `exp`, a sum, and what oneDNN computes, here: MKL reads
MKL_ENABLE_INSTRUCTIONS on processors of Intel alone.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from torch.backends.cpu import get_cpu_capability

LOWEST = {
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
}
WIDEST = "AVX512" if get_cpu_capability() == "AVX512" else "AVX2"
"""On a processor without AVX-512, ATen's kernels for it would be illegal instructions."""
HIGHEST = {
    "MKL_CBWR": WIDEST,
    "MKL_ENABLE_INSTRUCTIONS": WIDEST,
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX",
    "ATEN_CPU_CAPABILITY": WIDEST.lower(),
}

DIGEST = """
import torch
from hashlib import sha256
torch.manual_seed(0)
a, b = torch.randn(2, 96, 96)
found = {"product": a @ b, "vector": a @ b[0], "exp": a.exp(), "sum": a.sum(0),
         "gelu": torch.nn.functional.gelu(a)}
print(*(f"{n} {sha256(t.numpy().tobytes()).hexdigest()[:6]}" for n, t in found.items()), sep=", ")
"""


def settings(each: bool) -> Iterator[Mapping[str, str]]:
    """Yield the variables of every run."""
    yield from (LOWEST, HIGHEST)
    if each:
        yield from ({name: value} for of in (LOWEST, HIGHEST) for name, value in of.items())


def _run(setting: Mapping[str, str], command: list[str]) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name not in LOWEST}
    done = subprocess.run(
        [sys.executable, *command], env={**environment, **setting}, text=True, check=False,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return done.returncode, done.stdout


def main(arguments: list[str]) -> int:
    """Run the tests in every setting, print what fails, and return whether something did."""
    each = arguments[:1] == ["--each"]
    failed = 0
    for setting in settings(each):
        print(" ".join(f"{name}={value}" for name, value in setting.items()), flush=True)
        print("   ", _run(setting, ["-c", DIGEST])[1].strip(), flush=True)
        status, told = _run(setting, ["-m", "pytest", "-q", "-ra", *arguments[each:]])
        lines = told.splitlines()
        shown = [one for one in lines if one.startswith(("FAILED", "ERROR"))] + lines[-1:]
        print("   ", "\n    ".join(shown), flush=True)
        failed |= status
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
