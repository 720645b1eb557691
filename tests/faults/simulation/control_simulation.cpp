// Simulated jobs under faults, by the thousand: control_simulation [--schedules N] [--seed S] [--break RULE] [--store].
// Schedule i of a run has the seed S+i, and `--seed X --schedules 1 --told` plays one again. Prints a figure; exits 1
// when a rule was broken, with the seed.
#include <charconv>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "tests/faults/simulation/schedules.h"

namespace esp::sim {
namespace {

struct Asked {
  uint64_t seed = 1;
  int64_t schedules = 1000;
  bool told = false, store = false, stale_reads = false;
  Broken broken;
};

[[noreturn]] void usage() {
  fmt::print(stderr,
             "control_simulation [--schedules N] [--seed S] [--told] [--store]\n"
             "                   [--break slow_to_bury|oldest_replica|forget_to_kill|stale_reads]\n");
  std::exit(2);
}

template <typename T>
T number_of(const char* text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != 0) usage();
  return value;
}

void leave_out(Asked& asked, std::string_view rule) {
  if (rule == "slow_to_bury") {
    asked.broken.slow_to_bury = true;
  } else if (rule == "oldest_replica") {
    asked.broken.oldest_replica = true;
  } else if (rule == "forget_to_kill") {
    asked.broken.forget_to_kill = true;
  } else if (rule == "stale_reads") {
    asked.store = asked.stale_reads = true;
  } else {
    usage();
  }
}

Asked asked_for(int argc, char** argv) {
  Asked asked;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : (usage(), nullptr); };
    if (word == "--seed") {
      asked.seed = number_of<uint64_t>(value());
    } else if (word == "--schedules") {
      asked.schedules = number_of<int64_t>(value());
    } else if (word == "--break") {
      leave_out(asked, value());
    } else if (word == "--told") {
      asked.told = true;
    } else if (word == "--store") {
      asked.store = true;
    } else {
      usage();
    }
  }
  return asked;
}

int run(const Asked& asked) {
  std::map<std::string, int64_t> faults;
  int64_t finished = 0, reforms = 0, restarts = 0, virtual_ms = 0, events = 0;
  for (int64_t i = 0; i < asked.schedules; ++i) {
    const uint64_t seed = asked.seed + static_cast<uint64_t>(i);
    const Outcome outcome =
        asked.store ? run_store(seed, asked.stale_reads, asked.told) : run_job(seed, asked.broken, asked.told);
    for (const auto& [kind, count] : outcome.faults) faults[kind] += count;
    finished += outcome.finished;
    reforms += outcome.num_reforms;
    restarts += outcome.num_restarts;
    virtual_ms += outcome.virtual_ms;
    events += outcome.num_events;
    if (!outcome.broken) continue;
    fmt::print("seed {}: {}\n{} schedules before it kept every rule\n", seed, *outcome.broken, i);
    return 1;
  }
  std::string told;
  for (const auto& [kind, count] : faults) told += fmt::format("{}{} {}", told.empty() ? "" : ", ", count, kind);
  fmt::print("{} schedules of {} (seeds {} to {}): 0 rules broken\n", asked.schedules,
             asked.store ? "a store" : "a job", asked.seed, asked.seed + static_cast<uint64_t>(asked.schedules) - 1);
  fmt::print("  faults: {}\n", told.empty() ? "none" : told);
  if (!asked.store)
    fmt::print("  {} made all their steps; rounds begun again {}, of which {} in place\n", finished, restarts, reforms);
  fmt::print("  {} events in {:.0f} h of virtual time\n", events, static_cast<double>(virtual_ms) / 3.6e6);
  return 0;
}

}  // namespace
}  // namespace esp::sim

int main(int argc, char** argv) {
  return esp::sim::run(esp::sim::asked_for(argc, argv));
}
