#include "esp/comm/stall.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "esp/comm/call.h"

namespace esp::comm {
namespace {

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string phase_text(Phase phase, int64_t number) {
  return phase == Phase::start ? "the start of the run" : fmt::format("{} {}", name_of(phase), number);
}

constexpr uint32_t kPhaseBits = 0xff;

}  // namespace

// Encoding of a rank's status in a tag. A rank in a call sends the tag of the call. A rank in no call sends its step
// number (sequence) and the time since its phase began (count, in ms). The schedule id, otherwise used only by schedule
// files, holds the phase.
net::Tag encode_status(const RankStatus& at) {
  net::Tag tag = at.call;
  if (!at.waiting) {
    tag = {};
    tag.sequence = static_cast<uint64_t>(at.number);
    tag.count = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(at.in_phase).count());
  }
  tag.schedule = static_cast<uint32_t>(at.phase);
  return tag;
}

RankStatus decode_status(const net::CallPosition& position) {
  RankStatus at;
  at.answers = position.answered;
  at.waiting = position.answered && position.inside;
  at.phase = static_cast<Phase>(std::min<uint32_t>(position.entered.schedule & kPhaseBits, kNumPhases - 1));
  if (at.waiting) {
    at.call = position.entered;
    at.call.schedule = 0;
  } else {
    at.number = static_cast<int64_t>(position.entered.sequence);
    at.in_phase = std::chrono::milliseconds(std::min<uint64_t>(position.entered.count, 1u << 30));
  }
  return at;
}

std::optional<Stall> diagnose_stall(int me, std::span<const RankStatus> all) {
  Stall stall;
  std::vector<int> silent, busy;
  int others = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (all[i].exited) continue;
    others += rank != me;
    if (!all[i].answers) {
      silent.push_back(rank);
    } else {
      (all[i].waiting ? stall.waiting : busy).push_back(rank);
    }
  }
  stall.silent = !silent.empty();
  // If no rank answers, this rank's connection to the hub is blocked. The hub runs on the host of rank 0 or of the
  // launcher, so rank 0 is named.
  if (me != 0 && std::ssize(silent) == others && others > 1) silent = {0};
  stall.ranks = stall.silent ? silent : busy;
  if (stall.ranks.empty() || (stall.waiting.empty() && !stall.silent)) return std::nullopt;
  return stall;
}

std::string describe(const Stall& stall, std::span<const RankStatus> all, const std::string& label) {
  const bool one = stall.ranks.size() == 1;
  std::string text = fmt::format("rank{} {} ", one ? "" : "s", format_ranks(stall.ranks));
  if (stall.silent) {
    text += fmt::format("{} not answer ({} stopped, or the network to {} host is interrupted)", one ? "does" : "do",
                        one ? "it is" : "they are", one ? "its" : "their");
  } else {
    const RankStatus& at = all[static_cast<size_t>(stall.ranks.front())];
    text += fmt::format("{} not entered the call: busy in {} for {:.1f} s", one ? "has" : "have",
                        phase_text(at.phase, at.number), seconds(at.in_phase));
  }
  if (stall.waiting.empty())
    return text + fmt::format("; {} exceeds the stall timeout", phase_text(stall.phase, stall.number));
  text += fmt::format("; rank{} {} wait{} in ", stall.waiting.size() == 1 ? "" : "s", format_ranks(stall.waiting),
                      stall.waiting.size() == 1 ? "s" : "");
  text += fmt::format("{} (call #{} of group {:x}{}{}) for {:.1f} s, in {}", describe(stall.call), stall.call.sequence,
                      stall.group, label.empty() ? "" : ": ", label, seconds(stall.waited),
                      phase_text(stall.phase, stall.number));
  // In a model-parallel run the waiting ranks may be in different calls.
  std::map<std::string, std::vector<int>> elsewhere;
  for (const int rank : stall.waiting) {
    const net::Tag& call = all[static_cast<size_t>(rank)].call;
    if (call.what != stall.call.what || call.count != stall.call.count || call.sequence != stall.call.sequence)
      elsewhere[fmt::format("{} (call #{})", describe(call), call.sequence)].push_back(rank);
  }
  size_t num_listed = 0;
  for (const auto& [call, ranks] : elsewhere)
    if (num_listed++ < 3)
      text += fmt::format("; of these, rank{} {} wait{} in {}", ranks.size() == 1 ? "" : "s", format_ranks(ranks),
                          ranks.size() == 1 ? "s" : "", call);
  return text;
}

std::string format_ranks(std::span<const int> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace esp::comm
