#include "esp/parallel/layout.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/parallel/pp/schedule_text.h"

namespace esp::parallel {
namespace {

struct ContextMethod {
  std::string_view name;
};
constexpr ContextMethod kContextMethods[] = {{"ring"}, {"ulysses"}};

constexpr int64_t kMaxAxisRanks = 1 << 15;  // largest size of one axis

using Broken = std::optional<LayoutViolation>;

Broken rule(bool holds, std::string_view key, int64_t given, std::string text) {
  if (holds) return std::nullopt;
  return LayoutViolation{std::string(key), fmt::format("{}", given), std::move(text)};
}

int64_t share_of(const LayoutSizes& s, const Layout& l) {
  return s.global_batch / l.mesh.dp;
}
int64_t micro_batch_of(const LayoutSizes& s, const Layout& l) {
  return s.micro_batch > 0 ? s.micro_batch : share_of(s, l);
}

Broken of_batch(const LayoutSizes& s, const Layout& l) {
  const int dp = l.mesh.dp;
  if (auto broken = rule(s.global_batch % dp == 0, "train.global_batch", s.global_batch,
                         fmt::format("must be a multiple of dp = {}", dp)))
    return broken;
  return rule(s.micro_batch == 0 || share_of(s, l) % s.micro_batch == 0, "train.micro_batch", s.micro_batch,
              fmt::format("must divide a replica's share of {} sequences ({} over dp = {})", share_of(s, l),
                          s.global_batch, dp));
}

Broken of_tensor(const LayoutSizes& s, const Layout& l) {
  const int tp = l.mesh.tp;
  const struct {
    bool holds;
    std::string_view what;
    int64_t number;
  } rules[] = {{s.heads % tp == 0, "must divide the {} attention heads", s.heads},
               {s.kv_heads % tp == 0, "must divide the {} KV heads", s.kv_heads},
               {s.ffn >= tp, "must be at most the MLP width {} (model.ffn)", s.ffn},
               {s.vocab == 0 || s.vocab >= tp, "must be at most the vocabulary size {}", s.vocab}};
  for (const auto& one : rules)
    if (!one.holds)
      return LayoutViolation{"parallel.tp", fmt::format("{}", tp), fmt::format(fmt::runtime(one.what), one.number)};
  return std::nullopt;
}

Broken of_sequence(const LayoutSizes& s, const Layout& l) {
  if (!l.sequence) return std::nullopt;
  const MeshShape& m = l.mesh;
  if (m.tp == 1) return LayoutViolation{"parallel.sequence", "true", "needs tp > 1; with tp = 1 use false"};
  const int64_t rows = micro_batch_of(s, l) * s.seq_len;
  if (rows % m.cp == 0 && s.seq_len % m.cp == 0 && rows / m.cp % m.tp == 0) return std::nullopt;
  return LayoutViolation{
      "parallel.sequence", "true",
      fmt::format("tp = {} must divide the {} rows of a micro-batch ({} sequences × {} tokens{})", m.tp, rows / m.cp,
                  micro_batch_of(s, l), s.seq_len, m.cp == 1 ? "" : fmt::format(" over cp = {}", m.cp))};
}

Broken of_context(const LayoutSizes& s, const Layout& l) {
  const int cp = l.mesh.cp;
  if (cp == 1) return std::nullopt;
  if (l.context == "ring")
    return rule(s.seq_len >= 2 * cp, "parallel.cp", cp,
                fmt::format("ring attention needs at least 2·cp = {} tokens per sequence; got {}", 2 * cp, s.seq_len));
  if (auto broken = rule(s.seq_len >= cp, "parallel.cp", cp,
                         fmt::format("must be at most the {} tokens of a sequence", s.seq_len)))
    return broken;
  const int64_t heads = s.heads / l.mesh.tp, kv = s.kv_heads / l.mesh.tp;
  if (auto broken = rule(heads % cp == 0, "parallel.cp", cp,
                         fmt::format("ulysses shards whole heads: must divide the {} heads per rank ({} over tp = {}); "
                                     "parallel.context = \"ring\" accepts any",
                                     heads, s.heads, l.mesh.tp)))
    return broken;
  return rule(
      kv % cp == 0 || cp % kv == 0, "parallel.cp", cp,
      fmt::format("ulysses shards whole KV heads: must divide the {} KV heads per rank ({} over tp = {}) or be a "
                  "multiple of them; parallel.context = \"ring\" accepts any",
                  kv, s.kv_heads, l.mesh.tp));
}

// A schedule file defines its own shape, which is checked when the file is read. So these two functions put no limit on
// the shape of a schedule file.
bool supports_chunks(const std::string& schedule) {
  return is_schedule_file_name(schedule) || schedule_row(schedule).chunked;
}
bool goes_round(const std::string& schedule) {
  return !is_schedule_file_name(schedule) && schedule_row(schedule).chunked;
}

Broken of_pipeline(const LayoutSizes& s, const Layout& l) {
  const int64_t pp = l.mesh.pp, v = l.interleave;
  if (pp == 1 && v == 1) return std::nullopt;
  if (pp == 1) return rule(false, "parallel.interleave", v, "needs pp > 1; with pp = 1 use 1");
  if (auto broken =
          rule(v == 1 || supports_chunks(l.schedule), "parallel.interleave", v,
               fmt::format("schedule {} has one chunk per stage; parallel.schedule = \"interleaved\" has several",
                           l.schedule)))
    return broken;
  if (auto broken = rule(s.layers >= pp * v, v > 1 ? "parallel.interleave" : "parallel.pp", v > 1 ? v : pp,
                         fmt::format("every {} needs at least one layer; expected at least {} layers, got {}",
                                     v > 1 ? "chunk" : "stage", pp * v, s.layers)))
    return broken;
  const int64_t num_micro = share_of(s, l) / micro_batch_of(s, l);
  return rule(!goes_round(l.schedule) || num_micro % pp == 0, "train.micro_batch", micro_batch_of(s, l),
              fmt::format("schedule {} needs a multiple of {} micro-batches; got {}. Schedule 1f1b accepts any "
                          "number",
                          l.schedule, pp, num_micro));
}

Broken of_experts(const LayoutSizes& s, const Layout& l) {
  const MeshShape& m = l.mesh;
  if (m.ep == 1) return std::nullopt;
  if (auto broken = rule(s.experts > 0, "parallel.ep", m.ep, "the model has no experts (model.moe.experts)"))
    return broken;
  if (auto broken =
          rule(s.experts % m.ep == 0, "parallel.ep", m.ep, fmt::format("must divide the {} experts", s.experts)))
    return broken;
  return rule(m.replicas() % m.ep == 0, "parallel.ep", m.ep,
              fmt::format("must divide the {} replicas (dp {} × cp {})", m.replicas(), m.dp, m.cp));
}

Broken of_architecture(const LayoutSizes& s, const Layout& l) {
  if (s.arch != "t5") return std::nullopt;
  for (const auto& [key, value] : {std::pair("parallel.pp", l.mesh.pp), std::pair("parallel.cp", l.mesh.cp)})
    if (value != 1) return rule(false, key, value, "an encoder-decoder model (t5) supports only tp and dp. Use 1");
  if (!l.sequence) return std::nullopt;
  return LayoutViolation{"parallel.sequence", "true",
                         "an encoder-decoder model (t5) supports only tp and dp. Use false"};
}

double apart(const Layout& a, const Layout& b) {
  const auto factor = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  return factor(a.mesh.tp, b.mesh.tp) + factor(a.mesh.cp, b.mesh.cp) + factor(a.mesh.dp, b.mesh.dp) +
         factor(a.mesh.pp, b.mesh.pp) + factor(a.mesh.ep, b.mesh.ep) + (a.sequence != b.sequence) +
         (a.context != b.context) + (a.schedule != b.schedule) +
         factor(static_cast<int>(a.interleave), static_cast<int>(b.interleave));
}

// Calls f(mesh) for every mesh with this number of ranks.
template <typename F>
void for_each_mesh(int world, F&& f) {
  for (int tp = 1; tp <= world; ++tp) {
    if (world % tp) continue;
    for (int cp = 1; cp <= world / tp; ++cp) {
      if (world / tp % cp) continue;
      for (int dp = 1; dp <= world / tp / cp; ++dp) {
        if (world / tp / cp % dp) continue;
        for (int ep = 1; ep <= dp * cp; ++ep)
          if (dp * cp % ep == 0) f(MeshShape{tp, cp, dp, world / tp / cp / dp, ep});
      }
    }
  }
}

}  // namespace

std::string Layout::text() const {
  std::string text = fmt::format("dp={}", mesh.dp);
  const struct {
    std::string_view key;
    int64_t value;
  } axes[] = {{"tp", mesh.tp}, {"pp", mesh.pp}, {"cp", mesh.cp}, {"ep", mesh.ep}, {"interleave", interleave}};
  for (const auto& axis : axes)
    if (axis.value > 1) text += fmt::format(" {}={}", axis.key, axis.value);
  if (mesh.pp > 1) text += " schedule=" + schedule;
  if (mesh.cp > 1) text += " context=" + context;
  if (sequence) text += " sequence=true";
  return text;
}

std::optional<LayoutViolation> find_violation(const LayoutSizes& sizes, const Layout& layout) {
  if (!is_schedule_file_name(layout.schedule)) schedule_row(layout.schedule);
  find_row("parallel.context", kContextMethods, layout.context);
  if (auto broken = rule(layout.interleave >= 1, "parallel.interleave", layout.interleave, "must be at least 1"))
    return broken;
  for (auto check : {of_architecture, of_batch, of_tensor, of_context, of_pipeline, of_sequence, of_experts})
    if (auto broken = check(sizes, layout)) return broken;
  return std::nullopt;
}

std::vector<Layout> nearest_layouts(const LayoutSizes& sizes, const Layout& layout, size_t most,
                                    const LayoutFilter& also) {
  std::vector<Layout> found;
  for_each_mesh(layout.mesh.size(), [&](const MeshShape& mesh) {
    for (const bool sequence : {layout.sequence, false})
      for (const std::string& context : {layout.context, std::string("ring")})
        for (const std::string& schedule : {layout.schedule, std::string("1f1b")})
          for (const int64_t interleave : {layout.interleave, int64_t{1}}) {
            Layout one{mesh, sequence, context, schedule, interleave};
            // Without a context axis `context` is unused, so it must not count as a difference. The same holds for
            // `schedule`.
            if (mesh.cp == 1) one.context = layout.context;
            if (mesh.pp == 1) one.schedule = layout.schedule;
            if (std::find(found.begin(), found.end(), one) == found.end() && !find_violation(sizes, one) &&
                (!also || also(one)))
              found.push_back(one);
          }
  });
  std::stable_sort(found.begin(), found.end(),
                   [&](const Layout& a, const Layout& b) { return apart(a, layout) < apart(b, layout); });
  if (found.size() > most) found.resize(most);
  return found;
}

MeshShape mesh_shape(int64_t tp, int64_t cp, int64_t dp, int64_t pp, int64_t ep, int world) {
  const struct {
    std::string_view key;
    int64_t value, least;
  } axes[] = {{"tp", tp, 1}, {"pp", pp, 1}, {"cp", cp, 1}, {"ep", ep, 1}, {"dp", dp, 0}};
  for (const auto& axis : axes)
    if (axis.value < axis.least || axis.value > kMaxAxisRanks)
      throw UsageError(
          fmt::format("parallel.{} = {}: must be from {} to {}", axis.key, axis.value, axis.least, kMaxAxisRanks));
  const int64_t others = tp * cp * pp;
  if (dp == 0 ? world % others != 0 : others * dp != world)
    throw UsageError(fmt::format(
        "[parallel] = dp {} × tp {} × pp {} × cp {}: the sizes multiply to {} ranks; this run has {}{}", dp, tp, pp, cp,
        others * std::max<int64_t>(1, dp), world,
        world % others == 0 ? fmt::format("; use dp = {} or 0 (computed)", world / others)
                            : fmt::format("; use {} or {} ranks, or sizes that divide {}", others, 2 * others, world)));
  return {static_cast<int>(tp), static_cast<int>(cp), static_cast<int>(world / others), static_cast<int>(pp),
          static_cast<int>(ep)};
}

void check_layout(const LayoutSizes& sizes, const Layout& layout, const LayoutFilter& also) {
  const Broken broken = find_violation(sizes, layout);
  if (!broken) return;
  std::vector<std::string> others;
  for (const Layout& one : nearest_layouts(sizes, layout, 3, also)) others.push_back(one.text());
  throw UsageError(fmt::format(
      "{}; {}", broken->text(),
      others.empty() ? fmt::format("no layout of {} ranks works", layout.mesh.size())
                     : fmt::format("layouts of {} ranks that work: {}", layout.mesh.size(), fmt::join(others, " | "))));
}

}  // namespace esp::parallel
