// The libraries we are compared with: how each is started, from Debian's packages, in its default and its best
// settings.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/espalier/bench_job.h"

namespace esp::app {

struct BaselineRow {
  std::string_view name;               // as --peers takes it; several rows may share one: its variants
  std::string_view library;            // openmpi, mpich, gloo
  std::string_view variant;            // default, ucx, ring…
  std::string_view transport;          // shm or tcp
  std::string_view program;            // of bench/peers
  std::string_view launcher;           // program that starts its ranks; empty: we do
  std::vector<std::string> arguments;  // of the launcher, or after the socket and the label
  bool keep_memory;                    // glibc told to keep large blocks mapped
  bool irregular = false;              // reduce_scatter through the irregular call
};

std::span<const BaselineRow> baselines();

// "all", or names separated by commas. UsageError for one that is unknown, or was not built and was asked for by name.
std::vector<const BaselineRow*> choose_baselines(const std::vector<std::string>& names);
// Full path of a baseline's program: beside the binary in a build tree, in libexec once installed; empty: not there.
std::string peer_path(std::string_view name);
// Names of those whose programs are there.
std::vector<std::string> built_baselines();

std::unique_ptr<BenchJob> start_baseline(const BaselineRow& row, int num_ranks, Switchboard& board,
                                         const std::string& folder, Deadline deadline);

}  // namespace esp::app
