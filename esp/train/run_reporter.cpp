#include "esp/train/run_reporter.h"

#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/clock.h"
#include "esp/device/cpu/topology.h"
#include "esp/device/gpu.h"
#include "esp/device/is_cuda.h"
#include "esp/obs/file.h"

namespace esp::train {
namespace {

constexpr int64_t kRankEvery_ns = 5'000'000'000;

// A line like "host link per step: 5.3 GB down at 51.2 GB/s (94 % of 54.6 GB/s alone), …". The rates are bytes per
// second of copy time; "alone" is the rate measured without other load.
std::string describe_offload(const Json& crossed) {
  const auto way = [&](const char* name) {
    const Json& of = crossed.at(name);
    return fmt::format("{:.3g} GB {} at {:.1f} GB/s ({:.0f} % of {:.1f} GB/s alone)",
                       of.at("bytes_per_step").get<double>() * 1e-9, name, of.at("gb_per_s").get<double>(),
                       of.at("of_alone").get<double>() * 100, of.at("alone_gb_per_s").get<double>());
  };
  const double busy =
      crossed.at("down").at("busy_s_per_step").get<double>() + crossed.at("up").at("busy_s_per_step").get<double>();
  std::string words = fmt::format("host link per step: {}, {}, copying {:.2f} s of {:.2f} s", way("down"), way("up"),
                                  busy, crossed.at("step_s").get<double>());
  const Json& file = crossed.at("file");
  const double moved = file.at("bytes_read_per_step").get<double>() + file.at("bytes_written_per_step").get<double>();
  if (moved > 0)
    words += fmt::format("; file tier: {:.3g} GB read and {:.3g} GB written, {:.2f} GB/s over the step",
                         file.at("bytes_read_per_step").get<double>() * 1e-9,
                         file.at("bytes_written_per_step").get<double>() * 1e-9, file.at("gb_per_s").get<double>());
  return words;
}

// Describes the hardware of rank 0's host. The other hosts are assumed to have the same hardware.
Json hardware_json(const Engine& engine, double peak) {
  const device::Stream& stream = engine.context().stream;
  std::string name = device::read_topology().model;
  if (device::is_cuda(stream))
    for (const device::GpuInfo& gpu : device::survey_gpus().gpus)
      if (gpu.index == stream.device.index) name = gpu.name;
  const JobContext& job = engine.job();
  return {{"name", name},
          {"hosts", (job.size() + job.local_size - 1) / job.local_size},
          {"threads_per_rank", stream.num_threads()},
          {"peak_flops", peak}};
}

bool in_lockstep(Engine& engine) {
  sync::AsyncWorkers* const workers = engine.strategy().async_workers();
  return !workers || workers->lockstep();
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

RunReporter::RunReporter(const std::string& folder, const RunConfig& config, Engine& engine, Progress& progress,
                         const Log& log)
    : folder_(folder),
      config_(config),
      engine_(engine),
      progress_(progress),
      files_(log),
      traffic_(engine),
      first_step_(engine.num_steps()) {
  if (sync::Offload* offload = engine.offload()) {
    down_before_ = offload->link().use_down();
    up_before_ = offload->link().use_up();
    file_before_ = offload->file_traffic();
  }
  last_.result.loss = std::numeric_limits<double>::quiet_NaN();
  if (engine.job().rank() != 0) return;
  metrics_ = std::make_unique<MetricsLog>(folder, engine.num_steps(), log);
  last_.result.loss = metrics_->last_loss();
  val_loss_ = metrics_->last_val_loss();
  if (!config.log.tensorboard) return;
  files_.attempt("TensorBoard", [&] {
    tensorboard_ = std::make_unique<TensorBoardWriter>(folder + "/events", engine.num_steps() + 1);
  });
}

RunReporter::~RunReporter() = default;

// Collective if ranks run in lockstep. Otherwise each rank uses only its own statistics.
void RunReporter::gather_stats(int64_t step) {
  const JobContext& job = engine_.job();
  rank_stats_.memory_bytes = engine_.account().use(device::MemoryTier::device).peak;
  rank_stats_.bytes_sent = rank_stats_.most_bytes_sent = traffic_.take(step);
  rank_stats_.one_rank = !in_lockstep(engine_);
  if (!job.ranks || rank_stats_.one_rank) return;
  const double mine[] = {static_cast<double>(rank_stats_.memory_bytes), rank_stats_.bytes_sent};
  std::vector<double> all(2 * static_cast<size_t>(job.size()));
  job.ranks->all_gather(mine, all.data(), 2, DType::f64);
  double most = 0, sum = 0;
  for (size_t i = 0; i < all.size(); i += 2) {
    most = std::max(most, all[i]);
    sum += all[i + 1];
    rank_stats_.most_bytes_sent = std::max(rank_stats_.most_bytes_sent, all[i + 1]);
  }
  rank_stats_.memory_bytes = static_cast<uint64_t>(most);
  rank_stats_.bytes_sent = sum / job.size();
}

void RunReporter::step(StepReport r, bool logged) {
  if (r.recovered)
    rank_stats_ = r.rank_stats;
  else if (logged)
    gather_stats(r.step);
  r.rank_stats = rank_stats_;
  if (r.val_loss) val_loss_ = r.val_loss;
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
               {"memory_bytes", rank_stats_.memory_bytes},
               {"bytes_sent_per_step", rank_stats_.bytes_sent},
               {"max_bytes_sent_per_step", rank_stats_.most_bytes_sent},
               {"skipped", r.result.skipped},
               {"exposed_ms", r.result.exposed_ms},
               {"slowest_rank", r.result.slowest_rank},
               {"waited_ms", r.result.waited_ms},
               {"layout", engine_.mesh().shape().text()},
               {"version", 1}};
  if (r.val_loss) line["val_loss"] = *r.val_loss;
  for (const sync::ReplicaMetric& measure : r.replica_metrics) line[std::string(measure.name)] = measure.value;
  if (r.recovered) line["recovered"] = true;
  metrics_->append(std::move(line), files_);
  if (tensorboard_) files_.attempt("TensorBoard", [&] { write_tensorboard(r, rate); });
}

void RunReporter::write_tensorboard(const StepReport& r, double rate) {
  tensorboard_->scalar("loss_metrics/global_avg_loss", r.result.loss, r.step);
  if (r.val_loss) tensorboard_->scalar("validation_metrics/loss", *r.val_loss, r.step);
  for (const sync::ReplicaMetric& measure : r.replica_metrics)
    tensorboard_->scalar("copies/" + std::string(measure.name), measure.value, r.step);
  tensorboard_->scalar("grad_norm", r.result.grad_norm, r.step);
  tensorboard_->scalar("lr", r.result.lr, r.step);
  tensorboard_->scalar("throughput(tps)", rate, r.step);
  tensorboard_->scalar("mfu(%)", r.mfu * 100, r.step);
  tensorboard_->scalar("hfu(%)", r.hfu * 100, r.step);
  tensorboard_->scalar("bytes_sent_per_step", rank_stats_.bytes_sent, r.step);
  tensorboard_->scalar("memory/max_active(GiB)", static_cast<double>(rank_stats_.memory_bytes) / (1 << 30), r.step);
  tensorboard_->flush();
}

Json RunReporter::rank_json() const {
  const parallel::Mesh& mesh = engine_.mesh();
  return {{"rank", engine_.job().rank()},
          {"coords",
           {{"dp", mesh.coordinates().dp},
            {"tp", mesh.coordinates().tp},
            {"pp", mesh.coordinates().pp},
            {"cp", mesh.coordinates().cp},
            {"ep", mesh.index(parallel::MeshAxis::expert)}}},
          {"memory", engine_.account().snapshot()},
          {"reserved_bytes", engine_.pool().reserved_bytes()},
          {"exposed_ms_per_step", num_steps_ > 0 ? exposed_ms_ / static_cast<double>(num_steps_) : 0},
          {"tiers", engine_.account().tiers_snapshot()},
          {"comm", comm_rows(engine_)}};
}

void RunReporter::write_rank(const Json& rank) {
  rank_written_ns_ = now_ns();
  files_.attempt("ranks", [&] {
    std::filesystem::create_directories(folder_ + "/ranks");
    obs::write_whole_file(fmt::format("{}/ranks/rank-{}.json", folder_, engine_.job().rank()), rank.dump(2) + "\n");
  });
}

Json RunReporter::offload_json() {
  sync::Offload& offload = *engine_.offload();
  const double steps = static_cast<double>(std::max<int64_t>(1, engine_.num_steps() - first_step_));
  const double step_s = num_steps_ > 0 ? seconds_ / static_cast<double>(num_steps_) : 0;
  const device::LinkRates alone = engine_.measure_host_link();
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

void RunReporter::finish(double wall_s, int restarts, double peak, const Json& periodic_saves) {
  const JobContext& job = engine_.job();
  const parallel::Mesh& mesh = engine_.mesh();
  Json rank = rank_json();
  if (sync::Offload* offload = engine_.offload())
    rank["host_link"] = {{"bytes_down", offload->link().bytes_down()},
                         {"bytes_up", offload->link().bytes_up()},
                         {"bytes_in_place", offload->link().bytes_in_place()}};
  write_rank(rank);

  traffic_.pause();
  double sent = traffic_.mean(engine_.num_steps());
  double most[] = {static_cast<double>(engine_.account().use(device::MemoryTier::device).peak), sent};
  if (job.ranks) {
    job.ranks->all_reduce(most, most, 2, DType::f64, comm::ReduceOp::max);
    job.ranks->all_reduce(&sent, &sent, 1, DType::f64, comm::ReduceOp::sum);
    sent /= job.size();
  }
  if (job.rank() != 0) return;
  Json summary = {{"world", job.size()},
                  {"steps", engine_.num_steps()},
                  {"final_loss", last_.result.loss},
                  {"parameters", engine_.num_parameters()},
                  {"tokens_per_s", seconds_ > 0 ? tokens_ / seconds_ : 0},
                  {"peak_bytes", static_cast<uint64_t>(most[0])},
                  {"bytes_sent_per_step", sent},
                  {"max_bytes_sent_per_step", most[1]},
                  {"restarts", restarts},
                  {"periodic_saves", periodic_saves},
                  {"exposed_ms_per_step", num_steps_ > 0 ? exposed_ms_ / static_cast<double>(num_steps_) : 0},
                  {"waited_ms_per_step", num_steps_ > 0 ? waited_ms_ / static_cast<double>(num_steps_) : 0},
                  {"method", config_.sync.method},
                  {"compress", config_.sync.compress},
                  {"feedback", config_.sync.feedback},
                  {"layout", layout_json(config_, mesh.shape())},
                  {"hardware", hardware_json(engine_, peak)},
                  {"wall_s", wall_s}};
  if (val_loss_) summary["val_loss"] = *val_loss_;
  if (config_.parallel.predicted_s > 0 && num_steps_ > 0) {
    const double measured_s = seconds_ / static_cast<double>(num_steps_);
    summary["predicted_step_s"] = config_.parallel.predicted_s;
    summary["measured_step_s"] = measured_s;
    summary["prediction_error"] = config_.parallel.predicted_s / measured_s - 1;
  }
  if (engine_.offload()) {
    const Json crossed = offload_json();
    progress_.note(describe_offload(crossed));
    summary["offloaded"] = crossed;
  }
  files_.attempt("summary.json", [&] { obs::write_whole_file(folder_ + "/summary.json", summary.dump(2) + "\n"); });
}

}  // namespace esp::train
