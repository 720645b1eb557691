"""A virtual environment with programs that read Espalier's files. It is created once (about 12 s). If a package is missing,
the test is skipped."""
import os
import pathlib
import subprocess
import tempfile
import unittest

PACKAGES = ["tensorboard==2.18.0", "prometheus_client==0.21.1"]
LIMIT_S = 200


def _run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def python():
    """Path of the environment's Python interpreter."""
    given = os.environ.get("VENV")
    venv = pathlib.Path(given) if given else pathlib.Path(tempfile.gettempdir()) / "espalier-ecosystem-venv"
    interpreter = str(venv / "bin/python")
    check = (interpreter, "-c", "import tensorboard, prometheus_client")
    if venv.exists() and _run(*check).returncode == 0:
        return interpreter
    if _run("/usr/bin/python3", "-m", "venv", str(venv)).returncode != 0:
        raise unittest.SkipTest("cannot create a virtual environment (apt-get install python3-venv)")
    got = _run(interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES)
    if got.returncode != 0 or _run(*check).returncode != 0:
        raise unittest.SkipTest(f"{' '.join(PACKAGES)} cannot be installed: {got.stderr.strip()[-200:]}")
    return interpreter


def ask(program, *arguments):
    """Runs a program with that interpreter and returns its output."""
    done = _run(python(), "-c", program, *map(str, arguments))
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout
