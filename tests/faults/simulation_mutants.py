"""Product code with one rule broken, built into the simulation of the control plane: which of the mutants it finds. By
hand, after a build of control_simulation:
    python3 tests/faults/simulation_mutants.py [BUILD_FOLDER] [NAME…]
Each mutant is a copy of one source file with one passage replaced, linked in front of the library it comes from."""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SCHEDULES = os.environ.get("SCHEDULES", "20000")

# name, file, what stands there, what stands there instead, and whether a store's schedule is to find it
MUTANTS = [
    ("the lost may come back", "esp/net/store/hub_core.cpp",
     "bool gone = state == State::lost || state == State::left;", "bool gone = false;", False),
    ("a closed connection loses nobody", "esp/net/store/hub_core.cpp",
     'if (member.state == State::present) lose(rank, "closed its connection");', "", False),
    ("a rank joins twice", "esp/net/store/hub_roll.cpp", "if (member.state != State::absent)", "if (false)", False),
    ("a loss is told to nobody", "esp/net/store/hub_roll.cpp",
     "tell_watches(Kind::lost, encode_loss({rank, how}), rank);", "", False),
    ("who waits for the table does not hear of a loss", "esp/net/store/hub_roll.cpp", "if (complete_) return;", "return;",
     False),
    ("a leave is told as a loss too", "esp/net/store/hub_roll.cpp", "member.state = State::left;",
     "tell_watches(Kind::lost, encode_loss({rank, member.how}), rank); member.state = State::left;", False),
    ("an addition is forgotten", "esp/net/store/hub_core.cpp", "sum, addition.delta, &sum", "sum, 0 * addition.delta, &sum",
     True),
    ("an erased key is still there", "esp/net/store/hub_core.cpp", "auto found = values_.extract(key);",
     "decltype(values_)::node_type found;", True),
    ("an answer goes to whoever asked first", "esp/net/store/client_core.cpp", "slots_.find(reply.request)",
     "slots_.begin()", True),
    ("words of another round are heeded", "esp/launch/reform.cpp", "if (word.round != round_) break;", "", False),
    ("all are called before all are there", "esp/launch/reform.cpp", "num_present() == all", "num_present() + 1 >= all", False),
    ("a death while they meet is overlooked", "esp/launch/reform.cpp",
     'stuck_ = fmt::format("rank {} {} while the ranks met", failure.rank, failure.how);', "", False),
    ("a rank that hangs is left alone", "esp/launch/reform.cpp", "job_.kill(rank);", "", False),
    ("a failure for good is forgotten", "esp/launch/reform.cpp", "if (!condemned_) condemned_ = failure;", "", False),
    ("patience never ends", "esp/launch/reform.cpp", "options_.now() < *patience_", "true", False),
    ("an old call is followed", "esp/launch/control.cpp", "next.round <= round ? Meaning::old", "next.round < 0 ? Meaning::old",
     False),
    ("the job never begins again", "esp/launch/agent.cpp", "num_restarts >= max_restarts ? Then::failed",
     "num_restarts >= 0 ? Then::failed", False),
    ("it begins again after what fails the same way", "esp/launch/agent.cpp",
     "return exit_code != static_cast<int>(ExitCode::usage) &&", "return", False),
    ("the hub's death goes unnoticed", "esp/net/watch_core.cpp", "if (hub_closing_ || bye_heard_) return;", "return;", False),
    ("who leaves is not noted", "esp/net/watch_core.cpp", "return fate_->leave(rank);", "return;", False),
    ("a bye is never heard", "esp/net/watch_core.cpp", "bye_heard_ = true;", "", False),
    ("the oldest state is taken", "esp/train/heal_source.cpp", "said[at] > healed.step",
     "said[at] >= 0 && (healed.source < 0 || said[at] < healed.step)", False),
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
                sys.exit(f"{name}: {path} has its passage {text.count(there)} times")
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
            print(f"{'found' if ok else 'NOT FOUND'}: {name}: {first if ok else ''}", flush=True)
    print(f"{sum(found)} of {len(found)} mutants found within {SCHEDULES} schedules each")


if __name__ == "__main__":
    main()
