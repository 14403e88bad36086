"""The arithmetic that coldctl does on every value or byte: one set of functions, in C and in numpy, bit for bit equal.

`base.py` says what they compute, and `coldctl._native.kernels()` gives the one to use.
"""
