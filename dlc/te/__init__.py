"""Tensor expressions: scalar formulas for tensor elements, over symbolic sizes."""
