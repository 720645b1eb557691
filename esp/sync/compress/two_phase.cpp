// The two-phase compressed all-reduce (Tang et al. 2021, 1-bit Adam; DoubleSqueeze without a server).
#include "esp/kernel/floating.h"
#include "esp/sync/compress/aggregation.h"
#include "esp/sync/quantised/byte_exchange.h"
#include "esp/sync/quantised/encoding.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class TwoPhase final : public Aggregation {
 public:
  explicit TwoPhase(const AggregationSetup& setup)
      : setup_(setup), compressor_(*setup.compressor), up_(setup.ranks), down_(setup.ranks) {
    const size_t own = bytes_of(rank());
    for (int k = 0; k < size(); ++k) {
      at_.push_back(total_);
      up_.set_send(k, total_, bytes_of(k));
      up_.set_receive(k, static_cast<size_t>(k) * own, own);
      down_.set_send(k, 0, own);
      down_.set_receive(k, total_, bytes_of(k));
      total_ += bytes_of(k);
    }
    encoded_ = staging(setup.context, total_);
    parts_ = staging(setup.context, own * static_cast<size_t>(size()));
  }

  comm::Chunk share() const override { return chunk(rank()); }

  void collect(void* sum, WriteMode into, const void* x, void* own, WriteMode own_into, uint64_t event) override {
    const RandomKey mine = draw(rank(), event);
    for (int k = 0; k < size(); ++k) encode(code(k), x, chunk(k), mine.for_chunk(k));
    if (own)
      for (int k = 0; k < size(); ++k) decode(own, own_into, code(k), chunk(k).offset, k, mine.for_chunk(k));
    run(up_, encoded_, parts_);
    const std::byte* part = parts_.as<std::byte>();
    for (int k = 0; k < size(); ++k, part += bytes_of(rank()))
      decode(sum, k == 0 ? into : WriteMode::add, part, 0, rank(), draw(k, event).for_chunk(rank()));
  }

  void spread(void* whole, WriteMode into, const void* share, void* own, WriteMode own_into, uint64_t event) override {
    const RandomKey mine = draw(rank(), event);
    encode(parts_.as<std::byte>(), share, {0, chunk(rank()).count}, mine);
    if (own) decode(own, own_into, parts_.as<std::byte>(), 0, rank(), mine);
    run(down_, parts_, encoded_);
    for (int k = 0; k < size(); ++k) decode(whole, into, code(k), chunk(k).offset, k, draw(k, event));
  }

 private:
  int rank() const { return setup_.ranks ? setup_.ranks->rank() : 0; }
  int size() const { return setup_.ranks ? setup_.ranks->size() : 1; }
  comm::Chunk chunk(int k) const { return comm::chunk_of(static_cast<size_t>(setup_.count), size(), k); }
  size_t bytes_of(int k) const { return compressor_.encoded_bytes(static_cast<int64_t>(chunk(k).count), setup_.dtype); }
  std::byte* code(int k) const { return encoded_.as<std::byte>() + at_[static_cast<size_t>(k)]; }
  RandomKey draw(int sender, uint64_t event) const { return {setup_.seed, event, static_cast<uint32_t>(sender)}; }
  void encode(std::byte* to, const void* x, const comm::Chunk& from, const RandomKey& draw) const {
    compressor_.encode(to, kernel::at(x, static_cast<int64_t>(from.offset), setup_.dtype),
                       static_cast<int64_t>(from.count), setup_.dtype, draw, setup_.context.stream);
  }
  // Decodes the encoded chunk k at `from` to y[offset …].
  void decode(void* y, WriteMode into, const std::byte* from, size_t offset, int k, const RandomKey& draw) const {
    compressor_.decode(kernel::at(y, static_cast<int64_t>(offset), setup_.dtype), into, {from, bytes_of(k)},
                       static_cast<int64_t>(chunk(k).count), setup_.dtype, draw, setup_.context.stream);
  }

  void run(ByteExchange& exchange, const Tensor& from, const Tensor& to) const {
    if (exchange.is_single_rank()) {
      std::copy_n(from.as<std::byte>(), total_, to.as<std::byte>());
      return;
    }
    exchange.start(from.data(), to.data());
    exchange.wait(Deadline::after(std::chrono::hours(24)));  // in practice the communicator's timeout ends this wait
  }

  const AggregationSetup setup_;
  const Compressor& compressor_;
  std::vector<size_t> at_;  // byte offset of each encoded chunk in encoded_
  size_t total_ = 0;
  Tensor encoded_, parts_;  // encoded_: all chunks of one vector; parts_: one chunk of every rank
  ByteExchange up_, down_;  // last members: end before the buffers they write to
};

}  // namespace

std::unique_ptr<Aggregation> make_two_phase(const AggregationSetup& setup) {
  return std::make_unique<TwoPhase>(setup);
}

}  // namespace esp::sync
