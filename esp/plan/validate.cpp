#include "esp/plan/validate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/plan/normalise.h"

namespace esp::plan {
namespace {

constexpr double kTie =
    0.01;  // measured times that differ by less than this fraction count as a tie and are not ranked
constexpr size_t kSmallestSweep = 3;

double included_bytes(const Memory& m, MemoryKind kind) {
  switch (kind) {
    case MemoryKind::states:
      return m.states();
    case MemoryKind::activations:
      return m.activation;
    case MemoryKind::allocated:
      return m.allocated();
    case MemoryKind::reserved:
      return m.reserved();
    case MemoryKind::total:
      return m.reserved() + m.other;
  }
  return m.reserved() + m.other;
}

// Time of one layer: time of a model with two layers minus that of one layer. So the embedding and the head cancel out.
double layer_time_s(const MeasuredRow& row) {
  const auto stack = [&](int64_t layers) {
    ModelShape shape = row.shape;
    shape.layers = layers;
    shape.dense_layers = std::min(shape.dense_layers, layers - 1);
    Policy policy = row.policy;
    policy.pp = policy.interleave = 1;
    policy.stage_layers.clear();
    return stage_times(shape, row.cluster, policy).at(0);
  };
  const StageTime two = stack(2), one = stack(1);
  const double forward = two.forward - one.forward;
  const double backward = two.backward + two.weights - one.backward - one.weights;
  const std::string words = lower_case(row.notes + " " + row.id);
  const bool only_forward = has(words, "forward") && !has(words, "backward");
  const bool only_backward = has(words, "backward") && !has(words, "forward");
  return only_forward ? forward : only_backward ? backward : forward + backward;
}

std::string sweep_of(const MeasuredRow& row) {
  return fmt::format("{}|{}|{}|{}|{}|{}", row.source, row.model, row.cluster.processor.name, row.policy.world(),
                     row.shape.seq, row.policy.global_batch);
}

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double at = part * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double one : values) sum += one;
  return sum / static_cast<double>(values.size());
}

bool is_timed(const RowResult& r) {
  return r.kind == RowKind::step && r.predicted_s && r.measured_s;
}

void rank_sweeps(const std::vector<const RowResult*>& rows, SourceResult& to) {
  std::map<std::string, std::vector<const RowResult*>> sweeps;
  for (const RowResult* row : rows)
    if (is_timed(*row)) sweeps[row->sweep].push_back(row);
  double agreeing = 0, pairs = 0;
  std::vector<double> regrets;
  for (const auto& [name, members] : sweeps) {
    if (members.size() < kSmallestSweep) continue;
    ++to.sweeps;
    const RowResult *chosen = members[0], *best = members[0];
    for (const RowResult* one : members) {
      if (*one->predicted_s < *chosen->predicted_s) chosen = one;
      if (*one->measured_s < *best->measured_s) best = one;
    }
    regrets.push_back(*chosen->measured_s / *best->measured_s - 1);
    for (size_t i = 0; i < members.size(); ++i)
      for (size_t j = i + 1; j < members.size(); ++j) {
        const double measured = std::log(*members[i]->measured_s / *members[j]->measured_s);
        if (std::abs(measured) < kTie) continue;
        const double predicted = std::log(*members[i]->predicted_s / *members[j]->predicted_s);
        pairs += 1;
        agreeing += predicted == 0 ? 0 : (predicted > 0) == (measured > 0) ? 1 : -1;
      }
  }
  if (pairs > 0) to.tau = agreeing / pairs;
  if (regrets.empty()) return;
  to.regret = mean(regrets);
  to.worst_regret = *std::max_element(regrets.begin(), regrets.end());
}

SourceResult summarise(const std::string& source, const std::vector<const RowResult*>& rows) {
  SourceResult result;
  result.source = source;
  std::vector<double> errors, memory_errors;
  double inside = 0, timed = 0, refused = 0;
  for (const RowResult* row : rows) {
    if (row->kind == RowKind::oom) {
      ++result.oom;
      refused += row->fits ? 0 : 1;
      continue;
    }
    if (!row->fits && row->kind == RowKind::step) ++result.rejected;
    if (const auto memory = row->memory_error()) memory_errors.push_back(std::abs(*memory));
    if (row->fitted_on) continue;
    if (const auto error = row->error()) errors.push_back(std::abs(*error));
    if (is_timed(*row)) {
      timed += 1;
      inside += *row->measured_s >= *row->low_s && *row->measured_s <= *row->high_s ? 1 : 0;
    }
  }
  result.n = static_cast<int>(errors.size());
  if (!errors.empty()) {
    result.mean = mean(errors);
    result.median = quantile(errors, 0.5);
    result.p90 = quantile(errors, 0.9);
    result.worst = quantile(errors, 1);
  }
  if (!memory_errors.empty()) {
    result.memory_mean = mean(memory_errors);
    result.memory_worst = quantile(memory_errors, 1);
  }
  if (timed > 0) result.inside_interval = inside / timed;
  if (result.oom > 0) result.oom_right = refused / result.oom;
  rank_sweeps(rows, result);
  return result;
}

