// Runs thousands of simulated jobs under faults: control_simulation [--schedules N] [--seed S] [--break BUG] [--log]
// [--store]. Schedule i has seed S+i; `--seed X --schedules 1 --log` replays schedule X and logs its events. Prints a
// summary. If an invariant is violated, prints the seed and exits with 1.
#include <charconv>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "tests/faults/simulation/schedules.h"

namespace esp::sim {
namespace {

struct Arguments {
  uint64_t seed = 1;
  int64_t schedules = 1000;
  bool verbose = false, store = false, stale_reads = false;
  InjectedBugs bugs;
};

[[noreturn]] void usage() {
  fmt::print(stderr,
             "control_simulation [--schedules N] [--seed S] [--log] [--store]\n"
             "                   [--break late_disconnect|oldest_replica|forget_to_kill|stale_reads]\n");
  std::exit(2);
}

template <typename T>
T number_of(const char* text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != 0) usage();
  return value;
}

void inject_bug(Arguments& arguments, std::string_view bug) {
  if (bug == "late_disconnect") {
    arguments.bugs.late_disconnect = true;
  } else if (bug == "oldest_replica") {
    arguments.bugs.oldest_replica = true;
  } else if (bug == "forget_to_kill") {
    arguments.bugs.forget_to_kill = true;
  } else if (bug == "stale_reads") {
    arguments.store = arguments.stale_reads = true;
  } else {
    usage();
  }
}

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : (usage(), nullptr); };
    if (word == "--seed") {
      arguments.seed = number_of<uint64_t>(value());
    } else if (word == "--schedules") {
      arguments.schedules = number_of<int64_t>(value());
    } else if (word == "--break") {
      inject_bug(arguments, value());
    } else if (word == "--log") {
      arguments.verbose = true;
    } else if (word == "--store") {
      arguments.store = true;
    } else {
      usage();
    }
  }
  return arguments;
}

int run(const Arguments& arguments) {
  std::map<std::string, int64_t> faults;
  int64_t finished = 0, in_place = 0, restarts = 0, virtual_ms = 0, events = 0;
  for (int64_t i = 0; i < arguments.schedules; ++i) {
    const uint64_t seed = arguments.seed + static_cast<uint64_t>(i);
    const ScheduleResult outcome = arguments.store ? run_store(seed, arguments.stale_reads, arguments.verbose)
                                                   : run_job(seed, arguments.bugs, arguments.verbose);
    for (const auto& [kind, count] : outcome.faults) faults[kind] += count;
    finished += outcome.finished;
    in_place += outcome.num_in_place_restarts;
    restarts += outcome.num_restarts;
    virtual_ms += outcome.virtual_ms;
    events += outcome.num_events;
    if (!outcome.violation) continue;
    fmt::print("seed {}: {}\n{} earlier schedules violated no invariant\n", seed, *outcome.violation, i);
    return 1;
  }
  std::string fault_counts;
  for (const auto& [kind, count] : faults)
    fault_counts += fmt::format("{}{} {}", fault_counts.empty() ? "" : ", ", count, kind);
  fmt::print("{} schedules of {} (seeds {} to {}): 0 invariants violated\n", arguments.schedules,
             arguments.store ? "a store" : "a job", arguments.seed,
             arguments.seed + static_cast<uint64_t>(arguments.schedules) - 1);
  fmt::print("  faults: {}\n", fault_counts.empty() ? "none" : fault_counts);
  if (!arguments.store)
    fmt::print("  {} made all their steps; rounds restarted {}, of which {} in place\n", finished, restarts, in_place);
  fmt::print("  {} events in {:.0f} h of virtual time\n", events, static_cast<double>(virtual_ms) / 3.6e6);
  return 0;
}

}  // namespace
}  // namespace esp::sim

int main(int argc, char** argv) {
  return esp::sim::run(esp::sim::parse_arguments(argc, argv));
}
