#include "esp/dash/series.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/dash/json_text.h"
#include "esp/obs/file.h"

namespace esp::dash {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMaxColumns = 64, kReadBytes = size_t{8} << 20, kMaxLineBytes = size_t{1} << 20,
                 kTailBytes = size_t{16} << 10, kMaxLogBytes = size_t{2} << 30;
constexpr int kMaxBuckets = 4000;
constexpr double kMaxStep = 1e15;
constexpr double kPauseSteps = 20, kPauseLeast_s = 3;

struct Bucket {
  double least = kNone, most = kNone, sum = 0, x_sum = 0;
  int64_t count = 0;
  void add(double x, double y) {
    least = count == 0 ? y : std::min(least, y);
    most = count == 0 ? y : std::max(most, y);
    sum += y;
    x_sum += x;
    ++count;
  }
};

void append_list(std::string& out, const char* name, const std::vector<double>& values) {
  out += name;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, values[i]);
  }
  out += ']';
}

}  // namespace

bool Series::add_line(std::string_view line) {
  double step = kNone;
  std::vector<std::pair<std::string_view, double>> fields;
  fields.reserve(24);
  const bool whole = for_each_field(line, [&](std::string_view key, std::string_view value) {
    const auto number = parse_number(value);
    if (!number) return;
    if (key == "step")
      step = *number;
    else
      fields.emplace_back(key, *number);
  });
  // A repeated step number means that the run resumed from an earlier step: the lines after that step are discarded.
  if (!whole || !(step >= 0 && step <= kMaxStep)) return false;
  while (!steps_.empty() && steps_.back() >= step) {
    steps_.pop_back();
    for (auto& [key, column] : columns_) column.resize(std::min(column.size(), steps_.size()));
  }
  for (const auto& [key, value] : fields) {
    auto at = columns_.find(key);
    if (at == columns_.end()) {
      if (columns_.size() == kMaxColumns) continue;
      at = columns_.emplace(std::string(key), std::vector<double>()).first;
    }
    at->second.resize(steps_.size(), kNone);
    at->second.push_back(value);
  }
  steps_.push_back(step);
  return true;
}

void Series::clear() {
  steps_.clear();
  columns_.clear();
}

const std::vector<double>* Series::column(const std::string& key) const {
  const auto at = columns_.find(key);
  return at == columns_.end() ? nullptr : &at->second;
}

double Series::last(const std::string& key) const {
  const auto* values = column(key);
  return values && values->size() == steps_.size() && !values->empty() ? values->back() : kNone;
}

double Series::latest(const std::string& key) const {
  const auto* values = column(key);
  if (!values) return kNone;
  const auto at = std::find_if(values->rbegin(), values->rend(), [](double value) { return !std::isnan(value); });
  return at == values->rend() ? kNone : *at;
}

double Series::last_gap_s() const {
  const auto* wall = column("wall_s");
  if (!wall || wall->size() < 2 || wall->size() != steps_.size()) return 0;
  const double gap = wall->back() - (*wall)[wall->size() - 2];
  return std::isfinite(gap) ? gap : 0;
}

std::vector<std::string> Series::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, column] : columns_) all.push_back(key);
  return all;
}

std::string Series::downsample(const std::string& key, double from, double to, int num_buckets) const {
  num_buckets = std::clamp(num_buckets, 1, kMaxBuckets);
  std::vector<double> x, mean, least, most;
  const auto* values = column(key);
  if (values && !steps_.empty()) {
    from = std::max(from, steps_.front());
    to = std::min(to, steps_.back());
    const auto first = static_cast<size_t>(std::lower_bound(steps_.begin(), steps_.end(), from) - steps_.begin());
    const auto end = std::min(values->size(),
                              static_cast<size_t>(std::upper_bound(steps_.begin(), steps_.end(), to) - steps_.begin()));
    size_t count = 0;
    for (size_t i = first; i < end; ++i) count += std::isnan((*values)[i]) ? 0 : 1;
    if (count <= 2 * static_cast<size_t>(num_buckets)) {
      for (size_t i = first; i < end; ++i)
        if (!std::isnan((*values)[i])) {
          x.push_back(steps_[i]);
          mean.push_back((*values)[i]);
        }
    } else {
      std::vector<Bucket> buckets(static_cast<size_t>(num_buckets));
      const double scale = num_buckets / std::max(to - from, 1e-9);
      const size_t last = buckets.size() - 1;
      for (size_t i = first; i < end; ++i)
        if (!std::isnan((*values)[i])) {
          const double place = (steps_[i] - from) * scale;  // NaN if the range of steps overflows
          buckets[place < static_cast<double>(last) ? static_cast<size_t>(place) : last].add(steps_[i], (*values)[i]);
        }
      for (const Bucket& b : buckets) {
        if (b.count == 0) continue;
        x.push_back(b.x_sum / static_cast<double>(b.count));
        mean.push_back(b.sum / static_cast<double>(b.count));
        least.push_back(b.least);
        most.push_back(b.most);
      }
      // The first and the last step that have a value are always points of the curve.
      const auto counts = [&](size_t i) { return !std::isnan((*values)[i]); };
      size_t begin = first, back = end - 1;
      while (!counts(begin)) ++begin;
      while (!counts(back)) --back;
      x.front() = steps_[begin];
      x.back() = steps_[back];
    }
  }
  std::string out;
  append_list(out, "{\"x\":[", x);
  append_list(out, ",\"mean\":[", mean);
  if (!least.empty()) {
    append_list(out, ",\"min\":[", least);
    append_list(out, ",\"max\":[", most);
  }
  return out + '}';
}

