#include "esp/dash/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/dash/json_text.h"
#include "esp/obs/event_log.h"
#include "esp/obs/file.h"

namespace esp::dash {
namespace {

constexpr size_t kMaxFileBytes = size_t{8} << 20, kMaxTraceBytes = size_t{2} << 30, kMaxRanks = 4096;
// A run counts as finished if its summary is newer than its log, or older by at most kSettled_s. The trainer writes the
// summary last, but copying a folder changes file times.
constexpr double kSettled_s = 2;
// A run is running if its log changed within kAlive_s, or within kAliveGaps times the time between the last two lines.
constexpr double kAlive_s = 30, kAliveGaps = 5;

double modified_s(const std::string& path) {
  struct stat now {};
  if (::lstat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return 0;
  return static_cast<double>(now.st_mtim.tv_sec) + 1e-9 * static_cast<double>(now.st_mtim.tv_nsec);
}

// Returns why a file of a run folder cannot be read. Empty: it is a regular file, or does not exist.
std::string obstacle(const std::string& folder, const char* name) {
  struct stat now {};
  const std::string path = folder + "/" + name;
  if (::lstat(path.c_str(), &now) != 0) return errno == ENOENT ? "" : fmt::format("{}: {}", name, errno_text(errno));
  const char* kind = S_ISLNK(now.st_mode)    ? "a symbolic link"
                     : S_ISFIFO(now.st_mode) ? "a pipe"
                     : S_ISDIR(now.st_mode)  ? "a folder"
                     : S_ISREG(now.st_mode)  ? nullptr
                                             : "a device or socket";
  if (kind) return fmt::format("{}: got {}; expected a regular file", name, kind);
  return ::access(path.c_str(), R_OK) == 0 ? "" : fmt::format("{}: {}", name, errno_text(errno));
}

std::string file_stamp(const std::string& path) {
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

// Largest total of all memory categories at one moment; null: not in the file.
Json peak_of(const Json& rank) {
  const Json* at = &rank;
  for (const char* key : {"tiers", "device", "total", "peak"}) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return at->is_number() ? *at : Json(nullptr);
}

// The value of `key` in a section of a run file that the trainer wrote, without quotes.
std::string run_file_text(const std::string& text, const std::string& section, const std::string& key) {
  const size_t begin = text.find("[" + section + "]\n");
  if (begin == std::string::npos) return {};
  const size_t end = std::min(text.find("\n[", begin), text.size());
  const size_t at = text.find("\n" + key + " = ", begin);
  if (at >= end) return {};
  const size_t from = at + key.size() + 4;
  std::string value = text.substr(from, std::min(text.find('\n', from), text.size()) - from);
  if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front())
    value = value.substr(1, value.size() - 2);
  return value;
}

double run_file_number(const std::string& text, const std::string& section, const std::string& key) {
  return std::strtod(run_file_text(text, section, key).c_str(), nullptr);
}

Json text_or_null(std::string text) {
  return text.empty() ? Json(nullptr) : Json(std::move(text));
}

// Parallel axes larger than 1, as text: "dp=2 pp=4 1f1b"; null: not in the run file.
Json layout_of(const std::string& run_toml) {
  std::string layout;
  for (const char* axis : {"dp", "tp", "pp", "cp", "ep"}) {
    const std::string size = run_file_text(run_toml, "parallel", axis);
    if (!size.empty() && size != "1") layout += fmt::format("{}{}={}", layout.empty() ? "" : " ", axis, size);
  }
  if (run_file_number(run_toml, "parallel", "pp") > 1) layout += " " + run_file_text(run_toml, "parallel", "schedule");
  if (layout.empty() && !run_file_text(run_toml, "parallel", "dp").empty()) layout = "dp=1";
  return text_or_null(layout);
}

Json compressor_of(const std::string& run_toml) {
  const std::string compress = run_file_text(run_toml, "sync", "compress");
  const std::string feedback = run_file_text(run_toml, "sync", "feedback");
  if (compress.empty() || compress == "none" || feedback.empty() || feedback == "none") return text_or_null(compress);
  return compress + " + " + feedback;
}

Json number_or_null(const Json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && at != object.end() && at->is_number() ? *at : Json(nullptr);
}

}  // namespace

RunFolder::RunFolder(std::string path, std::string name)
    : path_(std::move(path)), name_(std::move(name)), metrics_(path_ + "/metrics.jsonl") {}

std::optional<std::string> RunFolder::read_text(const std::string& file, size_t max_bytes) const {
  const std::string path = path_ + "/" + file;
  if (modified_s(path) == 0) return std::nullopt;
  const obs::File open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (open.size() > max_bytes)
    throw IoError(fmt::format("{}: got {} bytes; expected at most {}", file, open.size(), max_bytes));
  return open.read(0, open.size());
}

Json RunFolder::read_json(const std::string& file) const {
  try {
    const auto text = read_text(file, kMaxFileBytes);
    return text ? parse_json(*text, file) : Json(nullptr);
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

std::vector<Json> RunFolder::rank_files() const {
  std::vector<Json> ranks;
  for (size_t k = 0; k < kMaxRanks; ++k) {
    Json one = read_json(fmt::format("ranks/rank-{}.json", k));
    if (!one.is_object()) break;
    one["peak_bytes"] = peak_of(one);
    ranks.push_back(std::move(one));
  }
  return ranks;
}

// Events of the trainer and the launcher (events.jsonl), and gaps in the log.
Json RunFolder::incidents() const {
  Json all = Json::array();
  try {
    if (modified_s(path_ + "/events.jsonl") > 0)
      for (Json& event : obs::read_events(path_ + "/events.jsonl", 0, kMaxFileBytes).events)
        all.push_back(std::move(event));
  } catch (const Error& error) {
    all.push_back({{"event", kUnreadable}, {"what", error.what()}});
  }
  for (const Series::Gap& gap : metrics_.series().gaps())
    all.push_back({{"event", "gap in the log"}, {"step", gap.step}, {"wall_s", gap.at_s}, {"seconds", gap.seconds}});
  if (metrics_.num_damaged() > 0) all.push_back({{"event", "damaged lines"}, {"lines", metrics_.num_damaged()}});
  return all;
}

std::string RunFolder::stamp() const {
  std::string marks;
  for (const char* file : {"run.toml", "summary.json", "events.jsonl", "trace.json", "ranks", "ranks/rank-0.json"})
    marks += file_stamp(path_ + "/" + file) + " ";
  return marks;
}

Json RunFolder::row(const Series& series) {
  const std::string now = file_stamp(path_ + "/run.toml") + " " + file_stamp(path_ + "/summary.json");
  if (row_stamp_ != now) {
    std::string run_toml, damaged = obstacle(path_, "run.toml");
    if (damaged.empty()) damaged = obstacle(path_, "summary.json");
    try {
      run_toml = read_text("run.toml", kMaxFileBytes).value_or("");
    } catch (const Error& error) {
      damaged = error.what();
    }
    const Json summary = read_json("summary.json");
    if (summary.is_object() && summary.contains("error") && summary.at("error").is_string())
      damaged = summary.at("error").get<std::string>();
    Json row = {{"run", name_},
                {"method", text_or_null(run_file_text(run_toml, "sync", "method"))},
                {"compressor", compressor_of(run_toml)},
                {"layout", layout_of(run_toml)},
                {"steps", number_or_null(summary, "steps")},
                {"val_loss", number_or_null(summary, "val_loss")},
                {"tokens_per_s", number_or_null(summary, "tokens_per_s")},
                {"bytes_sent_per_step", number_or_null(summary, "bytes_sent_per_step")},
                {"peak_bytes", number_or_null(summary, "peak_bytes")},
                {"wall_s", number_or_null(summary, "wall_s")}};
    if (!damaged.empty()) row["error"] = damaged;
    row_ = dumped(row);
    row_stamp_ = now;
  }
  // A run without a summary (running or lost) gets its values from the log.
  Json row = Json::parse(row_);
  if (row["steps"].is_null() && series.size() > 0) row["steps"] = series.last_step();
  for (const auto& [key, logged] : {std::pair{"val_loss", "val_loss"},
                                    {"tokens_per_s", "tokens_per_s"},
                                    {"bytes_sent_per_step", "bytes_sent_per_step"},
                                    {"peak_bytes", "memory_bytes"}})
    if (row[key].is_null()) row[key] = finite(series.latest(logged));
  return row;
}

Json RunFolder::list_entry() {
  std::string why = obstacle(path_, "metrics.jsonl");
  try {
    if (why.empty()) return readable_list_entry();
  } catch (const std::exception& error) {
    why = error.what();
  }
  Json row = {{"run", name_}};
  for (const char* key : {"method", "compressor", "layout", "steps", "val_loss", "tokens_per_s", "bytes_sent_per_step",
                          "peak_bytes", "wall_s"})
    row[key] = nullptr;
  row["error"] = why;
  return {{"name", name_},  {"state", kUnreadable}, {"step", 0},         {"loss", nullptr},     {"row", row},
          {"changed_s", 0}, {"trace", false},       {"version_log", ""}, {"version_trace", ""}, {"version_rest", ""}};
}

Json RunFolder::readable_list_entry() {
  // While a long request holds the mutex, the list uses only the last lines of the log.
  std::unique_lock lock(mutex_, std::try_to_lock);
  const std::lock_guard row_lock(row_mutex_);
  // The list also uses only the last lines of a log that no request has read yet.
  const bool provided_data = lock.owns_lock() && metrics_.version() > 0;
  if (provided_data) metrics_.follow();
  const Series tail = provided_data ? Series() : last_lines(path_ + "/metrics.jsonl");
  const Series& series = provided_data ? metrics_.series() : tail;
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
          {"row", row(series)},
          {"changed_s", std::max(logged, summed)},
          {"trace", is_trace_growing() || modified_s(path_ + "/trace.json") > 0},
          {"version_log", file_stamp(path_ + "/metrics.jsonl")},
          {"version_trace", trace_stamp()},
          {"version_rest", fmt::format("{:x}", std::hash<std::string>()(stamp()))}};
}

Json RunFolder::provided_data(const DataProviders& providers) const {
  const std::vector<Json> ranks = rank_files();
  std::string run_toml, run_toml_error;
  try {
    run_toml = read_text("run.toml", kMaxFileBytes).value_or("");
  } catch (const Error& error) {
    run_toml_error = error.what();
  }
  const Json summary = read_json("summary.json");
  Json all = {{"name", name_},
              {"run_toml", run_toml},
              {"steps", run_file_number(run_toml, "train", "steps")},
              {"summary", summary},
              {"traffic", to_json(build_traffic_map(ranks, providers.peer_shares))},
              {"ranks", Json::array()},
              {"plan", run_toml_error.empty() ? Json(nullptr) : Json{{"error", run_toml_error}}}};
  for (const Json& rank : ranks) {
    Json one = Json::object();
    for (const char* key : {"rank", "coords", "memory", "peak_bytes", "reserved_bytes", "exposed_ms_per_step"})
      if (rank.contains(key)) one[key] = rank[key];
    all["ranks"].push_back(std::move(one));
  }
  if (!providers.plan_of_run || run_toml.empty()) return all;
  int world = static_cast<int>(ranks.size());
  if (world == 0 && summary.is_object() && summary.contains("world") && summary["world"].is_number())
    world = static_cast<int>(std::clamp(summary["world"].get<double>(), 1.0, 1e6));
  try {
    all["plan"] = providers.plan_of_run(run_toml, std::max(1, world));
  } catch (const std::exception& error) {  // an error in the run file is shown instead of the estimate
    all["plan"] = {{"error", error.what()}};
  }
  return all;
}

std::string RunFolder::detail(const DataProviders& providers) {
  const std::lock_guard lock(mutex_);
  metrics_.follow();
  const std::string now = stamp();
  if (detail_stamp_ != now) {
    detail_ = dumped(provided_data(providers));
    detail_.back() = ',';
    detail_stamp_ = now;
  }
  Json slowest_ranks = Json::array();
  for (const Series::SlowestRank& one : metrics_.series().slowest_ranks())
    slowest_ranks.push_back({{"rank", one.rank}, {"steps", one.steps}, {"waited_ms", one.waited_ms}});
  return detail_ + "\"slowest\":" + dumped(slowest_ranks) + ",\"incidents\":" + dumped(incidents()) +
         ",\"keys\":" + dumped(metrics_.series().keys()) + "}";
}

std::string RunFolder::series(const std::vector<std::string>& keys, double from, double to, int buckets) {
  const std::lock_guard lock(mutex_);
  metrics_.follow();
  const Series& series = metrics_.series();
  std::string out = fmt::format("{{\"version\":{},\"last_step\":{},\"lines\":{},\"keys\":{{", metrics_.version(),
                                series.last_step(), series.size());
  for (size_t i = 0; i < keys.size(); ++i)
    out += (i ? "," : "") + quote_json(keys[i]) + ":" + series.downsample(keys[i], from, to, buckets);
  return out + "}}";
}

// True while trace files of ranks are newer than the merged trace.json, or it does not exist. Ranks delete their own
// files once trace.json is written. Files that an aborted run left are older than the files of the next run.
bool RunFolder::is_trace_growing() const {
  const double so_far = modified_s(path_ + "/ranks/trace-0.json");
  return so_far > 0 && so_far > modified_s(path_ + "/trace.json");
}

std::string RunFolder::trace_stamp() const {
  return file_stamp(path_ + (is_trace_growing() ? "/ranks/trace-0.json" : "/trace.json"));
}

Trace RunFolder::read_trace() const {
  std::vector<std::string> texts;
  if (is_trace_growing()) {
    size_t bytes = 0;
    for (size_t k = 0; k < kMaxRanks && bytes < kMaxTraceBytes; ++k) {
      auto text = read_text(fmt::format("ranks/trace-{}.json", k), kMaxTraceBytes - bytes);
      if (!text) break;
      bytes += text->size();
      texts.push_back(std::move(*text));
    }
  }
  if (texts.empty()) {
    auto text = read_text("trace.json", kMaxTraceBytes);
    if (!text) throw IoError("no trace yet. Set log.trace = true in the run file");
    texts.push_back(std::move(*text));
  }
  return parse_traces(std::vector<std::string_view>(texts.begin(), texts.end()));
}

std::string RunFolder::timeline(double from_us, double to_us, int buckets) {
  const std::lock_guard lock(trace_mutex_);
  const std::string now = trace_stamp();
  if (trace_stamp_ != now || !trace_) {
    trace_ = read_trace();
    trace_stamp_ = now;
  }
  return window_json(*trace_, from_us, to_us, buckets);
}

}  // namespace esp::dash
