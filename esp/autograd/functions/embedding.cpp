#include "esp/autograd/functions/embedding.h"

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/embedding.h"

namespace esp::autograd {
namespace {

using tensor::Tensor;

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(Tensor ids, int y, Weight& table, Weight* positions, int64_t first_position)
      : ids_(std::move(ids)),
        y_(y),
        table_(table),
        positions_(positions),
        first_position_(first_position),
        trained_{&table, positions} {}

  void backward_input(Tape&) override {}
  void backward_weight(Tape& tape) override {
    const Tensor& dy = tape.gradient_of(y_);
    const device::Stream& stream = tape.context().stream;
    if (table_.trained) {
      // Allocates the gradient: before this call, table_.grad has no shape.
      void* into = gradient_to_add_to(&table_, stream);
      kernel::embedding_backward(into, ids_.as<const int32_t>(), dy.data(), dy.rows(), dy.dim(-1), table_.grad.dim(0),
                                 dy.dtype(), stream);
    }
    if (positions_ && positions_->trained)
      kernel::position_backward(gradient_to_add_to(positions_, stream), dy.data(), dy.rows(), dy.dim(-1), ids_.dim(1),
                                first_position_, dy.dtype(), stream);
  }
  std::span<Weight* const> weights() const override { return trained_.span(); }

 private:
  Tensor ids_;
  int y_;
  Weight& table_;
  Weight* positions_;
  int64_t first_position_;
  TrainedWeights trained_;
};

Tensor counting(Tape& tape, int64_t first, int64_t count) {
  Tensor ids = tensor::empty(tape.context(), {count}, DType::i32, device::MemoryCategory::activation);
  kernel::iota(ids.as<int32_t>(), static_cast<int32_t>(first), count, tape.context().stream);
  return ids;
}

// The rows that a lookup reads: the whole table, or (`picked`) only the rows that the ids select, in the order of the
// ids. `rows` is a tensor handle, not a reference: with sharded parameters, gathering the position table of another
// ZeRO unit (for example the decoder) may release the token table.
struct LookupSource {
  Tensor rows;
  bool picked = false;
};
template <typename F>
LookupSource lookup_source(Weight& weight, F&& ids) {
  if (weight.on_rows)
    if (Tensor rows = weight.on_rows(ids()); rows.defined()) return {rows, true};
  return {weight.fetch_value(), false};
}

}  // namespace

Variable embedding(Tape& tape, const Tensor& ids, Weight& table, Weight* positions, int64_t first_position) {
  ESP_CHECK(ids.shape().rank() == 2 && ids.dtype() == DType::i32, "embedding ids: got shape {}; expected i32 [B, T]",
            ids.shape().text());
  const auto [rows, picked] = lookup_source(table, [&] { return ids; });
  const auto [places, places_picked] =
      positions ? lookup_source(*positions, [&] { return counting(tape, first_position, ids.dim(1)); })
                : LookupSource{};
  const int64_t first_place = places_picked ? 0 : first_position;
  ESP_CHECK(!positions || first_place + ids.dim(1) <= places.dim(0),
            "position table: got {} rows; expected rows for positions [{}, {})", places.dim(0), first_position,
            first_position + ids.dim(1));
  const Tensor at = picked ? counting(tape, 0, ids.count()) : ids;
  const int64_t dim = rows.dim(1);
  Variable y =
      tensor::empty(tape.context(), {ids.dim(0), ids.dim(1), dim}, rows.dtype(), device::MemoryCategory::activation);
  kernel::embedding_forward(y.value().data(), at.as<const int32_t>(), rows.data(), places.data(), ids.count(), dim,
                            rows.dim(0), ids.dim(1), first_place, y.dtype(), tape.context().stream);
  if (!tape.must_record({}, {&table, positions})) return y;
  y = tape.output(y.value());
  tape.record<EmbeddingNode>(1, ids, y.slot(), table, positions, first_position);
  return y;
}

}  // namespace esp::autograd
