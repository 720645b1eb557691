// Buckets summed as codes, each rank keeping its chunk: the first phase of a two-phase all-reduce, with this rank's
// errors of the whole bucket. What comes back are values, which travel as they are. In f32 whatever the storage.
#pragma once

#include "esp/sync/buckets.h"
#include "esp/sync/compress/compression.h"
#include "esp/sync/compress/exchange_lane.h"
#include "esp/sync/zero/bucket_scatters.h"

namespace esp::sync {

class CompressedScatter final : public BucketScatter {
 public:
  // `ranks` count the waiting; they and what the setup lends outlive it.
  CompressedScatter(const Setup& setup, const std::vector<Bucket>& buckets, Ranks& ranks);
  void start(size_t bucket, const tensor::Tensor& all) override;
  tensor::Tensor finish(size_t bucket) override;
  std::vector<Remembered> remembered() override { return remembered_of(exchanges_); }
  std::vector<std::string> take_notes() override { return compression_.take_notes(); }
  std::vector<Group> groups() const override;

 private:
  struct Flight {
    tensor::Tensor all, sum;
    Work work;
  };
  Ranks& ranks_;
  const tensor::Context context_;
  Compression compression_;
  tensor::Tensor wide_;  // the bucket under way on the lane, where gradients are stored in another type
  std::vector<Flight> flights_;
  std::vector<std::unique_ptr<Feedback>> exchanges_;  // by bucket
  ExchangeLane lane_;                                 // last: it ends before what it works on
};

// As the options say: plain, or as codes.
std::unique_ptr<BucketScatter> make_bucket_scatter(const Setup& setup, const std::vector<Bucket>& buckets,
                                                   ShardGroup& group, DType wire);

}  // namespace esp::sync