// Fits the source's time factor: the geometric mean of measured / predicted over `count` evenly spread rows. Marks
// these rows with fitted_on.
double fit_scale(std::vector<RowResult*> timed, int count) {
  if (timed.empty() || count <= 0) return 1;
  const auto num_fitted = std::min(static_cast<size_t>(count), timed.size());
  double sum = 0;
  for (size_t i = 0; i < num_fitted; ++i) {
    RowResult& row = *timed[i * timed.size() / num_fitted];
    sum += std::log(*row.measured_s / *row.predicted_s);
    row.fitted_on = num_fitted < timed.size();  // if the fit uses all rows, none is marked, so that all are evaluated
  }
  return std::exp(sum / static_cast<double>(num_fitted));
}

}  // namespace

std::optional<double> RowResult::error() const {
  if (predicted_s && measured_s) return *predicted_s / *measured_s - 1;
  return kind == RowKind::memory ? memory_error() : std::nullopt;
}

std::optional<double> RowResult::memory_error() const {
  if (kind == RowKind::oom || !predicted_gb || !measured_gb) return std::nullopt;
  return *predicted_gb / *measured_gb - 1;
}

RowResult predict(const MeasuredRow& row) {
  RowResult r;
  r.id = row.id;
  r.source = row.source;
  r.kind = row.kind;
  r.sweep = sweep_of(row);
  r.assumed = row.assumed;
  if (row.measured_s > 0) r.measured_s = row.measured_s;
  if (row.measured_gb > 0) r.measured_gb = row.measured_gb;
  if (!row.read_error.empty()) {
    r.reasons.push_back(fmt::format("no prediction: {}", row.read_error));
    return r;
  }
  try {
    const Memory memory = memory_of(row.shape, row.cluster, row.policy);
    r.predicted_gb = included_bytes(memory, row.memory_kind) / row.gb;
    r.fits = memory.total() <= row.cluster.processor.memory_bytes;
    if (row.kind == RowKind::layer_time) {
      r.predicted_s = layer_time_s(row);
      r.low_s = 0.85 * *r.predicted_s;
      r.high_s = 1.15 * *r.predicted_s;
    } else if (row.shape.layers > 0) {
      const Estimate e = estimate(row.shape, row.cluster, row.policy);
      r.fits = e.fits;
      r.reasons = e.reasons;
      r.assumed.insert(r.assumed.end(), e.assumed.begin(), e.assumed.end());
      if (e.step_s > 0 && std::isfinite(e.step_s)) {
        r.predicted_s = e.step_s;
        r.low_s = e.low_s;
        r.high_s = e.high_s;
      }
    }
    if (row.shape.layers == 0 && row.kind == RowKind::step)
      r.reasons.push_back("no prediction: the row has neither model sizes nor a parameter count");
    // This figure comes from a formula, not from a run, so it cannot show whether the policy fits.
    if (row.memory_kind == MemoryKind::states && row.shape.layers == 0) r.fits = true;
  } catch (const Error& error) {
    r.reasons.push_back(fmt::format("no prediction: {}", error.what()));
    r.fits = false;
  }
  return r;
}

Validation validate(const std::vector<MeasuredRow>& rows, int calibrate) {
  Validation all;
  all.rows.reserve(rows.size());
  std::vector<std::string> order;
  std::map<std::string, std::vector<size_t>> by_source;
  for (const MeasuredRow& row : rows) {
    all.rows.push_back(predict(row));
    if (!by_source.contains(row.source)) order.push_back(row.source);
    by_source[row.source].push_back(all.rows.size() - 1);
  }
  for (const std::string& source : order) {
    std::vector<RowResult*> timed;
    std::vector<const RowResult*> members;
    for (const size_t i : by_source[source]) {
      members.push_back(&all.rows[i]);
      if (is_timed(all.rows[i])) timed.push_back(&all.rows[i]);
    }
    const double scale = fit_scale(timed, calibrate);
    for (RowResult* row : timed)
      for (std::optional<double>* time : {&row->predicted_s, &row->low_s, &row->high_s}) **time *= scale;
    all.sources.push_back(summarise(source, members));
    all.sources.back().scale = scale;
  }
  return all;
}

}  // namespace esp::plan
