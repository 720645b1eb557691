#include "apps/espalier/auto_layout.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "apps/espalier/self_exec.h"
#include "esp/base/error.h"
#include "esp/launch/environment.h"
#include "esp/model/model.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/calibrated_rates.h"
#include "esp/plan/report.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::app {
namespace {

namespace fs = std::filesystem;

constexpr int kQuickSeconds = 6;  // time for kernel measurements when a run calibrates the machine itself
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

// Whether the trainer accepts the policy's layout, by the rules of the run file.
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
    throw UsageError(fmt::format("--out with --model {}: got a model file; expected a preset's name, or --run RUN.toml",
                                 inputs.model));
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
    throw UsageError(
        "parallel.layout = auto: HOME is not set; expected a folder for this machine's cluster file. Set HOME or "
        "--cluster");
  return home + "/.cache/espalier/cluster.toml";
}

// The named cluster file, or the one calibrated for this machine.
std::string cluster_file_for(const train::RunConfig& config, const std::string& given) {
  if (!given.empty()) return given;
  if (config.run.device != "cpu")
    throw UsageError(fmt::format(
        "parallel.layout = auto with run.device = {}: got no --cluster; expected a cluster name or file. espalier plan "
        "estimate --list prints the names",
        config.run.device));
  const std::string path = cache_file();
  if (fs::exists(path)) return path;
  fmt::print(stderr,
             "parallel.layout = auto: this machine is not calibrated; measuring it takes about a minute; the result is "
             "kept in {}\n"
             "  (espalier plan calibrate --out {} measures longer)\n",
             path, path);
  fs::create_directories(fs::path(path).parent_path());
  try {
    run_self({"plan", "calibrate", "--out", path, "--seconds", std::to_string(kQuickSeconds)}, kMeasureLimit);
  } catch (const IoError& error) {
    throw IoError(
        fmt::format("{}\nparallel.layout = auto: this machine could not be measured. Try again, or set --cluster, or "
                    "set the axes of the layout (parallel.dp, tp, pp, cp, ep) instead of auto",
                    error.what()));
  }
  return path;
}

}  // namespace

bool is_auto_layout(const train::RunConfig& config) {
  return config.parallel.layout == "auto";
}

plan::SearchSpace run_search_space(const train::RunConfig& config, const plan::ModelShape& shape,
                                   const plan::Cluster& cluster, const plan::Policy& base,
                                   const std::vector<int>& ranks) {
  plan::SearchSpace space = plan::full_search_space(shape, cluster, base, ranks);
  space.zero = {base.zero};
  space.offload = {base.offload};
  space.recompute = {base.recompute};
  if (config.train.micro_batch > 0) space.micro_batch = {config.train.micro_batch};
  space.extra_rule = [config](const plan::Policy& policy) { return can_train(config, policy); };
  return space;
}

void restrict_to_trainable(plan::SearchSpace& space, const PlanInputs& inputs) {
  check_is_name(inputs);
  const auto known = parallel::schedules();
  std::erase_if(space.schedule, [&](const plan::ScheduleChoice& one) {
    return std::none_of(known.begin(), known.end(), [&](const auto& row) { return row.name == one.name; });
  });
  std::erase(space.context, "allgather");
  space.division = {0};
  const train::RunConfig config = train::parse_run_config(
      "", "--out", {"model.preset=" + inputs.model, fmt::format("train.global_batch={}", space.base.global_batch)});
  space.extra_rule = [config](const plan::Policy& policy) { return can_train(config, policy); };
}

std::vector<std::string> policy_overrides(const plan::Policy& p, double predicted_s) {
  parallel::schedule_row(p.schedule);  // throws with the list of known schedules
  if (p.context == "allgather")
    throw UsageError("context: got allgather; the trainer supports ring and ulysses. Use --axis context=ring,ulysses");
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

std::string trainable_run_file(const PlanInputs& inputs, const plan::Policy& policy) {
  std::vector<std::string> overrides = policy_overrides(policy, 0);
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
             "# A layout for {} ranks. Set these keys before training: data.train, data.tokenizer, run.device (cuda on "
             "GPUs),\n# train.steps, train.lr and train.warmup.\n",
             policy.world()) +
         train::to_toml(config);
}

std::vector<std::string> choose_layout(const train::RunConfig& config, int world, const std::string& given) {
  if (world == 1) {
    fmt::print(stderr, "parallel.layout = auto: one rank, no layout needed\n");
    return {"parallel.layout="};
  }
  PlanInputs inputs;
  inputs.cluster = cluster_file_for(config, given);
  std::vector<std::string> assumed;
  const plan::Cluster cluster = plan::resize_cluster(plan_cluster(inputs, assumed), world);
  const plan::ModelShape shape = shape_of_run(config);
  train::RunConfig plain = config;
  plain.parallel = {};
  const plan::Policy base = policy_of_run(plain, world);
  const plan::PlanProblem problem(shape, cluster, run_search_space(plain, shape, cluster, base, {world}),
                                  plan::objective("time"));
  const plan::SearchResult result = plan::search_integer(problem, {.top = 3});
  if (!result.found())
    throw UsageError(
        fmt::format("parallel.layout = auto: found no valid layout for {} ranks with train.global_batch = {}, "
                    "{} heads and {} layers. Change the number of ranks or the batch",
                    world, config.train.global_batch, shape.heads, shape.layers));
  fmt::print(stderr, "parallel.layout = auto: {}, predicted step time {} ({} layouts examined in {:.1f} s, {})\n",
             problem.text_of(result.best().choice), plan::seconds(result.best().time_s), result.counts.considered,
             result.elapsed_s, cluster.name);
  for (size_t i = 1; i < result.top.size(); ++i)
    fmt::print(stderr, "  next best: {}, {}\n", problem.text_of(result.top[i].choice),
               plan::seconds(result.top[i].time_s));
  return policy_overrides(problem.policy_at(result.best().choice), result.best().time_s);
}

}  // namespace esp::app
