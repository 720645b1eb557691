#include "esp/train/reports.h"

#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/clock.h"
#include "esp/obs/file.h"

namespace esp::train {
namespace {

constexpr size_t kMaxMetricsBytes = size_t{4} << 30;
constexpr int64_t kRankEvery_ns = 5'000'000'000;

// Steps that a resumed run does again are forgotten, so that the file tells of each step once. `loss`: of the last
// kept.
std::string without_future(const std::string& path, int64_t last_step, double& loss) {
  if (!std::filesystem::exists(path)) return path;
  const std::string text = obs::read_whole_file(path, kMaxMetricsBytes);
  std::string kept;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("step", int64_t{0}) <= last_step) {
      kept += line;
      if (const auto told = json.find("loss"); told != json.end())
        loss = told->is_number() ? told->get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
    at = end;
  }
  if (kept.size() != text.size()) obs::write_whole_file(path, kept);
  return path;
}

Json comm_rows(Engine& engine) {
  Json rows = Json::array();
  const auto add_rows = [&](std::string_view group, const std::vector<comm::CallStats>& stats) {
    for (const comm::CallStats& s : stats)
      rows.push_back({{"group", group},
                      {"op", comm::name_of(s.op)},
                      {"algo", s.algorithm},
                      {"transport", s.transport},
                      {"calls", s.calls},
                      {"bytes_sent", s.bytes_sent},
                      {"bytes_received", s.bytes_received},
                      {"messages", s.messages},
                      {"ms", s.ms}});
  };
  const auto add = [&](std::string_view group, const comm::Communicator& of) { add_rows(group, of.stats()); };
  const comm::Communicator* world = engine.standing().ranks;
  if (world) add("world", *world);
  for (const parallel::Axis axis : parallel::kAxes)
    if (const comm::Communicator* group = engine.mesh().group(axis); group && group != world)
      add(parallel::name_of(axis), *group);
  for (const Holding& holding : engine.holdings())
    for (const sync::Group& group : holding.strategy->groups()) add(group.name, *group.comm);
  for (const Holding& holding : engine.holdings()) add_rows(engine.method(), holding.strategy->messages());
  for (const auto& [name, group] : engine.pipe_lines()) add(name, *group);
  return rows;
}

// "host link, a step: 5.3 GB down at 51.2 GB/s (94 % of 54.6 alone), …": rates are of the time copies took.
std::string offloaded_words(const Json& crossed) {
  const auto way = [&](const char* name) {
    const Json& of = crossed.at(name);
    return fmt::format("{:.3g} GB {} at {:.1f} GB/s ({:.0f} % of {:.1f} alone)",
                       of.at("bytes_per_step").get<double>() * 1e-9, name, of.at("gb_per_s").get<double>(),
                       of.at("of_alone").get<double>() * 100, of.at("alone_gb_per_s").get<double>());
  };
  const double busy =
      crossed.at("down").at("busy_s_per_step").get<double>() + crossed.at("up").at("busy_s_per_step").get<double>();
  std::string words = fmt::format("host link, a step: {}, {}, copying {:.2f} s of {:.2f}", way("down"), way("up"), busy,
                                  crossed.at("step_s").get<double>());
  const Json& file = crossed.at("file");
  const double moved = file.at("bytes_read_per_step").get<double>() + file.at("bytes_written_per_step").get<double>();
  if (moved > 0)
    words += fmt::format("; file tier: {:.3g} GB read and {:.3g} GB written, {:.2f} GB/s over the step",
                         file.at("bytes_read_per_step").get<double>() * 1e-9,
                         file.at("bytes_written_per_step").get<double>() * 1e-9, file.at("gb_per_s").get<double>());
  return words;
}

Json layout_json(const RunConfig& config, const parallel::MeshShape& mesh) {
  Json layout = {{"dp", mesh.dp}, {"tp", mesh.tp}, {"pp", mesh.pp}, {"cp", mesh.cp}, {"ep", mesh.ep}};
  if (mesh.tp > 1) layout["sequence"] = config.parallel.sequence;
  if (mesh.cp > 1) layout["context"] = config.parallel.context;
  if (mesh.pp > 1) {
    layout["schedule"] = config.parallel.schedule;
    layout["interleave"] = config.parallel.interleave;
  }
  return layout;
}

}  // namespace

