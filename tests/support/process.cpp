#include "support/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <stdexcept>

#include "base/file.h"
#include "support/temp_directory.h"

extern char** environ;

namespace halfbyte {

ProcessResult run_halfbyte(const std::vector<std::string>& arguments, const std::string& input,
                           Streams streams) {
  const TempDirectory directory;
  write_text(directory / "in", input);

  std::vector<std::string> words = {HALFBYTE_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int create = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, (directory / "in").c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, (directory / "out").c_str(), create, 0600);
  if (streams == Streams::kTogether)
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
  else
    posix_spawn_file_actions_addopen(&actions, 2, (directory / "err").c_str(), create, 0600);
  pid_t child = 0;
  const int failed = posix_spawn(&child, HALFBYTE_BINARY, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " HALFBYTE_BINARY);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_text(directory / "out"),
          streams == Streams::kApart ? read_text(directory / "err") : ""};
}

}  // namespace halfbyte
