#include "apps/espalier/auto_layout.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "apps/espalier/ourselves.h"
#include "esp/base/error.h"
#include "esp/launch/environment.h"
#include "esp/model/model.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/own_rates.h"
#include "esp/plan/report.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::app {
namespace {

namespace fs = std::filesystem;

constexpr int kQuickSeconds = 6;  // of kernels, where a run measures the machine by the way
constexpr auto kMeasureLimit = std::chrono::minutes(4);

void set_layout(train::RunConfig& config, const plan::Policy& p) {
  config.parallel.dp = p.dp;
  config.parallel.tp = p.tp;
  config.parallel.pp = p.pp;
  config.parallel.cp = p.cp;
  config.parallel.ep = p.ep;
  config.parallel.sequence = p.sequence;
  config.parallel.context = p.context;
  config.parallel.schedule = p.schedule;
  config.parallel.interleave = p.interleave;
  config.parallel.layout.clear();
  config.train.micro_batch = p.micro_batch;
}

// A layout so many ranks can train by, as far as the run file's rules go.
bool can_train(train::RunConfig run, const plan::Policy& policy) {
  set_layout(run, policy);
  try {
    run.check_world(policy.world());
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

void check_is_name(const PlanInputs& inputs) {
  if (fs::exists(inputs.model))
    throw UsageError(
        fmt::format("--out: {} is a file; a preset's name or --run RUN.toml makes a run file", inputs.model));
}

std::string cache_file() {
  const launch::Environment environment = launch::process_environment();
  const auto of = [&](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? std::string() : at->second;
  };
  if (const std::string cache = of("XDG_CACHE_HOME"); !cache.empty()) return cache + "/espalier/cluster.toml";
  const std::string home = of("HOME");
  if (home.empty())
    throw UsageError("parallel.layout = auto: no HOME to keep this machine's cluster file in; --cluster names one");
  return home + "/.cache/espalier/cluster.toml";
}

// This machine's, or what was named.
std::string cluster_file_for(const train::RunConfig& config, const std::string& given) {
  if (!given.empty()) return given;
  if (config.run.device != "cpu")
    throw UsageError(fmt::format(
        "parallel.layout = auto on run.device = {}: --cluster names the processors (espalier plan estimate --list)",
        config.run.device));
  const std::string path = cache_file();
  if (fs::exists(path)) return path;
  fmt::print(stderr,
             "parallel.layout = auto: this machine is not calibrated; measuring it for about a minute, kept in {}\n"
             "  (espalier plan calibrate --out {} measures longer)\n",
             path, path);
  fs::create_directories(fs::path(path).parent_path());
  try {
    run_ourselves({"plan", "calibrate", "--out", path, "--seconds", std::to_string(kQuickSeconds)}, kMeasureLimit);
  } catch (const IoError& error) {
    throw IoError(
        fmt::format("{}\nparallel.layout = auto wants this machine measured: try that command again, or name a cluster "
                    "with --cluster, or the axes of the layout (parallel.dp, tp, pp, cp, ep) instead of auto",
                    error.what()));
  }
  return path;
}

}  // namespace

bool asks_for_layout(const train::RunConfig& config) {
  return config.parallel.layout == "auto";
}

plan::Space space_of_run(const train::RunConfig& config, const plan::ModelShape& shape, const plan::Cluster& cluster,
                         const plan::Policy& base, const std::vector<int>& ranks) {
  plan::Space space = plan::whole_space(shape, cluster, base, ranks);
  space.zero = {base.zero};
  space.offload = {base.offload};
  space.recompute = {base.recompute};
  if (config.train.micro_batch > 0) space.micro_batch = {config.train.micro_batch};
  space.also = [config](const plan::Policy& policy) { return can_train(config, policy); };
  return space;
}

void keep_trainable(plan::Space& space, const PlanInputs& inputs) {
  check_is_name(inputs);
  const auto known = parallel::schedules();
  std::erase_if(space.schedule, [&](const plan::ScheduleChoice& one) {
    return std::none_of(known.begin(), known.end(), [&](const auto& row) { return row.name == one.name; });
  });
  std::erase(space.context, "allgather");
  space.division = {0};
  const train::RunConfig config = train::parse_run_config(
      "", "--out", {"model.preset=" + inputs.model, fmt::format("train.global_batch={}", space.base.global_batch)});
  space.also = [config](const plan::Policy& policy) { return can_train(config, policy); };
}

std::vector<std::string> overrides_of(const plan::Policy& p, double predicted_s) {
  parallel::schedule_row(p.schedule);  // says what there is
  if (p.context == "allgather")
    throw UsageError("context = allgather: this runtime has ring and ulysses; --axis context=ring,ulysses");
  return {fmt::format("parallel.dp={}", p.dp),
          fmt::format("parallel.tp={}", p.tp),
          fmt::format("parallel.pp={}", p.pp),
          fmt::format("parallel.cp={}", p.cp),
          fmt::format("parallel.ep={}", p.ep),
          fmt::format("parallel.sequence={}", p.sequence),
          "parallel.context=" + p.context,
          "parallel.schedule=" + p.schedule,
          fmt::format("parallel.interleave={}", p.interleave),
          "parallel.layout=",
          fmt::format("parallel.predicted_s={:.6g}", predicted_s),
          fmt::format("train.micro_batch={}", p.micro_batch)};
}

std::string run_file_of(const PlanInputs& inputs, const plan::Policy& policy) {
  std::vector<std::string> overrides = overrides_of(policy, 0);
  if (!inputs.run.empty()) {
    std::vector<std::string> all = inputs.overrides;
    all.insert(all.end(), overrides.begin(), overrides.end());
    const train::RunConfig config = train::read_run_config(inputs.run, all);
    config.check_world(policy.world());
    return train::to_toml(config);
  }
  check_is_name(inputs);
  const char* methods[] = {"allreduce", "zero1", "zero2", "zero3"};
  overrides.push_back("model.preset=" + inputs.model);
  overrides.push_back("run.name=" + inputs.model);
  overrides.push_back(fmt::format("train.global_batch={}", policy.global_batch));
  overrides.push_back("train.precision=" + (policy.precision == "tf32" ? "fp32" : policy.precision));
  overrides.push_back("train.recompute=" + plan::name_of(policy.recompute));
  overrides.push_back(fmt::format("sync.method={}", methods[policy.zero]));
  overrides.push_back("sync.offload=" + plan::name_of(policy.offload));
  const train::RunConfig config = train::parse_run_config("", "--out", overrides);
  config.check_world(policy.world());
  return fmt::format(
             "# A layout for {} ranks. To be filled in before it trains: data.train and data.tokenizer, run.device "
             "(cuda "
             "on GPUs),\n# train.steps, train.lr and train.warmup.\n",
             policy.world()) +
         train::to_toml(config);
}

std::vector<std::string> choose_layout(const train::RunConfig& config, int world, const std::string& given) {
  if (world == 1) {
    fmt::print(stderr, "parallel.layout = auto: one rank, nothing to divide\n");
    return {"parallel.layout="};
  }
  PlanInputs inputs;
  inputs.cluster = cluster_file_for(config, given);
  std::vector<std::string> assumed;
  const plan::Cluster cluster = plan::cluster_of(plan_cluster(inputs, assumed), world);
  const plan::ModelShape shape = shape_of_run(config);
  train::RunConfig plain = config;
  plain.parallel = {};
  const plan::Policy base = policy_of_run(plain, world);
  const plan::PlanProblem problem(shape, cluster, space_of_run(plain, shape, cluster, base, {world}),
                                  plan::objective("time"));
  const plan::SearchResult result = plan::search_integer(problem, {.top = 3});
  if (!result.found())
    throw UsageError(
        fmt::format("parallel.layout = auto: no layout of {} ranks takes this model and batch (batch {}, "
                    "{} heads, {} layers)",
                    world, config.train.global_batch, shape.heads, shape.layers));
  fmt::print(stderr, "parallel.layout = auto: {}, expected {} a step ({} layouts looked at in {:.1f} s, {})\n",
             problem.text_of(result.best().choice), plan::seconds(result.best().time_s), result.counts.considered,
             result.elapsed_s, cluster.name);
  for (size_t i = 1; i < result.top.size(); ++i)
    fmt::print(stderr, "  next: {}, {}\n", problem.text_of(result.top[i].choice), plan::seconds(result.top[i].time_s));
  return overrides_of(problem.policy_at(result.best().choice), result.best().time_s);
}

}  // namespace esp::app
