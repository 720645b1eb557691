#include "esp/sync/compress/one_directional.h"

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/compress/error_feedback.h"

namespace esp::sync {

OneDirectionalCompression::OneDirectionalCompression(const OneDirectionalSetup& setup)
    : setup_(setup),
      estimates_(find_feedback(setup.feedback).name == "ef21"),
      plain_(find_feedback(setup.feedback).plain),
      rounds_(static_cast<size_t>(rounds_of(setup.feedback))),
      bytes_(setup.compressor->encoded_bytes(setup.count, setup.dtype)) {
  setup.compressor->check(setup.count);
  if (!setup.compressor->fixed_length())
    throw UsageError(
        "compressor: the encoded length varies; expected a fixed length, which the receiver needs. Use a compressor "
        "such as topk.");
  if (!setup.sends || plain_) return;
  const auto made = [&] {
    return tensor::zeros(setup.context, {setup.count}, setup.dtype, device::MemoryCategory::buffer);
  };
  memory_ = made();
  if (estimates_) change_ = made();
}

void OneDirectionalCompression::encode(std::byte* code, const void* x, uint32_t sender, uint64_t event) {
  ESP_CHECK(setup_.sends, "one-directional compression: encode() was called on a receiver, which only decodes");
  const auto& stream = setup_.context.stream;
  const Compressor& compressor = *setup_.compressor;
  const auto put = [&](const void* from, size_t round) {
    compressor.encode(code + round * bytes_, from, setup_.count, setup_.dtype, draw(sender, event, round), stream);
  };
  if (plain_) return put(x, 0);
  if (estimates_) {
    kernel::subtract(change_.data(), x, memory_.data(), setup_.count, setup_.dtype, stream);
    put(change_.data(), 0);
    return compressor.decode(memory_.data(), WriteMode::add, {code, bytes_}, setup_.count, setup_.dtype,
                             draw(sender, event, 0), stream);
  }
  kernel::add_to(memory_.data(), x, setup_.count, setup_.dtype, stream);
  for (size_t round = 0; round < rounds_; ++round) {
    put(memory_.data(), round);
    compressor.decode(memory_.data(), WriteMode::subtract, {code + round * bytes_, bytes_}, setup_.count, setup_.dtype,
                      draw(sender, event, round), stream);
  }
}

void OneDirectionalCompression::decode_into(void* y, WriteMode first, std::span<const std::byte> code, uint32_t sender,
                                            uint64_t event) const {
  require_length(code, encoded_bytes(), setup_.count);
  for (size_t round = 0; round < rounds_; ++round)
    setup_.compressor->decode(y, round == 0 ? first : WriteMode::add, code.subspan(round * bytes_, bytes_),
                              setup_.count, setup_.dtype, draw(sender, event, round), setup_.context.stream);
}

void OneDirectionalCompression::decode(void* y, std::span<const std::byte> code, uint32_t sender,
                                       uint64_t event) const {
  decode_into(y, estimates_ ? WriteMode::add : WriteMode::overwrite, code, sender, event);
}

std::vector<ExtraState> OneDirectionalCompression::state() const {
  if (!memory_.defined()) return {};
  return {{estimates_ ? "estimate" : "error", memory_}};
}

}  // namespace esp::sync
