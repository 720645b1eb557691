#include "esp/sync/gossip/graph_file.h"

#include <charconv>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  for (size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;
       at = line.find_first_not_of(kBlank, at)) {
    const size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) {}

  GossipTopology read(std::string_view text) {
    for (size_t at = 0; at < text.size(); ++line_) {
      const size_t end = std::min(text.find('\n', at), text.size());
      take(words_of(text.substr(at, end - at)));
      at = end + 1;
    }
    if (size_ == 0) fail("got no line `nodes N`; expected it before the edges");
    return {std::string(name_), {weighted_.value_or(false) ? weights() : metropolis_hastings(size_, edges())}};
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw UsageError(fmt::format("{}, line {}: {}", name_, line_, why));
  }

  template <typename T>
  T number(std::string_view word, std::string_view expected) const {
    T value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
      fail(fmt::format("got \"{}\"; expected a {}", word.substr(0, 40), expected));
    return value;
  }
  int node(std::string_view word) const {
    const int value = number<int>(word, "node number");
    if (value < 0 || value >= size_) fail(fmt::format("node: got {}; expected 0 to {}", value, size_ - 1));
    return value;
  }

  void take(const std::vector<std::string_view>& words) {
    if (words.empty()) return;
    if (words[0] == "nodes") {
      if (size_ > 0) fail("duplicate line `nodes N`");
      if (words.size() != 2) fail(fmt::format("got {} words; expected `nodes N`", words.size()));
      size_ = number<int>(words[1], "number of nodes");
      if (size_ < 1 || size_ > kMaxNodes) fail(fmt::format("nodes: got {}; expected 1 to {}", size_, kMaxNodes));
      return;
    }
    if (size_ == 0) fail("expected a line `nodes N` before the edges");
    if (words.size() < 2 || words.size() > 3)
      fail("expected an edge `i j`, or `i j w`: i receives from j with weight w");
    const bool weighted = words.size() == 3;
    if (weighted_.value_or(weighted) != weighted)
      fail(fmt::format("got an edge {} weight; expected weights on all lines or on none",
                       weighted ? "with" : "without"));
    weighted_ = weighted;
    int a = node(words[0]), b = node(words[1]);
    if (!weighted && a == b)
      fail(fmt::format("edge from {} to itself: a node's own weight is 1 minus its other weights. Remove the line", a));
    if (!weighted && a > b) std::swap(a, b);
    const double weight = weighted ? number<double>(words[2], "weight") : 1;
    if (!edge_weights_.emplace(std::pair(a, b), weight).second) fail(fmt::format("duplicate edge {} {}", a, b));
  }

  std::vector<std::pair<int, int>> edges() const {
    std::vector<std::pair<int, int>> all;
    for (const auto& [edge, weight] : edge_weights_) all.push_back(edge);
    return all;
  }
  MixingMatrix weights() const {
    MixingMatrix rows(static_cast<size_t>(size_));
    for (const auto& [edge, weight] : edge_weights_)
      rows[static_cast<size_t>(edge.first)].push_back({edge.second, weight});
    return rows;
  }

  const std::string_view name_;
  int64_t line_ = 1;
  int size_ = 0;
  std::optional<bool> weighted_;
  std::map<std::pair<int, int>, double> edge_weights_;
};

}  // namespace

GossipTopology parse_graph(std::string_view text, std::string_view name) {
  return Reader(name).read(text);
}

}  // namespace esp::sync
