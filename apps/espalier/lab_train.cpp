#include "apps/espalier/lab_train.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/bench_train.h"
#include "apps/espalier/lab_child.h"
#include "esp/base/json.h"
#include "esp/obs/file.h"

namespace esp::app {
namespace {

constexpr size_t kLargest = size_t{16} << 20;

TrainedRank rank_of(const Json& json) {
  TrainedRank rank;
  for (const auto& [tier, categories] : json.at("tiers").items())
    for (const auto& [category, use] : categories.items())
      rank.memory[tier + "." + category] = {use.at("current").get<uint64_t>(), use.at("peak").get<uint64_t>()};
  for (const Json& row : json.at("comm"))
    rank.comm.push_back({row.at("group").get<std::string>(), row.at("op").get<std::string>(),
                         row.at("calls").get<uint64_t>(), row.at("bytes_sent").get<uint64_t>(),
                         row.at("bytes_received").get<uint64_t>()});
  if (json.contains("host_link")) {
    rank.link_down = json["host_link"].at("bytes_down").get<uint64_t>();
    rank.link_up = json["host_link"].at("bytes_up").get<uint64_t>();
  }
  return rank;
}

TrainedRun read_run(const std::string& folder, int nproc) {
  TrainedRun run;
  std::istringstream lines(obs::read_whole_file(folder + "/metrics.jsonl", kLargest));
  for (std::string line; std::getline(lines, line);) {
    const Json json = parse_json(line, folder + "/metrics.jsonl");
    if (!json.contains("loss")) continue;
    run.loss.push_back(json.at("loss").get<double>());
    run.step_ms.push_back(json.at("step_ms").get<double>());
    run.mfu = json.at("mfu").get<double>();
  }
  const Json summary = parse_json(obs::read_whole_file(folder + "/summary.json", kLargest), "summary.json");
  run.parameters = summary.at("parameters").get<int64_t>();
  run.tokens_per_s = summary.at("tokens_per_s").get<double>();
  if (summary.contains("offloaded"))
    for (const auto& [name, way] : {std::pair{"down", &run.down}, {"up", &run.up}}) {
      const Json& of = summary["offloaded"].at(name);
      *way = {of.at("gb_per_s").get<double>(), of.at("alone_gb_per_s").get<double>()};
    }
  for (int rank = 0; rank < nproc; ++rank) {
    const std::string path = fmt::format("{}/ranks/rank-{}.json", folder, rank);
    run.ranks.push_back(rank_of(parse_json(obs::read_whole_file(path, kLargest), path)));
  }
  return run;
}

}  // namespace

uint64_t TrainedRank::sent(const std::string& op, const std::string& group) const {
  uint64_t sum = 0;
  for (const Calls& one : comm)
    if ((op.empty() || one.op == op) && (group.empty() || one.group == group)) sum += one.bytes_sent;
  return sum;
}

double TrainedRun::median_step_ms(size_t skip) const {
  std::vector<double> times(step_ms.begin() + static_cast<ptrdiff_t>(std::min(skip, step_ms.size() - 1)),
                            step_ms.end());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

LabTrainer::LabTrainer() {
  model::ModelConfig bytes;
  bytes.vocab = 256;
  tokens_ = write_tokens(folder_.path(), bytes, 0);
  obs::write_whole_file(folder_.path() + "/empty.toml", "");
}

TrainedRun LabTrainer::run(const std::string& name, int nproc, const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"data.train=[\"" + tokens_ + "\"]",
                                  "data.bin_type=u16",
                                  "data.objective=next_token",
                                  "model.vocab=256",
                                  "log.every=1",
                                  "log.tensorboard=false",
                                  "checkpoint.every=0",
                                  "train.schedule=constant",
                                  "run.seed=1"};
  all.insert(all.end(), settings.begin(), settings.end());
  const std::string folder = folder_.path() + "/" + name;
  std::vector<std::string> command = {
      executable_path(), "train", folder_.path() + "/empty.toml", "--nproc", std::to_string(nproc),
      "--run-dir",       folder};
  for (const std::string& one : all) command.insert(command.end(), {"--set", one});
  run_or_throw(command, std::chrono::minutes(4));
  TrainedRun run = read_run(folder, nproc);
  run.command = fmt::format("espalier train --nproc {} --set {}", nproc, fmt::join(settings, " --set "));
  return run;
}

}  // namespace esp::app
