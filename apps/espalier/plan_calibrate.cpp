// espalier plan calibrate: measures this machine and writes the cluster file that the planner reads. Kernels are timed
// here; collectives and the step's own overhead by this program's benchmarks, in processes of their own.
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
#include "esp/plan/catalog.h"
#include "esp/plan/own_rates.h"
#include "esp/plan/own_time.h"

namespace esp::app {
namespace {

struct Calibrate {
  std::string out, name = "this-machine";
  double seconds = 50;  // of kernels
};

constexpr int kMostRanks = 4;
constexpr int kStepTokens = 64;  // of the small model whose step is mostly overhead

// One of our own subcommands, its JSON read back.
Json ask_ourselves(std::vector<std::string> arguments, const std::string& json, Duration limit) {
  launch::SpawnOptions options;
  options.command = {own_path()};
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
    throw IoError(fmt::format("espalier {} {} did not answer", arguments[0], arguments[1]));
  return parse_json(obs::read_whole_file(json, size_t{16} << 20), json);
}

// α and bytes/s of each collective, on as many ranks as cores are shared by.
void measure_collectives(plan::Cluster& cluster, const std::string& folder) {
  for (const int ranks : {2, kMostRanks}) {
    const Json rows = ask_ourselves({"bench",
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
      cluster.measured[plan::OwnRates::collective_key(op, ranks, "alpha_s")] = link.alpha;
      cluster.measured[plan::OwnRates::collective_key(op, ranks, "bytes_per_s")] = 1 / std::max(link.beta, 1e-15);
    }
  }
  cluster.inside.name = "shared memory";
  cluster.inside.latency = cluster.measured.at("sendrecv.2.alpha_s");
  cluster.inside.bandwidth = cluster.measured.at("sendrecv.2.bytes_per_s");
  cluster.inside.efficiency = 1;
  cluster.across = cluster.inside;
  cluster.host = cluster.inside;
}

// What a small model's step takes beyond its kernels.
void measure_overhead(plan::Cluster& cluster, const std::string& folder) {
  constexpr const char* kModel = "gpt-tiny";
  const Json rows =
      ask_ourselves({"bench", "train", "--model", kModel, "--batch", "1", "--seq", std::to_string(kStepTokens),
                     "--nproc", "1", "--layout", "dp=1", "--steps", "50", "--rounds", "3", "--warmup", "20"},
                    folder + "/train.json", std::chrono::seconds(60));
  const double measured = rows.at(1).at("step_ms_median").get<double>() * 1e-3;
  plan::ModelShape shape = plan::shape_of(model::preset(kModel).config, kModel);
  shape.seq = kStepTokens;
  plan::Policy policy;
  policy.precision = "fp32";
  policy.software = "espalier";
  cluster.measured["step_s"] = 0;
  const double kernels = plan::simulate_step(plan::own_step(shape, cluster, policy)).step_s;
  cluster.measured["step_s"] = std::max(0.0, measured - kernels);
}

// The figure at which the predicted step is the measured one: predictions are a line in it.
double solved(plan::Cluster& cluster, const std::string& key, double low, double high, double measured,
              const std::function<double()>& predicted) {
  cluster.measured[key] = high;
  const double at_high = predicted();
  cluster.measured[key] = low;
  const double at_low = predicted();
  if (at_high <= at_low) return low;
  return std::clamp(low + (high - low) * (measured - at_low) / (at_high - at_low), low, high);
}

// What several ranks' steps take beyond their kernels and calls one by one: caches, memory and cores are everyone's.
// Copies of a model tell of kernels, a model divided by tensors of calls.
void measure_company(plan::Cluster& cluster, const std::string& folder) {
  constexpr const char* kModel = "gpt-6x384";
  constexpr int kBatch = 4, kTokens = 128;
  plan::ModelShape shape = plan::shape_of(model::preset(kModel).config, kModel);
  shape.seq = kTokens;
  for (const int ranks : {2, kMostRanks}) {
    const std::string divided = ranks == 2 ? "tp=2" : "tp=2,dp=2";
    const Json rows = ask_ourselves({"bench",    "train",
                                     "--model",  kModel,
                                     "--batch",  std::to_string(kBatch),
                                     "--seq",    std::to_string(kTokens),
                                     "--nproc",  std::to_string(ranks),
                                     "--layout", fmt::format("dp={}", ranks),
                                     "--layout", divided,
                                     "--steps",  "4",
                                     "--rounds", "4",
                                     "--warmup", "2"},
                                    folder + "/company.json", std::chrono::seconds(90));
    plan::Policy policy;
    policy.precision = "fp32";
    policy.software = "espalier";
    policy.global_batch = kBatch;
    const auto predicted = [&] { return plan::simulate_step(plan::own_step(shape, cluster, policy)).step_s; };
    const auto measured = [&](size_t row) { return rows.at(row).at("step_ms_median").get<double>() * 1e-3; };
    policy.dp = ranks;
    policy.micro_batch = kBatch / policy.dp;
    const std::string company = plan::OwnRates::company_key(ranks), meet = plan::OwnRates::meet_key(ranks);
    cluster.measured[meet] = 0;
    cluster.measured[company] = solved(cluster, company, 1, 2, measured(1), predicted);
    policy.tp = 2;
    policy.dp = ranks / 2;
    policy.micro_batch = kBatch / policy.dp;
    cluster.measured[meet] = solved(cluster, meet, 0, 0.01, measured(2), predicted);
  }
}

int run_calibrate(const Calibrate& o) {
  if (o.out.empty()) throw UsageError("--out: not given; expected the cluster file to write, or - for stdout");
  if (!(o.seconds >= 1 && o.seconds <= 600)) throw UsageError("--seconds: from 1 to 600");
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
  say("arithmetic and memory");
  p.fp32_flops = p.bf16_flops = p.fp16_flops = measure_peak(cores);  // 16 bits compute in 32
  p.multiprocessors = cores;
  p.memory_bandwidth = measure_memcpy(cores);
  p.memory_bytes = cluster.host_memory_bytes = static_cast<double>(available_memory());
  for (const char* field : {"fp32_tflops", "memory_bandwidth_gbs", "memory_gib"})
    p.sources[field] = "espalier plan calibrate";
  p.efficiency.memory = 1;
  cluster.num_nodes = 1;
  cluster.per_node = cluster.domain = std::max(cores, kMostRanks);
  cluster.measured["cores"] = cores;
  say("kernels in fp32");
  measure_kernels(cluster.measured, "fp32", cores, o.seconds / 2);
  say("kernels in bf16");
  measure_kernels(cluster.measured, "bf16", cores, o.seconds / 2);
  double best = 0;
  for (const auto& [key, value] : cluster.measured)
    if (key.starts_with("whole.fp32.forward.")) best = std::max(best, value);
  p.efficiency.gemm_peak = std::min(1.0, best / p.fp32_flops);
  say("disk");
  cluster.disk_bandwidth = measure_disk(folder.path());
  say("collectives");
  measure_collectives(cluster, folder.path());
  say("a step");
  measure_overhead(cluster, folder.path());
  say("steps of several ranks");
  measure_company(cluster, folder.path());
  say("written");
  write_file(o.out, plan::cluster_file(cluster));
  fmt::print("{} cores, {:.0f} GFLOP/s, products {:.0f} % of it; memory {:.1f} GB/s; disk {:.2f} GB/s\n", cores,
             p.fp32_flops * 1e-9, 100 * p.efficiency.gemm_peak, p.memory_bandwidth * 1e-9,
             cluster.disk_bandwidth * 1e-9);
  for (const int ranks : {2, kMostRanks})
    fmt::print("all_reduce of {} ranks: {:.1f} us + {:.2f} GB/s\n", ranks,
               1e6 * cluster.measured.at(plan::OwnRates::collective_key("all_reduce", ranks, "alpha_s")),
               1e-9 * cluster.measured.at(plan::OwnRates::collective_key("all_reduce", ranks, "bytes_per_s")));
  fmt::print("a step beyond its kernels: {:.0f} us\n", 1e6 * cluster.measured.at("step_s"));
  for (const int ranks : {2, kMostRanks})
    fmt::print("steps of {} ranks: kernels take {:.2f} times what they take one by one, a call waits {:.0f} us more\n",
               ranks, cluster.measured.at(plan::OwnRates::company_key(ranks)),
               1e6 * cluster.measured.at(plan::OwnRates::meet_key(ranks)));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_plan_calibrate(const Arguments& app, Chosen& chosen) {
  auto o = keep<Calibrate>(app, chosen, run_calibrate);
  app.add_option("--out", o->out, "the cluster file to write; - is stdout").type_name("CLUSTER.toml");
  app.add_option("--name", o->name, "what the cluster is called [this-machine]").type_name("NAME");
  app.add_option("--seconds", o->seconds, "spent on kernels [50]").type_name("S");
}

}  // namespace esp::app
