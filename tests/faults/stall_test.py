"""Ranks that stop or loop while the others wait for them. The report must name the right rank and the call that it delays.
There must be no false reports. Measures the detection time. Prints its figures; ESPALIER_TEST_LONG=1 or TRIALS=n for the
long form."""
import os
import random
import signal
import threading
import time
import unittest

from cli_runner import run, wait_until
from fault_test_case import LONG, FaultTestCase, spread, trials

RANKS = 8 if LONG else 4


class StallTestCase(FaultTestCase):
    def check_named(self, name, event, rank):
        """Checks that the event names the rank, and names the call that is unfinished in a waiting rank's flight recorder."""
        self.assertEqual(event["ranks"], [rank], event)
        self.assertNotIn(rank, event["waiting"])
        # The launcher forwards lines with a delay.
        self.assertTrue(wait_until(lambda: f"rank {rank} " in self.said(name), 10), self.said(name)[-2000:])
        if not event["waiting"]:  # the other ranks wait for checkpoint files, so no call is open
            return self.assertEqual((event["phase"], event["op"]), ("checkpoint", "checkpoint"), event)
        waiting = event["waiting"][0]
        calls = [r for r in self.flight(name)[waiting] if r["kind"] in ("collective", "send", "recv")]
        last = [r for r in calls if f"{r['group']:x}" == event["group"]][-1]
        self.assertEqual((last["text"], last["state"]), (event["op"], "begun"), event)
        if last["kind"] == "collective":  # point-to-point messages are numbered separately
            self.assertEqual(last["sequence"], event["sequence"], event)


class StoppedRank(StallTestCase):
    def test_stopped_rank_is_named(self):
        """A rank gets SIGSTOP at a random moment, later SIGCONT. All trials use the same job."""
        took = []
        process = self.begin("run", "--set", "train.eval_every=40", "--set", "checkpoint.every=50", ranks=RANKS)
        self.wait_for_steps("run", process, 8)
        pids, draw = self.pids(process), random.Random(5)
        for trial in range(trials(1, 50)):
            rank = draw.randrange(RANKS)
            time.sleep(draw.uniform(0, 0.5))
            os.kill(pids[rank], signal.SIGSTOP)
            stopped = time.time()
            event = self.wait_for_event("run", "stall", trial + 1)
            took.append(event["wall_s"] - stopped)
            self.check_named("run", event, rank)
            self.assertFalse(event["answers"])
            os.kill(pids[rank], signal.SIGCONT)
            self.wait_for_event("run", "stall_over", trial + 1)
            self.wait_for_steps("run", process, self.logged_steps("run") + 5)
        print(f"SIGSTOP, {RANKS} ranks: {len(took)} of {len(took)} named correctly, {spread(took)}")
        self.assertLess(max(took), 5 if LONG else 30)  # generous, because other load delays detection


class LoopingRank(StallTestCase):
    def loops(self, kind, count, words=(), ranks=RANKS):
        took, draw = [], random.Random(6)
        for trial in range(count):
            name, rank, step = f"{kind}{len(self.started)}", draw.randrange(ranks), draw.randrange(6, 12)
            process = self.begin(name, "--set", "train.eval_every=1", "--set", "train.eval_batches=1", *words,
                                 ranks=ranks, fault=f"{kind}:{rank}:{step}")
            # The last logged step is the one before the loop.
            self.wait_for_steps(name, process, step - 1)
            logged_at = time.time()
            event = self.wait_for_event(name, "stall")
            took.append(event["wall_s"] - logged_at)
            self.check_named(name, event, rank)
            self.assertTrue(event["answers"])
            self.assertEqual(event["phase"], "step" if kind == "loop" else "evaluation")
            process.kill()
            process.wait()
        print(f"endless loop ({kind}), {ranks} ranks: {len(took)} of {len(took)} named correctly, {spread(took)}")
        self.assertLess(max(took), 5 if LONG else 30)  # generous, because other load delays detection

    def test_rank_looping_in_step_is_named(self):
        self.loops("loop", trials(1, 25))


@unittest.skipUnless(LONG, "long form")
class LoopingRankLong(LoopingRank):
    test_rank_looping_in_step_is_named = None

    def test_rank_looping_in_evaluation_is_named(self):
        self.loops("evaluate", trials(1, 25))

    def test_looping_rank_is_named_with_model_parallelism(self):
        self.loops("loop", trials(1, 10), ("--set", "parallel.tp=2", "--set", "parallel.dp=2"), ranks=4)
        self.loops("loop", trials(1, 10), ("--set", "parallel.pp=2", "--set", "train.micro_batch=2"), ranks=4)
        self.loops("loop", trials(1, 10), ("--set", "sync.method=zero3"), ranks=4)


class StallTimeout(StallTestCase):
    def test_run_exits_with_3_after_timeout(self):
        process = self.begin("run", "--set", "comm.timeout_s=10", ranks=3, fault="loop:1:8")
        self.assertEqual(self.wait_for_end(process), 3, self.said("run"))
        self.assertEqual(self.events("run", "stall")[0]["ranks"], [1])
        self.assertIn("rank 1 is behind", self.said("run"))

    def test_invalid_fault_option_is_refused(self):
        answer = run("train", self.run_file(), "--nproc", "2", "--run-dir", self.path("refused"),
                     env={"ESPALIER_FAULT": "lop:1:8"})
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("loop", answer.stderr)


class FalseReports(StallTestCase):
    def test_slow_job_causes_no_false_reports(self):
        """The job has more ranks than cores, and frequent evaluations and checkpoints."""
        seconds = int(os.environ.get("SOAK_S", 1800 if LONG else 3))
        cores = len(os.sched_getaffinity(0))
        ranks = 4 * cores
        process = self.begin("run", "--set", "train.eval_every=10", "--set", "checkpoint.every=25", ranks=ranks)
        self.wait_for_steps("run", process, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
        self.assertIsNone(process.poll(), self.said("run"))
        print(f"{ranks} ranks on {cores} cores for {seconds} s, {self.logged_steps('run')} steps: "
              f"{len(self.events('run'))} false reports")
        self.assertEqual(self.events("run"), [])


class Stragglers(StallTestCase):
    def test_straggler_is_named(self):
        process = self.begin("run", "--set", "model.dim=128", "--set", "model.seq_len=128", ranks=2)
        self.wait_for_steps("run", process, 60)  # baseline before the rank becomes slow
        pid, going = self.pids(process)[1], True

        def slow_down():  # stops the rank two thirds of the time
            while going:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.010)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.005)

        thread = threading.Thread(target=slow_down)
        first = self.logged_steps("run")
        thread.start()
        try:
            event = self.wait_for_event("run", "straggler")
        finally:
            going = False
            thread.join()
        self.assertEqual(event["ranks"], [1])
        print(f"a rank stopped two thirds of the time: named {event['step'] - first} steps later, the other rank waited "
              f"{event['waited_ms']:.1f} of {event['step_ms']:.1f} ms")


if __name__ == "__main__":
    unittest.main()
