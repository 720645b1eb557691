// Single-process reference for tests: the algorithms of error_feedback.h as the papers state them, written as loops
// over workers and values. The distributed results must be bit-identical.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/call.h"
#include "esp/sync/compress/aggregation.h"
#include "esp/sync/compress/testing.h"

namespace esp::sync {

template <typename T>
class ReferenceFeedback {
 public:
  using Vector = Values<T>;

  ReferenceFeedback(const Compressor& compressor, AggregationMethod method, int num_workers, size_t count,
                    uint64_t seed, double factor)
      : errors(static_cast<size_t>(num_workers), Vector(count)),
        estimates(errors),
        server_error(count),
        mean_estimate(count),
        compressor_(compressor),
        method_(method),
        seed_(seed),
        factor_(static_cast<T>(factor)) {}

  Vector none(const std::vector<Vector>& g) {
    Vector sum(count());
    const uint64_t event = events_++;
    for (size_t i = 0; i < g.size(); ++i) add(sum, worker_to_server(g[i], event, i), i == 0);
    scale(sum);
    return method_ == AggregationMethod::two_phase ? server_to_worker(sum, events_++) : sum;
  }

  // The result of the first phase (collect) only, with or without feedback.
  Vector scattered(const std::string& feedback, const std::vector<Vector>& g) {
    if (feedback == "ef") return ef(g);
    if (feedback == "ef21") return ef21(g);
    Vector sum(count());
    const uint64_t event = events_++;
    for (size_t i = 0; i < g.size(); ++i) add(sum, worker_to_server(g[i], event, i), i == 0);
    return scaled(sum);
  }

  Vector ef(const std::vector<Vector>& g) {
    const Vector sum = compress_with_error(g, 1);
    return scaled(sum);
  }

  Vector neolithic(const std::vector<Vector>& g, int rounds) {
    add(server_error, scaled(compress_with_error(g, rounds)), false);
    Vector out(count());
    for (int r = 0; r < rounds; ++r) {
      const Vector sent = server_to_worker(server_error, events_++);
      subtract(server_error, sent);
      add(out, sent, r == 0);
    }
    return out;
  }

  Vector ef21(const std::vector<Vector>& g) {
    Vector sum(count());
    const uint64_t event = events_++;
    for (size_t i = 0; i < g.size(); ++i) {
      Vector change = g[i];
      subtract(change, estimates[i]);
      const Vector sent = worker_to_server(change, event, i);
      add(estimates[i], sent, false);
      add(sum, sent, i == 0);
    }
    add(mean_estimate, scaled(sum), false);
    return mean_estimate;
  }

  Vector run(const std::string& feedback, const std::vector<Vector>& g) {
    if (feedback == "none") return none(g);
    if (feedback == "ef") return ef(g);
    if (feedback == "ef21") return ef21(g);
    if (feedback == "doublesqueeze") return neolithic(g, 1);
    return neolithic(g, std::stoi(feedback.substr(feedback.find(':') + 1)));
  }

  std::vector<Vector> errors, estimates;
  Vector server_error, mean_estimate;

 private:
  size_t count() const { return server_error.size(); }

  // Σ over rounds and workers of C(p_i), p_i = e_i + g_i; e_i keeps the residual.
  Vector compress_with_error(const std::vector<Vector>& g, int rounds) {
    Vector sum(count());
    for (size_t i = 0; i < g.size(); ++i) add(errors[i], g[i], false);
    for (int r = 0; r < rounds; ++r) {
      const uint64_t event = events_++;
      for (size_t i = 0; i < g.size(); ++i) {
        const Vector sent = worker_to_server(errors[i], event, i);
        subtract(errors[i], sent);
        add(sum, sent, r == 0 && i == 0);
      }
    }
    return sum;
  }

  Vector worker_to_server(const Vector& x, uint64_t event, size_t worker) const {
    const RandomKey draw{seed_, event, static_cast<uint32_t>(worker)};
    if (method_ != AggregationMethod::two_phase) return compressed(compressor_, x, draw);
    return chunk_by_chunk(x, [&](int k) { return draw.for_chunk(k); });
  }
  Vector server_to_worker(const Vector& q, uint64_t event) const {
    if (method_ != AggregationMethod::two_phase)
      return compressed(compressor_, q, {seed_, event, RandomKey::kAllRanks});
    return chunk_by_chunk(q, [&](int k) { return RandomKey{seed_, event, static_cast<uint32_t>(k)}; });
  }
  template <typename F>
  Vector chunk_by_chunk(const Vector& x, F draw) const {
    Vector all;
    const int size = static_cast<int>(errors.size());
    for (int k = 0; k < size; ++k) {
      const comm::Chunk chunk = comm::chunk_of(x.size(), size, k);
      const auto at = x.begin() + static_cast<std::ptrdiff_t>(chunk.offset);
      const Vector part = compressed(compressor_, Vector(at, at + static_cast<std::ptrdiff_t>(chunk.count)), draw(k));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  static void add(Vector& y, const Vector& x, bool over) {
    for (size_t j = 0; j < y.size(); ++j) y[j] = over ? x[j] : y[j] + x[j];
  }
  static void subtract(Vector& y, const Vector& x) {
    for (size_t j = 0; j < y.size(); ++j) y[j] -= x[j];
  }
  void scale(Vector& x) const {
    for (T& v : x) v *= factor_;
  }
  Vector scaled(Vector x) const {
    scale(x);
    return x;
  }

  const Compressor& compressor_;
  const AggregationMethod method_;
  const uint64_t seed_;
  const T factor_;
  uint64_t events_ = 0;
};

}  // namespace esp::sync
