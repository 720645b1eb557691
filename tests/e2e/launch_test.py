"""End-to-end tests of espalier launch: one host, several hosts, bit-identical recovery from a killed rank, user
programs, cleanup of processes, and error messages."""
import json
import os
import signal
import subprocess
import time
import unittest

from cli_runner import ESPALIER, free_port, ranks_of, run, running, start, wait_until
from train_test import TempFolderTestCase


class LaunchTestCase(TempFolderTestCase):
    def launch(self, name, *words, steps=40):
        return ["launch", *words, "--", "train", self.run_file(steps), "--run-dir", self.path(name), "--set",
                "run.threads=1", "--set", "checkpoint.every=5", "--set", "run.deterministic=true"]

    def wait_for_exit(self, process, code):
        _, errors = process.communicate(timeout=90)
        self.assertEqual(process.returncode, code, errors)
        return errors


class OneHost(LaunchTestCase):
    def test_run_with_restarted_rank_is_bit_identical_to_undisturbed_run(self):
        undisturbed = run(*self.launch("whole", "--nproc-per-node", "2", steps=200))
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        process = start(*self.launch("killed", "--nproc-per-node", "2", "--max-restarts", "2", steps=200))
        self.assertTrue(wait_until(lambda: self.logged_steps("killed") >= 12 or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = self.wait_for_exit(process, 0)
        self.assertRegex(errors, r"rank 1 killed \(SIGKILL\); recovered in [0-9.]+ m?s: 1 rank restarted, 1 kept; "
                                 r"resumed at step \d+ from memory of rank 0")
        self.assert_same_checkpoint(200, "whole", "killed")

    def test_disabling_in_place_recovery_restarts_all_ranks(self):
        undisturbed = run(*self.launch("whole", "--nproc-per-node", "2", steps=200))
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        process = start(*self.launch("killed", "--nproc-per-node", "2", "--max-restarts", "2", "--no-reform", steps=200),
                        "--set", "checkpoint.snapshot_every=2", "--set", "checkpoint.every=0")  # snapshots only
        self.assertTrue(wait_until(lambda: self.logged_steps("killed") >= 12 or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = self.wait_for_exit(process, 0)
        self.assertIn("rank 1 killed (SIGKILL)", errors)
        self.assertIn("restarting all ranks, restart 1 of at most 2", errors)
        self.assertRegex(errors, "resumed from .*espalier-snapshots-.*/step-")
        self.assert_same_checkpoint(200, "whole", "killed")

    def test_reaps_ranks_when_sigchld_is_ignored(self):
        for words in (self.launch("launched", "--nproc-per-node", "2", steps=3),
                      ["train", self.run_file(3), "--run-dir", self.path("direct"), "--nproc", "2"]):
            answer = subprocess.run([ESPALIER, *words], capture_output=True, text=True, timeout=60,
                                    preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
            self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_sigterm_stops_job_started_by_daemon(self):
        """The parent has its own session and ignores SIGCHLD, like an init script."""
        def as_daemon():
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        for name, words in (("launched", self.launch("launched", "--nproc-per-node", "2", steps=10**6)),
                            ("direct", ["train", self.run_file(10**6), "--run-dir", self.path("direct"), "--nproc", "2"])):
            with open(self.path(name + ".log"), "w") as log:
                process = subprocess.Popen([ESPALIER, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=as_daemon)
            self.addCleanup(process.kill)
            self.assertTrue(wait_until(lambda: self.logged_steps(name) >= 3 or process.poll() is not None))
            process.terminate()
            with open(self.path(name + ".log")) as log:
                self.assertEqual(process.wait(60), 75, log.read())

    def test_many_signals_in_sequence_exit_with_75(self):
        storm = [signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2] * 3
        for name, words in (("launched", self.launch("launched", "--nproc-per-node", "2", steps=10**6)),
                            ("direct", ["train", self.run_file(10**6), "--run-dir", self.path("direct"), "--nproc", "2"]),
                            ("alone", ["train", self.run_file(10**6), "--run-dir", self.path("alone")])):
            with open(self.path(name + ".log"), "w") as log:
                process = subprocess.Popen([ESPALIER, *words], stdout=subprocess.DEVNULL, stderr=log)
            self.addCleanup(process.kill)
            self.assertTrue(wait_until(lambda: self.logged_steps(name) >= 3 or process.poll() is not None))
            for number in storm:
                process.send_signal(number)
            while process.poll() is None:  # keeps sending signals during shutdown
                process.send_signal(signal.SIGTERM)
                time.sleep(0.001)
            with open(self.path(name + ".log")) as log:
                self.assertEqual(process.returncode, 75, log.read())
            self.assertTrue(os.listdir(self.path(name + "/checkpoints")))

    def test_second_sigint_ends_launcher_at_once(self):
        process = start(*self.launch("launched", "--nproc-per-node", "2", steps=10**6))
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: self.logged_steps("launched") >= 3 or process.poll() is not None))
        ranks = list(ranks_of(process.pid).values())
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)  # so that no process exits by itself
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

    def test_fresh_run_resumes_after_restart(self):
        before = run(*self.launch("restarted", "--nproc-per-node", "2", steps=30))
        self.assertEqual(before.returncode, 0, before.stderr)
        process = start(*self.launch("restarted", "--nproc-per-node", "2", "--max-restarts", "2", "--no-reform", steps=200),
                        "--resume", "none")
        aside = self.path("restarted/before-1/checkpoints")  # checkpoints are moved last
        self.assertTrue(wait_until(lambda: os.path.exists(aside) and self.logged_steps("restarted") >= 12
                                   or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        errors = self.wait_for_exit(process, 0)
        self.assertIn("restarting all ranks, restart 1 of at most 2", errors)
        self.assertRegex(errors, "resumed from .*restarted/checkpoints/step-")
        self.assertEqual(errors.count("moved the previous run"), 1)
        self.assertFalse(os.path.exists(self.path("restarted/before-2")))
        self.assertIn("step-30", os.listdir(aside))

    def test_restart_from_step_0_counts_lost_steps(self):
        for name, words in (("in_place", []), ("all", ["--no-reform"])):
            process = start(*self.launch(name, "--nproc-per-node", "2", *words, steps=100), "--set", "parallel.tp=2",
                            "--set", "checkpoint.every=0", "--set", "checkpoint.snapshot_every=0")
            self.assertTrue(wait_until(lambda: self.logged_steps(name) >= 12 or process.poll() is not None))
            os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
            errors = self.wait_for_exit(process, 0)
            self.assertRegex(errors, r"restarted at step 0: no snapshot or checkpoint; [1-9]\d* steps lost")
            with open(self.path(name + "/summary.json")) as file:
                self.assertEqual(json.load(file)["restarts"], 1)
            self.assertEqual([m["step"] for m in self.metrics(name)], list(range(1, 101)))

    def test_names_snapshot_folder_that_cannot_be_created(self):
        answer = run(*self.launch("nowhere", "--nproc-per-node", "2"), "--set", "checkpoint.snapshot_dir=/proc/nowhere")
        self.assertEqual(answer.returncode, 4, answer.stderr)
        self.assertIn("checkpoint.snapshot_dir = /proc/nowhere", answer.stderr)

    def test_max_restarts_0_disables_restart(self):
        process = start(*self.launch("none", "--nproc-per-node", "2", "--max-restarts", "0", steps=100000))
        self.assertTrue(wait_until(lambda: self.logged_steps("none") >= 3 or process.poll() is not None))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        self.assertNotIn("restart", self.wait_for_exit(process, 3))

    def test_does_not_restart_after_usage_error(self):
        answer = run("launch", "--nproc-per-node", "2", "--max-restarts", "5", "--", "train", self.path("none.toml"))
        self.assertIn(answer.returncode, (2, 4))
        self.assertNotIn("restarting all ranks", answer.stderr)
        self.assertIn("none.toml", answer.stderr)

    def test_signal_writes_checkpoint_and_ends_launch(self):
        process = start(*self.launch("signalled", "--nproc-per-node", "2", steps=100000))
        self.assertTrue(wait_until(lambda: self.logged_steps("signalled") >= 3))
        process.send_signal(signal.SIGTERM)
        self.wait_for_exit(process, 75)
        self.assertTrue(os.listdir(self.path("signalled/checkpoints")))

    def test_killed_launcher_leaves_no_processes(self):
        process = start(*self.launch("orphans", "--nproc-per-node", "3", steps=100000), "--set", "train.global_batch=6")
        self.assertTrue(wait_until(lambda: self.logged_steps("orphans") >= 1 or process.poll() is not None))
        ranks = list(ranks_of(process.pid).values())
        self.assertEqual(len(ranks), 3)
        process.kill()
        process.communicate()
        self.assertTrue(wait_until(lambda: not any(running(pid) for pid in ranks)))


class UserPrograms(LaunchTestCase):
    def test_sets_torchrun_environment_for_scripts(self):
        script = self.path("print_environment.py")
        with open(script, "w") as file:
            file.write("import os, sys\n"
                       "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR'.split()\n"
                       "print(*[os.environ[n] for n in names], int(os.environ['MASTER_PORT']) > 0, *sys.argv[1:])\n")
        answer = run("launch", "--nproc_per_node=2", script, "--flag", "7")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for rank in (0, 1):
            self.assertIn(f"[rank {rank}] {rank} 2 {rank} 2 0 127.0.0.1 True --flag 7", answer.stdout)

    def test_names_missing_program(self):
        answer = run("launch", "--max-restarts", "3", "--", "no-such-program")
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("cannot run no-such-program", answer.stderr)
        self.assertNotIn("restarting all ranks", answer.stderr)


class MultipleHosts(LaunchTestCase):
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

    def test_two_hosts_train_and_recover_from_killed_rank(self):
        alone = run(*self.launch("whole", "--nproc-per-node", "4", steps=200))
        self.assertEqual(alone.returncode, 0, alone.stderr)
        processes = self.agents("two", "--max-restarts", "1", steps=200)
        self.assertTrue(wait_until(lambda: self.logged_steps("two") >= 12))
        os.kill(ranks_of(processes[1].pid)[2], signal.SIGKILL)
        for process in processes:
            self.assertIn("rank 2 killed (SIGKILL)", self.wait_for_exit(process, 0))
        self.assert_same_checkpoint(200, "whole", "two")

    def test_other_hosts_exit_with_3_when_a_host_is_lost(self):
        processes = self.agents("lost", steps=100000)
        self.assertTrue(wait_until(lambda: self.logged_steps("lost") >= 3))
        processes[1].kill()
        processes[1].communicate()
        self.assertIn("launcher of host 1", self.wait_for_exit(processes[0], 3))


class InvalidOptions(LaunchTestCase):
    def test_names_missing_or_invalid_options(self):
        for words, says in ((["--nnodes", "2", "--", "true"], "--rdzv-endpoint"),
                            (["--nnodes", "two", "--", "true"], "--nnodes: got two"),
                            (["--nproc-per-node", "0", "--", "true"], "--nproc-per-node: got 0"),
                            (["--node-rank", "1", "--", "true"], "--node-rank: got 1"),
                            ([], "got no command")):
            answer = run("launch", *words)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(says, answer.stderr)

    def test_misplaced_options_suggest_working_command(self):
        for words in (["run.toml", "--nproc-per-node", "2"], ["--", "run.toml", "--nproc-per-node", "2"],
                      ["--", "train", "run.toml", "--nproc-per-node", "2"], ["train", "run.toml", "--nproc-per-node", "2"]):
            answer = run("launch", *words, "--set", "train.lr=1")
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn("Use `espalier launch --nproc-per-node 2 -- train run.toml --set train.lr=1`", answer.stderr)

    def test_rejects_contradictory_or_invalid_options(self):
        for words, says in ((["--standalone", "--nnodes", "2"], "--standalone: got --nnodes 2 too"),
                            (["--rdzv-timeout", "0"], "--rdzv-timeout: got 0; must be > 0"),
                            (["--master-port", "99999"], "--master-port: got 99999; must be from 1 to 65535")):
            answer = run("launch", *words, "--", "true")
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(says, answer.stderr)

    def test_rejects_secret_readable_by_others(self):
        with open(self.path("open"), "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        os.chmod(self.path("open"), 0o644)
        answer = run("launch", "--secret-file", self.path("open"), "--", "true")
        self.assertEqual(answer.returncode, 4)
        self.assertIn("chmod 600", answer.stderr)


if __name__ == "__main__":
    unittest.main()
