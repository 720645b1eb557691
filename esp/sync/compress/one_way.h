// A vector that one side tells others again and again as a code, with what a feedback makes of it between two:
//
//   none           C(x)
//   ef             e += x; C(e); e keeps the rest
//   ef21           C(x − h); h += it, on both sides: what is told is how x moved (of gossip: CHOCO-SGD, Koloskova et
//   al.
//                  2019)
//   doublesqueeze, neolithic:R   as ef, each telling in 1 or R rounds on what is left
//
// Codes have one length, known to both sides. One thread; the compressor is lent.
#pragma once

#include "esp/sync/compress/compressor.h"
#include "esp/sync/remembered.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

struct OneWaySetup {
  const Compressor* compressor = nullptr;
  std::string feedback = "none";
  int64_t count = 0;
  DType dtype = DType::f32;
  uint64_t seed = 0;
  tensor::Context context;
  bool tells = true;  // false: only decodes, and remembers nothing
};

class OneWay {
 public:
  explicit OneWay(const OneWaySetup& setup);  // UsageError when codes have no fixed length

  size_t code_bytes() const { return rounds_ * bytes_; }
  // `who` tells, and `event` is new every time: both sides name the same.
  void encode(std::byte* code, const void* x, uint32_t who, uint64_t event);
  // What was told to y; with adds(), y is the other side's h, which the code moves.
  void decode(void* y, std::span<const std::byte> code, uint32_t who, uint64_t event) const;
  bool adds() const { return estimates_; }
  // The values told, whatever the feedback: for ef21 the move itself.
  void decode_code(void* y, std::span<const std::byte> code, uint32_t who, uint64_t event) const {
    decode_into(y, Into::overwrite, code, who, event);
  }

  const tensor::Tensor& memory() const { return memory_; }  // e or h; undefined: none
  std::vector<Remembered> state() const;

 private:
  void decode_into(void* y, Into first, std::span<const std::byte> code, uint32_t who, uint64_t event) const;
  Draw draw(uint32_t who, uint64_t event, size_t round) const { return {setup_.seed, event * rounds_ + round, who}; }

  const OneWaySetup setup_;
  const bool estimates_, plain_;
  const size_t rounds_, bytes_;
  tensor::Tensor memory_, change_;
};

}  // namespace esp::sync
