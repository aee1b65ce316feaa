"""Random models, and ways to find out whether a compiled one is right: what `make fuzz` runs.

python -m dlc.testing --count 1000          # draw, compile, compare; resumes where it stopped
python -m dlc.testing --model bad.onnx      # judge one model again
"""
