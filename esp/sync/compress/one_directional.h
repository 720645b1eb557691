// One-directional compression: one sender repeatedly sends a compressed vector to its receivers, with error feedback:
//
//   none           C(x)
//   ef             e += x; sends C(e); e keeps the residual
//   ef21           sends C(x − h); h += C(x − h) on both sides: sends the change of x
//                  (in gossip: CHOCO-SGD, Koloskova et al. 2019)
//   doublesqueeze, neolithic:R   as ef, in 1 or R rounds over the residual
//
// Encoded values have a fixed length. One thread; the compressor is borrowed.
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
  bool sends = true;  // false: decodes only, no state
};

class OneDirectionalCompression {
 public:
  explicit OneDirectionalCompression(
      const OneDirectionalSetup& setup);  // UsageError if encoded values have no fixed length

  size_t code_bytes() const { return rounds_ * bytes_; }
  // `who` is the sender; `event` is unique per message. Sender and receivers pass the same values.
  void encode(std::byte* code, const void* x, uint32_t who, uint64_t event);
  // Decodes into y; with adds(), y is the receiver's h and the decoded change is added.
  void decode(void* y, std::span<const std::byte> code, uint32_t who, uint64_t event) const;
  bool adds() const { return estimates_; }
  // Decodes the transmitted values themselves; with ef21, the change.
  void decode_code(void* y, std::span<const std::byte> code, uint32_t who, uint64_t event) const {
    decode_into(y, WriteMode::overwrite, code, who, event);
  }

  const tensor::Tensor& memory() const { return memory_; }  // e or h; undefined without feedback
  std::vector<ExtraState> state() const;

 private:
  void decode_into(void* y, WriteMode first, std::span<const std::byte> code, uint32_t who, uint64_t event) const;
  RandomKey draw(uint32_t who, uint64_t event, size_t round) const {
    return {setup_.seed, event * rounds_ + round, who};
  }

  const OneDirectionalSetup setup_;
  const bool estimates_, plain_;
  const size_t rounds_, bytes_;
  tensor::Tensor memory_, change_;
};

}  // namespace esp::sync
