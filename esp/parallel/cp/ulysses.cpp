#include "esp/parallel/cp/ulysses.h"

#include <array>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"
#include "esp/parallel/cp/strided_rows.h"

namespace esp::parallel {
namespace {

using autograd::Tape;
using autograd::Variable;
using device::MemoryCategory;
using tensor::Tensor;

// A range of columns in a row that contains all heads.
struct ColumnRange {
  int64_t begin = 0, width = 0;
};

// The column ranges of each rank when heads are sharded. The three sections are q, k and v; for o the last two are
// empty.
class HeadSharding {
 public:
  static HeadSharding of_qkv(const autograd::AttentionArgs& o, const ContextGroup& group) {
    const int64_t q = o.heads * o.head_dim, kv = o.kv_heads * o.head_dim;
    return HeadSharding({{{0, q}, {q, kv}, {q + kv, kv}}}, o.head_dim, group);
  }
  static HeadSharding of_o(const autograd::AttentionArgs& o, const ContextGroup& group) {
    return HeadSharding({{{0, o.heads * o.head_dim}, {}, {}}}, o.head_dim, group);
  }

  // All-to-all: local tokens with all columns → all tokens with this rank's columns.
  Tensor to_heads(const Tape& tape, const Tensor& x) const {
    const device::Stream& stream = tape.context().stream;
    const int64_t B = x.dim(0), T = held(group_.rank()).count();
    const Tensor out = tape.scratch({B * T * width_ * group_.size()}, x.dtype());
    std::vector<size_t> send(num_ranks()), receive(num_ranks());
    for (int p = 0; p < group_.size(); ++p) {
      int64_t column = 0;
      for (const ColumnRange& part : columns(p)) {
        copy_rows({out, p * B * T * width_ + column, width_}, {x, part.begin, row_}, B * T, part.width, stream);
        column += part.width;
      }
      send[static_cast<size_t>(p)] = static_cast<size_t>(B * T * width_);
      receive[static_cast<size_t>(p)] = static_cast<size_t>(B * held(p).count() * width_);
    }
    const Tensor y = tensor::empty(tape.context(), {B, group_.length, width_}, x.dtype(), MemoryCategory::activation);
    // With B = 1 the all-to-all delivers the tokens in their final order.
    const Tensor in = B == 1 ? y : tape.scratch(y.shape(), y.dtype());
    PendingCalls(group_).run_all_to_all(out.data(), send, in.data(), receive, x.dtype());
    if (B > 1) each_token_block(in, y, true, stream);
    return y;
  }

  // All-to-all: all tokens with this rank's columns → local tokens with all columns. Replicas of a column are summed.
  void to_tokens(const Tape& tape, const Tensor& y, const Tensor& x) const {
    const device::Stream& stream = tape.context().stream;
    const int64_t B = y.dim(0), T = held(group_.rank()).count();
    const Tensor out = B == 1 ? y : tape.scratch(y.shape(), y.dtype());
    if (B > 1) each_token_block(out, y, false, stream);
    const Tensor in = tape.scratch({group_.size(), B * T, width_}, y.dtype());
    std::vector<size_t> send(num_ranks()), receive(num_ranks());
    for (int p = 0; p < group_.size(); ++p) {
      send[static_cast<size_t>(p)] = static_cast<size_t>(B * held(p).count() * width_);
      receive[static_cast<size_t>(p)] = static_cast<size_t>(B * T * width_);
    }
    PendingCalls(group_).run_all_to_all(out.data(), send, in.data(), receive, y.dtype());
    int64_t column = 0;
    for (size_t s = 0; s < sections_.size(); ++s) {
      for (int p = 0; p < group_.size(); p += replicas_[s]) store_section(tape, x, in, p, s, column, B * T);
      column += columns(0)[s].width;
    }
  }

 private:
  HeadSharding(const std::array<ColumnRange, 3>& sections, int64_t head_dim, const ContextGroup& group)
      : sections_(sections), head_dim_(head_dim), group_(group) {
    for (size_t s = 0; s < sections_.size(); ++s) {
      const int64_t heads = sections_[s].width / head_dim_;
      replicas_[s] = heads > 0 && heads < group.size() ? static_cast<int>(group.size() / heads) : 1;
      row_ += sections_[s].width;
      width_ += columns(0)[s].width;
    }
  }

  size_t num_ranks() const { return static_cast<size_t>(group_.size()); }
  nn::IndexRange held(int rank) const { return nn::Shard{rank, group_.size()}.of(group_.length); }

  std::array<ColumnRange, 3> columns(int rank) const {
    std::array<ColumnRange, 3> all;
    for (size_t s = 0; s < all.size(); ++s) {
      const int64_t holders = group_.size() / replicas_[s];
      const int64_t width = sections_[s].width / holders;
      all[s] = {sections_[s].begin + rank / replicas_[s] * width, width};
    }
    return all;
  }

  // Copies between the layouts [rank][B, tokens of the rank] and [B, all tokens].
  void each_token_block(const Tensor& by_rank, const Tensor& by_token, bool into_tokens,
                        const device::Stream& stream) const {
    const int64_t B = by_token.dim(0);
    int64_t begin = 0;
    for (int p = 0; p < group_.size(); ++p) {
      const nn::IndexRange tokens = held(p);
      const int64_t count = tokens.count() * width_;
      const StridedRows ranks{by_rank, begin, count}, all{by_token, tokens.begin * width_, group_.length * width_};
      copy_rows(into_tokens ? all : ranks, into_tokens ? ranks : all, B, count, stream);
      begin += B * count;
    }
  }

