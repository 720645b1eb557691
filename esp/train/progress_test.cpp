#include "esp/train/progress.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/train/run_reporter.h"

namespace esp::train {
namespace {

using testing::HasSubstr;

// A temporary output stream whose text the test can read.
class Stream {
 public:
  Stream() : file_(::open_memstream(&text_, &size_)) {}
  ~Stream() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

StepReport report() {
  StepReport r;
  r.step = 7;
  r.result.loss = 2.5;
  r.result.grad_norm = 1;
  r.result.lr = 1e-3;
  r.result.tokens = 1000;
  r.seconds = 0.5;
  r.flops_per_s = 3e9;
  r.mfu = 0.25;
  r.rank_stats = {3 << 20, 1.5 * (1 << 20), 2.0 * (1 << 20), false};
  return r;
}

TEST(Progress, WritesStepLinesAndNotesToSeparateStreams) {
  Stream out, notes;
  Progress progress({.steps = 10, .num_ranks = 2, .method = "allreduce int8 + ef"}, out.file(), notes.file());
  progress.note("a note");
  progress.step(report(), false);
  EXPECT_EQ(out.text(), "");
  progress.step(report(), true);
  EXPECT_EQ(
      out.text(),
      "step  7/10  loss 2.5000  grad 1.000  lr 1.00e-03  2000 tok/s  3.0 GFLOP/s  mfu 25.0%  mem 3.00 MiB/rank (max)"
      "  sent 1.50 MiB/rank (allreduce int8 + ef)\n");
  EXPECT_EQ(notes.text(), "a note\n");
}

TEST(Progress, WritesLargeNumbersWithFewDigits) {
  Stream out;
  StepReport r = report();
  r.result.loss = 1.25e9;
  r.result.grad_norm = 3e20;
  Progress({.steps = 10, .num_ranks = 1}, out.file(), out.file()).step(r, true);
  EXPECT_THAT(out.text(), HasSubstr("loss 1.250e+09  grad 3.000e+20  lr"));
}

TEST(Progress, LabelsStatisticsOfOneRank) {
  Stream out;
  StepReport r = report();
  r.rank_stats.one_rank = true;
  Progress({.steps = 10, .num_ranks = 2, .method = "zero1"}, out.file(), out.file()).step(r, true);
  EXPECT_THAT(out.text(), HasSubstr("  rank 0: mem 3.00 MiB, sent 1.50 MiB (zero1)\n"));
  Progress({.steps = 10}, out.file(), out.file()).step(report(), true);
  EXPECT_THAT(out.text(), HasSubstr("  mem 3.00 MiB\n"));
}

TEST(Progress, KeepsNotesAboveTheLiveLineOnOneScreen) {
  Stream screen;
  {
    Progress progress({.live = true, .one_screen = true, .columns = 20, .steps = 10}, screen.file(), nullptr);
    progress.step(report(), false);
    progress.note("a note");
  }
  EXPECT_EQ(screen.text(), "step  7/10  loss 2.\r\x1b[Ka note\n");
}

TEST(Progress, StopsStepLinesWithOneWarningWhenStdoutCannotBeWritten) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  std::FILE* const closed = ::fdopen(ends[1], "w");
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  Stream notes;
  {
    Progress progress({.steps = 10}, closed, notes.file());
    progress.step(report(), true);
    progress.step(report(), true);
    progress.note("a note");
  }
  EXPECT_THAT(notes.text(), testing::MatchesRegex("stdout cannot be written .Broken pipe .EPIPE..: [^\n]*\na note\n"));
  EXPECT_EQ(std::ferror(closed), 0);
  EXPECT_EQ(std::fclose(closed), 0);  // fclose succeeds only if no unwritten text is left in the buffer
  ::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace esp::train
