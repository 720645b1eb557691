// Aggregation methods sum and gather, after which every rank holds the whole sum.
#include "esp/base/check.h"
#include "esp/sync/compress/aggregation.h"
#include "esp/sync/quantised/encoding.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class ReplicatedAggregation : public Aggregation {
 public:
  explicit ReplicatedAggregation(const AggregationSetup& setup)
      : setup_(setup),
        compressor_(*setup.compressor),
        most_(compressor_.encoded_bytes(setup.count, setup.dtype)),
        code_(staging(setup.context, most_)) {}

  comm::Chunk share() const override { return {0, static_cast<size_t>(setup_.count)}; }

  void spread(void* whole, WriteMode into, const void* share, void* own, WriteMode own_into, uint64_t event) override {
    const RandomKey draw{setup_.seed, event, RandomKey::kAllRanks};
    const auto code = encoded(share, draw);
    decode(whole, into, code, draw);
    if (own) decode(own, own_into, code, draw);
  }

 protected:
  using Code = std::span<const std::byte>;
  int rank() const { return setup_.ranks ? setup_.ranks->rank() : 0; }
  int size() const { return setup_.ranks ? setup_.ranks->size() : 1; }
  RandomKey draw(int sender, uint64_t event) const { return {setup_.seed, event, static_cast<uint32_t>(sender)}; }
  Code encoded(const void* x, const RandomKey& draw) {
    const size_t bytes =
        compressor_.encode(code_.as<std::byte>(), x, setup_.count, setup_.dtype, draw, setup_.context.stream);
    return {code_.as<std::byte>(), bytes};
  }
  void decode(void* y, WriteMode into, Code code, const RandomKey& draw) const {
    compressor_.decode(y, into, code, setup_.count, setup_.dtype, draw, setup_.context.stream);
  }

  const AggregationSetup setup_;
  const Compressor& compressor_;
  const size_t most_;
  Tensor code_;
};

class SumAggregation final : public ReplicatedAggregation {
 public:
  using ReplicatedAggregation::ReplicatedAggregation;
  void collect(void* sum, WriteMode into, const void* x, void* own, WriteMode own_into, uint64_t event) override {
    const RandomKey mine = draw(rank(), event);
    const Code code = encoded(x, mine);
    if (own) decode(own, own_into, code, mine);
    if (size() > 1) {
      comm::Call call;
      call.op = comm::Op::all_reduce;
      call.in = call.out = code_.data();
      call.dtype = compressor_.summable(setup_.dtype).value();
      call.count = code.size() / size_of(call.dtype);
      if (setup_.ordered) call.algorithm = "direct";
      setup_.ranks->run(call);
    }
    decode(sum, into, code, mine);
  }
};

class GatherAggregation final : public ReplicatedAggregation {
 public:
  explicit GatherAggregation(const AggregationSetup& setup)
      : ReplicatedAggregation(setup),
        all_(size() > 1 ? staging(setup.context, most_ * static_cast<size_t>(size())) : code_) {}

  void collect(void* sum, WriteMode into, const void* x, void* own, WriteMode own_into, uint64_t event) override {
    const RandomKey mine = draw(rank(), event);
    const Code code = encoded(x, mine);
    if (own) decode(own, own_into, code, mine);
    exchange(code.size());
    const std::byte* at = all_.as<std::byte>();
    for (int k = 0; k < size(); ++k) {
      decode(sum, k == 0 ? into : WriteMode::add, {at, lengths_[static_cast<size_t>(k)]}, draw(k, event));
      at += lengths_[static_cast<size_t>(k)];
    }
  }

 private:
  void exchange(size_t bytes) {
    lengths_.assign(static_cast<size_t>(size()), bytes);
    if (size() == 1) return;
    if (compressor_.fixed_length()) return setup_.ranks->all_gather(code_.data(), all_.data(), bytes, DType::u8);
    std::vector<int64_t> lengths(lengths_.size());
    const auto own = static_cast<int64_t>(bytes);
    setup_.ranks->all_gather(&own, lengths.data(), 1, DType::i64);
    std::vector<size_t> to(lengths_.size(), bytes), from(lengths_.size(), 0), at(lengths_.size(), 0);
    for (size_t k = 0, next = 0; k < lengths.size(); ++k) {
      if (lengths[k] < 0 || static_cast<size_t>(lengths[k]) > most_)
        fail_corrupt(fmt::format("rank {} reports a length of {} bytes; expected 0 to {}", k, lengths[k], most_));
      lengths_[k] = static_cast<size_t>(lengths[k]);
      at[k] = next;
      next += lengths_[k];
    }
    comm::Call call;
    call.op = comm::Op::all_to_all_v;
    call.in = code_.data();
    call.out = all_.data();
    call.dtype = DType::u8;
    call.send_counts = to;
    call.send_offsets = from;
    call.recv_counts = lengths_;
    call.recv_offsets = at;
    setup_.ranks->run(call);
  }

  Tensor all_;
  std::vector<size_t> lengths_;
};

}  // namespace

std::unique_ptr<Aggregation> make_whole_sum(AggregationMethod method, const AggregationSetup& setup) {
  if (method == AggregationMethod::sum) return std::make_unique<SumAggregation>(setup);
  return std::make_unique<GatherAggregation>(setup);
}

}  // namespace esp::sync
