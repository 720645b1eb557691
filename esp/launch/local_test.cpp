#include "esp/launch/local.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/launch/secret.h"
#include "esp/net/secret.h"
#include "esp/obs/temporary_folder.h"

namespace esp::launch {
namespace {

using testing::HasSubstr;
using testing::Not;

LocalOptions shell(int num_ranks, const std::string& script) {
  LocalOptions options;
  options.num_ranks = num_ranks;
  options.command = {"/bin/bash", "-c", script};
  options.master_port = 4567;
  return options;
}
Deadline soon() {
  return Deadline::after_ms(20000);
}

bool alive(pid_t pid) {
  return ::kill(pid, 0) == 0;
}
bool gone_by(pid_t pid, Deadline deadline) {
  while (alive(pid) && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

TEST(LocalJob, SetsRankAndWorldSizeOfEachRank) {
  testing::internal::CaptureStdout();
  {
    LocalJob job(shell(3, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT; echo same"));
    ASSERT_TRUE(job.wait(soon()));
    EXPECT_FALSE(job.failure());
  }
  std::string said = testing::internal::GetCapturedStdout();
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(said, HasSubstr(fmt::format("[rank {0}] {0}/3 {0}/3 127.0.0.1:4567\n", rank)));
  EXPECT_THAT(said, HasSubstr("same\n"));
}

TEST(LocalJob, ForwardsPlainRankOutputWithoutPrefix) {
  LocalOptions options =
      shell(2, "[ $RANK = 1 ] || { printf 'step 1\\rstep 2\\n'; echo note >&2; }; [ $RANK = 0 ] || echo other");
  options.plain_rank = 0;
  options.plain_stdout = true;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    LocalJob job(options);
    ASSERT_TRUE(job.wait(soon()));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "note\n");
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              testing::AllOf(HasSubstr("step 1\rstep 2\n"), HasSubstr("[rank 1] other\n"), Not(HasSubstr("[rank 0]"))));
}

TEST(LocalJob, ContinuesWhenStdoutCannotBeWritten) {
  LocalOptions options = shell(1, "for i in 1 2 3; do echo $i; sleep 0.05; done");
  options.plain_rank = 0;
  options.plain_stdout = true;
  testing::internal::CaptureStderr();
  std::fflush(stdout);
  const int kept = ::dup(STDOUT_FILENO);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ::dup2(full, STDOUT_FILENO);
  {
    LocalJob job(options);
    EXPECT_TRUE(job.wait(soon()));
    EXPECT_FALSE(job.failure());
  }
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
  ::close(full);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "stdout cannot be written (No space left on device (ENOSPC)): the ranks continue, their output to stdout "
            "is dropped\n");
}

TEST(LocalJob, RemovesVariablesOfAnotherLauncher) {
  ::setenv("OMPI_COMM_WORLD_RANK", "5", 1);
  testing::internal::CaptureStdout();
  {
    LocalJob job(shell(1, "echo [${OMPI_COMM_WORLD_RANK-clear}]"));
    ASSERT_TRUE(job.wait(soon()));
  }
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("[clear]"));
}

TEST(LocalJob, PassesTheSecretOnlyThroughThePipe) {
  LocalOptions options = shell(2, "cat <&3 >&2; tr '\\0' '\\n' </proc/$$/environ | grep -c correct-horse >&2; exit 9");
  options.secret = net::Secret("correct-horse-battery-staple-123");
  options.output = LocalOptions::Output::stderr_tail;
  LocalJob job(options);
  ASSERT_TRUE(job.wait(soon()));
  ASSERT_TRUE(job.failure());
  EXPECT_EQ(job.failure()->stderr_tail, "correct-horse-battery-staple-1230\n");
}

TEST(LocalJob, ReportsTheFirstFailureAndEndsTheOtherRanks) {
  LocalOptions options = shell(3, "if [ $RANK = 1 ]; then echo out of cheese >&2; exit 7; fi; sleep 1000");
  options.output = LocalOptions::Output::stderr_tail;
  LocalJob job(options);
  ASSERT_TRUE(job.wait(soon()));
  ASSERT_TRUE(job.failure());
  EXPECT_EQ(job.failure()->rank, 1);
  EXPECT_EQ(job.failure()->exit_code, 7);
  EXPECT_EQ(describe(*job.failure()), "rank 1 exited with code 7; its stderr ends with:\nout of cheese");
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(alive(job.pid(rank)));
}

TEST(LocalJob, OmitsForwardedStderrFromDescription) {
  LocalJob job(shell(2, "if [ $RANK = 1 ]; then echo out of cheese >&2; exit 7; fi; sleep 1000"));
  ASSERT_TRUE(job.wait(soon()));
  ASSERT_TRUE(job.failure());
  EXPECT_EQ(job.failure()->stderr_tail, "out of cheese\n");
  EXPECT_EQ(describe(*job.failure()), "rank 1 exited with code 7");
}

TEST(LocalJob, PrintsOnlyTheErrorOfTheFailedRank) {
  const obs::TemporaryFolder folder;  // rank 1 creates a file here when it is ready to be ended
  LocalOptions options = shell(2,
                               "if [ $RANK = 0 ]; then while [ ! -e $READY ]; do sleep 0.01; done;"
                               "echo espalier: no cheese >&2; exit 4; fi;"
                               "trap 'echo hello >&2; echo espalier: rank 0 has left >&2; exit 3' TERM;"
                               "echo > $READY; while true; do sleep 0.01; done");
  options.environment["READY"] = folder.path() + "/ready";
  testing::internal::CaptureStderr();
  {
    LocalJob job(options);
    EXPECT_TRUE(job.wait(soon()));
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, testing::AllOf(HasSubstr("no cheese"), HasSubstr("[rank 1] hello")));
  EXPECT_THAT(told, testing::Not(HasSubstr("has left")));
}

TEST(LocalJob, ReportsTheKilledRankInsteadOfItsPeers) {
  // Rank 0 reports a lost peer and ends. After the launcher has seen this, a signal kills rank 1.
  const std::string folder = testing::TempDir() + "blame-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  LocalOptions options = shell(2, R"sh(
    if [ $RANK = 0 ]; then echo $$ > $FOLDER/draft; mv $FOLDER/draft $FOLDER/pid; exit 3; fi
    until [ -e $FOLDER/pid ]; do sleep 0.01; done
    while [ -e /proc/$(cat $FOLDER/pid) ]; do sleep 0.01; done
    kill -SEGV $$)sh");
  options.environment["FOLDER"] = folder;
  options.output = LocalOptions::Output::stderr_tail;
  options.cause_window = std::chrono::minutes(1);
  LocalJob job(options);
  ASSERT_TRUE(job.wait(soon()));
  ASSERT_TRUE(job.failure());
  EXPECT_EQ(job.failure()->rank, 1);
  EXPECT_EQ(job.failure()->exit_code, 128 + SIGSEGV);
  EXPECT_THAT(job.failure()->reason, HasSubstr("SIGSEGV"));
  std::filesystem::remove_all(folder);
}

TEST(LocalJob, KillsRanksThatIgnoreSigterm) {
  LocalOptions options = shell(2, "trap '' TERM; if [ $RANK = 0 ]; then exit 2; fi; while true; do sleep 1; done");
  options.grace = std::chrono::milliseconds(50);
  options.output = LocalOptions::Output::stderr_tail;
  LocalJob job(options);
  ASSERT_TRUE(job.wait(soon()));
  EXPECT_EQ(job.failure()->exit_code, 2);
}

TEST(LocalJob, DestructorEndsRanksAndTheirChildren) {
  int pipe_ends[2];
  // every descendant inherits the write end, so the read end gets end of file once all have ended
  ASSERT_EQ(::pipe(pipe_ends), 0);
  {
    LocalJob job(shell(2, "sleep 1000 & wait"));
    ::close(pipe_ends[1]);
  }
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  char byte = 0;
  Deadline deadline = soon();
  ssize_t got = -1;
  while ((got = ::read(pipe_ends[0], &byte, 1)) < 0 && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(got, 0);
  ::close(pipe_ends[0]);
}

TEST(LocalJob, RanksEndWhenParentIsKilled) {
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  pid_t parent = ::fork();
  if (parent == 0) {
    LocalOptions options = shell(4, "trap '' TERM; sleep 1000");
    LocalJob job(options);
    for (int rank = 0; rank < 4; ++rank) {
      int pid = job.pid(rank);
      if (::write(report[1], &pid, sizeof pid) < 0) ::_exit(1);
    }
    ::pause();
    ::_exit(0);
  }
  int pids[4];
  for (int& pid : pids) ASSERT_EQ(::read(report[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  for (int pid : pids) EXPECT_TRUE(gone_by(pid, soon())) << pid;
  ::close(report[0]);
  ::close(report[1]);
}

TEST(LocalJob, ReportsAMissingProgram) {
  LocalOptions options;
  options.command = {"/nonexistent/program"};
  options.output = LocalOptions::Output::stderr_tail;
  LocalJob job(options);
  ASSERT_TRUE(job.wait(soon()));
  EXPECT_THAT(describe(*job.failure()), HasSubstr("cannot run /nonexistent/program: No such file"));
}

TEST(Secret, RefusesAFileThatOthersCanRead) {
  std::string path = testing::TempDir() + "/secret-" + std::to_string(::getpid());
  std::ofstream(path) << "0123456789abcdef\n";
  ::chmod(path.c_str(), 0644);
  EXPECT_THROW(read_secret({{"ESPALIER_SECRET_FILE", path}}), IoError);
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(read_secret({{"ESPALIER_SECRET_FILE", path}}).bytes(), net::load_secret(path).bytes());
  ::unlink(path.c_str());
  EXPECT_THROW(read_secret({{"ESPALIER_SECRET_FILE", path}}), IoError);
  EXPECT_TRUE(read_secret({}).bytes().empty());
}

TEST(Secret, ReadsDescriptorOnlyOnce) {
  int fd = secret_pipe(net::Secret("0123456789abcdef"));
  Environment environment{{"ESPALIER_SECRET_FD", std::to_string(fd)}};
  EXPECT_EQ(read_secret(environment).bytes(), "0123456789abcdef");
  EXPECT_THROW(read_secret(environment), UsageError);
  EXPECT_THROW(read_secret({{"ESPALIER_SECRET_FD", "x"}}), UsageError);
}

TEST(SignalName, FormatsSignalNames) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGSEGV), "SIGSEGV");
}

}  // namespace
}  // namespace esp::launch
