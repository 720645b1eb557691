#include "esp/launch/line_merger.h"

#include <utility>

#include <fmt/format.h>

namespace esp::launch {

void LineMerger::feed(int rank, std::string_view bytes, Clock::time_point now) {
  constexpr size_t kMaxLineBytes = size_t{1} << 20;  // limits memory if a rank prints a line without an end
  std::string& partial = partial_[static_cast<size_t>(rank)];
  while (!bytes.empty()) {
    size_t newline = bytes.find('\n');
    partial.append(bytes.substr(0, newline));
    if (newline == bytes.npos && partial.size() < kMaxLineBytes) return;
    add(rank, std::exchange(partial, {}), now);
    if (newline == bytes.npos) return;
    bytes.remove_prefix(newline + 1);
  }
}

void LineMerger::end(int rank, Clock::time_point now) {
  std::string& partial = partial_[static_cast<size_t>(rank)];
  if (!partial.empty()) add(rank, std::exchange(partial, {}), now);
}

void LineMerger::add(int index, std::string text, Clock::time_point now) {
  const int rank = first_rank_ + index;
  // In a log line of a rank, "[rank k]" follows the time and the level. It is removed, because the merged line gets the
  // prefix "[ranks …]".
  constexpr size_t kMaxPrefixBytes = 30;
  const std::string own = fmt::format("[rank {}] ", rank);
  if (const size_t at = text.find(own); at < kMaxPrefixBytes) text.erase(at, own.size());
  // Searches backwards for an equal line, but not past a line of this rank: its lines must keep their order.
  for (auto line = lines_.rbegin(); line != lines_.rend() && !line->ranks.contains(rank); ++line)
    if (line->text == text) {
      line->ranks.insert(rank);
      return;
    }
  lines_.push_back({std::move(text), {rank}, now});
}

void LineMerger::drop_error(int index) {
  const int rank = first_rank_ + index;
  size_t first = lines_.size();
  for (size_t i = 0; i < lines_.size(); ++i)
    if (lines_[i].ranks.contains(rank) && lines_[i].text.starts_with("espalier: ")) first = i;
  for (size_t i = first; i < lines_.size(); ++i) lines_[i].ranks.erase(rank);
  std::erase_if(lines_, [](const MergedLine& line) { return line.ranks.empty(); });
}

std::vector<std::string> LineMerger::take(Clock::time_point now, bool all) {
  std::vector<std::string> ready;
  while (!lines_.empty()) {
    const MergedLine& line = lines_.front();
    if (!all && static_cast<int>(line.ranks.size()) < num_ranks_ && now - line.since < kWindow) break;
    ready.push_back(fmt::format("[{}] {}\n", format_ranks(line.ranks), line.text));
    lines_.pop_front();
  }
  return ready;
}

std::string format_ranks(const std::set<int>& ranks) {
  std::string text;
  for (auto it = ranks.begin(); it != ranks.end();) {
    int first = *it, last = first;
    while (++it != ranks.end() && *it == last + 1) last = *it;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace esp::launch