Reports::Reports(const std::string& folder, const RunConfig& config, Engine& engine, Progress& progress)
    : folder_(folder), config_(config), engine_(engine), progress_(progress), first_step_(engine.num_steps()) {
  if (sync::Offload* offload = engine.offload()) {
    down_before_ = offload->link().use_down();
    up_before_ = offload->link().use_up();
    file_before_ = offload->file_traffic();
  }
  last_.result.loss = std::numeric_limits<double>::quiet_NaN();
  if (engine.standing().rank() != 0) return;
  metrics_ =
      std::make_unique<obs::EventLog>(without_future(folder + "/metrics.jsonl", engine.num_steps(), last_.result.loss),
                                      obs::EventLogOptions{.lines_per_write = 1, .sync = false, .stamp = true});
  if (config.log.tensorboard) tensorboard_ = std::make_unique<TensorBoard>(folder + "/events", engine.num_steps() + 1);
}

Reports::~Reports() = default;

void Reports::step(const StepReport& r, bool logged) {
  last_ = r;
  if (r.step > 1 || tokens_ == 0) {
    tokens_ += static_cast<double>(r.result.tokens);
    seconds_ += r.seconds;
    exposed_ms_ += r.result.exposed_ms;
    waited_ms_ += r.result.waited_ms;
    ++num_steps_;
  }
  if (logged && now_ns() - rank_written_ns_ > kRankEvery_ns) write_rank(rank_json());
  if (!metrics_) return;
  progress_.step(r, logged);
  if (!logged) return;
  const double rate = static_cast<double>(r.result.tokens) / r.seconds;
  Json line = {{"step", r.step},
               {"loss", r.result.loss},
               {"grad_norm", r.result.grad_norm},
               {"lr", r.result.lr},
               {"tokens", r.step * r.result.tokens},
               {"tokens_per_s", rate},
               {"step_ms", r.seconds * 1e3},
               {"mfu", r.mfu},
               {"hfu", r.hfu},
               {"memory_bytes", r.memory_bytes},
               {"skipped", r.result.skipped},
               {"exposed_ms", r.result.exposed_ms},
               {"slowest_rank", r.result.slowest_rank},
               {"waited_ms", r.result.waited_ms},
               {"layout", engine_.mesh().shape().text()},
               {"version", 1}};
  if (r.val_loss) line["val_loss"] = *r.val_loss;
  for (const sync::Measure& measure : r.measures) line[std::string(measure.name)] = measure.value;
  metrics_->append(std::move(line));
  if (!tensorboard_) return;
  tensorboard_->scalar("loss_metrics/global_avg_loss", r.result.loss, r.step);
  if (r.val_loss) tensorboard_->scalar("validation_metrics/loss", *r.val_loss, r.step);
  for (const sync::Measure& measure : r.measures)
    tensorboard_->scalar("copies/" + std::string(measure.name), measure.value, r.step);
  tensorboard_->scalar("grad_norm", r.result.grad_norm, r.step);
  tensorboard_->scalar("lr", r.result.lr, r.step);
  tensorboard_->scalar("throughput(tps)", rate, r.step);
  tensorboard_->scalar("mfu(%)", r.mfu * 100, r.step);
  tensorboard_->scalar("hfu(%)", r.hfu * 100, r.step);
  tensorboard_->scalar("memory/max_active(GiB)", static_cast<double>(r.memory_bytes) / (1 << 30), r.step);
  tensorboard_->flush();
}

Json Reports::rank_json() const {
  const parallel::Mesh& mesh = engine_.mesh();
  return {{"rank", engine_.standing().rank()},
          {"coords",
           {{"dp", mesh.here().dp},
            {"tp", mesh.here().tp},
            {"pp", mesh.here().pp},
            {"cp", mesh.here().cp},
            {"ep", mesh.index(parallel::Axis::expert)}}},
          {"memory", engine_.account().snapshot()},
          {"reserved_bytes", engine_.pool().reserved_bytes()},
          {"exposed_ms_per_step", num_steps_ > 0 ? exposed_ms_ / static_cast<double>(num_steps_) : 0},
          {"tiers", engine_.account().tiers_snapshot()},
          {"comm", comm_rows(engine_)}};
}

