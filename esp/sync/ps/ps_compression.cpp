#include "esp/sync/ps/ps_compression.h"

namespace esp::sync {
namespace {

constexpr uint32_t kServers = 0x800000;  // `sender` of all sums: larger than any rank

}  // namespace

PsCompression::PsCompression(const Setup& setup, const ServerLayout& layout, int rank)
    : compression_(setup), rank_(rank) {
  const FeedbackRow& row = find_feedback(setup.options.feedback);
  const bool sums = row.two_phase && !row.plain;
  const tensor::Context context{{setup.context.stream.device, nullptr, nullptr}, setup.context.pool};
  size_t pushes = 0, all_sums = 0;
  for (size_t p = 0; p < layout.partitions.size(); ++p) {
    const Partition& partition = layout.partitions[p];
    const StrategyCompression::Vector vector{partition.begin, partition.end, p};
    up_.push_back(compression_.one_directional(vector, context, layout.works(rank)));
    push_at_.push_back(pushes);
    pushes += push_bytes(static_cast<int>(p));
    if (!sums) continue;
    down_.push_back(compression_.one_directional(vector, context, layout.server_at(rank) == partition.server));
    sum_at_.push_back(all_sums);
    all_sums += sum_bytes(static_cast<int>(p));
  }
  const auto made = [&](size_t bytes) {
    return tensor::empty(context, {static_cast<int64_t>(bytes)}, DType::u8, device::MemoryCategory::buffer);
  };
  if (layout.works(rank)) encoded_pushes_ = made(pushes);
  if (sums && layout.works(rank)) encoded_sums_ = made(all_sums);
  if (sums && layout.server_at(rank) >= 0) outgoing_sums_ = made(all_sums);
}

void PsCompression::encode_push(int partition, const void* gradients, int64_t step) {
  up_[at(partition)]->encode(encoded_pushes_.as<std::byte>() + push_at_[at(partition)], gradients,
                             static_cast<uint32_t>(rank_), static_cast<uint64_t>(step));
}

void PsCompression::decode_push(void* y, int partition, int worker, const std::byte* code, int64_t step) const {
  up_[at(partition)]->decode(y, {code, push_bytes(partition)}, static_cast<uint32_t>(worker),
                             static_cast<uint64_t>(step));
}

const std::byte* PsCompression::encode_sum(int partition, const void* sum, int64_t step) {
  std::byte* code = outgoing_sums_.as<std::byte>() + sum_at_[at(partition)];
  down_[at(partition)]->encode(code, sum, kServers, static_cast<uint64_t>(step));
  return code;
}

void PsCompression::decode_sum(void* y, int partition, int64_t step) const {
  down_[at(partition)]->decode(y, {sum_receive_buffer(partition), sum_bytes(partition)}, kServers,
                               static_cast<uint64_t>(step));
}

std::vector<ExtraState> PsCompression::state() {
  std::vector<ExtraState> all;
  for (size_t p = 0; p < up_.size(); ++p) add_numbered(all, "push", p, up_[p]->state());
  // Each server stores the residuals of its own sums.
  for (size_t p = 0; p < down_.size(); ++p)
    for (ExtraState& one : down_[p]->state()) {
      one.whole = one.values.count();
      one.name = "sum." + std::to_string(p) + "." + one.name;
      all.push_back(std::move(one));
    }
  return all;
}

}  // namespace esp::sync