  // Stores section s of the data from rank p, summed with the data of the ranks that hold replicas of its columns.
  void store_section(const Tape& tape, const Tensor& x, const Tensor& in, int p, size_t s, int64_t column,
                     int64_t rows) const {
    const device::Stream& stream = tape.context().stream;
    const ColumnRange to = columns(p)[s];
    if (to.width == 0) return;
    auto from = [&](int rank) { return StridedRows{in, rank * rows * width_ + column, width_}; };
    if (replicas_[s] == 1) return copy_rows({x, to.begin, row_}, from(p), rows, to.width, stream);
    const DType type = tensor::accumulation_type(x.dtype());
    const Tensor sum = tape.scratch({rows, to.width}, type), one = tape.scratch({rows, to.width}, type);
    copy_rows({sum, 0, to.width}, from(p), rows, to.width, stream);
    for (int replica = 1; replica < replicas_[s]; ++replica) {
      copy_rows({one, 0, to.width}, from(p + replica), rows, to.width, stream);
      kernel::add_to(sum.data(), one.data(), sum.count(), type, stream);
    }
    copy_rows({x, to.begin, row_}, {sum, 0, to.width}, rows, to.width, stream);
  }

  std::array<ColumnRange, 3> sections_;
  std::array<int, 3> replicas_{1, 1, 1};  // number of ranks that hold the same columns, for q, k and v
  int64_t head_dim_, row_ = 0, width_ = 0;
  ContextGroup group_;
};

class ToHeadsNode final : public autograd::Node {
 public:
  ToHeadsNode(const Variable& x, int y, const HeadSharding& division)
      : slot_(x.slot()), shape_(x.shape()), y_(y), division_(division) {}
  void backward_input(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const Tensor dx = tensor::empty(tape.context(), shape_, dy.dtype(), MemoryCategory::activation);
    division_.to_tokens(tape, dy, dx);
    tape.accumulate_gradient(slot_, dx);
  }

 private:
  int slot_;
  tensor::Shape shape_;
  int y_;
  HeadSharding division_;
};

class ToTokensNode final : public autograd::Node {
 public:
  ToTokensNode(const Variable& x, int y, const HeadSharding& division) : slot_(x.slot()), y_(y), division_(division) {}
  void backward_input(Tape& tape) override {
    tape.accumulate_gradient(slot_, division_.to_heads(tape, tape.gradient_of(y_)));
  }

 private:
  int slot_, y_;
  HeadSharding division_;
};

Variable to_heads(Tape& tape, const Variable& x, const HeadSharding& division) {
  Variable y = division.to_heads(tape, x.value());
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<ToHeadsNode>(1, x, y.slot(), division);
  return y;
}

Variable to_tokens(Tape& tape, const Variable& x, const tensor::Shape& shape, const HeadSharding& division) {
  Variable y = tensor::empty(tape.context(), shape, x.dtype(), MemoryCategory::activation);
  division.to_tokens(tape, x.value(), y.value());
  if (!tape.must_record({&x})) return y;
  y = tape.output(y.value());
  tape.record<ToTokensNode>(1, x, y.slot(), division);
  return y;
}

}  // namespace

std::string ulysses_violation(int64_t heads, int64_t kv_heads, int num_ranks) {
  if (heads % num_ranks != 0)
    return fmt::format("got {} heads, {} ranks; expected heads to be a multiple of ranks", heads, num_ranks);
  if (kv_heads % num_ranks != 0 && num_ranks % kv_heads != 0)
    return fmt::format("got {} KV heads, {} ranks; expected one of the two numbers to be divisible by the other",
                       kv_heads, num_ranks);
  return "";
}

Variable ulysses_attention(Tape& tape, const Variable& qkv, const autograd::AttentionArgs& options,
                           const ContextGroup& group) {
  if (group.size() == 1) return autograd::self_attention(tape, qkv, options);
  if (const std::string obstacle = ulysses_violation(options.heads, options.kv_heads, group.size()); !obstacle.empty())
    throw UsageError("parallel.context = \"ulysses\": " + obstacle);
  const int64_t T = group.tokens(group.rank()).count(), B = qkv.value().dim(0);
  ESP_CHECK(group.layout == ContextLayout::contiguous && group.length >= group.size() && qkv.value().dim(1) == T,
            "ulysses attention: got qkv {}, {} tokens, layout {}; expected qkv [B, {} local tokens, …], layout {}",
            qkv.shape().text(), group.length, name_of(group.layout), T, name_of(ContextLayout::contiguous));
  autograd::AttentionArgs own = options;
  own.heads = options.heads / group.size();
  own.kv_heads = std::max<int64_t>(1, options.kv_heads / group.size());
  own.first_head = options.first_head + group.rank() * own.heads;
  own.all_heads = options.all_heads ? options.all_heads : options.heads;
  const Variable whole = to_heads(tape, qkv, HeadSharding::of_qkv(options, group));
  const Variable o = autograd::self_attention(tape, whole, own);
  return to_tokens(tape, o, {B, T, options.heads * options.head_dim}, HeadSharding::of_o(options, group));
}

}  // namespace esp::parallel
