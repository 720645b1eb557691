// The verbs of layers (nn/regions.h) for a model that several ranks hold together: matrices divided over the tensor
// axis, tokens over the context axis and, where asked for, the stream's rows over the tensor axis too (sequence
// parallel), experts over theirs. On an axis of size one each is the identity.
//
// Every rank of an axis runs the same verbs in the same order. One thread; the mesh outlives the regions. Waiting for
// others is counted.
#pragma once

#include <memory>

#include "esp/nn/regions.h"
#include "esp/obs/spans.h"
#include "esp/parallel/mesh.h"

namespace esp::parallel {

struct RegionOptions {
  bool sequence = false;  // rows of the stream divided over the tensor axis
  // With `sequence`: what was gathered for a product stays for its weights' gradients, instead of being gathered again.
  bool keep_gathered = false;
  std::string context = "ring";  // ring | ulysses
  // Rows move under the products they serve: whole gathers, and sums in pieces of at least `piece_bytes`.
  bool overlap = true;
  int64_t piece_bytes = int64_t{1} << 20;
  Duration timeout = std::chrono::minutes(10);
  obs::TraceRow* trace = nullptr;  // waiting is drawn here
};

class Regions : public nn::Regions {
 public:
  // The shape of the stream here for `batch` sequences of `tokens` held tokens: what crosses a pipeline's boundary.
  virtual tensor::Shape stream_shape(int64_t batch, int64_t tokens, int64_t dim) const = 0;
  virtual double exposed_ms() const = 0;  // waited since forget_times
  virtual void forget_times() = 0;
};
std::unique_ptr<Regions> make_regions(const Mesh& mesh, const RegionOptions& options);

// The tokens of a sequence of `length` that this place on the context axis holds.
nn::TokenMap tokens_held(const MeshShape& shape, const Coordinates& here, const RegionOptions& options, int64_t length,
                         bool causal);

// Gradients that are sums of parts held along the tensor axis (Parameter::partial under sequence parallel): keeps their
// weights from being ready until the parts of a unit are summed, once per step, in the pass whose gradients leave.
class PartialGradients {
 public:
  virtual ~PartialGradients() = default;
  virtual void begin_pass(bool gradients_leave) = 0;
  virtual void end_pass() = 0;
};
// After the strategy, which set on_ready, is made; before it goes.
std::unique_ptr<PartialGradients> make_partial_gradients(const Mesh& mesh, nn::ParameterList& parameters,
                                                         const tensor::Context& context, Duration timeout);

}  // namespace esp::parallel
