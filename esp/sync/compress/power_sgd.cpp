#include "esp/sync/compress/power_sgd.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/orthonormalise.h"
#include "esp/sync/compress/spec_arguments.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr DType kType = DType::f32;

bool worth_it(const MatrixPart& part, int64_t rank) {
  return part.rows > 0 && rank * (part.rows + part.cols) * 2 < part.rows * part.cols;
}

// Covers the whole vector: the matrices worth compressing, in order, and the ranges between them as uncompressed parts
// (rows = 0). Adjacent uncompressed ranges are merged.
std::vector<MatrixPart> covering(int64_t count, std::vector<MatrixPart> parts, int64_t rank) {
  if (rank < 1) throw UsageError(fmt::format("powersgd rank: got {}; expected at least 1 (4 is usual).", rank));
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::vector<MatrixPart> all;
  int64_t at = 0;
  for (const MatrixPart& part : parts) {
    const int64_t end = part.offset + part.rows * part.cols;
    if (part.offset < at || end > count)
      throw UsageError(
          fmt::format("powersgd: matrix of {}×{} at offset {}: overlaps another matrix, or ends after the {} elements "
                      "of the vector",
                      part.rows, part.cols, part.offset, count));
    if (!worth_it(part, rank)) continue;
    if (part.offset > at) all.push_back({at, 0, part.offset - at});
    all.push_back(part);
    at = end;
  }
  if (at < count) all.push_back({at, 0, count - at});
  return all;
}

class PowerSgd final : public Feedback {
 public:
  explicit PowerSgd(const PowerSgdSetup& setup)
      : setup_(setup),
        parts_(covering(setup.count, setup.parts, setup.rank)),
        factor_(setup.factor.value_or(1.0 / (setup.ranks ? setup.ranks->size() : 1))) {
    const auto [first, second] = power_sgd_counts(setup.count, setup.parts, setup.rank);
    error_ = zeros(setup.count);
    p_ = zeros(first);
    q_ = zeros(second);
    own_q_ = zeros(second);
  }

  void exchange(void* out, const void* g) override {
    const auto& stream = setup_.context.stream;
    const int64_t r = setup_.rank;
    kernel::add_to(error_.data(), g, setup_.count, kType, stream);
    prepare_q();
    each([&](const MatrixPart& m, float* p, float* q) {  // first pass: Pᵀ (r×a) = Qᵀ·Mᵀ
      float* e = error_.as<float>() + m.offset;
      if (m.rows == 0) return kernel::write_values(p, WriteMode::overwrite, e, m.cols, kType, stream);
      kernel::GemmOptions options;
      options.transpose_b = true;
      kernel::gemm(p, q, e, r, m.rows, m.cols, options, kType, stream);
    });
    add_up(p_);
    each([&](const MatrixPart& m, float* p, float* q) {  // second pass: Qᵀ (r×b) = Pᵀ·M
      if (m.rows == 0) return;
      kernel::orthonormalise_rows(p, r, m.rows);
      kernel::gemm(q, p, error_.as<float>() + m.offset, r, m.cols, m.rows, {}, kType, stream);
    });
    kernel::write_values(own_q_.data(), WriteMode::overwrite, q_.data(), q_.count(), kType, stream);
    add_up(q_);
    kernel::scale(q_.data(), factor_, q_.count(), kType, stream);
    each([&](const MatrixPart& m, float* p, float* q) { write_result(static_cast<float*>(out) + m.offset, m, p, q); });
    ++events_;
  }

  std::vector<ExtraState> state() override {
    return {{"error", error_}, {"q", q_, true}, {"events", Tensor::borrow(&events_, {1}, DType::f64), true}};
  }

