"""Import this in the process that engines are forked from: all that a rank needs, once."""

from importlib import import_module

from mimokit.engine.data.digits import load_scans

import_module("mimokit.engine.training.loop")
import_module("mimokit.engine.verify.compare")

# torch imports it when the first optimizer is made. A rank that is called back in the middle of
# that, as the others failed, would be left with half of it.
import_module("torch._dynamo")

# 0.2 s and some memory that forked engines share.
load_scans("train")
load_scans("test")
