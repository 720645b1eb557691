// Options of `bench comm`, shared by the plain table and the comparison with other libraries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/espalier/bench_job.h"
#include "esp/base/json.h"
#include "esp/net/store/hub.h"

namespace esp::app {

struct CommBench {
  std::vector<std::string> ops = {"all_reduce"};
  std::string min_bytes = "32M", max_bytes, step_bytes = "1M";
  double step_factor = 0;  // 0: add step_bytes instead
  int iterations = 20, warmup = 5, batch = 0, check = 1, root = 0, threads = 1, devices = 1;
  std::vector<std::string> reduce_ops = {"sum"}, dtypes = {"float"};
  std::vector<int> nproc;
  std::string transport = "auto", algorithm = "auto";
  std::vector<int> shape;
  bool registered = false, startup = false;
  std::vector<std::string> peers;
  int rounds = 5;
  int visit_ms = 150;
  std::string json, csv, markdown;
};

// One cell of a table, as INTERFACE's `bench comm --json` names it.
struct CommRow {
  std::string library, op, algo, transport;
  int ranks = 0;
  size_t bytes = 0;
  double median_us = 0, p99_us = 0, algbw_gbs = 0, busbw_gbs = 0;
  int64_t sent_per_rank = -1, rounds = -1;  // -1: not reported by the library
  bool correct = true;
};
Json to_json(const CommRow& row);
std::string csv_header();
std::string to_csv(const CommRow& row);
CommRow make_row(const std::string& library, const bench::Request& request, int ranks,
                 const std::vector<double>& sample_us);
// Report of this program's ranks: algorithm, transport, and the maximum sent by one rank.
void add_report(CommRow& row, const std::vector<bench::Words>& words);

// Sizes of the sweep, as nccl-tests steps them.
std::vector<size_t> sweep(const CommBench& bench);
// "32M" as nccl-tests reads it: K, M, G are powers of 1024.
size_t parse_size(const std::string& text);
// bus bandwidth per rank over algorithmic bandwidth: 2(n-1)/n for all_reduce and so on.
double bus_factor(const std::string& op, int ranks);
double median(std::vector<double> values);
double percentile(std::vector<double> values, double fraction);
// Calls per sample: many where a call is short against the clock and the barrier, few where it is long.
int batch_for(const CommBench& bench, size_t bytes);

extern const std::vector<std::string> kBenchOps;

// This program's ranks. The hub outlives them.
struct OurJob {
  std::unique_ptr<net::Hub> hub;
  std::unique_ptr<BenchJob> ranks;
  int64_t begun_ns = 0;
};
OurJob start_ours(const CommBench& bench, int num_ranks, Switchboard& board, Deadline deadline);

int run_comparison(const CommBench& bench);  // bench_peers.cpp

}  // namespace esp::app
