"""CUDA C++ from loop IR: printed, compiled, and emulated on a CPU."""
