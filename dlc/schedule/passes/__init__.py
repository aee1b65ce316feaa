"""Passes from loop IR to loop IR, run in the order of `dlc/schedule/pipeline.py`."""
