#include "cli/process_testing.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/check.h"

namespace nibble::testing {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    int ends[2];
    CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    read_end = ends[0];
    write_end = ends[1];
  }
};

[[noreturn]] void exec_nibble(const std::vector<std::string>& arguments,
                              const Pipe& input,
                              const Pipe& output,
                              const Pipe& errors) {
  ::dup2(input.read_end, STDIN_FILENO);
  ::dup2(output.write_end, STDOUT_FILENO);
  ::dup2(errors.write_end, STDERR_FILENO);
  std::vector<char*> argv = {const_cast<char*>(NIBBLE_PROGRAM)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(NIBBLE_PROGRAM, argv.data());
  ::_exit(127);
}

// Appends what is there; false at the end.
bool read_some(int fd, std::string& out) {
  char buffer[65536];
  const ssize_t count = ::read(fd, buffer, sizeof buffer);
  if (count > 0) out.append(buffer, static_cast<size_t>(count));
  return count > 0;
}

}  // namespace

ProcessResult run_nibble(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // the program may end without reading its input
  const Pipe input;
  const Pipe output;
  const Pipe errors;
  const pid_t pid = ::fork();
  CHECK(pid >= 0);
  if (pid == 0) exec_nibble(arguments, input, output, errors);
  ::close(input.read_end);
  ::close(output.write_end);
  ::close(errors.write_end);

  ProcessResult result;
  size_t num_written = 0;
  bool is_signalled = options.signal == 0;
  pollfd fds[] = {{.fd = output.read_end, .events = POLLIN, .revents = 0},
                  {.fd = errors.read_end, .events = POLLIN, .revents = 0},
                  {.fd = input.write_end, .events = POLLOUT, .revents = 0}};
  const auto close_fd = [](pollfd& entry) {
    ::close(entry.fd);
    entry.fd = -1;
  };
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    ::poll(fds, 3, -1);
    if (fds[0].revents != 0 && !read_some(fds[0].fd, result.output)) close_fd(fds[0]);
    if (fds[1].revents != 0 && !read_some(fds[1].fd, result.errors)) close_fd(fds[1]);
    if (fds[2].revents != 0) {
      const ssize_t count = ::write(
          fds[2].fd, options.input.data() + num_written, options.input.size() - num_written);
      num_written += static_cast<size_t>(std::max<ssize_t>(count, 0));
      if (count < 0 || num_written == options.input.size()) close_fd(fds[2]);
    }
    const auto has_cue = [&](const std::string& text) {
      return text.find(options.signal_when) != std::string::npos;
    };
    if (!is_signalled && (has_cue(result.output) || has_cue(result.errors))) {
      ::kill(pid, options.signal);
      is_signalled = true;
    }
  }
  if (fds[2].fd >= 0) close_fd(fds[2]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace nibble::testing
