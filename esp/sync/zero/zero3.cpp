// Stage 3: nothing is whole on any rank but the units in the window.
#include <cstring>

#include "esp/sync/norm.h"
#include "esp/sync/wire.h"
#include "esp/sync/zero/cuts.h"
#include "esp/sync/zero/scatter.h"
#include "esp/sync/zero/unit_window.h"
#include "esp/sync/zero/zero.h"

namespace esp::sync {
namespace {

using device::MemoryCategory;
using nn::ParameterList;
using tensor::Tensor;

// One bucket per unit, the last unit first.
std::vector<Bucket> units_as_buckets(ParameterList& parameters) {
  std::vector<Bucket> buckets;
  for (auto unit = parameters.units().rbegin(); unit != parameters.units().rend(); ++unit) {
    Bucket bucket{unit->first, unit->first + unit->count, unit->parameters};
    std::reverse(bucket.parameters.begin(), bucket.parameters.end());
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

class PlainGather final : public UnitGather {
 public:
  PlainGather(Ranks& ranks, const std::vector<Tensor>& shards) : ranks_(ranks), shards_(shards), works_(shards.size()) {}
  void start(size_t unit, const Tensor& whole) override { works_[unit] = ranks_.start_all_gather(shards_[unit], whole); }
  void finish(size_t unit, const Tensor&) override { ranks_.wait(works_[unit], "values"); }

 private:
  Ranks& ranks_;
  const std::vector<Tensor>& shards_;
  std::vector<Work> works_;
};

class Zero3 final : public Strategy {
 public:
  explicit Zero3(const Setup& setup)
      : setup_(setup),
        parameters_(*setup.parameters),
        group_(setup),
        // Gathers have a line of their own: a rank whose gradients come in another order still gathers alike.
        gather_comm_(group_.inside().comm() ? group_.inside().comm()->split(0, group_.inside().rank()) : nullptr),
        gathering_(gather_comm_.get(), {setup.options.deterministic, setup.timeout, setup.trace}),
        scatter_(parameters_, units_as_buckets(parameters_), setup.context, group_,
                 {setup.storage, wire_type(setup.options.wire, setup.storage), setup.options.accumulate == "local"}),
        shards_(make_shards()),
        gather_(gathering_, shards_),
        window_(parameters_, setup.context, gather_,
                {setup.storage, setup.options.prefetch, setup.options.keep_gathered}),
        norm_(parameters_, setup.context, owned(), cuts_between(scatter_.buckets(), group_.inside().size()),
              setup.options.deterministic) {}

  void fill(const std::function<void(ParameterList::Unit&)>& f) override {
    for (size_t unit = 0; unit < parameters_.units().size(); ++unit) {
      ParameterList::Unit& of = parameters_.units()[unit];
      window_.open(unit);
      f(of);
      const comm::Chunk chunk = group_.inside().chunk(of.count);
      std::memcpy(shards_[unit].data(), of.values.as<std::byte>() + chunk.offset * size_of(setup_.storage),
                  shards_[unit].bytes());
      window_.drop(unit);
    }
  }
  std::vector<optim::Owned> owned() override {
    std::vector<optim::Owned> all;
    for (size_t unit = 0; unit < shards_.size(); ++unit) {
      const comm::Chunk chunk = group_.inside().chunk(parameters_.units()[unit].count);
      const auto begin = static_cast<int64_t>(chunk.offset), end = static_cast<int64_t>(chunk.offset + chunk.count);
      if (begin < end)
        all.push_back({{static_cast<int>(unit), begin, end}, shards_[unit], scatter_.shard(bucket_of(unit))});
    }
    return all;
  }
  std::vector<optim::Held> held() override {
    std::vector<optim::Held> all;
    if (group_.first_group())
      for (const optim::Owned& one : owned()) all.push_back({one.range, one.values});
    return all;
  }

  void begin_step() override {
    group_.forget_times();
    gathering_.forget_times();
  }
  void begin_pass(const Pass& pass) override {
    window_.begin_pass(pass.training);
    scatter_.begin_pass(pass);
  }
  void begin_backward() override { window_.begin_backward(); }
  void end_pass() override {
    window_.end_pass();
    scatter_.end_pass();
  }
  void finish() override { scatter_.finish(); }
  double sum_of_squares() override { return norm_.sum(group_.inside()); }
  void after_step() override {}
  StepTimes times() const override { return {group_.exposed_ms() + gathering_.exposed_ms()}; }
  std::vector<Group> groups() const override {
    std::vector<Group> groups = group_.groups();
    if (gather_comm_) groups.push_back({"gather", gather_comm_.get()});
    return groups;
  }

 private:
  size_t bucket_of(size_t unit) const { return parameters_.units().size() - 1 - unit; }

  std::vector<Tensor> make_shards() {
    std::vector<Tensor> shards;
    for (const auto& unit : parameters_.units())
      shards.push_back(tensor::empty(setup_.context, {static_cast<int64_t>(group_.inside().chunk(unit.count).count)},
                                     setup_.storage, MemoryCategory::parameter));
    return shards;
  }

  const Setup setup_;
  ParameterList& parameters_;
  ShardGroup group_;
  const std::unique_ptr<comm::Communicator> gather_comm_;
  Ranks gathering_;
  GradientScatter scatter_;
  const std::vector<Tensor> shards_;  // by unit
  PlainGather gather_;
  UnitWindow window_;
  SquaredNorm norm_;
};

}  // namespace

std::unique_ptr<Strategy> make_zero3(const Setup& setup) {
  return std::make_unique<Zero3>(setup);
}

}  // namespace esp::sync
