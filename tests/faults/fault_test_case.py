"""Base class of the fault tests: starts a small multi-rank run, finds its ranks, waits for its steps and events."""
import json
import os
import signal
import subprocess
import time

from cli_runner import ESPALIER, children, ranks_of, wait_until
from train_test import TempFolderTestCase

LONG = os.environ.get("ESPALIER_TEST_LONG") == "1"


def trials(short, long):
    """Number of trials: TRIALS, or the default of the short or long form."""
    return int(os.environ.get("TRIALS", long if LONG else short))


def spread(seconds):
    """Median and maximum as text: p50 2.41 s, max 2.60 s."""
    ordered = sorted(seconds)
    return f"p50 {ordered[len(ordered) // 2]:.2f} s, max {ordered[-1]:.2f} s"


class FaultTestCase(TempFolderTestCase):
    def setUp(self):
        super().setUp()
        self.started, self.run_files = [], {}
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.started:
            if process.poll() is None:
                for pid in children(process.pid):
                    try:
                        os.kill(pid, signal.SIGCONT)
                    except ProcessLookupError:
                        pass
                process.kill()
            process.wait()

    def begin(self, name, *words, ranks=4, steps=1000000, fault=None, launcher=("train",)):
        command = [ESPALIER, *launcher, self.written_once(steps), "--run-dir", self.path(name), "--set", "run.threads=1",
                   "--set", "log.tensorboard=false", "--set", f"train.global_batch={2 * ranks}", *words]
        if launcher == ("train",):
            command += ["--nproc", str(ranks)]
        environment = dict(os.environ, **({"ESPALIER_FAULT": fault} if fault else {}))
        with open(self.path(name + ".stderr"), "wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment,
                                       start_new_session=True)
        self.started.append(process)
        return process

    def written_once(self, steps):
        """Writes a run file once per number of steps, because running jobs may still be reading it."""
        if steps not in self.run_files:
            path = self.path(f"run-{steps}.toml")
            os.rename(self.run_file(steps), path)
            self.run_files[steps] = path
        return self.run_files[steps]

    def said(self, name):
        with open(self.path(name + ".stderr"), errors="replace") as file:
            return file.read()

    def pids(self, process):
        """Process ids, in order of rank."""
        return ranks_of(process.pid)

    def wait_for_steps(self, name, process, count, limit=60):
        reached = wait_until(lambda: self.logged_steps(name) >= count or process.poll() is not None, limit)
        self.assertTrue(reached and process.poll() is None, self.said(name))

    def events(self, name, kind=None):
        try:
            with open(self.path(name + "/events.jsonl")) as file:
                lines = [json.loads(line) for line in file.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []
        return [line for line in lines if kind is None or line["event"] == kind]

    def wait_for_event(self, name, kind, count=1, limit=30):
        self.assertTrue(wait_until(lambda: len(self.events(name, kind)) >= count, limit),
                        f"no {kind}: {self.events(name)}\n{self.said(name)[-2000:]}")
        return self.events(name, kind)[count - 1]

    def wait_for_end(self, process, limit=60):
        end = time.monotonic() + limit
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return process.poll()

    def flight(self, name):
        """Flight records by rank."""
        path = self.path(name + ".flight.json")
        subprocess.run([ESPALIER, "flight", self.path(name), "--json", path], check=True, timeout=60)
        with open(path) as file:
            return {log["rank"]: log["records"] for log in json.load(file)}
