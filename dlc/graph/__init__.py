"""The graph IR: operators, passes and rules over whole models."""
