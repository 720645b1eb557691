#!/usr/bin/env python3
"""Installs the collectives library into a temporary prefix, moves the prefix, and builds programs against it.

    use_installed.py c|python SOURCE BUILD CMAKE CC

Exit code 77: the Python part was skipped, because no Python interpreter has NumPy.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
from cli_runner import free_port  # noqa: E402

what, source, build, cmake, cc = sys.argv[1], *map(pathlib.Path, sys.argv[2:4]), *sys.argv[4:6]


def run(*command, env=None, cwd=None):
    done = subprocess.run([str(part) for part in command], env={**os.environ, **(env or {})}, cwd=cwd, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def run_ranks(size, *command, env=None):
    """Starts `size` ranks of a program on this machine; returns their output."""
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
               **(env or {})}
    ranks = [subprocess.Popen([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env={**os.environ, **variables, "RANK": str(rank)})
             for rank in range(size)]
    outputs, codes = [], []
    for rank in ranks:
        try:
            outputs.append(rank.communicate(timeout=90)[0])
        except subprocess.TimeoutExpired:
            rank.kill()
            outputs.append(rank.communicate()[0] + "(killed after 90 s)")
        codes.append(rank.returncode)
    if any(codes):
        sys.exit(f"{command} as {size} ranks ended with {codes}:\n" + "\n".join(outputs))
    return outputs


def install(to):
    prefix = to / "first"
    run(cmake, "--install", build, "--prefix", prefix, "--component", "collectives")
    run(cmake, "--install", build, "--prefix", "/opt/espalier", "--component", "collectives",
        env={"DESTDIR": str(to / "staged")})
    staged = sorted(path.relative_to(to / "staged/opt/espalier") for path in (to / "staged/opt/espalier").rglob("*"))
    installed = sorted(path.relative_to(prefix) for path in prefix.rglob("*"))
    assert staged == installed and installed, (staged, installed)
    moved = to / "moved"
    prefix.rename(moved)
    shutil.rmtree(to / "staged")
    return moved


def library_of(prefix):
    return next(path for path in prefix.rglob("libespalier_collectives.so.1") if path.exists())


def check_symbols(library):
    names = [line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    unexpected = [name for name in names if not name.startswith(("esp_", "ESPALIER_"))]
    assert "esp_all_reduce" in names and not unexpected, unexpected


def use_from_c(prefix, to):
    check_symbols(library_of(prefix))
    libraries = {"LD_LIBRARY_PATH": str(library_of(prefix).parent)}
    run(cmake, "-S", source / "examples/c", "-B", to / "with_cmake", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_COMPILER={cc}")
    run(cmake, "--build", to / "with_cmake")

    flags = run("pkg-config", "--cflags", "--libs", "espalier-collectives",
                env={"PKG_CONFIG_PATH": str(library_of(prefix).parent / "pkgconfig")}).split()
    folders = [os.path.realpath(flag[2:]) for flag in flags if flag.startswith(("-I", "-L"))]
    assert len(folders) == 2 and all(folder.startswith(str(prefix)) for folder in folders), flags
    run(cc, "-std=c99", "-Wall", "-Wextra", "-Werror", source / "examples/c/all_reduce.c", *flags, "-o", to / "by_hand")
    run(cc, "-fsyntax-only", "-x", "c++", "-Wall", "-Werror", source / "include/espalier/collectives.h")

    for size in (1, 2, 4):
        outputs = run_ranks(size, to / "with_cmake/all_reduce")
        assert all(f"rank {rank} of {size}" in text for rank, text in enumerate(outputs)), outputs
    run_ranks(3, to / "by_hand", env=libraries)
    print(run(to / "with_cmake/group"), end="")
    print("".join(run_ranks(2, to / "with_cmake/group")), end="")


def python_with_numpy():
    for candidate in (sys.executable, "/usr/bin/python3", shutil.which("python3")):
        if candidate and subprocess.run([candidate, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode == 0:
            return candidate
    print("skipped: no Python interpreter has NumPy (apt-get install python3-numpy)")
    sys.exit(77)


def use_from_python(prefix, to):
    python = python_with_numpy()
    program = to / "all_reduce.py"  # outside the source tree, so that only the installed module can be imported
    shutil.copy(source / "examples/python/all_reduce.py", program)
    module = {"PYTHONPATH": str(next(prefix.rglob("espalier/__init__.py")).parents[1])}
    for size in (1, 2, 4):
        outputs = run_ranks(size, python, program, env=module)
        assert all(f"rank {rank} of {size}" in text for rank, text in enumerate(outputs)), outputs
    print("".join(outputs), end="")


with tempfile.TemporaryDirectory(prefix="espalier-install-") as folder:
    folder = pathlib.Path(folder).resolve()
    prefix = install(folder)
    {"c": use_from_c, "python": use_from_python}[what](prefix, folder)
