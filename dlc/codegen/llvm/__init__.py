"""Native code through LLVM."""
