"""The report of a run: reads a run directory, writes report.html (`build.build_report`) and TensorBoard files.

This package imports matplotlib only where a picture is drawn, so that the command line starts quickly.
"""
