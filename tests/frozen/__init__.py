"""What every shipped config and preset answered before the house was made lighter.

`python -m tests.frozen` writes the answers anew, on purpose only; `python -m tests.frozen FOLDER`
writes them whole, to compare two checkouts with `diff -r`.
"""
