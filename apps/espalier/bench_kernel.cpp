#include "apps/espalier/bench_kernel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_blas.h"
#include "apps/espalier/command.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/peak_cache.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/base/table.h"

namespace esp::app {
namespace {

constexpr std::string_view kTimingNote =
    "Each row is the median of repeated calls on warm buffers. `of max` relates GFLOP/s to the peak of multiply-adds\n"
    "in registers, and GB/s (bytes read and written) to memcpy of 256 MiB. Both limits are measured first, with the\n"
    "same number of threads. Data that stays in cache can exceed 100 %.";

double seconds_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Rate of memcpy on all threads: bytes read plus bytes written, per second.
double memcpy_rate(const device::Stream& stream) {
  const int64_t bytes = int64_t{256} << 20;
  std::vector<std::byte> from(static_cast<size_t>(bytes), std::byte{1}), to(from.size());
  double best = 1e9;
  for (int round = 0; round < 5; ++round)
    best = std::min(best, seconds_of([&] {
                      device::parallel_for(stream, bytes, 4096, [&](int64_t begin, int64_t end) {
                        std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
                      });
                    }));
  return 2 * static_cast<double>(bytes) / best;
}

struct KernelBenchOptions {
  std::vector<std::string> kernels;
  int threads = 0;
  std::string dtype = "f32", against, json;
  double seconds = 0.3;
};

int run_bench_kernel(const KernelBenchOptions& bench) {
  std::vector<KernelCase> chosen;
  for (const std::string& name : bench.kernels) chosen.push_back(find_row("kernel", kernel_cases(), name));
  if (chosen.empty()) chosen.assign(kernel_cases().begin(), kernel_cases().end());
  const DType dtype = parse_dtype(bench.dtype);
  if (!is_floating(dtype))
    throw UsageError(fmt::format("--dtype: got {}; expected f32, f64, bf16 or f16", bench.dtype));
  if (bench.threads < 0 || bench.threads > 1024)
    throw UsageError(fmt::format("--threads: got {}; expected 1 to 1024", bench.threads));
  if (!(bench.seconds > 0 && bench.seconds <= 60))
    throw UsageError(fmt::format("--seconds: got {}; expected a number in (0, 60]", bench.seconds));

  if (!bench.against.empty() && dtype != DType::f32)
    throw UsageError(fmt::format("--dtype: got {} with --against; expected f32. Leave --dtype out", bench.dtype));
  const auto baseline = bench.against.empty() ? nullptr : std::make_unique<Blas>(bench.against);

  device::ThreadPool pool(bench.threads ? bench.threads : usable_cores());
  device::Stream stream;
  stream.pool = &pool;
  const double peak = machine_peak().cpu_peak(dtype, pool.num_threads()), copy = memcpy_rate(stream);
  fmt::print("# {} threads, {}: multiply-adds {:.1f} GFLOP/s, memcpy {:.1f} GB/s (read and written)\n",
             pool.num_threads(), name_of(dtype), peak * 1e-9, copy * 1e-9);
  fmt::print("{:<14} {:<58} {:>11} {:>9} {:<8} {:>5}{}\n", "kernel", "shape", "median us", "rate", "", "of max",
             baseline ? " vs baseline" : "");
  Json rows = Json::array();
  KernelTimer timer(stream, dtype, bench.seconds, baseline.get(), [&](const KernelRow& row) {
    const double rate = row.work / row.median_us * 1e-3, limit = (row.in_flops ? peak : copy) * 1e-9;
    const char* unit = row.in_flops ? "GFLOP/s" : "GB/s";
    fmt::print("{:<14} {:<58} {:>11.1f} {:>9.1f} {:<8} {:>5.1f}%{}\n", row.kernel, row.shape, row.median_us, rate, unit,
               100 * rate / limit,
               row.baseline_us > 0 ? fmt::format("  {:>9.3f}x", row.baseline_us / row.median_us) : "");
    std::fflush(stdout);
    rows.push_back({{"kernel", row.kernel},
                    {"shape", row.shape},
                    {"dtype", name_of(dtype)},
                    {"threads", pool.num_threads()},
                    {"time_us_median", row.median_us},
                    {"time_us_best", row.best_us},
                    {"rate", rate},
                    {"unit", unit},
                    {"limit", limit},
                    {"fraction", rate / limit}});
    if (row.baseline_us > 0) rows.back()["baseline_us_median"] = row.baseline_us;
  });
  for (const KernelCase& item : chosen) item.run(timer);
  if (!bench.json.empty()) write_file(bench.json, rows.dump(1) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void KernelTimer::flops(std::string_view kernel, std::string shape, double count, const std::function<void()>& call,
                        const std::function<void()>& baseline_call) {
  time({std::string(kernel), std::move(shape), 0, 0, count, true}, call, baseline_call);
}

void KernelTimer::bytes(std::string_view kernel, std::string shape, double count, const std::function<void()>& call) {
  time({std::string(kernel), std::move(shape), 0, 0, count, false}, call, {});
}

void KernelTimer::time(KernelRow row, const std::function<void()>& call, const std::function<void()>& baseline_call) {
  const double once = std::max(1e-7, std::min(seconds_of(call), seconds_of(call)));
  // Calls per sample: a sample lasts at least 100 µs, much longer than the resolution of the clock.
  const int per_sample = std::max(1, static_cast<int>(100e-6 / once));
  const int num_samples = std::clamp(static_cast<int>(seconds_ / once / per_sample), 3, 1000);
  auto sample_us = [&](const std::function<void()>& of) {
    return seconds_of([&] {
             for (int i = 0; i < per_sample; ++i) of();
           }) /
           per_sample * 1e6;
  };
  auto median = [](std::vector<double>& samples) {
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  };
  std::vector<double> ours, theirs;
  if (baseline_call) baseline_call();
  for (int sample = 0; sample < num_samples; ++sample) {
    ours.push_back(sample_us(call));
    if (baseline_call) theirs.push_back(sample_us(baseline_call));
  }
  row.median_us = median(ours);
  row.best_us = ours.front();
  if (baseline_call) row.baseline_us = median(theirs);
  report_(row);
}

void define_bench_kernel(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<KernelBenchOptions>(app, chosen, run_bench_kernel);
  std::string names;
  for (const KernelCase& item : kernel_cases()) names += (names.empty() ? "" : "|") + std::string(item.name);
  app.add_option("kernel", o->kernels, "kernels to measure [all]").type_name(names);
  app.add_option("--threads", o->threads, "compute threads [the usable cores]").type_name("N");
  app.add_option("--dtype", o->dtype, "element type [f32]").type_name("f32|f64|bf16|f16");
  app.add_option("--seconds", o->seconds, "time per row [0.3]").type_name("S");
  app.add_option("--against", o->against, "also time the sgemm of this BLAS or oneDNN library, in turn with Espalier's")
      .type_name("LIB.so");
  app.add_option("--json", o->json, "write the rows as JSON").type_name("FILE");
  app.footer(std::string(kTimingNote));
}

}  // namespace esp::app
