// Makes Triton's stub a fork server: loaded into it by LD_PRELOAD (brisk.fork_server.start). A stub of
// its own that serves a model whose path is not ASCII is given a locale of UTF-8 (launcher.cpp), which
// the fork server has in any case.
//
// The stub's main() joins a server's shared memory first and starts Python then. Here Python is
// started, and Brisk imported, before main(); main() runs only in the children that
// brisk.fork_server.server forks, each with the command line of its stub, and finds that its call to
// start Python has nothing left to do. In a process without $_BRISK_STUB_FORK_SERVER nothing of
// this happens.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

// Larger than any version's PyConfig, which Python fills in and reads by itself.
struct Configuration {
  alignas(16) char bytes[16384];
};

// As PyStatus, which Python passes by value; all zero is success.
struct Status {
  int type;
  const char* function;
  const char* message;
  int code;
};

constexpr char kIsServer[] = "_BRISK_STUB_FORK_SERVER";
constexpr char kIsIsolated[] = "_BRISK_STUB_ISOLATED";  // Python as the stub's main() starts it
constexpr char kPreloads[] = "_BRISK_STUB_LD_PRELOAD";
constexpr char kUtf8[] = "_BRISK_STUB_UTF8";
constexpr char kLocale[] = "C.UTF-8";
constexpr char kArguments[] = "_BRISK_STUB_ARGUMENTS";
constexpr char kSeparator = '\x1f';

// Returns in children only.
constexpr char kServe[] =
    "import json, os, sys\n"
    "sys.path.insert(0, json.loads(os.environ['_BRISK_STUB_FORK_SERVER'])['backend'])\n"
    "import brisk.stub.preload\n"
    "brisk.stub.preload.serve()\n"
    "del json, os, sys, brisk\n";

Main stub_main;
bool is_python_ahead = false;  // started, but not yet by the stub's main()

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// Programs that the stub starts are not to be fork servers, nor to load this file.
void restore_environment(const char* variable) {
  const char* preloads = getenv(variable);
  if (preloads != nullptr && *preloads != '\0') {
    setenv("LD_PRELOAD", preloads, 1);
  } else {
    unsetenv("LD_PRELOAD");
  }
  unsetenv(variable);
}

std::vector<char*> stub_arguments(char** arguments, int count) {
  static std::string joined = getenv(kArguments);
  unsetenv(kArguments);
  for (char& letter : joined) {
    if (letter == kSeparator) letter = '\0';
  }
  // In the process's own command line where it has room, so that others see it there.
  char* end = arguments[count - 1] + strlen(arguments[count - 1]);
  char* text = joined.data();
  if (arguments[0] + joined.size() < end) {
    memset(arguments[0], 0, static_cast<size_t>(end - arguments[0]));
    text = static_cast<char*>(memcpy(arguments[0], joined.data(), joined.size()));
  }
  std::vector<char*> pointers;
  for (size_t at = 0; at <= joined.size(); at += strlen(text + at) + 1) pointers.push_back(text + at);
  pointers.push_back(nullptr);
  return pointers;
}

int serve_then_main(int count, char** arguments, char**) {
  restore_environment(kPreloads);
  const char* isolated = getenv(kIsIsolated);
  const bool is_isolated = isolated != nullptr && *isolated == '1';
  unsetenv(kIsIsolated);
  const auto configure = next<void (*)(void*)>(is_isolated ? "PyConfig_InitIsolatedConfig"
                                                           : "PyConfig_InitPythonConfig");
  const auto start = next<Status (*)(const void*)>("Py_InitializeFromConfig");
  const auto run = next<int (*)(const char*, void*)>("PyRun_SimpleStringFlags");
  if (configure == nullptr || start == nullptr || run == nullptr || count < 1) _exit(1);
  static Configuration configuration;
  configure(&configuration);
  if (start(&configuration).type != 0 || run(kServe, nullptr) != 0) _exit(1);
  unsetenv(kIsServer);
  is_python_ahead = true;
  static std::vector<char*> theirs = stub_arguments(arguments, count);
  return stub_main(static_cast<int>(theirs.size()) - 1, theirs.data(), environ);
}

}  // namespace

extern "C" {

int __libc_start_main(Main main, int count, char** arguments, void (*init)(), void (*fini)(),
                      void (*rtld_fini)(), void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  if (getenv(kUtf8) != nullptr) {
    setlocale(LC_CTYPE, kLocale);
    restore_environment(kUtf8);
  }
  if (getenv(kIsServer) != nullptr) {
    setlocale(LC_CTYPE, kLocale);
    stub_main = main;
    main = serve_then_main;
  }
  return next<Start>("__libc_start_main")(main, count, arguments, init, fini, rtld_fini, stack_end);
}

int Py_IsInitialized() {
  return is_python_ahead ? 0 : next<int (*)()>("Py_IsInitialized")();
}

Status Py_InitializeFromConfig(const void* configuration) {
  if (is_python_ahead) {
    is_python_ahead = false;
    return Status{};
  }
  return next<Status (*)(const void*)>("Py_InitializeFromConfig")(configuration);
}
}
