"""Kills random ranks of a job at random moments with signal 9 and prints how long it takes to the next completed step,
which rung of the recovery ladder was taken, how many steps were lost, and whether the parameters of every run are, bit
for bit, those of a run left in peace.

    ESPALIER=build/bin/espalier python3 tests/faults/kill_test.py --trials 200 --layout dp

`--rung default` gives neither --max-restarts nor checkpoint keys, and asserts what the defaults promise: at most 60 s of
work lost, the same bits, every restart counted:

    ESPALIER=build/bin/espalier python3 tests/faults/kill_test.py --rung default --trials 20 --layout tp_pp --ranks 4
"""
import argparse
import collections
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
from recover_driving import LAYOUTS, Job, percentile  # noqa: E402

MOST_MISSES = 5
MOST_WORK_LOST_S = 60  # of snapshots by default
DEFAULT_RESTARTS = 3


def settings_of(options):
    rung = {"in_place": ["checkpoint.snapshot_every=%d" % options.every],
            "snapshot": ["checkpoint.snapshot_every=%d" % options.every],
            "disk": ["checkpoint.every=%d" % options.every, "checkpoint.keep=2"], "default": []}[options.rung]
    return LAYOUTS[options.layout] + rung + options.set


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--per-run", type=int, default=10, help="kills in one run")
    parser.add_argument("--layout", choices=[*LAYOUTS, "all"], default="dp", help="all: the trials, shared out among all layouts")
    parser.add_argument("--long-trials", type=int, help="instead of --trials where ESPALIER_TEST_LONG=1")
    parser.add_argument("--rung", choices=["in_place", "snapshot", "disk", "default"], default="in_place")
    parser.add_argument("--every", type=int, default=2, help="steps between snapshots, or checkpoints")
    parser.add_argument("--steps-per-kill", type=int, default=25, help="length of a run")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.long_trials and os.environ.get("ESPALIER_TEST_LONG") == "1":
        options.trials = options.long_trials
    layouts = list(LAYOUTS) if options.layout == "all" else [options.layout]
    total, reforms = options.trials, []
    for i, layout in enumerate(layouts):
        options.layout, options.trials = layout, total * (i + 1) // len(layouts) - total * i // len(layouts)
        if options.trials:
            reforms += campaign(options)
    if len(layouts) > 1:
        print(f"{total} kills over {len(layouts)} layouts; recovered in place {len(reforms)} times, "
              f"p50 {percentile(reforms, 50) * 1e3:.0f} ms  p99 {percentile(reforms, 99) * 1e3:.0f} ms")


def campaign(options):
    """All trials of one layout; the seconds of its recoveries in place."""
    random.seed(options.seed)
    folder = tempfile.mkdtemp(prefix="espalier-kill-")
    default = options.rung == "default"
    flags = [] if options.rung in ("in_place", "default") else ["--no-reform"]
    restarts = None if default else 1000
    per_run = min(options.per_run, options.trials, DEFAULT_RESTARTS if default else options.trials)
    steps = options.steps_per_kill * (per_run + 1)
    trials, jobs, reforms, runs, identical, misses = [], [], [], 0, 0, 0
    try:
        reference = Job(folder, "reference", steps, settings_of(options), options.ranks, restarts)
        jobs.append(reference)
        if reference.finish() != 0:
            sys.exit("the undisturbed run failed:\n" + "".join(reference.said))
        state, curve = reference.state(steps), reference.curve()
        if [line[0] for line in curve] != list(range(1, steps + 1)):
            sys.exit(f"the undisturbed run logged {len(curve)} of {steps} steps")
        while len(trials) < options.trials:
            runs += 1
            job = Job(folder, f"killed-{runs}", steps, settings_of(options), options.ranks, restarts, flags)
            jobs.append(job)
            made = reached = 0
            while made < min(per_run, options.trials - len(trials) + made):
                # By steps, not by the clock: however fast the machine, the run is not over before its last kill.
                target = reached + random.randint(3, options.steps_per_kill if default else options.steps_per_kill // 2)
                while job.alive() and job.step() < target:
                    time.sleep(0.002)
                time.sleep(random.uniform(0, 0.01))
                trial = job.kill_one()
                if trial is None:
                    break
                trials.append(trial)
                reached = trial["step"]
                made += 1
            code = job.finish()
            wrong = f"exit code {code}" if code != 0 else "other parameters" if job.state(steps) != state else curves_differ(curve, job.curve())
            identical += not wrong
            reforms += job.recovery_seconds()
            if wrong or options.verbose:
                print("".join(job.said))
            if wrong:
                sys.exit(f"run {runs} (seed {options.seed}): {wrong}")
            if job.restarts() != made:
                sys.exit(f"run {runs} (seed {options.seed}): {made} ranks killed, summary.json counts {job.restarts()} restarts")
            misses += made == 0  # the run ended before a rank was killed
            if misses > MOST_MISSES:
                sys.exit("the runs ended before a rank was killed")
            shutil.rmtree(job.dir)
    finally:
        for job in jobs:
            job.end()
        shutil.rmtree(folder)
        if trials:  # also of a campaign that failed
            tell(options, trials, reforms, runs, identical)
    if default:
        worst = max(trial["lost_s"] for trial in trials)
        if worst > MOST_WORK_LOST_S:
            sys.exit(f"{worst:.1f} s of work were lost")
        return reforms
    # From memory the step under way; else what was made since the last snapshot or checkpoint.
    too_many = [trial for trial in trials if trial["lost"] > (1 if trial["rung"] == "memory" else options.every)]
    if too_many:
        sys.exit(f"more steps were lost than may be: {too_many}")
    if options.rung == "in_place" and not any(trial["in_place"] for trial in trials):
        sys.exit("no recovery went in place")
    return reforms


def curves_differ(expected, found):
    """The first difference between the logged steps of two runs; empty where they are equal, line by line."""
    for i, (one, other) in enumerate(zip(expected, found)):
        if one != other:
            return f"line {i + 1} of metrics.jsonl is {other}; expected {one}"
    return "" if len(expected) == len(found) else f"metrics.jsonl has {len(found)} steps; expected {len(expected)}"


def tell(options, trials, reforms, runs, identical):
    seconds = [trial["seconds"] for trial in trials]
    rungs = collections.Counter(("in place, " if trial["in_place"] else "") + trial["rung"] for trial in trials)
    print(f"layout {options.layout}, {options.ranks} ranks, {len(trials)} kills in {runs} runs, seed {options.seed}")
    print(f"  to the next step   p50 {percentile(seconds, 50):.3f} s  p99 {percentile(seconds, 99):.3f} s  "
          f"most {max(seconds):.3f} s")
    print(f"  steps lost         most {max(trial['lost'] for trial in trials)}; of work "
          f"p50 {percentile([trial['lost_s'] for trial in trials], 50):.2f} s  "
          f"most {max(trial['lost_s'] for trial in trials):.2f} s")
    print(f"  rung               {', '.join(f'{name}: {count}' for name, count in rungs.most_common())}")
    if reforms:
        print(f"  recovered in place p50 {percentile(reforms, 50) * 1e3:.0f} ms  p99 {percentile(reforms, 99) * 1e3:.0f} ms")
    print(f"  bit-identical      {identical} of {runs} runs: parameters, optimizer state, and the loss of every step, each logged once",
          flush=True)


if __name__ == "__main__":
    main()
