#include "esp/train/metrics_log.h"

#include <fcntl.h>

#include <chrono>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::train {
namespace {

constexpr size_t kMaxMetricsBytes = size_t{4} << 30, kMaxPendingLines = 1024;

// The number under `key`. NaN if the value is not a number; empty if the key is absent.
std::optional<double> number_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end()) return std::nullopt;
  return found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

bool BestEffortFiles::attempt(const std::string& name, const std::function<void()>& write) {
  std::string why;
  try {
    write();
    return true;
  } catch (const IoError& error) {
    why = error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    why = fmt::format("{}: {}", error.path1().string(), errno_text(error.code().value()));
  }
  if (failed_.insert(name).second) log_.warn("{}: {}; training continues", name, why);
  return false;
}

void append_event(const Log& log, const std::string& folder, Json event) {
  BestEffortFiles(log).attempt("events.jsonl", [&] {
    obs::EventLog(folder + "/events.jsonl", {.lines_per_write = 1, .sync = false, .stamp = true})
        .append(std::move(event));
  });
}

MetricsLog::MetricsLog(const std::string& folder, int64_t last_step, const Log& log)
    : folder_(folder),
      path_(folder + "/metrics.jsonl"),
      log_(log),
      last_loss_(std::numeric_limits<double>::quiet_NaN()) {
  if (std::filesystem::exists(path_)) read(last_step);
}

void MetricsLog::read(int64_t last_step) {
  existed_ = true;
  const std::string text = obs::read_whole_file(path_, kMaxMetricsBytes);
  std::string good;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end;
    const Json json = Json::parse(line, nullptr, false);
    const auto step = json.is_object() && line.ends_with('\n') ? logged_step(json) : std::nullopt;
    if (!step || *step > last_step) continue;
    good += line;
    last_step_ = *step;
    if (const auto loss = number_of(json, "loss")) last_loss_ = *loss;
    if (const auto loss = number_of(json, "val_loss"); loss && *loss == *loss) last_val_loss_ = loss;
  }
  if (good.size() == text.size()) return;
  try {
    obs::write_whole_file(path_, good);
  } catch (const IoError&) {
    // The disk is too full for a second file, so the file is truncated in place. The lines to drop are at its end;
    // damaged lines before them are kept.
    const size_t end = text.starts_with(good) ? good.size() : text.rfind('\n', text.size() - 1) + 1;
    obs::File(path_, O_WRONLY).truncate(end);
  }
}

void MetricsLog::append(Json line, BestEffortFiles& files) {
  line["wall_s"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  line["mono_s"] = static_cast<double>(now_ns()) * 1e-9;
  unwritten_.push_back(std::move(line));
  if (files.attempt("metrics.jsonl", [&] { write_pending(); })) return;
  for (; unwritten_.size() > kMaxPendingLines; unwritten_.pop_front()) {
    last_dropped_ = unwritten_.front().at("step").get<int64_t>();
    if (first_dropped_ == 0) first_dropped_ = last_dropped_;
  }
}

void MetricsLog::write_pending() {
  if (!file_) file_ = std::make_unique<obs::EventLog>(path_);
  for (; !unwritten_.empty(); unwritten_.pop_front()) file_->append(unwritten_.front());
  if (first_dropped_ > 0)
    append_event(log_, folder_, {{"event", "metrics_gap"}, {"step", last_dropped_}, {"first_step", first_dropped_}});
  first_dropped_ = 0;
}

void MetricsLog::report_gap(int64_t step, int64_t every) {
  const int64_t expected = step - step % every;
  if (!existed_ || last_step_ >= expected) return;
  append_event(log_, folder_, {{"event", "metrics_gap"}, {"step", expected}, {"first_step", last_step_ + 1}});
  log_.warn("metrics.jsonl: the lines of steps {} to {} are missing; an earlier process lost them", last_step_ + 1,
            expected);
}

}  // namespace esp::train
