"""The controller and an engine of ipyparallel, in a process that was forked or executed for it."""

import os
import sys
from collections.abc import Sequence

from mimokit.cluster.local.processes import die_with_parent

CONTROLLER, ENGINE = "controller", "engine"


def run_app(kind: str, directory: str, arguments: Sequence[str]) -> None:
    """Be the controller or an engine until it ends.

    Args:
        directory: of the cluster, which no other user can enter.
    """
    if kind == CONTROLLER:
        from ipyparallel.controller.app import IPController as App

        os.register_at_fork(after_in_child=die_with_parent)
    else:
        from ipyparallel.engine.app import IPEngine as App

    home, searched = os.getcwd(), list(sys.path)
    app = App.instance()
    # It goes there while it prepares, and has its imports search that directory before all else.
    app.initialize([*arguments, f"--{App.__name__}.work_dir={directory}"])
    os.chdir(home)
    sys.path[:] = searched
    app.start()


if __name__ == "__main__":
    run_app(sys.argv[1], sys.argv[2], sys.argv[3:])
