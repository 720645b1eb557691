"""espalier launch with the real binary: one host and several agents, a rank killed and the run gone on to the same bits,
programs of other kinds, nothing left behind, and what wrong flags are answered with."""
import json
import os
import signal
import subprocess
import time
import unittest

from driving import ESPALIER, free_port, ranks_of, run, running, start, wait_until
from train_test import InFolder


class OnAgents(InFolder):
    def launch(self, name, *words, steps=40):
        return ["launch", *words, "--", "train", self.run_file(steps), "--run-dir", self.path(name), "--set",
                "run.threads=1", "--set", "checkpoint.every=5", "--set", "run.deterministic=true"]

    def ended(self, process, code):
        _, errors = process.communicate(timeout=90)
        self.assertEqual(process.returncode, code, errors)
        return errors


class OneHost(OnAgents):
    def test_a_killed_rank_costs_no_bit(self):
        undisturbed = run(*self.launch("whole", "--nproc-per-node", "2", steps=200))
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        process = start(*self.launch("killed", "--nproc-per-node", "2", "--max-restarts", "2", steps=200))
        self.assertTrue(wait_until(lambda: self.steps_made("killed") >= 12 or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = self.ended(process, 0)
        self.assertRegex(errors, r"rank 1 killed \(SIGKILL\); recovered in [0-9.]+ m?s: 1 rank restarted, 1 kept; "
                                 r"resumed at step \d+ from memory of rank 0")
        self.same_checkpoint(200, "whole", "killed")

    def test_all_are_started_again_where_none_is_to_go_on_in_place(self):
        undisturbed = run(*self.launch("whole", "--nproc-per-node", "2", steps=200))
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        process = start(*self.launch("killed", "--nproc-per-node", "2", "--max-restarts", "2", "--no-reform", steps=200),
                        "--set", "checkpoint.snapshot_every=2", "--set", "checkpoint.every=0")  # nothing newer on the disk
        self.assertTrue(wait_until(lambda: self.steps_made("killed") >= 12 or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = self.ended(process, 0)
        self.assertIn("rank 1 killed (SIGKILL)", errors)
        self.assertIn("restarting all ranks, restart 1 of at most 2", errors)
        self.assertRegex(errors, "resumed from .*espalier-snapshots-.*/step-")
        self.same_checkpoint(200, "whole", "killed")

    def test_ranks_are_reaped_when_sigchld_was_ignored(self):
        for words in (self.launch("launched", "--nproc-per-node", "2", steps=3),
                      ["train", self.run_file(3), "--run-dir", self.path("direct"), "--nproc", "2"]):
            answer = subprocess.run([ESPALIER, *words], capture_output=True, text=True, timeout=60,
                                    preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
            self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_sigterm_stops_what_a_daemon_started(self):
        """A parent in a session of its own that ignores SIGCHLD, as init scripts leave it."""
        def as_daemon():
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        for name, words in (("launched", self.launch("launched", "--nproc-per-node", "2", steps=10**6)),
                            ("direct", ["train", self.run_file(10**6), "--run-dir", self.path("direct"), "--nproc", "2"])):
            with open(self.path(name + ".log"), "w") as log:
                process = subprocess.Popen([ESPALIER, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=as_daemon)
            self.addCleanup(process.kill)
            self.assertTrue(wait_until(lambda: self.steps_made(name) >= 3 or process.poll() is not None))
            process.terminate()
            with open(self.path(name + ".log")) as log:
                self.assertEqual(process.wait(60), 75, log.read())

    def test_signals_in_any_mixture_end_with_75(self):
        storm = [signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2] * 3
        for name, words in (("launched", self.launch("launched", "--nproc-per-node", "2", steps=10**6)),
                            ("direct", ["train", self.run_file(10**6), "--run-dir", self.path("direct"), "--nproc", "2"]),
                            ("alone", ["train", self.run_file(10**6), "--run-dir", self.path("alone")])):
            with open(self.path(name + ".log"), "w") as log:
                process = subprocess.Popen([ESPALIER, *words], stdout=subprocess.DEVNULL, stderr=log)
            self.addCleanup(process.kill)
            self.assertTrue(wait_until(lambda: self.steps_made(name) >= 3 or process.poll() is not None))
            for number in storm:
                process.send_signal(number)
            while process.poll() is None:  # more of them come while it ends
                process.send_signal(signal.SIGTERM)
                time.sleep(0.001)
            with open(self.path(name + ".log")) as log:
                self.assertEqual(process.returncode, 75, log.read())
            self.assertTrue(os.listdir(self.path(name + "/checkpoints")))

    def test_a_late_second_sigint_ends_the_launcher_at_once(self):
        process = start(*self.launch("launched", "--nproc-per-node", "2", steps=10**6))
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: self.steps_made("launched") >= 3 or process.poll() is not None))
        ranks = list(ranks_of(process.pid).values())
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)  # so that nothing ends by itself
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        self.assertIsNone(process.poll())
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        errors = process.communicate()[1]
        self.assertEqual(process.returncode, -signal.SIGINT, errors)
        self.assertIn("Ctrl-C once more after 5 s ends the process at once", errors)
        self.assertTrue(wait_until(lambda: not any(running(rank) for rank in ranks)))

    def test_a_run_begun_anew_goes_on_when_it_is_started_again(self):
        before = run(*self.launch("anew", "--nproc-per-node", "2", steps=30))
        self.assertEqual(before.returncode, 0, before.stderr)
        process = start(*self.launch("anew", "--nproc-per-node", "2", "--max-restarts", "2", "--no-reform", steps=200),
                        "--resume", "none")
        aside = self.path("anew/before-1/checkpoints")  # which go last
        self.assertTrue(wait_until(lambda: os.path.exists(aside) and self.steps_made("anew") >= 12
                                   or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = self.ended(process, 0)
        self.assertIn("restarting all ranks, restart 1 of at most 2", errors)
        self.assertRegex(errors, "resumed from .*anew/checkpoints/step-")
        self.assertEqual(errors.count("is now in"), 1)
        self.assertFalse(os.path.exists(self.path("anew/before-2")))
        self.assertIn("step-30", os.listdir(aside))

    def test_a_restart_from_step_0_is_counted_and_tells_the_steps_lost(self):
        for name, words in (("in_place", []), ("all", ["--no-reform"])):
            process = start(*self.launch(name, "--nproc-per-node", "2", *words, steps=100), "--set", "parallel.tp=2",
                            "--set", "checkpoint.every=0", "--set", "checkpoint.snapshot_every=0")
            self.assertTrue(wait_until(lambda: self.steps_made(name) >= 12 or process.poll() is not None))
            os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
            errors = self.ended(process, 0)
            self.assertRegex(errors, r"started again at step 0, there was no snapshot or checkpoint; [1-9]\d* steps lost")
            with open(self.path(name + "/summary.json")) as file:
                self.assertEqual(json.load(file)["restarts"], 1)
            self.assertEqual([m["step"] for m in self.metrics(name)], list(range(1, 101)))

    def test_a_folder_of_snapshots_that_cannot_be_made_is_named(self):
        answer = run(*self.launch("nowhere", "--nproc-per-node", "2"), "--set", "checkpoint.snapshot_dir=/proc/nowhere")
        self.assertEqual(answer.returncode, 4, answer.stderr)
        self.assertIn("checkpoint.snapshot_dir = /proc/nowhere", answer.stderr)

    def test_no_restart_where_none_is_allowed(self):
        process = start(*self.launch("none", "--nproc-per-node", "2", "--max-restarts", "0", steps=100000))
        self.assertTrue(wait_until(lambda: self.steps_made("none") >= 3 or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        self.assertNotIn("restart", self.ended(process, 3))

    def test_a_wrong_run_file_is_not_tried_again(self):
        answer = run("launch", "--nproc-per-node", "2", "--max-restarts", "5", "--", "train", self.path("none.toml"))
        self.assertIn(answer.returncode, (2, 4))
        self.assertNotIn("restarting all ranks", answer.stderr)
        self.assertIn("none.toml", answer.stderr)

    def test_a_signal_ends_it_with_a_checkpoint(self):
        process = start(*self.launch("signalled", "--nproc-per-node", "2", steps=100000))
        self.assertTrue(wait_until(lambda: self.steps_made("signalled") >= 3))
        process.send_signal(signal.SIGTERM)
        self.ended(process, 75)
        self.assertTrue(os.listdir(self.path("signalled/checkpoints")))

    def test_nothing_outlives_a_killed_launcher(self):
        process = start(*self.launch("orphans", "--nproc-per-node", "3", steps=100000), "--set", "train.global_batch=6")
        self.assertTrue(wait_until(lambda: self.steps_made("orphans") >= 1 or process.poll() is not None))
        ranks = list(ranks_of(process.pid).values())
        self.assertEqual(len(ranks), 3)
        process.kill()
        process.communicate()
        self.assertTrue(wait_until(lambda: not any(running(pid) for pid in ranks)))


class Programs(OnAgents):
    def test_a_script_finds_what_torchrun_would_tell_it(self):
        script = self.path("who.py")
        with open(script, "w") as file:
            file.write("import os, sys\n"
                       "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR'.split()\n"
                       "print(*[os.environ[n] for n in names], int(os.environ['MASTER_PORT']) > 0, *sys.argv[1:])\n")
        answer = run("launch", "--nproc_per_node=2", script, "--flag", "7")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for rank in (0, 1):
            self.assertIn(f"[rank {rank}] {rank} 2 {rank} 2 0 127.0.0.1 True --flag 7", answer.stdout)

    def test_a_program_that_is_not_there_is_named(self):
        answer = run("launch", "--max-restarts", "3", "--", "no-such-program")
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("cannot run no-such-program", answer.stderr)
        self.assertNotIn("restarting all ranks", answer.stderr)


class Hosts(OnAgents):
    def agents(self, name, *words, num_hosts=2, steps=40):
        port = free_port()
        secret = self.path("secret")
        if not os.path.exists(secret):
            with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write("0123456789abcdef0123456789abcdef")
        return [subprocess.Popen(
            [ESPALIER, *self.launch(name, "--nnodes", str(num_hosts), "--nproc-per-node", "2", "--node-rank", str(host),
                                    "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", name, "--secret-file", secret,
                                    *words, steps=steps)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for host in range(num_hosts)]

    def test_two_hosts_train_as_one_and_survive_a_kill(self):
        alone = run(*self.launch("whole", "--nproc-per-node", "4", steps=200))
        self.assertEqual(alone.returncode, 0, alone.stderr)
        processes = self.agents("two", "--max-restarts", "1", steps=200)
        self.assertTrue(wait_until(lambda: self.steps_made("two") >= 12))
        os.kill(ranks_of(processes[1].pid)[2], signal.SIGKILL)
        for process in processes:
            self.assertIn("rank 2 killed (SIGKILL)", self.ended(process, 0))
        self.same_checkpoint(200, "whole", "two")

    def test_a_lost_host_ends_the_others_with_3(self):
        processes = self.agents("lost", steps=100000)
        self.assertTrue(wait_until(lambda: self.steps_made("lost") >= 3))
        processes[1].kill()
        processes[1].communicate()
        self.assertIn("launcher of host 1", self.ended(processes[0], 3))


class Refused(OnAgents):
    def test_what_is_missing_is_named(self):
        for words, says in ((["--nnodes", "2", "--", "true"], "--rdzv-endpoint"),
                            (["--nnodes", "two", "--", "true"], "--nnodes: got two"),
                            (["--nproc-per-node", "0", "--", "true"], "--nproc-per-node: got 0"),
                            (["--node-rank", "1", "--", "true"], "--node-rank 1"),
                            ([], "nothing to launch")):
            answer = run("launch", *words)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(says, answer.stderr)

    def test_options_in_the_wrong_place_are_answered_with_the_command_that_works(self):
        for words in (["run.toml", "--nproc-per-node", "2"], ["--", "run.toml", "--nproc-per-node", "2"],
                      ["--", "train", "run.toml", "--nproc-per-node", "2"], ["train", "run.toml", "--nproc-per-node", "2"]):
            answer = run("launch", *words, "--set", "train.lr=1")
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn("Use `espalier launch --nproc-per-node 2 -- train run.toml --set train.lr=1`", answer.stderr)

    def test_words_that_contradict_each_other_or_cannot_be(self):
        for words, says in ((["--standalone", "--nnodes", "2"], "--standalone: got --nnodes 2 too"),
                            (["--rdzv-timeout", "0"], "--rdzv-timeout: got 0; must be > 0"),
                            (["--master-port", "99999"], "--master-port: got 99999; must be from 1 to 65535")):
            answer = run("launch", *words, "--", "true")
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(says, answer.stderr)

    def test_a_secret_that_others_can_read_is_refused(self):
        with open(self.path("open"), "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        os.chmod(self.path("open"), 0o644)
        answer = run("launch", "--secret-file", self.path("open"), "--", "true")
        self.assertEqual(answer.returncode, 4)
        self.assertIn("chmod 600", answer.stderr)


if __name__ == "__main__":
    unittest.main()
