// Loaded into tritonserver by LD_PRELOAD (brisk.fork_server.start.preloaded): two things that its
// Python backend does to stubs, done better. Whatever is not exactly as known here is left to Triton.
//
// 1. Behind each auto-completion the backend sleeps for a second, so that the stub can say that it
//    is well, and then ends it. A stub of Brisk's has nothing left to say by then: the backend goes on
//    as soon as the stub waits for its next command, and kills it. One that still held the lock of
//    the memory that the two share would take the server with it.
// 2. The backend starts stubs by a shell, and quotes nothing: a model or repository whose name has a
//    blank, a quote or another character of the shell's would be no stub, and the load would wait for
//    one for ever (or the name would be run). Such a stub is started without the shell.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include <string>
#include <vector>

namespace {

constexpr char kPreloads[] = "_BRISK_SERVER_LD_PRELOAD";  // what LD_PRELOAD is without this file
constexpr char kServer[] = "/tritonserver";
constexpr char kStub[] = "/triton_python_backend_stub";
constexpr char kCompletes[] = "TRITONBACKEND_ModelInitialize";  // the backend's, from a load
constexpr char kForked[] = "brisk: waits for stub ";  // the command line of a launcher (launcher.cpp)
constexpr char kOwnStub[] = "_BRISK_STUB=";           // in the environment of one that is not forked
constexpr char kSwitches[] = "ctxt_switches:";        // what two lines of a thread's status end their names with
constexpr long kSecondNs = 1000000000, kLookNs = 200000;

thread_local pid_t last_child = 0;

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool is_server() {
  char program[4096];
  const ssize_t size = readlink("/proc/self/exe", program, sizeof program);
  const size_t name = sizeof kServer - 1;
  return size >= static_cast<ssize_t>(name) && memcmp(program + size - name, kServer, name) == 0;
}

// Before main(): neither stubs nor other programs that the server starts are to load this file. A
// program that starts the server hands it on.
__attribute__((constructor)) void restore_environment() {
  const char* preloads = getenv(kPreloads);
  if (preloads == nullptr || !is_server()) return;
  if (*preloads != '\0') {
    setenv("LD_PRELOAD", preloads, 1);
  } else {
    unsetenv("LD_PRELOAD");
  }
  unsetenv(kPreloads);
}

std::string contents(const std::string& path) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char part[4096];
  ssize_t got;
  while ((got = read(file, part, sizeof part)) > 0) text.append(part, static_cast<size_t>(got));
  close(file);
  return text;
}

// The stub of Brisk's that a child of the server is, or waits for; 0 where it is none.
pid_t stub_of_brisk(pid_t process) {
  const std::string place = "/proc/" + std::to_string(process);
  const std::string command = contents(place + "/cmdline");
  if (command.rfind(kForked, 0) == 0) return atoi(command.c_str() + sizeof kForked - 1);
  const std::string environment = '\0' + contents(place + "/environ");
  const bool is_own = environment.find(std::string(1, '\0') + kOwnStub) != std::string::npos;
  return is_own ? process : 0;
}

// How often each thread has given its processor up; empty where one has not now, or one has ended.
std::string sleepers_of(pid_t process) {
  const std::string place = "/proc/" + std::to_string(process) + "/task";
  std::string all;
  DIR* threads = opendir(place.c_str());
  if (threads == nullptr) return all;
  bool sleep = true;
  while (const dirent* thread = sleep ? readdir(threads) : nullptr) {
    if (thread->d_name[0] == '.') continue;
    const std::string status = contents(place + "/" + thread->d_name + "/status");
    sleep = status.find("\nState:\tS") != std::string::npos;
    all += thread->d_name;
    for (size_t at = 0; (at = status.find(kSwitches, at)) != std::string::npos;) {
      at += sizeof kSwitches - 1;
      all += status.substr(at, status.find('\n', at) - at);
    }
  }
  closedir(threads);
  return sleep ? all : "";
}

// Returns once no thread of the stub has run between two looks, so that none is where it holds a lock
// of the memory that it shares with the server; after a second in any case, as the backend would.
void wait_until_quiet(pid_t stub) {
  const timespec pause = {0, kLookNs};
  std::string before;
  for (long waited_ns = 0; waited_ns < kSecondNs; waited_ns += kLookNs) {
    const std::string now = sleepers_of(stub);
    if (!now.empty() && now == before) return;
    before = now;
    nanosleep(&pause, nullptr);
  }
}

