#include "esp/obs/prometheus.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/obs/file.h"

namespace esp::obs {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr size_t kTailBytes = size_t{64} << 10;

struct Metric {
  std::string_view key, name, type, help;
  double factor = 1;
};

// Metrics from keys of metrics.jsonl, in base units as Prometheus recommends.
constexpr Metric kStep[] = {
    {"step", "espalier_step", "gauge", "Optimizer steps done."},
    {"loss", "espalier_loss", "gauge", "Training loss of the last logged step."},
    {"val_loss", "espalier_val_loss", "gauge", "Validation loss, if the last logged step ran an evaluation."},
    {"grad_norm", "espalier_gradient_norm", "gauge", "Norm of the gradient before clipping."},
    {"lr", "espalier_learning_rate", "gauge", "Learning rate of the last logged step."},
    {"tokens", "espalier_tokens_total", "counter", "Tokens trained so far."},
    {"tokens_per_s", "espalier_tokens_per_second", "gauge", "Throughput of the last logged step."},
    {"step_ms", "espalier_step_seconds", "gauge", "Duration of the last logged step.", 1e-3},
    {"mfu", "espalier_mfu_ratio", "gauge", "Model FLOPs utilisation of the device."},
    {"memory_bytes", "espalier_memory_bytes", "gauge", "Peak device memory."},
    {"exposed_ms", "espalier_exposed_communication_seconds", "gauge",
     "Communication time of the last logged step that did not overlap with compute.", 1e-3},
    {"waited_ms", "espalier_waited_seconds", "gauge",
     "Time of the last logged step spent waiting for the slowest rank.", 1e-3},
    {"slowest_rank", "espalier_slowest_rank", "gauge", "The slowest rank, for which the others waited."},
    {"wall_s", "espalier_logged_timestamp_seconds", "gauge", "Unix time of the last logged step."},
};

// Metrics from keys of summary.json, which exists once a run has ended.
constexpr Metric kSummary[] = {
    {"world", "espalier_ranks", "gauge", "Ranks of the run."},
    {"parameters", "espalier_parameters", "gauge", "Parameters of the model."},
    {"restarts", "espalier_restarts_total", "counter", "Restarts of the run."},
    {"final_loss", "espalier_final_loss", "gauge", "Training loss of the last step."},
    {"peak_bytes", "espalier_peak_memory_bytes", "gauge", "Peak device memory of any rank."},
    {"wall_s", "espalier_wall_seconds", "gauge", "Wall time of the run."},
};

// Metrics from the rows of `comm` in ranks/rank-K.json.
constexpr Metric kComm[] = {
    {"calls", "espalier_collective_calls_total", "counter", "Number of collectives."},
    {"bytes_sent", "espalier_collective_sent_bytes_total", "counter", "Bytes sent in collectives."},
    {"bytes_received", "espalier_collective_received_bytes_total", "counter", "Bytes received in collectives."},
    {"messages", "espalier_collective_messages_total", "counter", "Messages sent in collectives."},
    {"ms", "espalier_collective_seconds_total", "counter", "Time spent in collectives.", 1e-3},
};

struct Sample {
  std::string labels;
  Json of;
};

// Opening a file must not follow symbolic links and must not block on a pipe.
constexpr int kOpenFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;

// The last whole line of a file. Reads only the end of the file, because the logs of long runs are large.
Json last_line(const std::string& path) {
  const File file(path, kOpenFlags);
  const uint64_t size = file.size();
  const std::string tail = file.read(size > kTailBytes ? size - kTailBytes : 0, kTailBytes);
  const size_t end = tail.rfind('\n');
  if (end == std::string::npos || end == 0) return {};
  const size_t before = tail.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return parse_json(std::string_view(tail).substr(begin, end - begin), path + ", last line");
}

Json whole(const std::string& path) {
  const File file(path, kOpenFlags);
  return parse_json(file.read(0, kMaxFileBytes), path);
}

// Parses a file. Returns an empty value if the file does not exist, or if it cannot be read; the latter is counted.
Json read(Json (*how)(const std::string&), const std::string& path, int& num_unreadable) {
  std::error_code hidden;
  const auto status = std::filesystem::symlink_status(path, hidden);
  if (status.type() == std::filesystem::file_type::none) ++num_unreadable;
  if (!std::filesystem::exists(status)) return {};
  try {
    return how(path);
  } catch (const IoError&) {
    ++num_unreadable;
    return {};
  }
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

template <size_t N>
void add(std::string& text, const Metric (&metrics)[N], const std::vector<Sample>& samples) {
  for (const Metric& metric : metrics) {
    bool named = false;
    for (const Sample& sample : samples) {
      const auto value = sample.of.is_object() ? sample.of.find(std::string(metric.key)) : sample.of.end();
      if (!sample.of.is_object() || value == sample.of.end()) continue;
      if (!value->is_number() && !value->is_null()) continue;
      if (!named) text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", metric.name, metric.help, metric.type);
      named = true;
      // In JSON a non-finite loss is null. It is exported as NaN, so that alerts can test for it.
      const double v =
          value->is_null() ? std::numeric_limits<double>::quiet_NaN() : value->get<double>() * metric.factor;
      text += fmt::format("{}{{{}}} {}\n", metric.name, sample.labels, number(v));
    }
  }
}

std::string text_of(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

void read_ranks(const std::string& folder, const std::string& run, std::vector<Sample>& comm,
                std::vector<Sample>& memory, int& num_unreadable) {
  if (!is_folder(folder)) return;
  std::vector<std::string> files;
  std::error_code error;
  for (auto at = std::filesystem::directory_iterator(folder, error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error))
    if (at->path().extension() == ".json") files.push_back(at->path());
  if (error) ++num_unreadable;
  std::sort(files.begin(), files.end());
  for (const std::string& path : files) {
    const Json rank = read(whole, path, num_unreadable);
    if (!rank.is_object() || !rank.contains("rank") || !rank["rank"].is_number_integer()) continue;
    const std::string labels = fmt::format("{},rank=\"{}\"", run, rank["rank"].get<int64_t>());
    if (const auto rows = rank.find("comm"); rows != rank.end() && rows->is_array())
      for (const Json& row : *rows)
        if (row.is_object())
          comm.push_back(
              {fmt::format("{},group=\"{}\",op=\"{}\",algorithm=\"{}\",transport=\"{}\"", labels,
                           prometheus_label(text_of(row, "group")), prometheus_label(text_of(row, "op")),
                           prometheus_label(text_of(row, "algo")), prometheus_label(text_of(row, "transport"))),
               row});
    if (const auto categories = rank.find("memory"); categories != rank.end() && categories->is_object())
      for (const auto& [name, use] : categories->items())
        memory.push_back({fmt::format("{},category=\"{}\"", labels, prometheus_label(name)), use});
  }
}

constexpr Metric kMemory[] = {
    {"peak", "espalier_memory_peak_bytes", "gauge", "Peak memory of a category on a rank."},
};
constexpr Metric kUnreadable[] = {
    {"files", "espalier_unreadable_files", "gauge", "Files of the run folder that could not be read."},
};

}  // namespace

std::string prometheus_label(std::string_view value) {
  // Converting the text to JSON and back replaces invalid UTF-8.
  const std::string clean =
      nlohmann::json::parse(nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .get<std::string>();
  std::string text;
  for (char c : clean) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text;
}

std::string prometheus_text(const std::vector<NamedRun>& runs) {
  std::vector<Sample> steps, summaries, comm, memory, unreadable;
  for (const auto& [name, folder] : runs) {
    if (!std::filesystem::is_directory(folder)) throw IoError(fmt::format("{}: not a run folder", folder));
    const std::string run = fmt::format("run=\"{}\"", prometheus_label(name));
    int num_unreadable = 0;
    steps.push_back({run, read(last_line, folder + "/metrics.jsonl", num_unreadable)});
    summaries.push_back({run, read(whole, folder + "/summary.json", num_unreadable)});
    read_ranks(folder + "/ranks", run, comm, memory, num_unreadable);
    unreadable.push_back({run, Json{{"files", num_unreadable}}});
  }
  std::string text;
  add(text, kStep, steps);
  add(text, kSummary, summaries);
  add(text, kComm, comm);
  add(text, kMemory, memory);
  add(text, kUnreadable, unreadable);
  return text;
}

}  // namespace esp::obs
