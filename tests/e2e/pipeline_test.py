"""End-to-end tests of pipeline parallelism: the trace of four processes matches the schedule, every schedule is
bit-identical, and schedules can be read from a file."""
import json
import re
import unittest

from ranks_test import RankTestCase

SETTINGS = ("model.layers=4", "model.tie_embeddings=false", "train.micro_batch=1", "run.deterministic=true")


def one_f_one_b(stages, stage, micro_batches):
    warm_up = min(stages - stage - 1, micro_batches)
    names = [f"F{i}" for i in range(warm_up)]
    for i in range(micro_batches - warm_up):
        names += [f"F{warm_up + i}", f"B{i}"]
    return names + [f"B{i}" for i in range(micro_batches - warm_up, micro_batches)]


class PipelineSchedules(RankTestCase):
    def actions(self, name):
        """For each rank: (action, begin, end) of every step, in order."""
        with open(self.path(f"{name}/trace.json")) as file:
            events = json.load(file)["traceEvents"]
        by_rank = {}
        for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
            if re.fullmatch(r"[FBW]\d+(\.\d+)?", event["name"]):
                by_rank.setdefault(event["pid"], []).append((event["name"], event["ts"], event["ts"] + event["dur"]))
        return by_rank

    def test_trace_of_four_stages_matches_schedule(self):
        steps, stages, micro_batches = 2, 4, 8
        self.train_ranks(stages, "run", "parallel.pp=4", "log.trace=true", *SETTINGS, steps=steps)
        by_rank = self.actions("run")
        self.assertEqual(sorted(by_rank), list(range(stages)))
        each = 2 * micro_batches
        for stage, spans in by_rank.items():
            for step in range(steps):
                names = [name for name, _, _ in spans[step * each:(step + 1) * each]]
                self.assertEqual(names, one_f_one_b(stages, stage, micro_batches), (stage, step))
        # A stage starts an action only after the neighbouring stage has finished its input. Processes of one host share a clock.
        for step in range(steps):
            times = [{name: (begin, end) for name, begin, end in by_rank[stage][step * each:(step + 1) * each]}
                     for stage in range(stages)]
            for stage in range(stages - 1):
                for i in range(micro_batches):
                    self.assertGreater(times[stage + 1][f"F{i}"][0], times[stage][f"F{i}"][1])
                    self.assertGreater(times[stage][f"B{i}"][0], times[stage + 1][f"B{i}"][1])

    def test_every_schedule_is_bit_identical_to_one_process(self):
        self.train_ranks(1, "one", *SETTINGS, steps=4)
        for schedule in ("none", "gpipe", "1f1b", "zb-h1", "interleaved"):
            chunks = 2 if schedule == "interleaved" else 1
            self.train_ranks(2, schedule, "parallel.pp=2", f"parallel.schedule={schedule}",
                             f"parallel.interleave={chunks}", *SETTINGS, steps=4)
            self.assertEqual([loss for loss, _ in self.losses(schedule)], [loss for loss, _ in self.losses("one")], schedule)

    def test_reads_schedule_file(self):
        def write(name, text):
            with open(self.path(name), "w") as file:
                file.write("espalier pipeline 1\nstages 2\nmicro_batches 4\n" + text)
            return f"parallel.schedule={self.path(name)}"

        settings = SETTINGS + ("parallel.pp=2", "train.micro_batch=2")
        own = write("own.pipeline", "stage 0: F0 F1 F2 B0 F3 B1 B2 B3\nstage 1: F0 F1 B0 B1 F2 B2 F3 B3\n")
        self.train_ranks(2, "table", *settings, steps=3)
        self.train_ranks(2, "own", "log.trace=true", own, *settings, steps=3)
        self.assertEqual(self.losses("own"), self.losses("table"))
        names = [name for name, _, _ in self.actions("own")[1][:8]]
        self.assertEqual(names, "F0 F1 B0 B1 F2 B2 F3 B3".split())

        answer = self.train_ranks(2, "shape", own, *(settings + ("train.micro_batch=1",)), code=2)
        self.assertIn("got a schedule for 2 stages, 1 chunks per stage, 4 micro-batches", answer.stderr)
        waiting = write("waiting.pipeline", "stage 0: F0 B0 F1 B1 F2 B2 F3 B3\nstage 1: F0 F1 B0 B1 F2 B2 F3 B3\n")
        answer = self.train_ranks(2, "waiting", waiting, *settings, code=2)
        self.assertIn("stage 0, action 1 (B0) waits forever for B0 of stage 1", answer.stderr)
        answer = self.train_ranks(2, "absent", "parallel.schedule=absent.pipeline", *settings, code=4)
        self.assertIn("absent.pipeline", answer.stderr)


if __name__ == "__main__":
    unittest.main()
