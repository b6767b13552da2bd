"""The results folder of a run: made before the engines work, written while they do."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.experiment.results.folder import Folder as Folder
    from mimokit.experiment.results.folder import name_problem as name_problem
    from mimokit.experiment.results.folder import probe_folder as probe_folder
    from mimokit.experiment.results.info import error_record as error_record
    from mimokit.experiment.results.loggers import PROJECT as PROJECT
    from mimokit.experiment.results.loggers import LoggedRun as LoggedRun
    from mimokit.experiment.results.loggers import RunLogger as RunLogger
    from mimokit.experiment.results.loggers import call_loggers as call_loggers
    from mimokit.experiment.results.loggers import fit_loggers as fit_loggers
    from mimokit.experiment.results.tables import AppendedTable as AppendedTable
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