 private:
  // Calls f(part, p, q) for each part: p points to the part's values in p_, q to those in q_. For uncompressed parts q
  // is null.
  template <typename F>
  void each(F f) {
    float *p = p_.as<float>(), *q = q_.as<float>();
    for (const MatrixPart& part : parts_) {
      const bool matrix = part.rows > 0;
      f(part, p, matrix ? q : nullptr);
      p += matrix ? setup_.rank * part.rows : part.cols;
      if (matrix) q += setup_.rank * part.cols;
    }
  }

  // Orthonormalises the rows of Q of the previous step, so that their norms do not grow from step to step. A zero row
  // is replaced by random numbers; in the first step every row is zero.
  void prepare_q() {
    uint64_t matrix = 0;
    each([&](const MatrixPart& m, float*, float* q) {
      if (!q) return;
      ++matrix;
      kernel::orthonormalise_rows(q, setup_.rank, m.cols);
      for (int64_t row = 0; row < setup_.rank; ++row) {
        float* at = q + row * m.cols;
        if (std::any_of(at, at + m.cols, [](float v) { return v != 0; })) continue;
        kernel::fill_normal(at, 0, 1 / std::sqrt(static_cast<double>(m.cols)), setup_.seed,
                            static_cast<uint64_t>(events_) << 24 | matrix, row * m.cols, m.cols, kType,
                            setup_.context.stream);
      }
    });
  }

  void add_up(const Tensor& values) {
    if (!setup_.ranks || setup_.ranks->size() == 1 || values.count() == 0) return;
    comm::Call call;
    call.op = comm::Op::all_reduce;
    call.in = call.out = values.data();
    call.count = static_cast<size_t>(values.count());
    call.dtype = kType;
    if (setup_.ordered) call.algorithm = "direct";
    setup_.ranks->run(call);
  }

  void write_result(float* out, const MatrixPart& m, const float* p, const float* q) {
    const auto& stream = setup_.context.stream;
    float* e = error_.as<float>() + m.offset;
    if (m.rows == 0) {
      kernel::write_values(out, WriteMode::overwrite, p, m.cols, kType, stream);
      kernel::scale(out, factor_, m.cols, kType, stream);
      return kernel::fill(e, 0, m.cols, kType, stream);
    }
    kernel::GemmOptions options;
    options.transpose_a = true;
    kernel::gemm(out, p, q, m.rows, m.cols, setup_.rank, options, kType, stream);
    options.alpha = -1;
    options.beta = 1;
    kernel::gemm(e, p, own_q_.as<float>() + (q - q_.as<float>()), m.rows, m.cols, setup_.rank, options, kType, stream);
  }

  Tensor zeros(int64_t count) const {
    return tensor::zeros(setup_.context, {count}, kType, device::MemoryCategory::buffer);
  }

  const PowerSgdSetup setup_;
  const std::vector<MatrixPart> parts_;
  const double factor_;
  // p_: Pᵀ of every matrix, and the uncompressed parts between them. q_: Qᵀ of every matrix. own_q_: this rank's
  // contribution to q_, before the all-reduce.
  Tensor error_, p_, q_, own_q_;
  double events_ = 0;  // event count; f64 because checkpoints do not support integers
};

}  // namespace

PowerSgdCounts power_sgd_counts(int64_t count, const std::vector<MatrixPart>& parts, int64_t rank) {
  PowerSgdCounts counts;
  for (const MatrixPart& part : covering(count, parts, rank)) {
    counts.first += part.rows > 0 ? rank * part.rows : part.cols;
    counts.second += part.rows > 0 ? rank * part.cols : 0;
  }
  return counts;
}

int64_t power_sgd_rank(std::string_view spec) {
  const std::string_view name = spec.substr(0, spec.find(':'));
  if (name != "powersgd") return 0;
  SpecArguments arguments(name, spec.substr(name.size()), "[:RANK]");
  const int64_t rank = arguments.integer("rank", 4, 1, 4096);
  arguments.finish();
  return rank;
}

std::unique_ptr<Feedback> make_power_sgd(const PowerSgdSetup& setup) {
  return std::make_unique<PowerSgd>(setup);
}

}  // namespace esp::sync
