// How a vector becomes fewer bytes, and what that costs in accuracy.
//
// A compressor turns n values (f32 or f64) into a code and back. Two classes, as data: unbiased ones (E C(x) = x and
// E‖C(x) − x‖² ≤ ω‖x‖²) may be used plainly; contractive ones (E‖C(x) − x‖² ≤ (1 − δ)‖x‖²) want feedback of what they
// left out (feedback.h). The formats and lengths of codes are in docs/compression.md. f64 keeps its precision where a
// code carries values as they are (identity, the sparsifiers) and goes through f32 elsewhere.
//
// Nothing is remembered between calls: what is random is a function of a Draw, so a code can be made again, and ranks
// that share a seed draw alike. Safe from any thread; scratch belongs to the calling thread. A code that no encoder
// makes raises CommError (corrupt), never anything worse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/into.h"

namespace esp::sync {

using kernel::Into;

// Which random numbers are drawn. Every exchange has an event of its own, the same on all ranks.
struct Draw {
  uint64_t seed = 0, event = 0;
  uint32_t who = 0;                                // the rank that encodes
  static constexpr uint32_t kTogether = 0xffffff;  // what every rank does alike
  Draw of_chunk(int k) const { return {seed + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(k + 1), event, who}; }
  uint64_t own() const { return event << 24 | who; }
  uint64_t shared() const { return event << 24 | kTogether; }
};

// What is known for every vector of one length; none: not of that class.
struct Guarantee {
  std::optional<double> omega, delta;
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // UsageError when vectors of this length cannot be compressed so.
  virtual void check(int64_t count) const;
  // Exact, or the most where the length depends on the values.
  virtual size_t code_bytes(int64_t count, DType dtype) const = 0;
  virtual bool fixed_length() const { return true; }
  // The code is an array of this type, and the sum of codes is the code of the sum; none: codes cannot be added.
  virtual std::optional<DType> summable(DType) const { return {}; }
  virtual Guarantee guarantee(int64_t count) const = 0;

  // Returns the bytes written.
  virtual size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const Draw& draw,
                        const device::Stream& stream) const = 0;
  // `draw` as it was encoded with. After an error y holds anything.
  virtual void decode(void* y, Into into, std::span<const std::byte> code, int64_t count, DType dtype, const Draw& draw,
                      const device::Stream& stream) const = 0;
};

// A choice with its options, "topk:0.01". UsageError lists the known names, or says what options there are.
std::unique_ptr<Compressor> make_compressor(std::string_view spec);

struct CompressorRow {
  std::string_view name, options, help;
  std::unique_ptr<Compressor> (*make)(class Arguments& arguments);
};
std::span<const CompressorRow> compressors();

// Those that compute in f32: f64 is rounded on the way in and widened on the way out.
class NarrowCompressor : public Compressor {
 public:
  size_t code_bytes(int64_t count, DType) const final { return bytes_of(count); }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const Draw& draw,
                const device::Stream& stream) const final;
  void decode(void* y, Into into, std::span<const std::byte> code, int64_t count, DType dtype, const Draw& draw,
              const device::Stream& stream) const final;

 protected:
  virtual size_t bytes_of(int64_t count) const = 0;
  virtual void encode_floats(std::byte* code, const float* x, int64_t count, const Draw& draw,
                             const device::Stream& stream) const = 0;
  virtual void decode_floats(float* y, Into into, const std::byte* code, int64_t count,
                             const device::Stream& stream) const = 0;
};

// CommError: «a code of 12 bytes for 5 values: 16 were due».
void require_length(std::span<const std::byte> code, size_t bytes, int64_t count);
[[noreturn]] void damaged(std::string_view what);

}  // namespace esp::sync
