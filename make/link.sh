#!/bin/sh
# Makes .venv a link to the environment that is named; earlier it was a folder that make had made.
if [ -d .venv ] && [ ! -L .venv ]; then
    if [ ! -e .venv/.ready ]; then
        echo "error: the folder .venv is not of make, which wants a link there; move it away."
        exit 1
    fi
    rm -r .venv
fi
ln -sfn "$1" .venv