std::vector<Series::Gap> Series::gaps() const {
  std::vector<Gap> all;
  const auto* wall = column("wall_s");
  const auto* step_ms = column("step_ms");
  if (!wall || !step_ms) return all;
  const size_t end = std::min({steps_.size(), wall->size(), step_ms->size()});
  for (size_t i = 1; i < end; ++i) {
    const double passed = (*wall)[i] - (*wall)[i - 1], steps = steps_[i] - steps_[i - 1];
    const double expected = steps * (*step_ms)[i] * 1e-3;
    if (passed - expected > kPauseLeast_s && passed > kPauseSteps * expected)
      all.push_back({steps_[i], (*wall)[i], passed - expected});
  }
  return all;
}

std::vector<Series::SlowestRank> Series::slowest_ranks() const {
  std::map<int64_t, SlowestRank> by_rank;
  const auto *ranks = column("slowest_rank"), *waited = column("waited_ms");
  if (!ranks) return {};
  for (size_t i = 0; i < ranks->size(); ++i) {
    const double rank = (*ranks)[i];
    if (!(rank >= 0 && rank < 1e6)) continue;
    SlowestRank& one = by_rank[static_cast<int64_t>(rank)];
    one.rank = static_cast<int64_t>(rank);
    ++one.steps;
    if (waited && i < waited->size() && std::isfinite((*waited)[i])) one.waited_ms += (*waited)[i];
  }
  std::vector<SlowestRank> all;
  for (auto& [rank, one] : by_rank) {
    one.waited_ms /= static_cast<double>(one.steps);
    all.push_back(one);
  }
  return all;
}

Series last_lines(const std::string& path) {
  Series series;
  struct stat now {};
  if (::lstat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return series;
  const obs::File file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  const uint64_t size = file.size(), from = size - std::min<uint64_t>(size, kTailBytes);
  const std::string text = file.read(from, kTailBytes);
  size_t at = from == 0 ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;  // the first line may be incomplete
  for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    series.add_line(std::string_view(text).substr(at, end - at));
  return series;
}

bool SeriesFile::follow() {
  struct stat now {};
  if (::lstat(path_.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) {
    if (offset_ == 0) return false;
    series_.clear();
    offset_ = inode_ = 0;
    return ++version_ > 0;
  }
  if (now.st_ino != inode_ || static_cast<uint64_t>(now.st_size) < offset_) {
    series_.clear();
    offset_ = 0;
    inode_ = now.st_ino;
  }
  if (static_cast<uint64_t>(now.st_size) == offset_) return false;
  if (static_cast<uint64_t>(now.st_size) > kMaxLogBytes)
    throw IoError(fmt::format("{}: got {} bytes; expected at most {}", path_, now.st_size, kMaxLogBytes));
  const obs::File file(path_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  const uint64_t before = offset_;
  for (;;) {
    const std::string text = file.read(offset_, kReadBytes);
    const size_t last = text.rfind('\n');
    if (last == std::string::npos) {
      if (text.size() > kMaxLineBytes) offset_ += text.size();  // skips it: the trainer writes no line this long
      break;                                                    // an incomplete last line is still being written
    }
    for (size_t at = 0; at <= last;) {
      const size_t end = text.find('\n', at);
      if (end > at && !series_.add_line(std::string_view(text).substr(at, end - at))) ++num_damaged_;
      at = end + 1;
    }
    offset_ += last + 1;
  }
  if (offset_ != before) ++version_;
  return offset_ != before;
}

}  // namespace esp::dash
