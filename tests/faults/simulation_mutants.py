"""Mutation test of the control-plane simulation: builds product code with one passage changed (a mutant), and reports which
mutants the simulation detects. To run it after a build of control_simulation:
    python3 tests/faults/simulation_mutants.py [BUILD_FOLDER] [NAME…]
Each mutant is a copy of one source file with one passage replaced. It is linked before its library."""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCHEDULES = os.environ.get("SCHEDULES", "20000")

# name, file, original passage, replacement, and whether the store schedules must detect it
MUTANTS = [
    ("a lost rank may join again", "esp/net/store/hub_core.cpp",
     "bool gone = state == State::lost || state == State::left;", "bool gone = false;", False),
    ("a closed connection is not a rank failure", "esp/net/store/hub_core.cpp",
     'if (member.state == State::present) lose(rank, "closed its connection");', "", False),
    ("a rank may join twice", "esp/net/store/hub_membership.cpp", "if (member.state != State::absent)", "if (false)", False),
    ("a rank failure is not broadcast", "esp/net/store/hub_membership.cpp",
     "broadcast(FrameKind::lost, encode_rank_failure({rank, how}), rank);", "", False),
    ("ranks that wait for the table receive no failure report", "esp/net/store/hub_membership.cpp", "if (complete_) return;", "return;",
     False),
    ("a leave is also reported as a rank failure", "esp/net/store/hub_membership.cpp", "member.state = State::left;",
     "broadcast(FrameKind::lost, encode_rank_failure({rank, member.how}), rank); member.state = State::left;", False),
    ("an add request has no effect", "esp/net/store/hub_core.cpp", "sum, add_request.delta, &sum", "sum, 0 * add_request.delta, &sum",
     True),
    ("an erase request has no effect", "esp/net/store/hub_core.cpp", "auto found = values_.extract(key);",
     "decltype(values_)::node_type found;", True),
    ("a reply goes to the oldest request", "esp/net/store/store_client_core.cpp", "slots_.find(reply.request)",
     "slots_.begin()", True),
    ("messages of another round are processed", "esp/launch/in_place_restart.cpp",
     "case RankMessage::Kind::waiting:\n      if (message.round != round_) break;", "case RankMessage::Kind::waiting:", False),
    ("the next round starts before all ranks are present", "esp/launch/in_place_restart.cpp", "num_present() == all", "num_present() + 1 >= all", False),
    ("a rank failure during the reconnect is ignored", "esp/launch/in_place_restart.cpp",
     'give_up_reason_ = fmt::format("rank {} {} while the ranks reconnected", failure.rank, failure.reason);', "", False),
    ("a hanging rank is not killed", "esp/launch/in_place_restart.cpp", "processes_.kill(rank);", "", False),
    ("a fatal failure is ignored", "esp/launch/in_place_restart.cpp", "if (!fatal_failure_) fatal_failure_ = failure;", "", False),
    ("the restart deadline never passes", "esp/launch/in_place_restart.cpp", "options_.now() < *deadline_", "true", False),
    ("an outdated NextRound message is followed", "esp/launch/control.cpp", "next.round <= round ? NextRoundAction::ignore", "next.round < 0 ? NextRoundAction::ignore",
     False),
    ("the job never restarts", "esp/launch/agent.cpp", "num_restarts >= max_restarts ? NextAction::fail",
     "num_restarts >= 0 ? NextAction::fail", False),
    ("the job restarts after a usage error", "esp/launch/agent.cpp",
     "return exit_code != static_cast<int>(ExitCode::usage) &&", "return", False),
    ("the loss of the hub is not detected", "esp/net/failure_detector_core.cpp", "if (hub_closing_ || bye_acknowledged_) return;", "return;", False),
    ("a leave is not recorded", "esp/net/failure_detector_core.cpp", "return peer_status_->mark_left(rank);", "return;", False),
    ("a bye acknowledgement is ignored", "esp/net/failure_detector_core.cpp", "bye_acknowledged_ = true;", "", False),
    ("the oldest replica is selected", "esp/train/replica_source.cpp", "statuses[at] > newest.step",
     "statuses[at] >= 0 && (newest.rank < 0 || statuses[at] < newest.step)", False),
]


def link_command(build):
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "control_simulation"], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.strip().split("\n")
    return re.sub(r"^: && | && :$", "", lines[-1])


def main():
    words = sys.argv[1:]
    build = os.path.abspath(words.pop(0)) if words and os.path.isdir(words[0]) else os.path.join(ROOT, "build")
    link = link_command(build)
    found = []
    chosen = [m for m in MUTANTS if not words or any(w in m[0] for w in words)]
    with tempfile.TemporaryDirectory(prefix="espalier-mutants-") as folder:
        for name, path, there, instead, store in chosen:
            with open(os.path.join(ROOT, path)) as file:
                text = file.read()
            if text.count(there) != 1:
                sys.exit(f"{name}: {path} contains the passage {text.count(there)} times; expected once")
            source, made, program = (os.path.join(folder, f"mutant.{end}") for end in ("cpp", "o", "bin"))
            with open(source, "w") as file:
                file.write(text.replace(there, instead))
            subprocess.run(["g++", "-std=c++20", "-O1", "-w", "-fPIE", "-I", ROOT, "-c", source, "-o", made], check=True)
            subprocess.run(re.sub(r"-o (\S*control_simulation)", lambda at: f"-o {program} {made}", link), shell=True, check=True,
                           cwd=build)
            answer = subprocess.run([program, "--schedules", SCHEDULES, *(["--store"] if store else [])],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
            ok = answer.returncode != 0
            found.append(ok)
            first = (answer.stdout or answer.stderr).strip().split("\n")[0]
            print(f"{'detected' if ok else 'NOT DETECTED'}: {name}: {first if ok else ''}", flush=True)
    print(f"{sum(found)} of {len(found)} mutants detected within {SCHEDULES} schedules each")


if __name__ == "__main__":
    main()
