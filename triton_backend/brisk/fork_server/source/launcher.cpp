// What Triton starts as the stub of an entry of Brisk's: `triton_python_backend_stub` in the
// backend's own folder, which Triton prefers to that of its Python backend.
//
// It asks the fork server of its tritonserver (brisk.fork_server.server) for a process that has Python
// and Brisk in memory already. That process becomes the stub; this one stays, since Triton
// waits for it and kills it, and ends as the stub ends. If no process listens for such requests,
// this process becomes Triton's own stub, which holds the socket for later requests and starts the
// fork server (brisk.fork_server.start). If anything is in doubt, this process becomes Triton's
// own stub, as if it had never been there.
//
// Linked statically, so that it runs with any C library.

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

extern char** environ;

namespace {

// Positions in the command line that Triton gives a stub.
constexpr int kModel = 1, kServer = 5, kPythonBackend = 6, kArguments = 10;

constexpr int kHelloTimeoutMs = 5000;
constexpr size_t kMessageBytes = 64 * 1024;
constexpr char kStub[] = "triton_python_backend_stub";
constexpr int kConnectAttempts = 20, kConnectPauseUs = 1000, kAskAttempts = 3;
constexpr char kListenerVariable[] = "_BRISK_STUB_LISTENER";
constexpr char kOwnVariable[] = "_BRISK_STUB";  // tells server.cpp whose stub it is
constexpr char kUtf8Variable[] = "_BRISK_STUB_UTF8";  // what LD_PRELOAD is without preload.cpp
constexpr char kPreload[] = "brisk_stub_preload.so";
constexpr char kAwayVariable[] = "_BRISK_STUB_AWAY";  // of a server of `brisk serve`
constexpr char kSetting[] = "BRISK_FORK_STUBS";

// FNV-1a: names a fork server by all that its children take over from it.
class Digest {
 public:
  void add(const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
    }
  }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
  void add_identity(const std::string& path, bool with_time) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return add("none");
    add(&status.st_dev, sizeof status.st_dev);
    add(&status.st_ino, sizeof status.st_ino);
    if (with_time) add(&status.st_mtim, sizeof status.st_mtim);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037ull;
};

// Whether the positions above are those of this version of Triton.
bool is_as_known(char** arguments) {
  struct stat own, named;
  const std::string launcher = std::string(arguments[kPythonBackend]) + "/" + kStub;
  return atoi(arguments[kServer]) > 0 && stat("/proc/self/exe", &own) == 0 &&
         stat(launcher.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Environment, working directory, namespaces, files and limits of this process, and its server.
std::string socket_name(char** arguments, const std::string& genuine) {
  Digest digest;
  for (char** entry = environ; *entry != nullptr; ++entry) digest.add(*entry);
  char directory[PATH_MAX];
  digest.add(getcwd(directory, sizeof directory) == nullptr ? "" : directory);
  for (const char* kind : {"cgroup", "ipc", "mnt", "pid", "user"}) {
    digest.add_identity(std::string("/proc/self/ns/") + kind, false);
  }
  for (int kind : {RLIMIT_AS, RLIMIT_CORE, RLIMIT_DATA, RLIMIT_NOFILE, RLIMIT_STACK}) {
    struct rlimit limit = {};
    getrlimit(kind, &limit);
    digest.add(&limit, sizeof limit);
  }
  digest.add_identity(genuine, true);
  const std::string package = parent_of(arguments[0]) + "/brisk";
  digest.add_identity(package, true);
  digest.add_identity(package + "/__init__.py", true);
  char name[80];
  snprintf(name, sizeof name, "brisk-stubs-%u-%s-%016llx", static_cast<unsigned>(geteuid()),
           arguments[kServer], static_cast<unsigned long long>(digest.value()));
  return name;
}

bool is_ascii(const char* text) {
  while (*text > 0) ++text;
  return *text == '\0';
}

// Triton's stub starts a Python that takes names of files for ASCII, whatever the locale says.
void have_utf8(const std::string& folder) {
  const std::string preload = folder + "/" + kPreload;
  const char* others = getenv("LD_PRELOAD");
  const std::string without = others == nullptr ? "" : others;
  setenv(kUtf8Variable, without.c_str(), 1);
  setenv("LD_PRELOAD", (without.empty() ? preload : preload + ":" + without).c_str(), 1);
}

// Becomes Triton's own stub; with a listener it starts the fork server of its name.
[[noreturn]] void become(const std::vector<char*>& arguments, int listener) {
  setenv(kOwnVariable, "1", 1);
  if (listener >= 0) setenv(kListenerVariable, std::to_string(listener).c_str(), 1);
  execv(arguments[0], arguments.data());
  fprintf(stderr, "brisk: Triton's stub %s cannot be run: %s\n", arguments[0], strerror(errno));
  _exit(1);
}

// An abstract name, gone with its owner.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, name.data(), name.size());
  return offsetof(sockaddr_un, sun_path) + 1 + name.size();
}

// A socket of that name that listens, to be inherited; -1 where another process has the name.
int listen_as(const std::string& name) {
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  if (listener < 0) return -1;
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      listen(listener, SOMAXCONN) == 0) {
    return listener;
  }
  close(listener);
  return -1;
}

