"""Trace files of any name."""

from operant.execution import traces


def write(path, spaces, trace):
    """Write a trace file; one of that name is replaced."""
    number = traces.add(path.parent, 10**8, spaces, trace)
    (path.parent / traces.file_name(number)).replace(path)
