"""Why a workload did not run."""


class WorkloadFailedError(Exception):
    """The workload could not be started, or a generator died; the text says why."""