void Reports::write_rank(const Json& rank) {
  rank_written_ns_ = now_ns();
  std::filesystem::create_directories(folder_ + "/ranks");
  obs::write_whole_file(fmt::format("{}/ranks/rank-{}.json", folder_, engine_.standing().rank()), rank.dump(2) + "\n");
}

Json Reports::offloaded() {
  sync::Offload& offload = *engine_.offload();
  const double steps = static_cast<double>(std::max<int64_t>(1, engine_.num_steps() - first_step_));
  const double step_s = num_steps_ > 0 ? seconds_ / static_cast<double>(num_steps_) : 0;
  const device::LinkRates alone = engine_.link_alone();
  const auto way = [&](const device::LinkUse& use, double alone_gb_s) {
    return Json{{"bytes_per_step", static_cast<double>(use.bytes) / steps},
                {"busy_s_per_step", use.seconds / steps},
                {"gb_per_s", use.gb_per_s()},
                {"alone_gb_per_s", alone_gb_s},
                {"of_alone", alone_gb_s > 0 ? use.gb_per_s() / alone_gb_s : 0}};
  };
  const sync::FileTraffic file = offload.file_traffic();
  const double read = static_cast<double>(file.read - file_before_.read) / steps;
  const double written = static_cast<double>(file.written - file_before_.written) / steps;
  return {{"down", way(offload.link().use_down() - down_before_, alone.down_gb_per_s)},
          {"up", way(offload.link().use_up() - up_before_, alone.up_gb_per_s)},
          {"file",
           {{"bytes_read_per_step", read},
            {"bytes_written_per_step", written},
            {"gb_per_s", step_s > 0 ? (read + written) * 1e-9 / step_s : 0}}},
          {"step_s", step_s}};
}

void Reports::finish(double wall_s, int restarts) {
  const Standing& standing = engine_.standing();
  const parallel::Mesh& mesh = engine_.mesh();
  Json rank = rank_json();
  if (sync::Offload* offload = engine_.offload())
    rank["host_link"] = {{"bytes_down", offload->link().bytes_down()},
                         {"bytes_up", offload->link().bytes_up()},
                         {"bytes_in_place", offload->link().bytes_in_place()}};
  write_rank(rank);

  auto peak = static_cast<int64_t>(engine_.account().use(device::MemoryTier::device).peak);
  if (standing.ranks) standing.ranks->all_reduce(&peak, &peak, 1, DType::i64, comm::ReduceOp::max);
  if (standing.rank() != 0) return;
  Json summary = {{"world", standing.size()},
                  {"steps", engine_.num_steps()},
                  {"final_loss", last_.result.loss},
                  {"parameters", engine_.num_parameters()},
                  {"tokens_per_s", seconds_ > 0 ? tokens_ / seconds_ : 0},
                  {"peak_bytes", peak},
                  {"restarts", restarts},
                  {"exposed_ms_per_step", num_steps_ > 0 ? exposed_ms_ / static_cast<double>(num_steps_) : 0},
                  {"waited_ms_per_step", num_steps_ > 0 ? waited_ms_ / static_cast<double>(num_steps_) : 0},
                  {"sync", config_.sync.method},
                  {"layout", layout_json(config_, mesh.shape())},
                  {"wall_s", wall_s}};
  if (config_.parallel.predicted_s > 0 && num_steps_ > 0) {
    const double measured_s = seconds_ / static_cast<double>(num_steps_);
    summary["predicted_step_s"] = config_.parallel.predicted_s;
    summary["measured_step_s"] = measured_s;
    summary["prediction_error"] = config_.parallel.predicted_s / measured_s - 1;
  }
  if (engine_.offload()) {
    const Json crossed = offloaded();
    progress_.note(offloaded_words(crossed));
    summary["offloaded"] = crossed;
  }
  obs::write_whole_file(folder_ + "/summary.json", summary.dump(2) + "\n");
}

}  // namespace esp::train
