// One-directional compression: one sender repeatedly sends a compressed vector to its receivers and keeps the residual:
//
//   none           C(x)
//   ef             e += x; sends C(e); e keeps the residual
//   ef21           sends C(x − h); h += C(x − h) on both sides: sends the change of x
//                  (in gossip: CHOCO-SGD, Koloskova et al. 2019)
//   doublesqueeze, neolithic:R   as ef, but compresses the residual in 1 or R rounds
//
// Encoded values have a fixed length. All calls come from one thread. The compressor is not owned.
#pragma once

#include "esp/sync/compress/compressor.h"
#include "esp/sync/extra_state.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

struct OneDirectionalSetup {
  const Compressor* compressor = nullptr;
  std::string feedback = "none";
  int64_t count = 0;
  DType dtype = DType::f32;
  uint64_t seed = 0;
  tensor::Context context;
  bool sends = true;  // false: a receiver, which only decodes and keeps no state
};

class OneDirectionalCompression {
 public:
  // throws UsageError if the compressor's encoded length varies
  explicit OneDirectionalCompression(const OneDirectionalSetup& setup);

  size_t encoded_bytes() const { return rounds_ * bytes_; }
  // Encodes x. `sender` is the rank that sends; `event` is unique per message. Sender and receivers must pass the same
  // `sender` and `event`.
  void encode(std::byte* code, const void* x, uint32_t sender, uint64_t event);
  // Decodes into y. If adds() is true, y is the receiver's h, and the decoded change is added to it.
  void decode(void* y, std::span<const std::byte> code, uint32_t sender, uint64_t event) const;
  bool adds() const { return estimates_; }
  // Decodes the transmitted values only, without adding them to h; with ef21 these are the change.
  void decode_code(void* y, std::span<const std::byte> code, uint32_t sender, uint64_t event) const {
    decode_into(y, WriteMode::overwrite, code, sender, event);
  }

  const tensor::Tensor& memory() const { return memory_; }  // e or h of the formulas above; undefined without feedback
  std::vector<ExtraState> state() const;

 private:
  void decode_into(void* y, WriteMode first, std::span<const std::byte> code, uint32_t sender, uint64_t event) const;
  RandomKey draw(uint32_t sender, uint64_t event, size_t round) const {
    return {setup_.seed, event * rounds_ + round, sender};
  }

  const OneDirectionalSetup setup_;
  const bool estimates_, plain_;
  const size_t rounds_, bytes_;
  tensor::Tensor memory_, change_;
};

}  // namespace esp::sync
