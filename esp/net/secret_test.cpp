#include "esp/net/secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/net/child_process.h"
#include "esp/net/crypto.h"

namespace esp::net {
namespace {

namespace fs = std::filesystem;

class SecretFiles : public testing::Test {
 protected:
  SecretFiles() {
    std::string pattern = testing::TempDir() + "esp-secret-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~SecretFiles() override { fs::remove_all(directory_); }

  std::string file(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  std::string refusal(const std::string& path) {
    try {
      load_secret(path);
    } catch (const IoError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::string directory_;
};

TEST_F(SecretFiles, AcceptsFileWithOwnerAccessOnly) {
  Secret secret = load_secret(file("good", "0123456789abcdef\n"));
  EXPECT_EQ(secret.bytes(), sha256("0123456789abcdef"));
  EXPECT_EQ(load_secret(file("same", "0123456789abcdef  \r\n", 0400)).bytes(), secret.bytes());
}

TEST_F(SecretFiles, RejectsUnsafeFilesWithReason) {
  std::string good = file("good", "0123456789abcdef");
  EXPECT_NE(refusal(file("open", "0123456789abcdef", 0640)).find("mode 0640, open to other users"), std::string::npos);
  EXPECT_NE(refusal(file("short", "0123456789\n")).find("got 10 bytes"), std::string::npos);
  EXPECT_NE(refusal(file("long", std::string(5000, 'x'))).find("got 4097 bytes"), std::string::npos);
  fs::create_symlink(good, directory_ + "/link");
  EXPECT_NE(refusal(directory_ + "/link").find("symbolic link"), std::string::npos);
  EXPECT_NE(refusal(directory_).find("not a regular file"), std::string::npos);
  std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refusal(pipe).find("not a regular file"), std::string::npos);
  EXPECT_NE(refusal(directory_ + "/none").find("No such file"), std::string::npos);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(good.c_str(), 65534, 65534), 0);
    EXPECT_NE(refusal(good).find("belongs to user 65534"), std::string::npos);
  }
}

TEST_F(SecretFiles, AllProcessesOfUserShareLocalSecret) {
  std::vector<ChildProcess> children;
  for (int i = 0; i < 8; ++i)
    children.emplace_back([&](ChildProcess& parent) { parent.write_line(to_hex(local_secret(directory_).bytes())); });
  std::string mine = to_hex(local_secret(directory_).bytes());
  EXPECT_EQ(mine.size(), 64u);
  for (ChildProcess& child : children) EXPECT_EQ(child.read_line(), mine);
  std::string own = directory_ + "/espalier-" + std::to_string(geteuid());
  struct stat info {};
  ASSERT_EQ(stat(own.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_EQ(std::distance(fs::directory_iterator(own), {}), 1) << "a temporary file was left behind";
}

TEST_F(SecretFiles, RejectsDirectoryOpenToOthers) {
  std::string own = directory_ + "/espalier-" + std::to_string(geteuid());
  fs::create_directory(own);
  chmod(own.c_str(), 0755);
  EXPECT_THROW(local_secret(directory_), IoError);
  fs::remove(own);
  fs::create_directory(directory_ + "/elsewhere");
  fs::create_symlink(directory_ + "/elsewhere", own);
  EXPECT_THROW(local_secret(directory_), IoError);
}

TEST_F(SecretFiles, SkipsNamesTakenByAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root makes files of other users";
  const std::string first = directory_ + "/espalier-0";
  fs::create_directory(first);
  std::ofstream(first + "/secret") << std::string(64, 'a');
  std::ofstream(first + "-1") << "a file";
  fs::create_symlink("/nowhere", first + "-2");
  for (const std::string& name : {first, first + "/secret", first + "-1", first + "-2"})
    ASSERT_EQ(lchown(name.c_str(), 65534, 65534), 0);
  const std::string mine = to_hex(local_secret(directory_).bytes());
  EXPECT_NE(mine, to_hex(sha256(std::string(64, 'a'))));
  EXPECT_TRUE(fs::exists(first + "-3/secret"));
  // The other user removes a directory that occupied a name. Later processes must still use the same directory as
  // earlier ones.
  fs::remove_all(first);
  EXPECT_EQ(to_hex(local_secret(directory_).bytes()), mine);
}

// VmFlags of the mapping that contains the address, from /proc/self/smaps.
std::string memory_flags(const void* address) {
  std::ifstream lines("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      inside = begin <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

TEST(Secret, IsLeftOutOfCoreDumps) {
  const Secret secret = Secret::random(), copy = secret;
  EXPECT_NE(memory_flags(secret.bytes().data()).find(" dd "), std::string::npos);
  EXPECT_EQ(copy.bytes().data(), secret.bytes().data());
  EXPECT_EQ(Secret("").bytes(), "");
}

TEST(Secret, RandomSecretsDiffer) {
  EXPECT_EQ(Secret::random().bytes().size(), 32u);
  EXPECT_NE(Secret::random().bytes(), Secret::random().bytes());
}

}  // namespace
}  // namespace esp::net