// Returns a connection to this user's process that listens by that name; -1 if there is none.
int connect_to(const std::string& name) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connection < 0) return -1;
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  ucred peer = {};
  socklen_t peer_size = sizeof peer;
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) == 0 &&
      peer.uid == geteuid()) {
    return connection;
  }
  close(connection);
  return -1;
}

// One of the two, of stubs that start at once exactly one the listener.
struct Place {
  int connection, listener;
};

Place find_place(const std::string& name) {
  for (int attempt = 0; attempt < kConnectAttempts; ++attempt) {
    const int connection = connect_to(name);
    if (connection >= 0) return {connection, -1};
    const int listener = listen_as(name);
    if (listener >= 0) return {-1, listener};
    usleep(kConnectPauseUs);  // another one is between its bind() and its listen()
  }
  return {-1, -1};
}

constexpr pid_t kNobody = 0, kGone = -1;

// Asks for a stub with this command line. Returns its process number, kGone if the process that
// was asked ended meanwhile, kNobody if no stub came.
pid_t ask(int connection, const std::vector<char*>& arguments) {
  std::string message;
  for (size_t i = 0; arguments[i] != nullptr; ++i) message.append(arguments[i]).push_back('\0');
  message.pop_back();
  if (message.size() > kMessageBytes) return kNobody;
  if (send(connection, message.data(), message.size(), MSG_NOSIGNAL) < 0) return kGone;
  pollfd waiting = {connection, POLLIN, 0};
  int32_t stub = 0;
  if (poll(&waiting, 1, kHelloTimeoutMs) != 1) return kNobody;
  return recv(connection, &stub, sizeof stub, 0) == sizeof stub ? stub : kGone;
}

// Tools find stubs by their command lines: this process is none any more.
void rename(char** arguments, int count, pid_t stub) {
  char* begin = arguments[0];
  char* end = arguments[count - 1] + strlen(arguments[count - 1]);
  const std::string name = "brisk: waits for stub " + std::to_string(stub);
  const size_t room = static_cast<size_t>(end - begin);
  memset(begin, 0, room);
  memcpy(begin, name.data(), std::min(room - 1, name.size()));
}

// Ends as the stub has ended.
[[noreturn]] void end_as(int status) {
  if (WIFSIGNALED(status)) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// The stub's wait status as the fork server tells it; where that has died, 1 after the stub's end.
[[noreturn]] void wait_for(int connection, int stub_descriptor) {
  int32_t status = 0;
  ssize_t got;
  do {
    got = recv(connection, &status, sizeof status, 0);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof status) end_as(status);
  pollfd waiting = {stub_descriptor, POLLIN, 0};
  while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  _exit(1);
}

}  // namespace

int main(int count, char** arguments) {
  // Triton first tries whether the file can be run, and expects 1 for the lack of arguments.
  if (count < kArguments) return 1;
  // A stub imports what lies in its working directory before anything else of that name.
  if (getenv(kAwayVariable) != nullptr && arguments[kModel][0] == '/' && chdir("/") != 0) return 1;
  const char* setting = getenv(kSetting);
  const bool is_known = is_as_known(arguments);
  const bool is_off = !is_known || (setting != nullptr && strcmp(setting, "0") == 0);
  const std::string python_backend = parent_of(parent_of(arguments[0])) + "/python";
  const std::string genuine = python_backend + "/" + kStub;
  const std::string socket = is_off ? "" : socket_name(arguments, genuine);
  std::vector<char*> theirs(arguments, arguments + count + 1);
  theirs[0] = const_cast<char*>(genuine.c_str());
  if (!is_ascii(arguments[kModel])) have_utf8(parent_of(arguments[0]));
  if (is_known) theirs[kPythonBackend] = const_cast<char*>(python_backend.c_str());

  int connection = -1;
  pid_t stub = kGone;
  // The one that listens may be a stub that Triton has just ended, behind an auto-completion.
  for (int attempt = 0; stub == kGone && attempt < kAskAttempts; ++attempt) {
    if (connection >= 0) close(connection);
    const Place place = is_off ? Place{-1, -1} : find_place(socket);
    connection = place.connection;
    if (connection < 0) become(theirs, place.listener);
    stub = ask(connection, theirs);
  }
  const int descriptor = stub > 0 ? static_cast<int>(syscall(SYS_pidfd_open, stub, 0)) : -1;
  const char go = 1;
  if (descriptor < 0 || send(connection, &go, 1, MSG_NOSIGNAL) != 1) {
    close(connection);  // which ends a stub that has come too late
    become(theirs, listen_as(socket));  // where the one that listened has gone
  }
  for (int number : {SIGHUP, SIGINT, SIGTERM}) signal(number, SIG_IGN);  // the stub's to decide
  rename(arguments, count, stub);
  wait_for(connection, descriptor);
}
