#!/usr/bin/env python3
"""Sums the output of kernel_times.cpp: `kernel_times.py FILE [--steps N]` prints milliseconds per step for each kernel.

A step ends with the last kernel of the optimizer. The last N complete steps are used.
"""
import argparse
import collections
import re
import subprocess


def readable(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else names


def short(name):
    name = re.sub(r"^void ", "", name).replace("esp::kernel::cuda::(anonymous namespace)::", "").replace("esp::kernel::cuda::", "")
    return re.sub(r"\(.*", "", name)[:110]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--top", type=int, default=40)
    options = parser.parse_args()
    rows = []
    for line in open(options.file):
        words = line.rstrip("\n").split(" ", 2)
        if len(words) == 3:
            rows.append((int(words[0]), int(words[1]), words[2]))
    rows.sort()
    is_update = ["adam" in name.lower() for _, _, name in rows]
    ends = [i for i in range(len(rows)) if is_update[i] and not any(is_update[i + 1:i + 20])]
    if len(ends) < options.steps + 1:
        print(f"found {len(ends)} complete steps; expected at least {options.steps + 1}")
        return
    first, last = ends[-options.steps - 1] + 1, ends[-1] + 1
    took = (rows[last - 1][1] - rows[first - 1][1]) / options.steps / 1e6
    part = rows[first:last]
    sums, counts = collections.Counter(), collections.Counter()
    for begin, end, name in part:
        sums[name] += (end - begin) / options.steps / 1e6
        counts[name] += 1
    busy, until = 0, 0
    for begin, end, _ in part:
        busy += max(0, end - max(begin, until))
        until = max(until, end)
    names = list(sums)
    plain = dict(zip(names, readable(names)))
    print(f"{took:.2f} ms per step, GPU busy {busy / options.steps / 1e6:.2f} ms, {len(part) // options.steps} kernels")
    for name, ms in sums.most_common(options.top):
        print(f"{ms:8.3f} ms {100 * ms / took:5.1f} % {counts[name] / options.steps:7.1f} × {ms / counts[name] * options.steps * 1e3:8.1f} µs  {short(plain[name])}")


main()
