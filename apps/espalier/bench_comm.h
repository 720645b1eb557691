// Options and result rows of `bench comm`, shared by the plain table and the comparison with other libraries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/espalier/bench_job.h"
#include "esp/base/json.h"
#include "esp/net/store/hub.h"

namespace esp::app {

struct CommBenchOptions {
  std::vector<std::string> ops = {"all_reduce"};
  std::string min_bytes = "32M", max_bytes, step_bytes = "1M";
  double step_factor = 0;  // 0: a sweep adds step_bytes to the size instead of multiplying it
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

// One result, with the fields of `bench comm --json`.
struct CommRow {
  std::string library, op, algo, transport;
  int ranks = 0;
  size_t bytes = 0;
  double median_us = 0, p99_us = 0, algbw_gbs = 0, busbw_gbs = 0;
  int64_t sent_per_rank = -1, rounds = -1;  // -1: the library does not report this count
  bool correct = true;
};
Json to_json(const CommRow& row);
std::string csv_header();
std::string to_csv(const CommRow& row);
CommRow make_row(const std::string& library, const bench::Request& request, int ranks,
                 const std::vector<double>& sample_us);
// Adds what Espalier's ranks report: the algorithm, the transport, and the bytes sent by the rank that sends most.
void add_report(CommRow& row, const std::vector<bench::Words>& words);

// Sizes of the sweep, stepped like nccl-tests.
std::vector<size_t> sweep(const CommBenchOptions& bench);
// Parses "32M" like nccl-tests: K, M, G are powers of 1024.
size_t parse_size(const std::string& text);
// Bus bandwidth / algorithm bandwidth: 2(n-1)/n for all_reduce and so on.
double bus_factor(const std::string& op, int ranks);
double median(std::vector<double> values);
double percentile(std::vector<double> values, double fraction);
// Calls per sample. Short calls get many, so that a sample is long relative to the clock and the barrier; long calls
// get few.
int batch_for(const CommBenchOptions& bench, size_t bytes);

extern const std::vector<std::string> kBenchOps;

// Espalier's ranks and their hub, which outlives them.
struct EspalierJob {
  std::unique_ptr<net::Hub> hub;
  std::unique_ptr<BenchJob> ranks;
  int64_t begun_ns = 0;
};
EspalierJob start_espalier(const CommBenchOptions& bench, int num_ranks, RankListener& listener, Deadline deadline);

int run_comparison(const CommBenchOptions& bench);  // bench_peers.cpp

}  // namespace esp::app
