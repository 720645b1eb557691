// Sizes, medians, bandwidths and output rows of `bench comm`. All functions are pure, except
// start_espalier, which starts Espalier's ranks.
#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_comm.h"
#include "esp/base/error.h"
#include "esp/launch/world.h"

namespace esp::app {

const std::vector<std::string> kBenchOps = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
                                            "all_to_all", "gather",     "scatter",        "sendrecv"};

size_t parse_size(const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  std::string suffix = end;
  if (!suffix.empty() && (suffix.back() == 'B' || suffix.back() == 'b')) suffix.pop_back();
  if (!suffix.empty() && suffix.back() == 'i') suffix.pop_back();
  const std::string letters = "KMG";
  size_t power = suffix.size() == 1
                     ? letters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0]))))
                     : std::string::npos;
  if (end == text.c_str() || value < 0 || value > 0x1p50 || (!suffix.empty() && power == std::string::npos))
    throw UsageError(fmt::format("size: got \"{}\"; expected a number such as 1024, 64K, 16M or 1G", text));
  return static_cast<size_t>(std::ldexp(value, suffix.empty() ? 0 : 10 * static_cast<int>(power + 1)));
}

std::vector<size_t> sweep(const CommBenchOptions& bench) {
  size_t first = parse_size(bench.min_bytes), last = bench.max_bytes.empty() ? first : parse_size(bench.max_bytes);
  if (last < first)
    throw UsageError(fmt::format("-e: got {}; expected at least -b = {}", bench.max_bytes, bench.min_bytes));
  std::vector<size_t> sizes;
  if (bench.step_factor != 0 && bench.step_factor <= 1)
    throw UsageError(fmt::format("-f: got {}; expected a factor > 1", bench.step_factor));
  if (bench.step_factor > 1 && first == 0) throw UsageError("-b: got 0 with -f; expected a number > 0");
  size_t step = parse_size(bench.step_bytes);
  if (bench.step_factor == 0 && step == 0 && first != last)
    throw UsageError("-i: got 0; expected a step > 0, so that the sizes reach -e");
  for (double size = static_cast<double>(first); size <= static_cast<double>(last);) {
    sizes.push_back(static_cast<size_t>(size));
    if (sizes.size() > 10000) throw UsageError("-b, -e: got more than 10000 sizes. Use -f 2 or a larger -i");
    if (first == last) break;
    size = bench.step_factor > 1 ? size * bench.step_factor : size + static_cast<double>(step);
  }
  return sizes;
}

double bus_factor(const std::string& op, int ranks) {
  double n = ranks;
  if (op == "all_reduce") return 2 * (n - 1) / n;
  if (bench::splits(op)) return (n - 1) / n;
  return 1;
}

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  size_t index = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(index, 1, values.size()) - 1];
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

int batch_for(const CommBenchOptions& bench, size_t bytes) {
  if (bench.batch > 0) return bench.batch;
  return bytes <= (size_t{64} << 10) ? 50 : bytes <= (size_t{1} << 20) ? 10 : 2;
}

CommRow make_row(const std::string& library, const bench::Request& request, int ranks,
                 const std::vector<double>& sample_us) {
  CommRow row;
  bench::Layout layout = bench::layout_of(request, ranks);
  row.library = library, row.op = request.op, row.ranks = ranks, row.bytes = layout.count * layout.element;
  row.median_us = median(sample_us), row.p99_us = percentile(sample_us, 0.99);
  row.algbw_gbs = row.median_us > 0 ? static_cast<double>(row.bytes) / row.median_us * 1e-3 : 0;
  row.busbw_gbs = row.algbw_gbs * bus_factor(request.op, ranks);
  return row;
}

void add_report(CommRow& row, const std::vector<bench::Words>& words) {
  row.sent_per_rank = row.rounds = 0;
  for (bench::Words report : words) {
    row.algo = report["algo"], row.transport = report["transport"];
    row.sent_per_rank = std::max<int64_t>(row.sent_per_rank, std::atoll(report["sent"].c_str()));
    row.rounds = std::max<int64_t>(row.rounds, std::atoll(report["rounds"].c_str()));
  }
}

Json to_json(const CommRow& row) {
  auto known = [](int64_t value) { return value < 0 ? Json() : Json(value); };
  return {{"library", row.library},
          {"op", row.op},
          {"algo", row.algo},
          {"transport", row.transport},
          {"ranks", row.ranks},
          {"bytes", row.bytes},
          {"time_us_median", row.median_us},
          {"time_us_p99", row.p99_us},
          {"algbw_gbs", row.algbw_gbs},
          {"busbw_gbs", row.busbw_gbs},
          {"bytes_sent_per_rank", known(row.sent_per_rank)},
          {"rounds", known(row.rounds)},
          {"correct", row.correct}};
}

std::string csv_header() {
  return "library,op,algo,transport,ranks,bytes,time_us_median,time_us_p99,algbw_gbs,busbw_gbs,bytes_sent_per_rank,"
         "rounds,correct\n";
}

std::string to_csv(const CommRow& row) {
  auto known = [](int64_t value) { return value < 0 ? std::string() : std::to_string(value); };
  return fmt::format("{},{},{},{},{},{},{:.3f},{:.3f},{:.4f},{:.4f},{},{},{}\n", row.library, row.op, row.algo,
                     row.transport, row.ranks, row.bytes, row.median_us, row.p99_us, row.algbw_gbs, row.busbw_gbs,
                     known(row.sent_per_rank), known(row.rounds), row.correct ? "true" : "false");
}

EspalierJob start_espalier(const CommBenchOptions& bench, int num_ranks, RankListener& listener, Deadline deadline) {
  launch::LocalOptions options;
  options.num_ranks = num_ranks;
  options.output = launch::LocalOptions::Output::stderr_tail;
  options.command = {executable_path(), "bench-rank", "--socket",    listener.name(),
                     "--label",         "espalier",   "--transport", bench.transport};
  if (!bench.shape.empty())
    options.command.insert(options.command.end(), {"--shape", fmt::format("{}", fmt::join(bench.shape, "x"))});
  EspalierJob ours;
  ours.begun_ns = now_ns();
  launch::LocalWorld world = launch::start_local_world(options);
  ours.hub = std::move(world.hub);
  ours.ranks = std::make_unique<BenchJob>("espalier", num_ranks, std::move(world.job), listener, deadline);
  return ours;
}

}  // namespace esp::app