_Unwind_Reason_Code look_for_completion(_Unwind_Context* frame, void* found) {
  Dl_info place;
  void* entry = nullptr;
  const uintptr_t at = _Unwind_GetIP(frame);
  if (dladdr1(reinterpret_cast<void*>(at), &place, &entry, RTLD_DL_SYMENT) == 0) return _URC_NO_REASON;
  if (entry == nullptr || place.dli_sname == nullptr) return _URC_NO_REASON;
  const size_t size = static_cast<const ElfW(Sym)*>(entry)->st_size;
  if (strcmp(place.dli_sname, kCompletes) != 0 || at > reinterpret_cast<uintptr_t>(place.dli_saddr) + size) {
    return _URC_NO_REASON;
  }
  *static_cast<bool*>(found) = true;
  return _URC_END_OF_STACK;
}

bool is_completion() {
  bool found = false;
  _Unwind_Backtrace(look_for_completion, &found);
  return found;
}

bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
}

// The words of a stub's command, as Triton means them: `<stub> <model> <region> <2 sizes> <server>
// <folder> <handle> <name> <folder>`, of which model and name may hold anything. None where it is
// another command.
std::vector<std::string> words_of(const std::string& command) {
  constexpr char kExec[] = " exec ";
  const size_t start = sizeof kExec - 1;
  if (command.compare(0, start, kExec) != 0) return {};
  const size_t stub_end = command.find(std::string(kStub) + " ", start);
  if (stub_end == std::string::npos) return {};
  const size_t model = stub_end + sizeof kStub;
  const std::string server = " " + std::to_string(getppid()) + " ";
  size_t at = model;
  while ((at = command.find(server, at + 1)) != std::string::npos) {
    std::vector<std::string> before;  // growth, size, region
    size_t end = at;
    while (before.size() < 3) {
      const size_t space = command.rfind(' ', end - 1);
      if (space == std::string::npos || space <= model) break;
      before.push_back(command.substr(space + 1, end - space - 1));
      end = space;
    }
    if (before.size() < 3 || !is_number(before[0]) || !is_number(before[1])) continue;
    const size_t folder = at + server.size();
    const size_t handle = command.find(' ', folder) + 1;
    const size_t name = command.find(' ', handle) + 1;
    const size_t last = command.rfind(' ') + 1;
    if (handle == 0 || name == 0 || last <= name) continue;
    if (!is_number(command.substr(handle, name - handle - 1))) continue;
    return {command.substr(start, model - 1 - start),
            command.substr(model, end - model),
            before[2],
            before[1],
            before[0],
            std::to_string(getppid()),
            command.substr(folder, handle - folder - 1),
            command.substr(handle, name - handle - 1),
            command.substr(name, last - name - 1),
            command.substr(last)};
  }
  return {};
}

bool is_safe_in_a_shell(const std::string& command) {
  for (const char letter : command) {
    const bool is_plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                          (letter >= '0' && letter <= '9') || strchr(" /._-+=:,@%", letter) != nullptr;
    if (!is_plain) return false;
  }
  return true;
}

}  // namespace

extern "C" {

pid_t fork() {
  const pid_t child = next<pid_t (*)()>("fork")();
  if (child > 0) last_child = child;
  return child;
}

unsigned int sleep(unsigned int seconds) {
  const pid_t stub = seconds == 1 && last_child != 0 ? stub_of_brisk(last_child) : 0;
  if (stub <= 0 || !is_completion()) return next<unsigned int (*)(unsigned int)>("sleep")(seconds);
  wait_until_quiet(stub);
  return 0;
}

// Starts a stub without the shell if its command is unsafe there, or a name with blanks makes more
// words of it than Triton's; any other command goes by the shell.
int execvp(const char* file, char* const arguments[]) {
  if (strcmp(file, "bash") == 0 && arguments[0] != nullptr && arguments[1] != nullptr &&
      strcmp(arguments[1], "-c") == 0 && arguments[2] != nullptr && arguments[3] == nullptr) {
    const std::string command = arguments[2];
    size_t words = 0;
    for (size_t at = 0; at < command.size(); ++at) {
      words += command[at] != ' ' && (at == 0 || command[at - 1] == ' ');
    }
    if (words != 11 || !is_safe_in_a_shell(command)) {
      std::vector<std::string> meant = words_of(command);
      std::vector<char*> pointers;
      for (std::string& word : meant) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      if (!meant.empty()) execv(pointers[0], pointers.data());
    }
  }
  return next<int (*)(const char*, char* const[])>("execvp")(file, arguments);
}
}
