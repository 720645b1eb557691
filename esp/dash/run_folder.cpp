#include "esp/dash/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/dash/plain_text.h"
#include "esp/obs/event_log.h"
#include "esp/obs/file.h"

namespace esp::dash {
namespace {

constexpr size_t kMaxFileBytes = size_t{8} << 20, kMaxTraceBytes = size_t{2} << 30, kMaxRanks = 4096;
constexpr double kSettled_s = 2;  // a summary is written after the last step, but a copied folder keeps no order
constexpr double kAlive_s = 30, kAliveGaps = 5;  // a log that grew so lately is of a run that goes on

double modified_s(const std::string& path) {
  struct stat now {};
  if (::lstat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return 0;
  return static_cast<double>(now.st_mtim.tv_sec) + 1e-9 * static_cast<double>(now.st_mtim.tv_nsec);
}

std::string mark_of(const std::string& path) {
  struct stat now {};
  if (::lstat(path.c_str(), &now) != 0) return "-";
  return fmt::format("{}.{}.{}.{}", now.st_ino, now.st_size, now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// Of all categories together, at one moment; null where the file does not tell.
Json peak_of(const Json& rank) {
  const Json* at = &rank;
  for (const char* key : {"tiers", "device", "total", "peak"}) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return at->is_number() ? *at : Json(nullptr);
}

// A number behind `key = ` in a run file as the trainer writes it, under its section.
double run_file_number(const std::string& text, const std::string& section, const std::string& key) {
  const size_t begin = text.find("[" + section + "]\n");
  if (begin == std::string::npos) return 0;
  const size_t end = std::min(text.find("\n[", begin), text.size());
  const size_t at = text.find("\n" + key + " = ", begin);
  return at < end ? std::strtod(text.c_str() + at + key.size() + 4, nullptr) : 0;
}

}  // namespace

bool is_run_folder(const std::string& path) {
  return modified_s(path + "/metrics.jsonl") > 0 || modified_s(path + "/run.toml") > 0;
}

RunFolder::RunFolder(std::string path, std::string name)
    : path_(std::move(path)), name_(std::move(name)), metrics_(path_ + "/metrics.jsonl") {}

std::optional<std::string> RunFolder::text_of(const std::string& file, size_t max_bytes) const {
  const std::string path = path_ + "/" + file;
  if (modified_s(path) == 0) return std::nullopt;
  const obs::File open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (open.size() > max_bytes) throw IoError(fmt::format("{}: {} bytes, more than is looked at", file, open.size()));
  return open.read(0, open.size());
}

Json RunFolder::json_of(const std::string& file) const {
  try {
    const auto text = text_of(file, kMaxFileBytes);
    return text ? parse_json(*text, file) : Json(nullptr);
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

std::vector<Json> RunFolder::rank_files() const {
  std::vector<Json> ranks;
  for (size_t k = 0; k < kMaxRanks; ++k) {
    Json one = json_of(fmt::format("ranks/rank-{}.json", k));
    if (!one.is_object()) break;
    one["peak_bytes"] = peak_of(one);
    ranks.push_back(std::move(one));
  }
  return ranks;
}

// What the trainer and the launcher noted (events.jsonl), and times in which the log stood still.
Json RunFolder::incidents() const {
  Json all = Json::array();
  try {
    if (modified_s(path_ + "/events.jsonl") > 0)
      for (Json& event : obs::read_events(path_ + "/events.jsonl", 0, kMaxFileBytes).events)
        all.push_back(std::move(event));
  } catch (const Error& error) {
    all.push_back({{"event", "unreadable"}, {"what", error.what()}});
  }
  for (const Series::Pause& pause : metrics_.series().pauses())
    all.push_back({{"event", "stood still"}, {"step", pause.step}, {"wall_s", pause.at_s}, {"seconds", pause.seconds}});
  if (metrics_.num_damaged() > 0) all.push_back({{"event", "damaged lines"}, {"lines", metrics_.num_damaged()}});
  return all;
}

std::string RunFolder::stamp() const {
  std::string marks;
  for (const char* file : {"run.toml", "summary.json", "events.jsonl", "trace.json", "ranks", "ranks/rank-0.json"})
    marks += mark_of(path_ + "/" + file) + " ";
  return marks;
}

Json RunFolder::brief() {
  const std::lock_guard lock(mutex_);
  // A log that nobody looked at is not read through for a line in a list.
  const bool known = metrics_.version() > 0;
  if (known) metrics_.follow();
  const Series tail = known ? Series() : last_lines(path_ + "/metrics.jsonl");
  const Series& series = known ? metrics_.series() : tail;
  const double logged = modified_s(path_ + "/metrics.jsonl"), summed = modified_s(path_ + "/summary.json");
  const double idle = static_cast<double>(std::time(nullptr)) - logged;
  const double alive = std::max(kAlive_s, kAliveGaps * series.last_gap_s());
  const char* state = logged == 0                     ? "no steps yet"
                      : summed + kSettled_s >= logged ? "finished"
                      : idle < alive                  ? "running"
                                                      : "stopped";
  return {{"name", name_},
          {"state", state},
          {"step", series.last_step()},
          {"loss", finite(series.last("loss"))},
          {"tokens_per_s", finite(series.last("tokens_per_s"))},
          {"changed_s", std::max(logged, summed)},
          {"trace", trace_goes_on() || modified_s(path_ + "/trace.json") > 0},
          {"version_log", mark_of(path_ + "/metrics.jsonl")},
          {"version_trace", trace_mark()},
          {"version_rest", fmt::format("{:x}", std::hash<std::string>()(stamp()))}};
}

Json RunFolder::known(const Knowledge& knowledge) const {
  const std::vector<Json> ranks = rank_files();
  const std::string run_toml = text_of("run.toml", kMaxFileBytes).value_or("");
  const Json summary = json_of("summary.json");
  Json all = {{"name", name_},
              {"run_toml", run_toml},
              {"steps", run_file_number(run_toml, "train", "steps")},
              {"summary", summary},
              {"traffic", to_json(traffic_of(ranks, knowledge.peer_shares))},
              {"ranks", Json::array()},
              {"plan", nullptr}};
  for (const Json& rank : ranks) {
    Json one = Json::object();
    for (const char* key : {"rank", "coords", "memory", "peak_bytes", "reserved_bytes", "exposed_ms_per_step"})
      if (rank.contains(key)) one[key] = rank[key];
    all["ranks"].push_back(std::move(one));
  }
  if (!knowledge.plan_of_run || run_toml.empty()) return all;
  int world = static_cast<int>(ranks.size());
  if (world == 0 && summary.is_object() && summary.contains("world") && summary["world"].is_number_integer())
    world = summary["world"].get<int>();
  try {
    all["plan"] = knowledge.plan_of_run(run_toml, std::max(1, world));
  } catch (const Error& error) {
    all["plan"] = {{"error", error.what()}};
  }
  return all;
}

std::string RunFolder::detail(const Knowledge& knowledge) {
  const std::lock_guard lock(mutex_);
  metrics_.follow();
  const std::string now = stamp();
  if (detail_stamp_ != now) {
    detail_ = dumped(known(knowledge));
    detail_.back() = ',';
    detail_stamp_ = now;
  }
  Json slowest = Json::array();
  for (const Series::Slowest& one : metrics_.series().slowest())
    slowest.push_back({{"rank", one.rank}, {"steps", one.steps}, {"waited_ms", one.waited_ms}});
  return detail_ + "\"slowest\":" + dumped(slowest) + ",\"incidents\":" + dumped(incidents()) +
         ",\"keys\":" + dumped(metrics_.series().keys()) + "}";
}

std::string RunFolder::series(const std::vector<std::string>& keys, double from, double to, int buckets) {
  const std::lock_guard lock(mutex_);
  metrics_.follow();
  const Series& series = metrics_.series();
  std::string out = fmt::format("{{\"version\":{},\"last_step\":{},\"lines\":{},\"keys\":{{", metrics_.version(),
                                series.last_step(), series.size());
  for (size_t i = 0; i < keys.size(); ++i)
    out += (i ? "," : "") + json_quoted(keys[i]) + ":" + series.picture(keys[i], from, to, buckets);
  return out + "}}";
}

// Ranks take theirs away when the whole is written; those of a run that died are older than what came after it.
bool RunFolder::trace_goes_on() const {
  const double so_far = modified_s(path_ + "/ranks/trace-0.json");
  return so_far > 0 && so_far > modified_s(path_ + "/trace.json");
}

std::string RunFolder::trace_mark() const {
  return mark_of(path_ + (trace_goes_on() ? "/ranks/trace-0.json" : "/trace.json"));
}

Trace RunFolder::read_trace() const {
  std::vector<std::string> texts;
  if (trace_goes_on()) {
    size_t bytes = 0;
    for (size_t k = 0; k < kMaxRanks && bytes < kMaxTraceBytes; ++k) {
      auto text = text_of(fmt::format("ranks/trace-{}.json", k), kMaxTraceBytes - bytes);
      if (!text) break;
      bytes += text->size();
      texts.push_back(std::move(*text));
    }
  }
  if (texts.empty()) {
    auto text = text_of("trace.json", kMaxTraceBytes);
    if (!text) throw IoError("no trace yet: a run writes one when its run file has log.trace = true");
    texts.push_back(std::move(*text));
  }
  return parse_traces(std::vector<std::string_view>(texts.begin(), texts.end()));
}

std::string RunFolder::timeline(double from_us, double to_us, int buckets) {
  const std::lock_guard lock(trace_mutex_);
  const std::string now = trace_mark();
  if (trace_stamp_ != now || !trace_) {
    trace_ = read_trace();
    trace_stamp_ = now;
  }
  return window_of(*trace_, from_us, to_us, buckets);
}

}  // namespace esp::dash
