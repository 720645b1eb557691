// Model-parallel implementation of the layer operations (nn/parallel_ops.h). Tensor parallelism shards the matrices
// over the tensor axis (column parallel, row parallel, vocabulary parallel). Sequence parallelism (optional) shards the
// rows of the residual stream over the same axis. Context parallelism shards the tokens over the context axis. Expert
// parallelism shards the experts over the expert axis. An axis of size one needs no communication.
//
// All ranks of an axis run the same operations in the same order. One thread; the mesh must outlive the operations. The
// time spent waiting is counted.
#pragma once

#include <memory>

#include "esp/nn/parallel_ops.h"
#include "esp/obs/spans.h"
#include "esp/parallel/mesh.h"

namespace esp::parallel {

struct ModelParallelOptions {
  bool sequence = false;  // sequence parallelism: shards the rows of the residual stream over the tensor axis
  // With `sequence`: stores gathered inputs for the weight gradients instead of gathering them again.
  bool keep_gathered = false;
  std::string context = "ring";  // ring | ulysses
  // Overlaps communication with GEMMs: all-gathers as a whole, reductions in pieces of at least `piece_bytes`.
  bool overlap = true;
  int64_t piece_bytes = int64_t{1} << 20;
  Duration timeout = std::chrono::minutes(10);
  obs::TraceRow* trace = nullptr;  // receives a span for each wait
};

class ModelParallelOps : public nn::ParallelOps {
 public:
  // Local shape of the stream for `batch` sequences of `tokens` local tokens: the tensor passed between pipeline
  // stages.
  virtual tensor::Shape stream_shape(int64_t batch, int64_t tokens, int64_t dim) const = 0;
  virtual double exposed_ms() const = 0;  // time spent waiting since reset_times
  virtual void reset_times() = 0;
};
std::unique_ptr<ModelParallelOps> make_model_parallel_ops(const Mesh& mesh, const ModelParallelOptions& options);

// Returns the tokens that the rank at coordinates `here` holds, of a sequence of `length` tokens.
nn::TokenMap local_tokens(const MeshShape& shape, const Coordinates& here, const ModelParallelOptions& options,
                          int64_t length, bool causal);

// Sums the gradients that are partial on each rank of the tensor axis (Parameter::partial under sequence parallel).
// `on_ready` of their weights is delayed until the unit is summed. The sum runs once per step, in the pass whose
// gradients are reduced.
class PartialGradients {
 public:
  virtual ~PartialGradients() = default;
  virtual void begin_pass(bool gradients_leave) = 0;
  virtual void end_pass() = 0;
};
// Construct it after the sync strategy, which sets on_ready; destroy it before the strategy.
std::unique_ptr<PartialGradients> make_partial_gradients(const Mesh& mesh, nn::ParameterList& parameters,
                                                         const tensor::Context& context, Duration timeout);

}  // namespace esp::parallel
