// Model-parallel implementation of the layer operations (nn/parallel_ops.h): matrices sharded over the tensor axis,
// tokens over the context axis, the stream's rows over the tensor axis (sequence parallel, optional), experts over the
// expert axis. On an axis of size one each is the identity.
//
// All ranks of an axis run the same operations in the same order. One thread; the mesh outlives the regions. Waiting
// time is counted.
#pragma once

#include <memory>

#include "esp/nn/parallel_ops.h"
#include "esp/obs/spans.h"
#include "esp/parallel/mesh.h"

namespace esp::parallel {

struct RegionOptions {
  bool sequence = false;  // sequence parallel: rows of the stream sharded over the tensor axis
  // With `sequence`: keep gathered inputs for the weight gradients instead of gathering them again.
  bool keep_gathered = false;
  std::string context = "ring";  // ring | ulysses
  // Overlap communication with GEMMs: whole gathers, and sums in pieces of at least `piece_bytes`.
  bool overlap = true;
  int64_t piece_bytes = int64_t{1} << 20;
  Duration timeout = std::chrono::minutes(10);
  obs::TraceRow* trace = nullptr;  // waiting is drawn here
};

class ParallelRegions : public nn::ParallelOps {
 public:
  // Local shape of the stream for `batch` sequences of `tokens` local tokens: the tensor passed between pipeline
  // stages.
  virtual tensor::Shape stream_shape(int64_t batch, int64_t tokens, int64_t dim) const = 0;
  virtual double exposed_ms() const = 0;  // waited since reset_times
  virtual void reset_times() = 0;
};
std::unique_ptr<ParallelRegions> make_regions(const Mesh& mesh, const RegionOptions& options);

// The tokens of a sequence of `length` held at these coordinates of the context axis.
nn::TokenMap tokens_held(const MeshShape& shape, const Coordinates& here, const RegionOptions& options, int64_t length,
                         bool causal);

// Gradients that must be summed over the tensor axis (Parameter::partial under sequence parallel): delays `on_ready` of
// their weights until the unit is summed, once per step, in the pass whose gradients are reduced.
class PartialGradients {
 public:
  virtual ~PartialGradients() = default;
  virtual void begin_pass(bool gradients_leave) = 0;
  virtual void end_pass() = 0;
};
// Create after the strategy, which sets on_ready; destroy before it.
std::unique_ptr<PartialGradients> make_partial_gradients(const Mesh& mesh, nn::ParameterList& parameters,
                                                         const tensor::Context& context, Duration timeout);

}  // namespace esp::parallel
