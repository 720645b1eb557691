// Baselines: the libraries that `bench comm --peers` compares with Espalier. They come from Debian packages and run
// with their default settings and with their fastest settings.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/espalier/bench_job.h"

namespace esp::app {

struct BaselineRow {
  std::string_view name;       // name in --peers; rows with the same name are its variants
  std::string_view library;    // openmpi, mpich, gloo
  std::string_view variant;    // default, ucx, ring…
  std::string_view transport;  // shm or tcp
  std::string_view program;    // program built from bench/peers
  std::string_view launcher;   // program that starts the ranks; empty: this process starts them
  // arguments of the launcher; without a launcher: of the program, after the socket and the label
  std::vector<std::string> arguments;
  bool keep_memory;        // sets glibc tunables so that freed large blocks stay mapped
  bool irregular = false;  // reduce_scatter calls the irregular MPI_Reduce_scatter, not the block form
};

std::span<const BaselineRow> baselines();

// Rows for "all", or for names separated by commas. UsageError: an unknown name, or a named library that was not built.
std::vector<const BaselineRow*> choose_baselines(const std::vector<std::string>& names);
// Path of a baseline's program: beside the binary in a build tree, in libexec after installation; empty: not found.
std::string baseline_path(std::string_view name);
// Names of the baselines whose programs exist.
std::vector<std::string> built_baselines();

std::unique_ptr<BenchJob> start_baseline(const BaselineRow& row, int num_ranks, RankListener& listener,
                                         const std::string& folder, Deadline deadline);

}  // namespace esp::app
