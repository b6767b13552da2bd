"""Imports everything that a rank needs, in the process from which engines are forked."""

from importlib import import_module

from mimokit.engine.data.digits import load_scans

import_module("mimokit.engine.training.loop")
import_module("mimokit.engine.verify.compare")

# torch imports it with the first optimizer. A rank that is interrupted during that import, because
# another rank failed, would keep half of the module.
import_module("torch._dynamo")

# Forked engines share their memory.
load_scans("train")
load_scans("test")
