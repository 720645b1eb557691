// espalier plan calibrate: measures this machine and writes its cluster file. This process times kernels. Child
// processes that run `espalier bench` measure collectives and the overhead of a step.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/calibrate_kernels.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/plan.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/comm/tiers.h"
#include "esp/launch/spawn.h"
#include "esp/model/model.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"
#include "esp/plan/calibrated_rates.h"
#include "esp/plan/catalog.h"
#include "esp/plan/espalier_time.h"

namespace esp::app {
namespace {

struct CalibrateOptions {
  std::string out, name = "this-machine";
  double seconds = 50;  // seconds for kernel measurements
};

constexpr int kMostRanks = 4;
constexpr int kStepTokens = 64;  // tokens per step of a small model whose step is mostly overhead

// Runs an espalier subcommand and parses the JSON it writes.
Json run_self_json(std::vector<std::string> arguments, const std::string& json, Duration limit) {
  launch::SpawnOptions options;
  options.command = {executable_path()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.command.insert(options.command.end(), {"--json", json});
  options.environment = launch::process_environment();
  options.capture_stdout = options.capture_stderr = false;
  const launch::Child child = launch::spawn(options);
  const bool late = !launch::wait_for_end(child, Deadline::after(limit));
  int status = 0;
  if (late) ::kill(-child.pid, SIGKILL);
  ::waitpid(child.pid, &status, 0);
  if (late || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw IoError(fmt::format("`espalier {} {}` {} before it wrote a result", arguments[0], arguments[1],
                              late ? "exceeded its time limit" : "failed"));
  return parse_json(obs::read_whole_file(json, size_t{16} << 20), json);
}

// Measures α and bytes/s of each collective, for several numbers of ranks up to the number of cores.
void measure_collectives(plan::Cluster& cluster, const std::string& folder) {
  for (const int ranks : {2, kMostRanks}) {
    const Json rows = run_self_json({"bench",
                                     "comm",
                                     "all_reduce",
                                     "all_gather",
                                     "reduce_scatter",
                                     "all_to_all",
                                     "sendrecv",
                                     "--nproc",
                                     std::to_string(ranks),
                                     "-b",
                                     "1K",
                                     "-e",
                                     "4M",
                                     "-f",
                                     "16",
                                     "-n",
                                     "15",
                                     "-w",
                                     "3",
                                     "-c",
                                     "0"},
                                    folder + "/comm.json", std::chrono::seconds(60));
    std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> points;
    for (const Json& row : rows) {
      auto& [bytes, seconds] = points[row.at("op").get<std::string>()];
      bytes.push_back(row.at("bytes").get<double>());
      seconds.push_back(row.at("time_us_median").get<double>() * 1e-6);
    }
    for (const auto& [op, of] : points) {
      const comm::AlphaBeta link = comm::fit_alpha_beta(of.first, of.second);
      cluster.measured[plan::CalibratedRates::collective_key(op, ranks, "alpha_s")] = link.alpha;
      cluster.measured[plan::CalibratedRates::collective_key(op, ranks, "bytes_per_s")] =
          1 / std::max(link.beta, 1e-15);
    }
  }
  cluster.inside.name = "shared memory";
  cluster.inside.latency = cluster.measured.at("sendrecv.2.alpha_s");
  cluster.inside.bandwidth = cluster.measured.at("sendrecv.2.bytes_per_s");
  cluster.inside.efficiency = 1;
  cluster.across = cluster.inside;
  cluster.host = cluster.inside;
}

// Measures the overhead of a step: the step time of a small model minus the times of its kernels.
void measure_overhead(plan::Cluster& cluster, const std::string& folder) {
  constexpr const char* kModel = "gpt-tiny";
  const Json rows =
      run_self_json({"bench", "train", "--model", kModel, "--batch", "1", "--seq", std::to_string(kStepTokens),
                     "--nproc", "1", "--layout", "dp=1", "--steps", "50", "--rounds", "3", "--warmup", "20"},
                    folder + "/train.json", std::chrono::seconds(60));
  const double measured = rows.at(1).at("step_ms_median").get<double>() * 1e-3;
  plan::ModelShape shape = plan::shape_of(model::preset(kModel).config, kModel);
  shape.seq = kStepTokens;
  plan::Policy policy;
  policy.precision = "fp32";
  policy.software = "espalier";
  cluster.measured["step_s"] = 0;
  const double kernels = plan::simulate_step(plan::espalier_step_input(shape, cluster, policy)).step_s;
  cluster.measured["step_s"] = std::max(0.0, measured - kernels);
}

// The value of the rate `key` for which the prediction equals the measurement. Predictions are linear in this rate.
double solved(plan::Cluster& cluster, const std::string& key, double low, double high, double measured,
              const std::function<double()>& predicted) {
  cluster.measured[key] = high;
  const double at_high = predicted();
  cluster.measured[key] = low;
  const double at_low = predicted();
  if (at_high <= at_low) return low;
  return std::clamp(low + (high - low) * (measured - at_low) / (at_high - at_low), low, high);
}

// Measures contention: steps of several ranks take longer because they share caches, memory and cores. Data-parallel
// runs show how much kernels slow down, tensor-parallel runs how much collective calls do.
void measure_contention(plan::Cluster& cluster, const std::string& folder) {
  constexpr const char* kModel = "gpt-6x384";
  constexpr int kBatch = 4, kTokens = 128;
  plan::ModelShape shape = plan::shape_of(model::preset(kModel).config, kModel);
  shape.seq = kTokens;
  for (const int ranks : {2, kMostRanks}) {
    const std::string divided = ranks == 2 ? "tp=2" : "tp=2,dp=2";
    const Json rows = run_self_json({"bench",    "train",
                                     "--model",  kModel,
                                     "--batch",  std::to_string(kBatch),
                                     "--seq",    std::to_string(kTokens),
                                     "--nproc",  std::to_string(ranks),
                                     "--layout", fmt::format("dp={}", ranks),
                                     "--layout", divided,
                                     "--steps",  "4",
                                     "--rounds", "4",
                                     "--warmup", "2"},
                                    folder + "/contention.json", std::chrono::seconds(90));
    plan::Policy policy;
    policy.precision = "fp32";
    policy.software = "espalier";
    policy.global_batch = kBatch;
    const auto predicted = [&] {
      return plan::simulate_step(plan::espalier_step_input(shape, cluster, policy)).step_s;
    };
    const auto measured = [&](size_t row) { return rows.at(row).at("step_ms_median").get<double>() * 1e-3; };
    policy.dp = ranks;
    policy.micro_batch = kBatch / policy.dp;
    const std::string contention = plan::CalibratedRates::contention_key(ranks),
                      wakeup = plan::CalibratedRates::wakeup_key(ranks);
    cluster.measured[wakeup] = 0;
    cluster.measured[contention] = solved(cluster, contention, 1, 2, measured(1), predicted);
    policy.tp = 2;
    policy.dp = ranks / 2;
    policy.micro_batch = kBatch / policy.dp;
    cluster.measured[wakeup] = solved(cluster, wakeup, 0, 0.01, measured(2), predicted);
  }
}

int run_calibrate(const CalibrateOptions& o) {
  if (o.out.empty()) throw UsageError("--out: not given; expected the cluster file to write, or - for stdout");
  if (!(o.seconds >= 1 && o.seconds <= 600))
    throw UsageError(fmt::format("--seconds: got {}; expected 1 to 600", o.seconds));
  const int64_t begun = now_ns();
  const auto say = [&](const char* what) {
    fmt::print(stderr, "{:5.1f} s  {}\n", static_cast<double>(now_ns() - begun) * 1e-9, what);
  };
  const obs::TemporaryFolder folder;
  plan::Cluster cluster;
  cluster.name = o.name;
  const int cores = usable_cores();
  plan::Processor& p = cluster.processor;
  p.name = o.name + "-cpu";
  p.kind = "cpu";
  say("measuring arithmetic and memory");
  p.fp32_flops = p.bf16_flops = p.fp16_flops = measure_peak(cores);  // arithmetic in 16-bit types is done in fp32
  p.multiprocessors = cores;
  p.memory_bandwidth = measure_memcpy(cores);
  p.memory_bytes = cluster.host_memory_bytes = static_cast<double>(available_memory());
  for (const char* field : {"fp32_tflops", "memory_bandwidth_gbs", "memory_gib"})
    p.sources[field] = "espalier plan calibrate";
  p.efficiency.memory = 1;
  cluster.num_nodes = 1;
  cluster.per_node = cluster.domain = std::max(cores, kMostRanks);
  cluster.measured["cores"] = cores;
  say("measuring kernels in fp32");
  measure_kernels(cluster.measured, "fp32", cores, o.seconds / 2);
  say("measuring kernels in bf16");
  measure_kernels(cluster.measured, "bf16", cores, o.seconds / 2);
  double best = 0;
  for (const auto& [key, value] : cluster.measured)
    if (key.starts_with("whole.fp32.forward.")) best = std::max(best, value);
  p.efficiency.gemm_peak = std::min(1.0, best / p.fp32_flops);
  say("measuring the disk");
  cluster.disk_bandwidth = measure_disk(folder.path());
  say("measuring collectives");
  measure_collectives(cluster, folder.path());
  say("measuring the overhead of a step");
  measure_overhead(cluster, folder.path());
  say("measuring contention between ranks");
  measure_contention(cluster, folder.path());
  say("writing the cluster file");
  write_file(o.out, plan::cluster_file(cluster));
  fmt::print("{} cores, {:.0f} GFLOP/s, GEMMs {:.0f} % of it; memory {:.1f} GB/s; disk {:.2f} GB/s\n", cores,
             p.fp32_flops * 1e-9, 100 * p.efficiency.gemm_peak, p.memory_bandwidth * 1e-9,
             cluster.disk_bandwidth * 1e-9);
  for (const int ranks : {2, kMostRanks})
    fmt::print("all_reduce of {} ranks: {:.1f} us + {:.2f} GB/s\n", ranks,
               1e6 * cluster.measured.at(plan::CalibratedRates::collective_key("all_reduce", ranks, "alpha_s")),
               1e-9 * cluster.measured.at(plan::CalibratedRates::collective_key("all_reduce", ranks, "bytes_per_s")));
  fmt::print("overhead of a step outside kernels: {:.0f} us\n", 1e6 * cluster.measured.at("step_s"));
  for (const int ranks : {2, kMostRanks})
    fmt::print("steps of {} ranks: kernels take {:.2f} times as long as alone, a collective waits {:.0f} us longer\n",
               ranks, cluster.measured.at(plan::CalibratedRates::contention_key(ranks)),
               1e6 * cluster.measured.at(plan::CalibratedRates::wakeup_key(ranks)));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_plan_calibrate(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<CalibrateOptions>(app, chosen, run_calibrate);
  app.add_option("--out", o->out, "the cluster file to write; - is stdout").type_name("CLUSTER.toml");
  app.add_option("--name", o->name, "name of the cluster [this-machine]").type_name("NAME");
  app.add_option("--seconds", o->seconds, "seconds spent on kernels [50]").type_name("S");
}

}  // namespace esp::app
