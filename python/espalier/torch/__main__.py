"""Runs a script after it has registered the backend: python3 -m espalier.torch SCRIPT ARGUMENTS…"""
import os
import runpy
import sys

import espalier.torch  # noqa: F401, registers it

if len(sys.argv) < 2:
    sys.exit("usage: python3 -m espalier.torch SCRIPT ARGUMENTS…")
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
